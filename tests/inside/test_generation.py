"""Looking into a generation while it runs: the same tokens, the same numbers, with edits in every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cutaway.errors import GenerationError, InsideError
from cutaway.inside import Add, KnockOut, Patch, Scale, Trace, Zero
from cutaway.inside.edits import Edit
from cutaway.language_model import LanguageModel, Output
from support.tiny import OURS, distance

Build = Callable[..., LanguageModel]
FIVE, NINE, ONE = [3, 14, 15, 9, 26], [5, 35, 8, 9, 7, 9, 3, 2, 38], [11]
KEEP = ["blocks.1.resid_post", "blocks.*.attn.pattern", "blocks.0.attn.k"]
STEER: list[Edit] = [
    Add("blocks.0.resid_post", torch.linspace(-1, 1, 32), times=3.0),
    Zero("blocks.1.attn.z[head 1]"),
    KnockOut("blocks.2.attn.masked[head 2, key 1]"),
]


def differ(a: Tensor, b: Tensor) -> float:
    return distance(a.nan_to_num(neginf=0.0), b.nan_to_num(neginf=0.0))


def one(model: LanguageModel, prompt: object = FIVE, **options: object) -> Output:
    out = model.generate(prompt, **{"max_tokens": 8, "temperature": 0, **options})  # type: ignore[arg-type]
    assert isinstance(out, Output)
    return out


@pytest.fixture
def model(build: Build) -> LanguageModel:
    return build("grouped")


@pytest.mark.parametrize("edits", [[], STEER], ids=["plain", "edited"])
@pytest.mark.parametrize("name", OURS)
def test_the_trace_of_an_output_is_the_trace_of_that_generation(name: str, edits: list[Edit], build: Build) -> None:
    """Bit for bit what `trace(generate=n)` gives, and the tokens are those of the text."""
    model = build(name)
    out = one(model, trace=KEEP, edits=edits)
    alone = model.trace(FIVE, keep=KEEP, edits=edits, generate=8, temperature=0)
    assert isinstance(alone, Trace)
    assert out.trace is not None
    assert out.trace.keep == alone.keep
    assert out.trace.new_tokens == out.tokens == alone.new_tokens
    for key in alone:
        assert torch.equal(out.trace[key], alone[key]), key
    if not edits:
        assert out == one(model)  # a trace is no part of what was said
        assert one(model).trace is None


@pytest.mark.parametrize("name", OURS)
def test_without_a_cache_every_pass_is_traced_and_the_last_reading_stands(name: str, build: Build) -> None:
    """Contract 2 inside: re-running everything gives the numbers of the cached steps; here they are one pass's own."""
    model = build(name)
    slow = one(model, trace=KEEP, edits=STEER, cache=False)
    again = model.trace(FIVE, keep=KEEP, edits=STEER, generate=8, temperature=0, cache=False)
    assert slow.trace is not None
    assert isinstance(again, Trace)
    alone = model.trace(slow.trace.tokens, keep=KEEP, edits=STEER)
    assert slow.passes == 8
    for key in again:
        assert torch.equal(slow.trace[key], again[key]), key
        assert differ(slow.trace[key], alone[key]) <= 1e-5, key
    if name not in ("dynamic", "longrope"):
        fast = one(model, trace=KEEP, edits=STEER)
        assert fast.tokens == slow.tokens
        assert fast.trace is not None
        for key in again:
            assert differ(slow.trace[key], fast.trace[key]) <= 1e-5, key


@pytest.mark.parametrize("picks", ["query 6", "query 4, key 1, 7", "key 8:", "key 6:, head 1", "query 2:, key 3"])
@pytest.mark.parametrize("stage", ["pattern", "masked"])
def test_parts_whose_keys_come_later_have_the_shape_of_one_pass(picks: str, stage: str, model: LanguageModel) -> None:
    name = f"blocks.1.attn.{stage}[{picks}]"
    found = one(model, trace=[name]).trace
    assert found is not None
    whole = model.trace(found.tokens, keep=[name])
    assert found[name].shape == whole[name].shape
    assert differ(found[name], whole[name]) <= 1e-5


def test_a_batch_of_prompts_has_a_trace_each_to_its_own_end(build: Build) -> None:
    """Contract 3: ragged prompts, one of which ends early."""
    first = build("grouped")
    end = one(first, NINE, edits=STEER).tokens[3]
    model = build(first.network, end=end)
    for cache in (True, False):
        outputs = model.generate([FIVE, NINE, ONE], max_tokens=6, temperature=0, trace=KEEP, edits=STEER, cache=cache)
        assert isinstance(outputs, list)
        assert outputs[1].finish_reason == "stop"
        for prompt, out in zip((FIVE, NINE, ONE), outputs, strict=True):
            alone = one(model, prompt, max_tokens=6, trace=KEEP, edits=STEER)
            assert out.tokens == alone.tokens
            assert out.trace is not None
            assert alone.trace is not None
            assert out.trace.tokens == [*prompt, *out.tokens][:-1]
            for key in alone.trace:
                assert differ(out.trace[key], alone.trace[key]) <= 1e-5, key
    assert model.generate([], trace=KEEP) == []


def test_edits_alone_steer_what_is_written(model: LanguageModel) -> None:
    plain, steered = one(model), one(model, edits=STEER)
    assert steered.tokens != plain.tokens
    assert steered.trace is None
    assert one(model, edits=STEER[0]).tokens == one(model, edits=STEER[:1]).tokens  # one edit needs no list
    forced = one(model, edits=[Zero("logits"), Add("logits", torch.eye(67)[7])])
    assert forced.tokens == [7] * 8
    assert one(model).tokens == plain.tokens  # nothing remains
    sampled = one(model, edits=STEER, seed=3, temperature=1.0, logprobs=2)
    assert sampled.logprobs is not None
    assert sampled.tokens == one(model, edits=STEER, seed=3, temperature=1.0, trace=KEEP).tokens


def test_a_stream_takes_edits_and_joins_to_the_text(model: LanguageModel) -> None:
    """Contract 9 under edits."""
    options = {"max_tokens": 8, "temperature": 0, "edits": STEER}
    assert "".join(model.stream(FIVE, **options)) == one(model, **options).text
    assert "".join(model.stream(FIVE, max_tokens=8, temperature=0)) == one(model).text


def test_gradients_stay_on_for_whoever_reads_a_stream(model: LanguageModel) -> None:
    """Between two pieces the caller's own code runs as if there were no generation."""
    pieces = model.stream(FIVE, max_tokens=3, temperature=0, edits=STEER)
    next(pieces)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_prompt_alone_is_read_when_no_token_is_wanted(model: LanguageModel) -> None:
    out = one(model, max_tokens=0, trace=KEEP)
    alone = model.trace(FIVE, keep=KEEP)
    assert out.trace is not None
    assert out.trace.new_tokens == []
    assert all(torch.equal(out.trace[key], alone[key]) for key in alone)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"trace": ["blocks.0.attn.patern"]}, InsideError, "did you mean blocks.0.attn.pattern"),
        ({"trace": "embed[position 12]"}, InsideError, "position 12 is outside 0 to 11"),
        ({"trace": "*", "limit": 1000}, InsideError, "the limit is 1000"),
        ({"edits": [Scale("blocks.9.resid_post", 2.0)]}, InsideError, "blocks.9.resid_post: layer 9 is outside 0 to"),
        ({"edits": [Zero("tokens")]}, InsideError, "cannot be edited"),
        ({"edits": ["blocks.0.ff.out"]}, InsideError, "'blocks.0.ff.out' is no edit: give Zero"),
        ({"trace": "embed", "max_token": 3}, GenerationError, "did you mean max_tokens"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    options: dict[str, object],
    kind: type[Exception],
    message: str,
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model.network, "enter", None)
    with pytest.raises(kind, match=message) as caught:
        one(model, **options)
    assert "\n" not in str(caught.value)
    if "edits" in options:
        with pytest.raises(kind, match=message):
            model.stream(FIVE, **options)  # not at the first piece, but here


def test_a_patch_reaches_the_prompt_of_a_generation(model: LanguageModel) -> None:
    """The clean stream in the corrupted text: the first new token is the clean one's."""
    clean = model.trace(FIVE, keep="blocks.1.resid_post")
    other = [5, 35, 8, 9, 7]
    patched = one(model, other, edits=[Patch("blocks.1.resid_post", clean)], max_tokens=1)
    assert patched.tokens == one(model, max_tokens=1).tokens != one(model, other, max_tokens=1).tokens
