"""Contract 5: looking changes nothing; and what is looked at is what one pass over one text alone has."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cutaway.errors import ContextError, InsideError
from cutaway.inside.edits import Add, Edit, Scale, Zero
from cutaway.inside.names import fitting, names
from cutaway.inside.tap import TraceTap
from cutaway.inside.trace import Trace, predict_bytes
from cutaway.language_model import LanguageModel
from cutaway.nn.reference import Reference
from cutaway.nn.tap import IDLE, Tap
from support.tiny import FAMILIES, OURS, distance, random_tokens

Build = Callable[..., LanguageModel]

FIVE, NINE = [3, 14, 15, 9, 26], [5, 35, 8, 9, 7, 9, 3, 2, 38]
ONE = [11]
EVERY = [*OURS, *FAMILIES]
SAME_KERNEL = ["blocks.*.resid_*", "blocks.*.attn.q", "blocks.*.attn.k", "blocks.*.attn.z", "blocks.*.ff.*", "embed"]
EXACT_TWIN = [name for name in OURS if name not in ("dynamic", "longrope")]  # else a cached key stays as it was turned


def differ(a: Tensor, b: Tensor) -> float:
    """As `distance`, for values that may hold −inf in the same places."""
    return distance(a.nan_to_num(neginf=0.0), b.nan_to_num(neginf=0.0)) if a.shape == b.shape else math.inf


@pytest.mark.parametrize("name", EVERY)
def test_looking_changes_nothing(name: str, build: Build) -> None:
    """Contract 5: bit for bit where the same kernel runs, 1e-5 where every stage is asked for."""
    model = build(name)
    for prompt in (random_tokens(1, 20)[0].tolist(), ONE):
        plain = model.logits(prompt)
        assert isinstance(plain, Tensor)
        trace = model.trace(prompt, keep=SAME_KERNEL)
        assert torch.equal(trace.logits, plain)
        assert torch.equal(model.trace(prompt, keep=[]).logits, plain)
        everything = model.trace(prompt)
        assert distance(everything.logits, plain) <= 1e-5
        assert list(everything) == list(names(model.config))
        for key, value in trace.items():
            assert differ(everything[key], value) <= 1e-5, key
        assert torch.equal(model.logits(prompt), plain)


@pytest.mark.parametrize("name", EVERY)
def test_a_pattern_is_never_missing(name: str, build: Build) -> None:
    """I1: asked for on the fast kernel's model, the pattern is there, 1×H×5×5, rows sum to 1, nothing above."""
    model = build(name)
    trace = model.trace(FIVE, keep="blocks.*.attn.pattern")
    for layer in range(model.config.n_layers):
        pattern = trace[f"blocks.{layer}.attn.pattern"]
        assert pattern.shape == (1, model.config.n_heads, 5, 5)
        assert torch.allclose(pattern.sum(-1), torch.ones(1, model.config.n_heads, 5), atol=1e-6)
        assert pattern.triu(1).abs().max() == 0
    assert distance(trace.logits, model.logits(FIVE)) <= 1e-5


def test_only_the_blocks_that_are_named_leave_the_fast_kernel(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("grouped")
    asked: list[int] = []
    attend = Reference.__call__

    def counting(self: Reference, *args: object) -> Tensor:
        asked.append([block.attn.reference for block in model.network.blocks].index(self))  # type: ignore[union-attr]
        return attend(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Reference, "__call__", counting)
    model.trace(FIVE, keep=["blocks.1.attn.pattern[head 5]", "blocks.2.attn.z", "blocks.0.resid_post"])
    assert asked == [1]
    tap = TraceTap(fitting(model.config, "blocks.1.resid_mid", [(5, 5)]), [])
    assert tap.inside("blocks.0") is IDLE  # a block of which nothing is asked runs as if nobody watched
    assert tap.inside("blocks.1") is not IDLE


def test_memory_is_free_as_soon_as_nobody_has_the_trace(build: Build) -> None:
    """A ring of references would keep it until the collector comes, and the next trace would need fresh memory."""
    model = build("grouped")
    gc.disable()
    try:
        trace = model.trace(FIVE, edits=Scale("blocks.1.attn.z[head 0]", 0.5))
        gone = weakref.ref(trace.entries[0].held)
        del trace
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", OURS)
def test_a_ragged_batch_gives_the_traces_of_each_text_alone(name: str, build: Build) -> None:
    """Contract 3 inside: texts of 5, 9 and 1 tokens in one pass, every value cut to its own text."""
    model = build(name)
    texts = [FIVE, NINE, ONE]
    keep = ["*", "embed[position -1]"]
    for text, found in zip(texts, model.trace(texts, keep=keep), strict=True):
        alone = model.trace(text, keep=keep)
        assert found.tokens == text
        assert list(found) == list(alone)
        for key in alone:
            assert differ(found[key], alone[key]) <= 1e-5, key
    picked = model.trace(texts, keep="blocks.*.resid_post[position -1]")
    for text, found in zip(texts, picked, strict=True):
        whole = model.trace(text, keep="blocks.1.resid_post")["blocks.1.resid_post"]
        assert differ(found["blocks.1.resid_post[position -1]"], whole[:, -1:]) <= 1e-5
    assert model.trace([]) == []


@pytest.mark.parametrize("name", OURS)
def test_a_generation_is_traced_step_by_step_as_one_pass_would_be(name: str, build: Build) -> None:
    """Contract 2 inside: the steps joined equal one pass over what was read, ragged and to an early end, too."""
    model = build(name)
    plain = model.generate([FIVE, NINE], max_tokens=8, temperature=0)
    assert isinstance(plain, list)
    end = plain[1].tokens[3]
    model = build(model.network, end=end)
    plain = model.generate([FIVE, NINE], max_tokens=8, temperature=0)
    assert isinstance(plain, list)
    traces = model.trace([FIVE, NINE], generate=8, temperature=0)
    for text, out, found in zip((FIVE, NINE), plain, traces, strict=True):
        assert found.new_tokens == out.tokens
        assert found.tokens == (text + out.tokens)[:-1]
        if name not in EXACT_TWIN:
            continue
        alone = model.trace(found.tokens)
        for key in alone:
            expected, value = alone[key], found[key]
            if key.endswith(("scores", "scaled")):  # keys that came later were never met
                later = torch.ones_like(expected, dtype=torch.bool).triu(1)
                later[..., : len(text), : len(text)] = False
                assert value[later].isnan().all()
                expected, value = expected.masked_fill(later, 0), value.masked_fill(later, 0)
            assert differ(value, expected) <= 1e-5, key
    assert len(plain[1].tokens) < 8


@pytest.mark.parametrize("name", OURS)
def test_tracing_a_generation_changes_no_bit_of_it(name: str, build: Build) -> None:
    """The scores that every token was picked from, not traced and traced.

    Where the rotation depends on the length, the text is read again and the last reading stands.
    """
    model = build(name)
    plain = model.generate(FIVE, max_tokens=8, seed=3, logprobs=1)
    traced = model.trace(FIVE, keep="blocks.1.resid_post", generate=8, seed=3)
    assert not isinstance(plain, list)
    assert isinstance(traced, Trace)
    assert traced.new_tokens == plain.tokens
    assert plain.logprobs is not None
    picked = list(zip(plain.logprobs, traced.logits[4:], plain.tokens, strict=True))
    for (logprob, _), row, token in picked[-1:] if name == "dynamic" else picked:
        assert float(row.double().log_softmax(0)[token]) == logprob


def test_one_step_more_shares_nothing_with_the_cache(build: Build) -> None:
    """Keys kept at a step are copies: what later steps write does not reach them."""
    trace = build("grouped").trace(FIVE, keep="blocks.0.attn.k", generate=4, temperature=0)
    for entry in trace.entries:
        assert isinstance(entry.held, Tensor)
        assert entry.held.untyped_storage().nbytes() == entry.held.numel() * 4
    assert trace["blocks.0.attn.k"].shape == (1, 2, 8, 8)


@pytest.mark.parametrize("keep", ["*", "blocks.*.attn.*[head 0]", "blocks.0.ff.post[neuron 3, 5, position 1:]"])
def test_it_holds_what_was_predicted_and_no_byte_more(keep: str, build: Build) -> None:
    model = build("grouped")
    traces = model.trace([FIVE, NINE], keep=keep)
    predicted = predict_bytes(model.config, [keep, "logits"], [5, 9])
    assert sum(trace.n_bytes for trace in traces) == predicted
    for trace in (*traces, model.trace(FIVE, keep=keep), model.trace(FIVE, keep=keep, generate=3, temperature=0)):
        memory = {
            entry.held.untyped_storage().data_ptr(): entry.held.untyped_storage().nbytes()
            for entry in trace.entries
            if isinstance(entry.held, Tensor)
        }
        assert sum(memory.values()) <= trace.n_bytes  # less where two names are one tensor


@pytest.mark.parametrize("name", ["grouped", "classic"])
def test_queries_and_keys_that_share_memory_are_not_written_over(name: str, build: Build) -> None:
    """Kept together, q_raw, k_raw and v are views of one product; kept alone, copies of their own; the same numbers."""
    model = build(name)
    parts = [f"blocks.*.attn.{part}" for part in ("q_raw", "k_raw", "v", "q", "k")]
    for prompt in (random_tokens(1, 40)[0].tolist(), ONE, [FIVE, NINE]):
        traces = model.trace(prompt, keep=parts)
        for i, together in enumerate(traces if isinstance(traces, list) else [traces]):
            for part in parts:
                alone = model.trace(prompt, keep=part)
                for key, value in (alone[i] if isinstance(alone, list) else alone).items():
                    assert torch.equal(together[key], value), key


def test_beyond_the_limit_it_refuses_before_anything_runs(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """X19: with the number, and what to keep instead."""
    model = build("grouped")
    n = predict_bytes(model.config, ["blocks.*.attn.pattern", "logits"], 5)
    assert model.trace(FIVE, keep="blocks.*.attn.pattern", limit=n).n_bytes == n
    monkeypatch.setattr(model.network, "enter", None)
    with pytest.raises(InsideError, match=rf"would hold {n} bytes .* the limit is {n - 1}: .* or raise limit"):
        model.trace(FIVE, keep="blocks.*.attn.pattern", limit=n - 1)
    with pytest.raises(InsideError, match=r"such as blocks\.0\.attn\.pattern\[head 0\]"):
        model.trace(FIVE * 12, limit=n)
    with pytest.raises(InsideError, match=r"such as blocks\.1\.resid_pre\[position -1\], or raise"):
        model.trace(FIVE, keep="blocks.1.resid_pre", limit=100)  # not fewer logits: all of them are always kept
    with pytest.raises(InsideError, match="all of it logits, which are always kept; give a shorter text"):
        model.trace(FIVE, keep=(), limit=100)
    with pytest.raises(InsideError, match=f"would hold {2 * n} bytes .* with gradients"):
        model.trace(FIVE, keep="blocks.*.attn.pattern", grad=True, limit=n)


def test_parts_can_be_asked_for_and_what_was_not_kept_is_said(build: Build) -> None:
    trace = build("grouped").trace(FIVE, keep=["blocks.1.attn.pattern", "blocks.0.attn.z[head 5]"])
    whole = trace["blocks.1.attn.pattern"]
    assert torch.equal(trace["blocks.1.attn.pattern[head 2, 5, query -1]"], whole[:, [2, 5], 4:])
    assert torch.equal(trace["blocks.1.attn.pattern[key 1:3]"], whole[..., 1:3])
    assert trace["blocks.0.attn.z[ head 5 ]"].shape == (1, 1, 5, 8)
    assert "blocks.0.attn.z" not in trace
    assert trace.get("blocks.0.attn.z") is None
    with pytest.raises(InsideError, match="z was not kept; the trace has"):
        trace["blocks.0.attn.z"]
    with pytest.raises(InsideError, match="head 8 is outside 0 to 7"):
        trace["blocks.1.attn.pattern[head 8]"]
    assert trace.keep == ["blocks.0.attn.z[head 5]", "blocks.1.attn.pattern", "logits"]


def test_plain_data_has_shapes_and_numbers_only_on_request(build: Build) -> None:
    trace = build("grouped").trace(FIVE, keep=["blocks.0.attn.masked", "blocks.0.attn.pattern"])
    data = trace.to_dict()
    assert data["tokens"] == FIVE
    assert data["shapes"]["blocks.0.attn.pattern"] == [1, 8, 5, 5]
    assert data["values"] == {}
    numbers = trace.to_dict(values=["blocks.0.attn.masked"], digits=2)["values"]["blocks.0.attn.masked"]
    assert numbers[0][0][0][1:] == [None] * 4  # masked is said as nothing, never as a number
    assert numbers[0][7][4][2] == float(f"{float(trace['blocks.0.attn.masked'][0, 7, 4, 2]):.2g}")
    tiny = build("grouped").trace(FIVE, keep="embed", edits=Scale("embed", 1e-7))
    small = tiny.to_dict(values=["embed"])["values"]["embed"]
    assert small[0][0][0] == pytest.approx(float(tiny["embed"][0, 0, 0]), rel=1e-3)  # no number is rounded to 0
    assert set(trace.to_dict(values=True)["values"]) == set(trace)
    json.dumps(trace.to_dict(values=True), allow_nan=False)


@pytest.mark.parametrize("name", OURS)
def test_a_gradient_says_how_the_winner_would_move(name: str, build: Build) -> None:
    """Against a difference: the winner's logit after a small step along the gradient of a value, in float64."""
    model = build(name)
    model.network.double()
    keep = ["embed", "blocks.*.attn.norm", "blocks.1.attn.pattern", "blocks.1.resid_mid", "blocks.2.attn.k"]
    trace = model.trace(FIVE, keep=keep, grad=True)
    assert trace.grad is not None
    assert set(trace.grad) == set(trace)
    winner, h = int(trace.logits[-1].argmax()), 2e-3
    assert distance(trace.logits, model.logits(FIVE)) <= 1e-5
    for key, value in trace.items():
        assert trace.grad[key].shape == value.shape
        assert not value.requires_grad
        step = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def moved(by: float, key: str = key, step: Tensor = step) -> float:
            return float(model.trace(FIVE, keep=[], edits=[Add(key, step, times=by)]).logits[-1, winner])

        # of fourth order and not too small a step: softmax is in fp32 in every type
        slope = (8 * (moved(h) - moved(-h)) - moved(2 * h) + moved(-2 * h)) / (12 * h)
        assert slope == pytest.approx(float((trace.grad[key] * step).sum()), rel=1e-4, abs=1e-4), key
    assert all(parameter.grad is None for parameter in model.network.parameters())


def test_gradients_of_a_chosen_logit_or_of_any_number(build: Build) -> None:
    model = build("grouped")
    chosen = model.trace(FIVE, keep=["logits", "embed", "embed[position 2]"], grad=True, of=(2, 7)).grad
    assert chosen is not None
    assert chosen["logits"].nonzero().tolist() == [[0, 2, 7]]
    assert chosen["embed"][0, 3:].abs().max() == 0  # later tokens have no say
    assert chosen["embed[position 2]"].abs().max() > 0
    difference = lambda logits: logits[-1, 7] - logits[-1, 9]  # noqa: E731
    traces = model.trace([FIVE, NINE], keep="embed", grad=True, of=difference)
    for text, trace in zip((FIVE, NINE), traces, strict=True):
        alone = model.trace(text, keep="embed", grad=True, of=difference)
        assert distance(trace.grad["embed"], alone.grad["embed"]) <= 1e-5
    for parameter in model.network.parameters():
        parameter.requires_grad_(False)
    with torch.inference_mode():
        frozen = model.trace(FIVE, keep="blocks.1.resid_post", grad=True)
    assert frozen.grad["blocks.1.resid_post"].abs().max() > 0


@pytest.mark.parametrize("at", ["embed", "blocks.1.ff.post", "blocks.2.attn.z", "final_norm"])
def test_gradients_of_the_loss_are_those_of_autograd(at: str, build: Build) -> None:
    """By hand: the value becomes a leaf of torch's own graph, and the loss is written out as −log p of each token."""
    model = build("grouped")

    class Leaf(Tap):
        scope, value = "", torch.empty(0)

        def inside(self, scope: str) -> Tap:
            self.scope = f"{scope}."
            return self

        def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]
            if name in ("final_norm", "logits"):
                self.scope = ""
            if self.scope + name != at:
                return value
            self.value = value.detach().requires_grad_()
            return self.value

    leaf = Leaf()
    log_p = model.network(torch.tensor([NINE]), tap=leaf)[0].log_softmax(-1)
    loss = -sum(log_p[i, token] for i, token in enumerate(NINE[1:])) / 8
    (expected,) = torch.autograd.grad(loss, leaf.value)
    trace = model.trace([FIVE, NINE], keep=[at], grad=True, of="loss")[1]
    assert distance(trace.grad[at] / expected.abs().max(), expected / expected.abs().max()) <= 1e-5
    assert torch.equal(trace.grad["logits"][0, -1], torch.zeros(67))  # of the last token nothing is known
    with pytest.raises(InsideError, match="a text of 1 token"):
        model.trace(ONE, keep=[at], grad=True, of="loss")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": (5, 0), "grad": True}, r"of = \(5, 0\): the position is from -5 to 4"),
        ({"of": (0, 67), "grad": True}, "the token from 0 to 66"),
        ({"of": lambda logits: logits[0], "grad": True}, "one number"),
        ({"of": lambda logits: torch.zeros(()), "grad": True}, "one number"),
        ({"of": (0, 0)}, "of without grad"),
        ({"of": (0.5, 0), "grad": True}, r"of = \(0.5, 0\): give \(position, token\)"),
        ({"of": (0, 1, 2), "grad": True}, r"of = \(0, 1, 2\): give"),
        ({"of": 3, "grad": True}, "of = 3: give"),
        ({"keep": [3]}, "3 is no name"),
        ({"keep": [None]}, "None is no name"),
        ({"keep": 3}, "3 is no name"),
        ({"keep": (), "edits": Zero(3)}, "3 is no name"),  # type: ignore[arg-type]
        ({"of": "los", "grad": True}, "of = 'los': it must be \"loss\""),
        ({"generate": 2, "grad": True}, "generate = 2 with grad"),
        ({"temperature": 0}, "temperature is an option of generating"),
        ({"keep": "blocks.0.attn.patern"}, "did you mean blocks.0.attn.pattern"),
        ({"keep": "embed[position 5]"}, "position 5 is outside 0 to 4"),
        ({"keep": "embed[position 6]", "generate": 2}, "position 6 is outside 0 to 5"),
    ],
)
def test_what_cannot_be_traced_is_said_in_one_line(options: dict[str, object], message: str, build: Build) -> None:
    with pytest.raises(InsideError, match=message) as caught:
        build("grouped").trace(FIVE, **options)
    assert "\n" not in str(caught.value)


def test_a_text_longer_than_the_context_is_refused_and_a_generation_ends_there(build: Build) -> None:
    model = build("classic")
    with pytest.raises(ContextError, match="65 tokens"):
        model.trace([1] * 65)
    trace = model.trace([1] * 63, keep="embed", generate=9, temperature=0)
    assert len(trace.tokens) == 64
    assert len(trace.new_tokens) == 2
    assert trace["embed"].shape == (1, 64, 32)


def test_a_probe_learns_from_what_was_kept(build: Build) -> None:
    """Kept values are ordinary tensors: they may be multiplied by what has a gradient, and changed."""
    trace = build("llama").trace([3, 14, 15, 9, 26])
    for name in ("blocks.1.resid_post", "blocks.1.attn.v", "blocks.1.ff.pre", "blocks.1.attn.q"):
        value = trace[name]
        probe = torch.ones(value.shape[-1], requires_grad=True)
        (value @ probe).sum().backward()
        assert probe.grad is not None
        assert torch.allclose(probe.grad, value.flatten(0, -2).sum(0), atol=1e-5)
        assert not value.is_inference()
        assert not value._is_view(), "nothing was noted for a gradient"
        value.clone().mul_(2)


class Climbing(Edit):
    """Asks for a gradient inside the pass."""

    def __call__(self, part: Tensor, site: object) -> Tensor:
        with torch.enable_grad():
            x = part.detach().requires_grad_()
            (slope,) = torch.autograd.grad((x * x).sum(), x)
        return slope


def test_an_edit_may_take_gradients_of_its_own(build: Build) -> None:
    model = build("llama")
    plain = model.trace([3, 14, 15], keep="blocks.0.ff.out")["blocks.0.ff.out"]
    edited = model.trace([3, 14, 15], keep="blocks.0.ff.out", edits=[Climbing("blocks.0.ff.out")])["blocks.0.ff.out"]
    assert torch.allclose(edited, 2 * plain)
