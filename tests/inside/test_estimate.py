"""Effects by gradient: each is the derivative of the pass towards its replacement, and costs one pass and one back."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cutaway.errors import InsideError
from cutaway.figures import Prose
from cutaway.inside.edits import Edit, Mean, Patch, Site, Zero
from cutaway.inside.effects import VALUES, Effects, effects
from cutaway.inside.names import Axes, Index
from cutaway.language_model import LanguageModel, load
from support.tiny import FAMILIES, OURS, reference_folder

Build = Callable[..., LanguageModel]
TEXT, OTHER = [3, 14, 15, 9, 26, 5], [5, 35, 8, 9, 7, 5]
EVERY = [*OURS, *FAMILIES]
PARTLY_FP32 = ("capped sandwich", "gemma2", "gemma3_text")  # whatever the weights are: a soft cap's softmax, a norm


@dataclass(frozen=True, eq=False)
class Towards(Edit):
    """A share of the way to what another edit gives."""

    edit: Edit
    share: float

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return self.edit.reach(axes, n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return part + self.share * (self.edit(part, site) - part)


def edit_at(found: Effects, source: Any, layer: int, head: int, column: int) -> Edit:
    """The edit of one cell, as a user would write it."""
    picks = [f"head {head}"] if found.what == "heads" else []
    picks.append("position " + ", ".join(map(str, found.positions[column])))
    at = f"blocks.{layer}.{VALUES[found.what]}[{', '.join(picks)}]"
    return {"zero": Zero(at), "mean": Mean(at), "patch": Patch(at, source)}[found.how]


def slope(model: LanguageModel, edit: Edit, number: Callable[[Tensor], Any], step: float) -> float:
    """How fast the number of the logits [T V] changes where the pass sets out towards the edit."""
    ahead, behind = (
        model.trace(TEXT, keep=(), edits=[Towards(edit.at, edit, share)]).logits  # type: ignore[union-attr]  # one
        for share in (step, -step)
    )
    return float(number(ahead) - number(behind)) / (2 * step)


@pytest.mark.parametrize("how", ["zero", "mean", "patch"])
@pytest.mark.parametrize("name", EVERY)
def test_every_cell_is_the_slope_of_the_pass(name: str, how: Any, build: Build) -> None:
    """In fp64, against central differences: 1e-6, and 1e-3 where some of the pass is in fp32 all the same."""
    model = build(name)
    model.network.double()
    step, near = (1e-2, 1e-3) if name in PARTLY_FP32 else (1e-5, 1e-6)
    source = model.trace(OTHER, keep=["blocks.*.attn.*", "blocks.*.ff.out", "blocks.*.resid_pre"])
    prompt: dict[str, Any] = {"source": OTHER} if how == "patch" else {}
    asked: list[dict[str, Any]] = [
        {"what": "heads"},
        {"what": "heads", "positions": [1, [2, -1]]},
        {"what": "attn", "positions": [3, 5]},
        {"what": "ff", "positions": "all"},
        {"what": "resid", "positions": [[0, 4], 5]},
    ]
    for options in asked:
        found = effects(model, TEXT, how=how, metric="logit", target=7, estimate=True, **options, **prompt)
        n_heads = model.config.n_heads if options["what"] == "heads" else 1
        assert found.values.shape == (model.config.n_layers, n_heads, len(found.positions))
        assert found.estimated
        for layer, head, column in np.ndindex(*found.values.shape):
            if name not in ("grouped", "windows") and (layer + head + column) % 4:
                continue  # every cell of two models, every fourth of the others
            edit = edit_at(found, source, layer, head, column)
            expected = slope(model, edit, lambda logits: logits[-1, 7], step)
            assert found.changes[layer, head, column] == pytest.approx(expected, abs=near), (options, layer, head)
        assert np.ptp(found.values) > 1e-3


def test_each_metric_has_its_slope(build: Build) -> None:
    """Of one inner position, and of one's own over several."""
    model = build("grouped")
    model.network.double()
    source = model.trace(OTHER, keep="blocks.*.attn.z")
    log_p = model.logits(OTHER)[4].log_softmax(-1)  # type: ignore[call-overload]  # one prompt, one tensor

    def own(logits: Tensor) -> Tensor:
        return logits[2:5, 7].square().sum()

    asked: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
        ({"metric": "logit", "target": 7}, lambda x: x[4, 7]),
        ({"target": 7, "versus": 9}, lambda x: x[4, 7] - x[4, 9]),
        ({"metric": "logprob", "target": 7}, lambda x: x[4].log_softmax(-1)[7]),
        ({"metric": "kl"}, lambda x: (log_p.exp() * (log_p - x[4].log_softmax(-1))).sum()),
        ({"metric": own}, own),
    ]
    for options, number in asked:
        found = effects(model, TEXT, source=OTHER, position=4, estimate=True, **options)
        exact = effects(model, TEXT, source=OTHER, position=4, **options)
        for layer, head in ((0, 1), (1, 2), (2, 7)):
            edit = edit_at(found, source, layer, head, 0)
            assert found.changes[layer, head, 0] == pytest.approx(slope(model, edit, number, 1e-5), abs=1e-6), options
        assert (found.metric, found.unit, found.columns) == (exact.metric, exact.unit, exact.columns)
        assert (found.baseline, found.source_value) == pytest.approx((exact.baseline, exact.source_value), abs=1e-9)
        assert found.recovery is not None


@pytest.mark.parametrize("how", ["zero", "mean", "patch"])
def test_where_the_number_is_linear_in_a_part_the_estimate_is_the_effect(how: Any, build: Build) -> None:
    """Behind the last block of a network without a final norm; not in the block before."""
    model = build("parallel")  # whose feed-forward does not read what attention adds
    model.network.final_norm = nn.Identity()  # type: ignore[assignment]
    for what in ("heads", "attn", "ff"):
        options: dict[str, Any] = {"source": OTHER} if how == "patch" else {}
        options |= {"what": what, "how": how, "positions": [[0, 1], [2, 5], 5], "metric": "logit", "target": 7}
        found, exact = effects(model, TEXT, estimate=True, **options), effects(model, TEXT, **options)
        assert found.values[-1] == pytest.approx(exact.values[-1], abs=1e-5)
        assert np.ptp(exact.values[-1]) > 1e-2
        assert np.abs(found.values[0] - exact.values[0]).max() > 1e-3


@pytest.mark.parametrize("context", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("requires", [True, False])
def test_no_gradient_remains_and_none_of_a_weight_is_computed(
    requires: bool, context: Callable[[], AbstractContextManager[Any]], build: Build
) -> None:
    model = build("grouped")
    wanted = effects(model, TEXT, source=OTHER, metric="kl", estimate=True)
    model.network.requires_grad_(requires)
    reached: list[Tensor] = []
    if requires:
        for parameter in model.network.parameters():
            parameter.register_hook(reached.append)
    with context():
        found = effects(model, TEXT, source=OTHER, metric="kl", estimate=True)
    assert found.values == pytest.approx(wanted.values, abs=1e-6)
    assert not reached
    assert all(p.grad is None and p.requires_grad is requires for p in model.network.parameters())


def test_it_costs_one_pass_with_the_fast_kernel_and_the_head_at_one_position(build: Build) -> None:
    model = build("windows")
    network, passes, rows = model.network, [], []
    for block in network.blocks:
        block.register_forward_pre_hook(lambda _, args: passes.append(args[0].shape[0]))
        block.attn.reference = None  # type: ignore[union-attr]  # nobody calls it
    network.head.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[1]))
    effects(model, TEXT, estimate=True, positions="each")
    assert passes == [1, 1, 1]
    assert set(rows) == {1}


def test_it_says_that_it_is_an_estimate(build: Build) -> None:
    model = build("grouped")
    found, exact = (effects(model, TEXT, estimate=estimate) for estimate in (True, False))
    assert ", estimated: each head replaced by zeros" in found.heading
    assert "estimated" not in exact.heading
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["estimated"] is True
    assert exact.to_dict()["estimated"] is False
    notes = [one.figures()[-1] for one in (found, exact)]
    assert all(isinstance(note, Prose) for note in notes)
    assert ["one pass and its gradient" in note.lines[0] for note in notes] == [True, False]  # type: ignore[attr-defined]


def failing(logits: Tensor) -> Tensor:
    raise RuntimeError


def test_a_model_loaded_in_inference_mode_has_gradients(tmp_path: Path) -> None:
    reference_folder(tmp_path / "gpt2", "gpt2")
    with torch.inference_mode():
        inside = effects(load(tmp_path / "gpt2"), TEXT, estimate=True)
    assert np.array_equal(inside.values, effects(load(tmp_path / "gpt2"), TEXT, estimate=True).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 2}, "batch = 2: an estimate is one pass and has no use for it"),
        ({"metric": "kl"}, "give a source, or take logprob"),
        ({"metric": lambda logits: logits}, "metric <lambda>: for an estimate it must turn the logits [T V] into one"),
        ({"metric": lambda logits: logits[-1, 7].item()}, "one number that depends on them, such as logits[-1, 7]"),
        ({"metric": lambda logits: logits[-1, 7].detach()}, "one number that depends on them"),
        ({"metric": lambda logits: logits.numpy()[-1, 7]}, "metric <lambda>, with a gradient: Can't call numpy()"),
        ({"metric": failing}, "metric failing, with a gradient: "),
        ({"target": 67}, "target = 67 is outside the vocabulary"),
        ({"positions": [6]}, "the prompt has positions -6 to 5"),
    ],
)
def test_what_cannot_be_estimated_is_said_in_one_line(options: dict[str, Any], message: str, build: Build) -> None:
    with pytest.raises(InsideError) as caught:
        effects(build("grouped"), TEXT, estimate=True, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_limit_counts_values_and_gradients_before_anything_runs(build: Build) -> None:
    """Three layers of z [T D], and the scores of one position."""
    model = build("grouped")
    config = model.config
    held = 2 * 4 * (config.n_layers * len(TEXT) * config.n_heads * config.d_head + config.d_vocab)
    effects(model, TEXT, estimate=True, limit=held)
    model.network.embed.register_forward_pre_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(InsideError, match=f"{held} bytes .* with gradients, the limit is {held - 1}"):
        effects(model, TEXT, estimate=True, limit=held - 1)
