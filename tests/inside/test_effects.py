"""Effects: each cell is what a trace with that one edit gives, and what the numbers are called is what they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import HeatMap, HeatMaps, Table, Tokens
from cutaway.inside.edits import Edit, Mean, Patch, Zero
from cutaway.inside.effects import VALUES, Effects, effects
from cutaway.inside.sweep import TOKENS_AT_ONCE
from cutaway.language_model import LanguageModel, load
from support.tiny import FAMILIES, OURS

Build = Callable[..., LanguageModel]
TEXT, OTHER = [3, 14, 15, 9, 26, 5], [5, 35, 8, 9, 7, 5]
EVERY = [*OURS, *FAMILIES]


def alone(model: LanguageModel, edit: Edit) -> Tensor:
    """The logits [T V] with one edit."""
    return model.trace(TEXT, keep=(), edits=[edit]).logits  # type: ignore[union-attr]  # one prompt, one trace


def edit_at(found: Effects, source: Any, layer: int, head: int, column: int) -> Edit:
    """The edit of one cell, as a user would write it."""
    picks = [f"head {head}"] if found.what == "heads" else []
    picks.append("position " + ", ".join(map(str, found.positions[column])))
    at = f"blocks.{layer}.{VALUES[found.what]}[{', '.join(picks)}]"
    return {"zero": Zero(at), "mean": Mean(at), "patch": Patch(at, source) if source else Zero(at)}[found.how]


@pytest.mark.parametrize("how", ["zero", "mean", "patch"])
@pytest.mark.parametrize("name", EVERY)
def test_every_cell_is_the_pass_with_that_edit_alone(name: str, how: Any, build: Build) -> None:
    """1e-5, for heads at all positions and at some, and for the other parts; batches that do not divide evenly."""
    model = build(name)
    source = model.trace(OTHER, keep=["blocks.*.attn.*", "blocks.*.ff.out", "blocks.*.resid_pre"])
    prompt: dict[str, Any] = {"source": OTHER} if how == "patch" else {}
    asked: list[dict[str, Any]] = [
        {"what": "heads"},
        {"what": "heads", "positions": [1, [2, -1]], "batch": 5},
        {"what": "attn", "positions": [3, 5]},
        {"what": "ff", "positions": "all"},
        {"what": "resid", "positions": [[0, 4], 5]},
    ]
    for options in asked:
        found = effects(model, TEXT, how=how, metric="logit", target=7, **options, **prompt)
        n_heads = model.config.n_heads if options["what"] == "heads" else 1
        assert found.values.shape == (model.config.n_layers, n_heads, len(found.positions))
        for layer, head, column in np.ndindex(*found.values.shape):
            if name not in ("grouped", "windows") and (layer + head + column) % 3:
                continue  # every cell of two models, every third of the others
            logits = alone(model, edit_at(found, source, layer, head, column))
            expected = float(logits[-1, 7])
            scale = max(1.0, float(logits.abs().max()))
            assert abs(found.values[layer, head, column] - expected) <= 1e-5 * scale, (options, layer, head, column)
        assert np.ptp(found.values) > 1e-3


@pytest.mark.parametrize("n", [1, 2])
def test_texts_of_one_and_two_tokens(n: int, build: Build) -> None:
    """One query a row goes through other loops than many."""
    for name in ("grouped", "windows", "classic"):
        model = build(name)
        found = effects(model, TEXT[:n], metric="logit", target=7)
        for layer, head in np.ndindex(*found.values.shape[:2]):
            edited = model.trace(TEXT[:n], keep=(), edits=[Zero(f"blocks.{layer}.attn.z[head {head}]")])
            assert found.values[layer, head, 0] == pytest.approx(float(edited.logits[-1, 7]), abs=1e-5)


def test_each_metric_is_what_it_is_called(build: Build) -> None:
    model = build("grouped")
    plain = model.logits(TEXT)
    edited = alone(model, Zero("blocks.1.attn.z[head 2]"))
    log_p, log_q = plain[4].log_softmax(-1), edited[4].log_softmax(-1)
    best = int(plain[4].argmax())
    asked: list[tuple[dict[str, Any], float, float]] = [
        ({"metric": "logit", "target": 7}, plain[4, 7], edited[4, 7]),
        ({"versus": 9, "target": 7}, plain[4, 7] - plain[4, 9], edited[4, 7] - edited[4, 9]),
        ({"metric": "difference", "versus": 9}, plain[4, best] - plain[4, 9], edited[4, best] - edited[4, 9]),
        ({}, log_p[best], log_q[best]),
        ({"metric": "logprob", "target": 7}, log_p[7], log_q[7]),
        ({"metric": "kl"}, 0.0, float((log_p.exp() * (log_p - log_q)).sum())),
        ({"metric": lambda logits: logits[2:5, 7].sum()}, plain[2:5, 7].sum(), edited[2:5, 7].sum()),
    ]
    for options, baseline, value in asked:
        found = effects(model, TEXT, position=4, **options)
        assert found.baseline == pytest.approx(float(baseline), abs=1e-5), options
        assert found.values[1, 2, 0] == pytest.approx(float(value), abs=1e-5), options
        assert found.changes[1, 2, 0] == pytest.approx(float(value - baseline), abs=2e-5)
        assert found.recovery is None


def test_patching_recovers_from_0_to_1(build: Build) -> None:
    """The whole stream entering a block makes the prompt the source; nothing at all leaves it the prompt."""
    model = build("classic")
    corrupt, clean = model.logits(TEXT), model.logits(OTHER)
    for options in ({"metric": "logit", "target": 7}, {"metric": "kl"}):
        found = effects(model, TEXT, source=OTHER, what="resid", positions="all", **options)
        assert found.recovery == pytest.approx(np.ones((3, 1, 1)), abs=1e-4)
    found = effects(model, TEXT, source=OTHER, what="resid", metric="logit", target=7)
    assert found.baseline == pytest.approx(float(corrupt[-1, 7]), abs=1e-5)
    assert found.source_value == pytest.approx(float(clean[-1, 7]), abs=1e-5)
    assert found.recovery is not None
    assert found.recovery[:, 0, 3] == pytest.approx(found.changes[:, 0, 3] / (found.source_value - found.baseline))
    assert found.recovery[0, 0, [3, 5]] == pytest.approx([0, 0], abs=1e-5)  # the same tokens stand there
    kl = effects(model, TEXT, source=OTHER, metric="kl")
    log_p, log_q = clean[-1].double().log_softmax(-1), corrupt[-1].double().log_softmax(-1)
    assert kl.baseline == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum()), abs=1e-6)
    assert kl.source_value == 0
    itself = effects(model, TEXT, source=TEXT)
    assert itself.recovery is None
    assert np.abs(itself.changes).max() < 1e-5
    assert "nothing to recover" in itself.figures()[-1].lines[-1]


def test_progress_counts_every_pass(build: Build) -> None:
    model, calls = build("grouped"), []
    effects(model, TEXT, batch=3, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(8 * layer + done, 24) for layer in range(3) for done in (3, 6, 8)]
    calls.clear()
    effects(model, TEXT, positions="each", progress=lambda done, total: calls.append((done, total)))
    assert calls[0] == (48, 144)  # six positions of eight heads: one pass for each layer
    assert TOKENS_AT_ONCE // len(TEXT) >= 48


def test_blocks_before_the_edit_are_not_run_again(build: Build) -> None:
    """And rows share a batch: that is where the speed comes from."""
    model = build("grouped")
    rows: list[list[int]] = [[], [], []]
    for ran, block in zip(rows, model.network.blocks, strict=True):
        block.register_forward_pre_hook(lambda _, args, ran=ran: ran.append(args[0].shape[0]))
    effects(model, TEXT)
    assert rows == [[1, 8], [1, 8, 8], [1, 8, 8, 8]]


def test_figures_and_plain_data(build: Build) -> None:
    model = build("grouped")
    found = effects(model, TEXT, source=OTHER, metric="logit", target=7)
    prompt, source, baselines, heat, table, _ = found.figures()
    assert isinstance(prompt, Tokens)
    assert isinstance(source, Tokens)
    assert source.ids == tuple(OTHER)
    assert isinstance(baselines, Table)
    assert [row[1] for row in baselines.rows] == [found.baseline, found.source_value]
    assert isinstance(heat, HeatMap)
    assert heat.scale == "signed"
    assert found.recovery is not None
    assert np.array_equal(heat.values, found.recovery[:, :, 0])
    assert isinstance(table, Table)
    layer, head = np.unravel_index(np.abs(found.changes).argmax(), (3, 8))
    assert table.rows[0][:3] == [f"head {layer}.{head}", "all positions", found.values[layer, head, 0]]
    maps = effects(model, TEXT, positions="each").figures()[2]
    assert isinstance(maps, HeatMaps)
    assert maps.values.shape == (3, 8, 6)
    assert maps.names[1] == "layer 1"
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["recovery"][layer][head][0] == pytest.approx(found.recovery[layer, head, 0], rel=1e-6)
    assert data["metric"] == "logit of 7 at 5 (5)"
    by_part = effects(model, TEXT, what="ff", positions=[0, [1, 2], [3, 5]])
    assert by_part.columns == ("3", "1 to 2", "3, 5")
    assert by_part.figures()[2].values.shape == (3, 3)  # type: ignore[attr-defined]


def test_tokens_by_their_text() -> None:
    model = load("bard")
    found = effects(model, "To be, or not to be", what="ff", target=" the", versus=" a", positions="all")
    assert found.metric.startswith("logit of ·the over ·a at ·be (")
    logits = model.logits("To be, or not to be")
    (the,), (a,) = model.encode(" the", bos=False), model.encode(" a", bos=False)
    assert found.baseline == pytest.approx(float(logits[-1, the] - logits[-1, a]), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "head"}, "what = 'head': it must be one of heads, attn, ff, resid"),
        ({"how": "nul"}, "how = 'nul': it must be one of zero, mean, patch"),
        ({"how": "patch"}, "give a source, another prompt of as many tokens"),
        ({"how": "zero", "source": OTHER}, "has no use for a source"),
        ({"source": OTHER[:4]}, "the source has 4 tokens, the prompt 6"),
        ({"metric": "logits"}, "did you mean logit?"),
        ({"metric": "difference"}, "give versus"),
        ({"target": 7, "versus": 7}, "both 7"),
        ({"metric": "kl", "target": 7}, "target = 7: kl has no use for it"),
        ({"metric": "logit", "versus": 7}, "versus = 7: logit has no use for it"),
        ({"metric": lambda logits: logits}, "it must turn the logits"),
        ({"metric": lambda logits: "x"}, "it must turn the logits"),
        ({"target": 67}, "target = 67 is outside the vocabulary"),
        ({"position": 6}, "the prompt has positions -6 to 5"),
        ({"positions": "some"}, "positions = 'some'"),
        ({"positions": 3}, "positions = 3"),
        ({"positions": [[]]}, "an empty list"),
        ({"positions": []}, "an empty list"),
        ({"positions": 0}, "positions = 0"),
        ({"positions": [6]}, "the prompt has positions -6 to 5"),
        ({"batch": 0}, "batch = 0"),
        ({"limit": 100}, "the limit is 100"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(options: dict[str, Any], message: str, build: Build) -> None:
    with pytest.raises(InsideError) as caught:
        effects(build("grouped"), TEXT, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_positions_may_come_as_an_array(build: Build) -> None:
    model = build("grouped")
    wanted = effects(model, TEXT, positions=[1, 4])
    for positions in (np.array([1, 4]), torch.tensor([1, 4])):
        found = effects(model, TEXT, positions=positions)
        assert found.positions == ((1,), (4,))
        assert np.array_equal(found.values, wanted.values)


def test_nothing_remains(build: Build) -> None:
    model = build("parallel")
    before = model.logits(TEXT)
    effects(model, TEXT)
    effects(model, TEXT, how="mean", what="resid")
    assert torch.equal(model.logits(TEXT), before)
