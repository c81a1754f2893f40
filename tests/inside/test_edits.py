"""Edits: hand-sized numbers, exact removals, and nothing that remains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside import Add, Edit, KnockOut, Mean, Patch, Replace, Resample, Scale, Trace, Zero
from cutaway.inside.tap import copied
from cutaway.inside.values import Values
from cutaway.language_model import LanguageModel
from support.tiny import FAMILIES, OURS, distance

Build = Callable[..., LanguageModel]
FIVE, OTHER, NINE = [3, 14, 15, 9, 26], [5, 35, 8, 9, 7], [5, 35, 8, 9, 7, 9, 3, 2, 38]
EVERY = [*OURS, *FAMILIES]
RESID = "blocks.1.resid_mid"


def after(model: LanguageModel, *edits: Edit, keep: Any = RESID, prompt: Any = FIVE, **options: Any) -> Trace:
    found = model.trace(prompt, keep=keep, edits=list(edits), **options)
    assert isinstance(found, Trace)
    return found


@pytest.fixture
def model(build: Build) -> LanguageModel:
    return build("grouped")


# --- contract 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_patch_of_a_value_onto_itself_is_an_exact_no_op(name: str, build: Build) -> None:
    """Contract 5, bit for bit: every value at once, in the same kernel; and parts of some."""
    model = build(name)
    for keep in (["*"], ["blocks.*.attn.z", "blocks.*.resid_*", "blocks.*.ff.*", "blocks.*.attn.v"]):
        before = after(model, keep=keep)
        editable = [key for key in before if key not in ("tokens", "positions")]
        assert torch.equal(after(model, *(Patch(key, before) for key in editable), keep=keep).logits, before.logits)
    before = after(model, keep="*")
    parts = ["blocks.1.attn.masked[head 1, query 2, 4]", "blocks.0.ff.post[neuron 3, 9]", "blocks.2.attn.k[position 1]"]
    again = after(model, *(Patch(part, before) for part in parts), keep="*")
    assert torch.equal(again.logits, before.logits)


@pytest.mark.parametrize("name", EVERY)
def test_removing_a_head_subtracts_its_slice_of_the_output_exactly(name: str, build: Build) -> None:
    """z_h · W_O[h], under grouped queries too: the other heads of its group stay."""
    model = build(name)
    attention = model.network.blocks[1].attn
    plain = after(model, keep=["blocks.1.attn.z", "blocks.1.attn.head_out", "blocks.1.attn.out"])
    for at in ("blocks.1.attn.z[head 2]", "blocks.1.attn.head_out[head 2]"):
        removed = after(model, Zero(at), keep=["blocks.1.attn.head_out", "blocks.1.attn.out"])
        expected = plain["blocks.1.attn.head_out"].clone()
        expected[:, 2] = 0
        assert torch.equal(removed["blocks.1.attn.head_out"], expected)
        if model.config.norm_placement == "pre":
            share = plain["blocks.1.attn.z"][:, 2] @ attention.W_O[2].detach()
            assert distance(plain["blocks.1.attn.out"] - removed["blocks.1.attn.out"], share) <= 1e-6
            assert share.abs().max() > 1e-3


def test_an_edited_value_lies_in_memory_as_it_did() -> None:
    """A kernel may sum in another order when its input lies otherwise; one row read many times is written out."""
    value = torch.arange(24.0).view(2, 3, 4).transpose(1, 2)[:, 1:]
    assert copied(value).stride() == value.stride()
    assert torch.equal(copied(value), value)
    assert copied(torch.ones(1, 3).expand(2, 3)).stride() == (3, 1)


def test_nothing_remains_after_a_call_or_an_exception(model: LanguageModel) -> None:
    plain, weights = model.logits(FIVE), [p.clone() for p in model.network.parameters()]
    before = after(model, keep="*")
    held = {key: value.clone() for key, value in before.items()}

    class Fails(Edit):
        def __call__(self, part: Tensor, site: Any) -> Tensor:
            part.add_(1)  # even an edit that writes where it reads
            raise KeyboardInterrupt

    after(model, Scale("*.resid_post", 2.0), Patch("embed", before), Add("blocks.0.ff.out", torch.ones(32)))
    with pytest.raises(KeyboardInterrupt):
        after(model, Fails("blocks.1.resid_post"))
    assert torch.equal(model.logits(FIVE), plain)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.network.parameters(), strict=True))
    assert all(torch.equal(before[key], value) for key, value in held.items())
    with pytest.raises(FrozenInstanceError):
        Zero("embed").at = "logits"  # type: ignore[misc]


# --- hand-sized numbers ------------------------------------------------------------------------------------


def test_zero_scale_add_and_replace(model: LanguageModel) -> None:
    plain = after(model)[RESID]
    at = f"{RESID}[position 1, -1]"
    kept, changed = [0, 2, 3], [1, 4]
    for edit, expected in (
        (Zero(at), torch.zeros(2, 32)),
        (Scale(at, -3.0), plain[0, changed] * -3),
        (Add(at, torch.arange(32.0), times=2.0), plain[0, changed] + 2 * torch.arange(32.0)),
        (Add(at, torch.tensor(1.0)), plain[0, changed] + 1),
        (Replace(at, torch.arange(32.0)), torch.arange(32.0).expand(2, 32)),
        (Replace(at, torch.arange(64.0).view(2, 32)), torch.arange(64.0).view(2, 32)),
    ):
        found = after(model, edit)[RESID]
        assert torch.equal(found[0, changed], expected)
        assert torch.equal(found[0, kept], plain[0, kept])


def test_neurons_feedforwards_and_everything_by_wildcard(model: LanguageModel) -> None:
    plain = after(model, keep=["blocks.0.ff.post", "blocks.0.ff.out"])
    removed = after(model, Zero("blocks.0.ff.post[neuron 7, 9]"), keep=["blocks.0.ff.post", "blocks.0.ff.out"])
    down = model.network.blocks[0].ff.down.weight.detach()
    share = plain["blocks.0.ff.post"][..., [7, 9]] @ down[:, [7, 9]].T
    assert distance(plain["blocks.0.ff.out"] - removed["blocks.0.ff.out"], share) <= 1e-6
    silent = after(model, Zero("blocks.*.ff.out"), Zero("blocks.*.attn.out"), keep=["embed", "blocks.2.resid_post"])
    assert torch.equal(silent["embed"], silent["blocks.2.resid_post"])


def test_edits_of_one_value_act_in_their_order(model: LanguageModel) -> None:
    plain, one = after(model)[RESID], torch.ones(32)
    assert torch.equal(after(model, Scale(RESID, 2.0), Add(RESID, one))[RESID], plain * 2 + 1)
    assert torch.equal(after(model, Add(RESID, one), Scale(RESID, 2.0))[RESID], (plain + 1) * 2)


def test_mean_over_positions_or_over_traces(model: LanguageModel) -> None:
    plain, source = after(model)[RESID], after(model, prompt=NINE)
    assert torch.allclose(after(model, Mean(RESID))[RESID], plain.mean(1, keepdim=True).expand(1, 5, 32))
    one = after(model, Mean(f"{RESID}[position 3]"))[RESID]
    assert torch.allclose(one[0, 3], plain[0].mean(0))
    assert torch.equal(one[0, :3], plain[0, :3])
    found = after(model, Mean(RESID, source=source))[RESID]
    assert torch.allclose(found[0, 2], source[RESID][0].mean(0))
    both = torch.cat([source[RESID][0], plain[0]]).mean(0)  # every position counts once
    found = after(model, Mean(RESID, source=[source, after(model)]))[RESID]
    assert torch.allclose(found[0, 0], both, atol=1e-6)
    head = after(model, Mean("blocks.1.attn.z[head 3]"), keep="blocks.1.attn.z")["blocks.1.attn.z"]
    assert torch.allclose(head[0, 3], head[0, 3, :1].expand(5, 8))


def test_resample_permutes_or_draws_by_its_seed(model: LanguageModel) -> None:
    plain, source = after(model)[RESID][0], after(model, prompt=NINE)
    found = after(model, Resample(RESID, seed=1))[RESID][0]
    order = [int((plain == row).all(1).nonzero()) for row in found]
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert order != [0, 1, 2, 3, 4]
    assert torch.equal(after(model, Resample(RESID, seed=1))[RESID][0], found)
    assert any(not torch.equal(after(model, Resample(RESID, seed=s))[RESID][0], found) for s in (2, 3))
    drawn = after(model, Resample(RESID, source=source))[RESID][0]
    for row in drawn:
        assert (source[RESID][0] == row).all(1).any()


def test_patch_from_another_text_at_the_same_or_at_other_places(model: LanguageModel) -> None:
    plain, source = after(model)[RESID][0], after(model, prompt=NINE, keep=[RESID, "blocks.0.attn.z[head 5]"])
    there = source[RESID][0]
    assert torch.equal(after(model, Patch(RESID, source))[RESID][0], there[:5])
    found = after(model, Patch(RESID, source, positions={1: 7, -1: -1}))[RESID][0]
    assert torch.equal(found[[1, 4]], there[[7, 8]])
    assert torch.equal(found[[0, 2, 3]], plain[[0, 2, 3]])
    z = after(model, Patch("blocks.0.attn.z[head 5, position 2]", source), keep="blocks.0.attn.z")["blocks.0.attn.z"]
    assert torch.equal(z[0, 5, 2], source["blocks.0.attn.z[head 5]"][0, 0, 2])
    with pytest.raises(InsideError, match=r"the source trace has no position 5 of .*: keep it there"):
        after(model, Patch(RESID, after(model)), prompt=NINE)
    with pytest.raises(InsideError, match="no head 4 of"):
        after(model, Patch("blocks.0.attn.z[head 4]", source))
    with pytest.raises(InsideError, match="nothing of embed"):
        after(model, Patch("embed", source))


def test_a_clean_run_is_restored_by_patching_the_whole_stream(model: LanguageModel) -> None:
    """The classic: the corrupted text with the clean stream from one layer on gives the clean answer, bit for bit."""
    clean = after(model, keep="blocks.1.resid_post")
    corrupted = model.logits(OTHER)
    assert distance(corrupted, clean.logits) > 1e-2
    restored = after(model, Patch("blocks.1.resid_post", clean), prompt=OTHER)
    assert torch.equal(restored.logits, clean.logits)


def test_a_pattern_is_replaced_and_moves_what_it_says(model: LanguageModel) -> None:
    """Head 3 of layer 1 looks only at the first token: its z is that token's v (of key/value head 0)."""
    first = torch.zeros(5, 5)
    first[:, 0] = 1
    keep = ["blocks.1.attn.z", "blocks.1.attn.v", "blocks.1.attn.pattern"]
    found = after(model, Replace("blocks.1.attn.pattern[head 3]", first), keep=keep)
    assert torch.equal(found["blocks.1.attn.pattern"][0, 3], first)
    assert torch.allclose(found["blocks.1.attn.z"][0, 3], found["blocks.1.attn.v"][0, 0, :1].expand(5, 8))
    assert found["blocks.1.attn.pattern"][0, 2, 4, 1:].abs().max() > 0


def test_an_edge_is_knocked_out_and_the_rest_shares_its_weight(model: LanguageModel) -> None:
    keep = "blocks.1.attn.pattern"
    plain = after(model, keep=keep)[keep]
    found = after(model, KnockOut("blocks.1.attn.masked[head 3, query 4, key 2]"), keep=keep)[keep]
    expected = plain.clone()
    expected[0, 3, 4, 2] = 0
    expected[0, 3, 4] /= expected[0, 3, 4].sum()
    assert torch.allclose(found, expected, atol=1e-6)
    blind = after(model, KnockOut("blocks.1.attn.masked[head 3, query 4]"), keep=[keep, "blocks.1.attn.z"])
    assert blind[keep][0, 3, 4].abs().max() == 0
    assert blind["blocks.1.attn.z"][0, 3, 4].abs().max() == 0


# --- batches and generations -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_in_a_ragged_batch_an_edit_finds_its_place_in_every_text(name: str, build: Build) -> None:
    model = build(name)
    source = after(model, keep="*", prompt=NINE)
    edits = [
        Scale("blocks.0.resid_post[position -1]", 3.0),
        Zero("blocks.1.attn.z[head 1]"),
        KnockOut("blocks.2.attn.masked[query -1, key 0]"),
        Patch("blocks.1.ff.out[position 1]", source),
        Mean("blocks.0.ff.post"),
        Resample("blocks.0.attn.k", seed=4),
    ]
    together = model.trace([FIVE, NINE, FIVE[:2]], edits=edits, keep=RESID)
    for text, found in zip((FIVE, NINE, FIVE[:2]), together, strict=True):
        assert distance(found.logits, after(model, *edits, prompt=text).logits) <= 1e-5
        assert distance(found.logits, model.logits(text)) > 1e-3


@pytest.mark.parametrize("name", [name for name in OURS if name not in ("dynamic", "longrope")])
def test_edits_act_on_every_cached_step_as_on_one_pass(name: str, build: Build) -> None:
    """Contract 2 under edits: steps joined equal one edited pass over what was read."""
    model = build(name)
    source = after(model, keep="*", prompt=NINE)
    edits = [
        Add("blocks.0.resid_post", torch.linspace(-1, 1, 32), times=3.0),
        Zero("blocks.1.attn.z[head 1]"),
        Scale("blocks.2.attn.v[head 0]", 0.5),
        Mean("blocks.1.ff.post", source=source),
        Resample("blocks.1.ff.out", source=source, seed=2),
        KnockOut("blocks.2.attn.masked[head 2, key 1]"),
        Zero("blocks.1.resid_mid[position 6:]"),
    ]
    found = after(model, *edits, keep="*", generate=8, temperature=0)
    alone = after(model, *edits, keep="*", prompt=found.tokens)
    assert found.new_tokens != model.generate(FIVE, max_tokens=8, temperature=0).tokens
    assert len(found.tokens) == 12
    for key in ("blocks.2.resid_post", "blocks.2.attn.pattern", "blocks.2.attn.v", "logits"):
        assert distance(found[key], alone[key]) <= 1e-5, key
    assert found["blocks.2.attn.pattern"][0, 2, 1:, 1].abs().max() == 0


def test_what_comes_from_a_text_stays_in_the_prompt(model: LanguageModel) -> None:
    """A patch, a whole pattern and an exchange of positions leave the new tokens alone; named ones they take."""
    source = after(model, keep="*", prompt=NINE)
    even = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    edits = [
        Patch("blocks.0.resid_post", source),
        Replace("blocks.1.attn.pattern[head 0]", even),
        Resample("blocks.1.ff.out", seed=1),
        Mean("blocks.2.ff.out"),
    ]
    found = after(model, *edits, keep="*", generate=5, temperature=0)
    assert torch.equal(found["blocks.0.resid_post"][0, :5], source["blocks.0.resid_post"][0, :5])
    assert torch.equal(found["blocks.1.attn.pattern"][0, 0, :5, :5], even)
    assert torch.allclose(found["blocks.2.ff.out"][0, 0], found["blocks.2.ff.out"][0, 4])
    assert not torch.allclose(found["blocks.2.ff.out"][0, 0], found["blocks.2.ff.out"][0, 6])
    named = after(
        model, Patch("blocks.0.resid_post[position 6]", source), generate=5, keep="blocks.0.resid_post", seed=0
    )
    assert torch.equal(named["blocks.0.resid_post"][0, 6], source["blocks.0.resid_post"][0, 6])
    with pytest.raises(InsideError, match="a new token has no other positions at hand; give source="):
        after(model, Mean("blocks.0.ff.out[position 6]"), generate=5)


def test_gradients_go_through_edits(model: LanguageModel) -> None:
    doubled = after(model, Scale("logits", 2.0), grad=True, of=(4, 7), keep=["final_norm"])
    plain = after(model, grad=True, of=(4, 7), keep=["final_norm"])
    assert doubled.grad is not None
    assert plain.grad is not None
    assert torch.allclose(doubled.grad["final_norm"], 2 * plain.grad["final_norm"])
    cut = after(model, Replace(RESID, torch.ones(32)), grad=True, keep=["embed"])
    assert cut.grad is not None
    assert cut.grad["embed"].abs().max() == 0


def test_a_factor_of_any_kind_of_number(build: Build) -> None:
    model = build("grouped")
    expected = model.trace(FIVE, keep=[], edits=Scale("embed", 2.0)).logits
    for factor in (2, np.float32(2), torch.tensor(2.0)):
        assert torch.equal(model.trace(FIVE, keep=[], edits=Scale("embed", factor)).logits, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Zero("blocks.0.attn.zz"), "did you mean blocks.0.attn.z"),
        (Zero("blocks.0.attn.z[head 8]"), "head 8 is outside 0 to 7"),
        (Zero("tokens"), "tokens cannot be edited"),
        (KnockOut("blocks.0.attn.pattern"), r"aim it at blocks\.N\.attn\.masked"),
        (Mean("blocks.0.attn.pattern"), "use Replace or KnockOut"),
        (Resample("blocks.0.attn.scores"), "use Replace or KnockOut"),
        (Patch("embed", []), r"Patch at embed: \[\] is no trace: give model.trace"),  # type: ignore[arg-type]
        (Mean("embed", source="x"), "Mean at embed: 'x' is no trace"),  # type: ignore[arg-type]
        (Resample("embed", source=7), "Resample at embed: 7 is no trace"),  # type: ignore[arg-type]
        (Patch("embed", Values([], 5), positions={99: 0}), "Patch at embed: position 99 is outside 0 to"),
        (Patch("embed", Values([], 5), positions={-99: 0}), "Patch at embed: position -9. is outside 0 to"),
        (Add("embed", [1.0]), r"\[1.0\] is no tensor: give torch.tensor"),  # type: ignore[arg-type]
        (Scale("embed", "2"), "Scale at embed: '2' is no number"),  # type: ignore[arg-type]
        (Replace("embed", 0.5), "0.5 is no tensor"),  # type: ignore[arg-type]
        (Add("embed", torch.ones(31)), r"shape \(31,\) does not spread to \(1, 5, 32\)"),
        (Replace("blocks.0.attn.pattern[head 3]", torch.ones(4, 5)), r"\(4, 5\) does not spread to \(1, 1, 5, 5\)"),
    ],
)
def test_what_cannot_be_edited_is_said_in_one_line(edit: Edit, message: str, model: LanguageModel) -> None:
    with pytest.raises(InsideError, match=message) as caught:
        after(model, edit)
    assert "\n" not in str(caught.value)


def test_numbers_of_a_model_of_other_sizes_are_refused(model: LanguageModel, build: Build) -> None:
    other = build("llama")  # feed-forwards of 48, not 128
    small, large = (after(m, keep="blocks.0.ff.pre") for m in (other, model))
    for edit in (Patch, Mean, Resample):
        with pytest.raises(InsideError, match="the source trace has no neuron 48"):
            after(model, edit("blocks.0.ff.pre", source=small))
        with pytest.raises(InsideError, match="the source has more than 48 along F: use one of this model"):
            after(other, edit("blocks.0.ff.pre", source=large))
        with pytest.raises(InsideError, match="the source trace has nothing of embed"):
            after(model, edit("embed", source=large))
