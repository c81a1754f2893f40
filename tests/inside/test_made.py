"""What a trace does not store but makes of what it holds: the same numbers, bit for bit, and no memory."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cutaway import pages
from cutaway.inside.edits import Add, Edit, KnockOut, Scale
from cutaway.inside.names import names
from cutaway.inside.values import Entry
from cutaway.language_model import LanguageModel
from cutaway.nn import reference
from cutaway.nn.mask import build_mask
from cutaway.nn.softmax import soften
from support.tiny import FAMILIES, OURS, distance, random_tokens

Build = Callable[..., LanguageModel]

FIVE, NINE = [3, 14, 15, 9, 26], [5, 35, 8, 9, 7, 9, 3, 2, 38]
SAME_WAY = ["blocks.*.attn.pattern", "blocks.*.attn.head_out"]  # a pass that rounds as one of which all is kept
MADE = ("attn.scores", "attn.scaled", "attn.masked", "resid_mid", "ff.post", "attn.q", "attn.k", "attn.z")


@pytest.mark.parametrize("near", [3, 128])
@pytest.mark.parametrize("name", [*OURS, *FAMILIES])
def test_what_is_made_is_what_the_pass_had(name: str, near: int, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums against a pass that stores them because they alone are kept; scores by the pattern that comes of them."""
    monkeypatch.setattr(reference, "NEAR", near)
    model = build(name)
    for prompt in (FIVE, random_tokens(1, 40)[0].tolist(), [11]):
        everything = model.trace(prompt)
        made = [entry for entry in everything.entries if not isinstance(entry.held, Tensor)]
        kinds = {entry.target.scope[1] for entry in made}
        assert ("resid_mid" in kinds) == (len(prompt) > 1)
        assert kinds <= set(MADE)
        stored_alone = [f"blocks.*.{kind}" for kind in ("resid_mid", "attn.q", "attn.k", "attn.z", "ff.post")]
        for key, value in model.trace(prompt, keep=[*SAME_WAY, *stored_alone]).items():
            assert torch.equal(everything[key], value), key
        for layer in range(model.config.n_layers):
            scores, scaled, masked, pattern = (
                everything[f"blocks.{layer}.attn.{stage}"] for stage in ("scores", "scaled", "masked", "pattern")
            )
            stored = model.trace(prompt, keep=f"blocks.{layer}.attn.scores")[f"blocks.{layer}.attn.scores"]
            assert distance(scores, stored) <= 1e-5
            torch.testing.assert_close(masked.softmax(-1), pattern, rtol=1e-5, atol=1e-6)
            assert torch.equal(scaled, masked.where(~masked.isneginf(), scaled))
            if model.config.attention.soft_cap is None and "attn.scores" in kinds:
                again = torch.empty_like(pattern)
                ranges = build_mask(model.config.masks[layer], [0], len(prompt), [len(prompt)], again.device).ranges
                soften(masked, again, 1.0, ranges, 0, 0)
                assert torch.equal(again, pattern), "bit for bit what the pass softened"


def test_a_trace_of_everything_holds_one_matrix_for_each_head(build: Build) -> None:
    """And not the middle of the stream: what is made takes no byte."""
    model = build("llama")
    everything = model.trace(NINE)
    less = [name for name in names(model.config) if not name.endswith(MADE)]
    assert len(everything) == len(less) + len(MADE) * model.config.n_layers
    assert everything.n_bytes == model.trace(NINE, keep=less).n_bytes


def test_what_is_made_does_not_change_with_the_weights(build: Build) -> None:
    """A run in training goes on; its trace stays."""
    model = build("llama")
    trace = model.trace(FIVE)
    before = {key: value.clone() for key, value in trace.items()}
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    for key, value in trace.items():
        assert torch.equal(value, before[key]), key


def test_a_trace_of_everything_can_be_pickled(build: Build) -> None:
    trace = build("gemma2").trace(FIVE)
    again = pickle.loads(pickle.dumps(trace))
    assert list(again) == list(trace)
    for key, value in trace.items():
        assert torch.equal(again[key], value), key


def test_what_a_generation_never_reached_is_missing_and_so_is_what_follows(build: Build) -> None:
    model = build("llama")
    plain = model.generate(FIVE, max_tokens=1, temperature=0)
    assert not isinstance(plain, list)
    keep = ["blocks.0.attn.scores[position 8]", "blocks.0.attn.masked[position 8]", "blocks.0.attn.z"]
    ended = build(model.network, end=plain.tokens[0]).trace(FIVE, keep=keep, generate=8, temperature=0)
    assert list(ended) == ["blocks.0.attn.z", "logits"]


def test_a_summary_reads_nothing(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = build("llama").trace(FIVE)
    shapes = {name: list(value.shape) for name, value in trace.items()}
    monkeypatch.setattr(Entry, "value", None)
    assert trace.to_dict()["shapes"] == shapes


class Doubled(Edit):
    """Writes into what it is given."""

    def __call__(self, part: Tensor, site: object) -> Tensor:
        return part.mul_(2)


def test_an_edit_in_place_leaves_what_was_kept_before_it(build: Build) -> None:
    """Without positions q lies where q_raw does."""
    model, keep = build("no positions in layer 2"), ["blocks.2.attn.q_raw", "blocks.2.attn.q"]
    edited = model.trace(FIVE, keep=keep, edits=[Doubled("blocks.2.attn.q")])
    assert torch.equal(edited[keep[0]], model.trace(FIVE, keep=keep)[keep[0]])


def test_the_readers_autocast_does_not_matter(build: Build) -> None:
    for prompt in (FIVE, [11]):
        trace = build("llama").trace(prompt)
        before = {key: value.clone() for key, value in trace.items()}
        with torch.autocast("cpu", torch.bfloat16):
            assert all(torch.equal(value, before[key]) for key, value in trace.items())


@pytest.mark.parametrize("grad", [False, True])
def test_reading_keeps_no_graph(grad: bool, build: Build) -> None:
    trace = build("gpt2").trace(FIVE)
    with torch.set_grad_enabled(grad):
        assert not any(value.requires_grad for value in trace.values())


@pytest.mark.parametrize("kind", MADE)
def test_what_is_edited_is_stored(kind: str, build: Build) -> None:
    """And what follows from it is made of the edited value."""
    model = build("llama")
    edit = Scale(f"blocks.1.{kind}", 2.0)
    edited, plain = model.trace(FIVE, edits=[edit]), model.trace(FIVE)
    stored = {str(entry.target) for entry in edited.entries if isinstance(entry.held, Tensor)}
    assert f"blocks.1.{kind}" in stored
    assert f"blocks.0.{kind}" not in stored
    if kind != "attn.masked":  # twice −∞ is −∞
        assert torch.allclose(edited[f"blocks.1.{kind}"], 2 * plain[f"blocks.1.{kind}"], atol=1e-5)
    for after in MADE:
        alone = model.trace(FIVE, keep=[*SAME_WAY, f"blocks.1.{after}"], edits=[edit])
        torch.testing.assert_close(edited[f"blocks.1.{after}"], alone[f"blocks.1.{after}"], rtol=1e-5, atol=1e-5)


def test_a_steered_stream_is_the_sum_of_the_steered(build: Build) -> None:
    model = build("grouped")
    vector = torch.ones(model.config.d_model)
    trace = model.trace(FIVE, edits=[Add("blocks.1.resid_pre", vector), Add("blocks.1.attn.out", vector)])
    total = trace["blocks.1.resid_pre"] + trace["blocks.1.attn.out"]
    assert torch.equal(trace["blocks.1.resid_mid"], total)


@pytest.mark.parametrize("options", [{"generate": 4, "temperature": 0}, {"grad": True}], ids=str)
def test_in_other_shapes_only_scaled_and_masked_are_made(options: dict[str, object], build: Build) -> None:
    """A generation reads a token at a time; gradients want every value itself."""
    trace = build("llama").trace(FIVE, **options)
    made = {entry.target.scope[1] for entry in trace.entries if not isinstance(entry.held, Tensor)}
    assert made == (set() if "grad" in options else {"attn.scaled", "attn.masked"})
    several = build("llama").trace([FIVE, NINE])
    made = {entry.target.scope[1] for one in several for entry in one.entries if not isinstance(entry.held, Tensor)}
    assert made == {"attn.scaled", "attn.masked"}


@pytest.mark.parametrize("name", ["grouped", "classic", "windows", "capped sandwich", "parallel"])
@pytest.mark.parametrize("options", [{}, {"generate": 6, "temperature": 0}], ids=["pass", "generation"])
def test_stages_that_follow_from_the_scores_are_made_of_them_bit_for_bit(
    name: str, options: dict[str, object], build: Build
) -> None:
    """Kept alone a stage is stored as the pass had it; beside the scores it takes no memory and is the same."""
    model = build(name)
    for part in ("", "[head 1, query -2:, key 0, 2, 4]"):
        scores, scaled, masked = (f"blocks.*.attn.{stage}{part}" for stage in ("scores", "scaled", "masked"))
        both = model.trace(FIVE, keep=[scores, scaled, masked], **options)
        for pattern in (scaled, masked):
            stored = model.trace(FIVE, keep=[pattern], **options)
            for key, value in stored.items():
                assert torch.equal(both[key].nan_to_num(), value.nan_to_num()), key
                assert torch.equal(both[key].isnan(), value.isnan()), key
        assert both.n_bytes == model.trace(FIVE, keep=[scores], **options).n_bytes
        assert len(both) == 3 * model.config.n_layers + 1


def test_an_edited_stage_is_stored_as_the_pass_had_it(build: Build) -> None:
    model = build("grouped")
    cut = KnockOut("blocks.1.attn.masked[head 0, query 3, key 1]")
    trace = model.trace(FIVE, keep="blocks.*.attn.*", edits=[cut])
    assert trace["blocks.1.attn.masked"][0, 0, 3, 1] == -math.inf
    assert trace["blocks.0.attn.masked"][0, 0, 3, 1] > -math.inf
    both = ["blocks.1.attn.scores", "blocks.1.attn.masked"]
    doubled = model.trace(FIVE, keep=both, edits=[Scale("blocks.1.attn.scores", 2.0)])
    alone = model.trace(FIVE, keep="blocks.1.attn.masked", edits=[Scale("blocks.1.attn.scores", 2.0)])
    assert torch.equal(doubled["blocks.1.attn.masked"], alone["blocks.1.attn.masked"])


def test_room_is_made_for_what_is_too_large_for_the_heap(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(pages, "make_room", asked.append)
    build("llama").trace(NINE)
    assert not asked
    monkeypatch.setattr(pages, "MAPPED", 1)
    held = build("llama").trace(NINE).n_bytes
    assert asked == [held + 2]


def test_both_halves_of_a_gate_lie_in_one_product(build: Build) -> None:
    """Seen, and not copied; what is made of them is the pass's own."""
    model = build("llama")
    trace = model.trace(NINE)
    pre, up, post = (trace[f"blocks.1.ff.{part}"] for part in ("pre", "up", "post"))
    assert pre.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()
    assert distance(torch.nn.functional.silu(pre) * up, post) <= 1e-6
    alone = model.trace(NINE, keep=["blocks.1.ff.up", *SAME_WAY])["blocks.1.ff.up"]
    assert torch.equal(alone, up)
    assert alone.untyped_storage().nbytes() == alone.numel() * alone.element_size()


def test_a_gate_that_lets_nothing_through(build: Build) -> None:
    trace = build("llama").trace(FIVE, edits=[Scale("blocks.1.ff.up", 0.0)])
    pre, up = trace["blocks.1.ff.pre"], trace["blocks.1.ff.up"]
    assert all(x.untyped_storage().nbytes() == x.numel() * x.element_size() for x in (pre, up)), (
        "no more than is counted"
    )
    for name in ("ff.up", "ff.post", "ff.out"):
        assert not trace[f"blocks.1.{name}"].any()
        assert trace[f"blocks.0.{name}"].any()
    assert "blocks.1.ff.up" not in build("gpt2").trace(FIVE)
