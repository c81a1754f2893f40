"""Contributions: the parts sum to the logit for every family, each the share it has when the norms are held."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from cutaway.config import AttentionConfig, LayerNormConfig
from cutaway.errors import InsideError
from cutaway.figures import Bars, HeatMap, Prose, Table
from cutaway.inside.contributions import contributions
from cutaway.language_model import LanguageModel, load
from support.tiny import FAMILIES, OURS, random_network, random_tokens

Build = Callable[..., LanguageModel]
TEXT = random_tokens(1, 12)[0].tolist()
BIASES = AttentionConfig(qkv_bias=True, out_bias=True)
MORE = {
    "LayerNorm behind": replace(OURS["post norms"], norm=LayerNormConfig(), attention=BIASES),
    "LayerNorm around": replace(OURS["capped sandwich"], norm=LayerNormConfig(), attention=BIASES, logit_soft_cap=None),
    "RMSNorm behind, biases": replace(OURS["post norms"], attention=BIASES),
}


def build_any(name: str, build: Build) -> LanguageModel:
    return build(random_network(MORE[name])) if name in MORE else build(name)


@pytest.mark.parametrize("name", [*OURS, *FAMILIES, *MORE])
@pytest.mark.parametrize(("target", "versus", "position"), [(None, None, -1), (5, 11, 4), (5, None, 0)])
def test_the_parts_sum_to_the_logit(
    name: str, target: int | None, versus: int | None, position: int, build: Build
) -> None:
    model = build_any(name, build)
    found = contributions(model, TEXT, target=target, versus=versus, position=position)
    logits = model.logits(TEXT)[position]
    winner = int(logits.argmax()) if target is None else target
    expected = float(logits[winner] - (logits[versus] if versus is not None else 0))
    assert found.target == winner
    assert found.logit == pytest.approx(expected, abs=1e-5)
    near = 1e-5 * max(1, abs(found.value))
    assert sum(found.parts.values()) == pytest.approx(found.value, abs=near)
    assert abs(found.remainder) <= near
    assert sum(found.parts.values()) + found.remainder == pytest.approx(found.value, abs=1e-12)
    if (cap := model.config.logit_soft_cap) is None:
        assert found.value == found.logit
    elif versus is None:
        assert cap * np.tanh(found.value / cap) == pytest.approx(found.logit, abs=1e-5)
        assert found.value != found.logit
    assert found.heads.shape == (model.config.n_layers, model.config.n_heads)


@pytest.mark.parametrize("name", ["classic", "gpt2", "grouped", "capped sandwich", "gemma2", "olmo2", *MORE])
def test_each_share_is_the_part_alone_through_norms_that_are_held(name: str, build: Build) -> None:
    """The other way round: each part goes forward through norms whose statistics are those of the pass."""
    model = build_any(name, build)
    network, config = model.network, model.config
    found = contributions(model, TEXT, target=5, versus=11, position=7)
    trace = model.trace(TEXT)

    def forward(norm: object, part: Tensor, whole: Tensor) -> Tensor:
        if not isinstance(norm, torch.nn.Module):
            return part
        if isinstance(config.norm, LayerNormConfig):
            spread = (whole.var(correction=0) + config.norm.eps).sqrt()
            return (part - part.mean()) / spread * norm.weight.detach().double()
        weight = norm.weight.detach().double() + config.norm.offset
        return part / (whole.pow(2).mean() + config.norm.eps).sqrt() * weight

    def share(part: Tensor) -> float:
        whole = trace[f"blocks.{config.n_layers - 1}.resid_post"][0, 7].double()
        read = forward(network.final_norm, part.double(), whole)
        return float(read @ (network.head.weight[5] - network.head.weight[11]).detach().double())

    assert found.embedding == pytest.approx(share(trace["embed"][0, 7]), abs=1e-5)
    for layer, block in enumerate(network.blocks):
        heads = trace[f"blocks.{layer}.attn.head_out"][0, :, 7].double()
        bias = 0 if block.attn.out.bias is None else block.attn.out.bias.detach().double()
        for head in range(config.n_heads):
            part = forward(block.attn_post_norm, heads[head], heads.sum(0) + bias)
            assert found.heads[layer, head] == pytest.approx(share(part), abs=1e-5)
        added = share(trace[f"blocks.{layer}.attn.out"][0, 7])
        assert found.heads[layer].sum() + found.biases[layer] == pytest.approx(added, abs=1e-5)
        assert found.feed_forwards[layer] == pytest.approx(share(trace[f"blocks.{layer}.ff.out"][0, 7]), abs=1e-5)
    assert np.abs(found.heads).max() > 0.01


def test_blocks_that_add_nothing_leave_the_embedding(build: Build) -> None:
    network = random_network(OURS["grouped"])
    with torch.no_grad():
        for block in network.blocks:
            block.attn.out.weight.zero_()
            block.ff.down.weight.zero_()
        network.blocks[1].ff.down.weight[0] = 1.0  # one feed-forward writes into one direction, and no one reads it
        network.head.weight[:, 0] = 0.0
    found = contributions(build(network), TEXT, target=5)
    assert (found.heads == 0).all() and (found.feed_forwards == 0).all() and (found.biases == 0).all()
    assert found.positions is None and found.final_bias == 0
    assert found.embedding == pytest.approx(found.value, abs=1e-5)


def test_a_uniform_part_counts_for_nothing_behind_a_layer_norm(build: Build) -> None:
    """Its mean is taken from it; without centring it would have a share."""
    network = random_network(OURS["classic"])
    with torch.no_grad():
        network.blocks[2].attn.out.bias.fill_(3.0)
    found = contributions(build(network), TEXT, target=5)
    assert found.biases[2] == pytest.approx(0, abs=1e-12)
    assert found.final_bias == pytest.approx(
        float((network.final_norm.bias @ network.head.weight[5]).detach()), abs=1e-6
    )
    assert found.positions is not None and found.positions != 0


def test_the_pass_is_the_plain_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block leaves the fast kernel: the logit is that of the plain pass, bit for bit."""
    model = build("grouped")
    for block in model.network.blocks:
        monkeypatch.setattr(block.attn, "reference", lambda *_: pytest.fail("the reference kernel ran"))
    assert contributions(model, TEXT, target=5).logit == float(model.logits(TEXT)[-1, 5])


def test_what_does_not_fit_is_refused(build: Build) -> None:
    model = build("grouped")
    for options, message in (
        ({"target": 67}, "target = 67 is outside the vocabulary: 0 to 66"),
        ({"target": 3, "versus": -1}, "versus = -1 is outside"),
        ({"target": 3, "versus": 3}, "target and versus are both 3"),
        ({"target": "1 2"}, "target = '1 2' is 2 ids: give one"),
        ({"target": 2.5}, "target = 2.5: give the text of one token, or its id"),
        ({"position": 12}, "the prompt has positions -12 to 11"),
        ({"top": 0}, "top = 0: it must be from 1"),
    ):
        with pytest.raises(InsideError, match=message):
            contributions(model, TEXT, **options)
    assert contributions(model, TEXT, target="5").target == 5


def test_a_target_by_its_text() -> None:
    """By exactly what a token writes; a text of several pieces names them."""
    model = load("bard", dtype="float32")
    found = contributions(model, "To be, or not to", target=" be", versus=" king")
    assert (found.target_label, found.versus_label) == ("·be", "·king")
    assert found.heading == "What adds to ·be over ·king at ·to (5)"
    assert abs(found.remainder) <= 1e-5 * max(1, abs(found.value))
    with pytest.raises(InsideError, match=r"' Mary' is no token, it is written ·M \(\d+\) ary \(\d+\): give one token"):
        contributions(model, "To be", target=" Mary")
    with pytest.raises(InsideError, match=r"'queen' is no token, .*; ·queen \(1203\) is one token"):
        contributions(model, "To be", target="queen")
    with pytest.raises(InsideError, match="target = '' has no token"):
        contributions(model, "To be", target="")


@pytest.mark.parametrize("name", ["classic", "capped sandwich"])
def test_figures_show_its_numbers(name: str, build: Build) -> None:
    found = contributions(build(name), TEXT, target=5, top=4)
    _, bars, heads, ff, sums, prose = found.figures()
    assert isinstance(bars, Bars) and len(bars.labels) == 5
    assert sum(bars.values) == pytest.approx(found.value)
    sizes = [abs(value) for value in found.parts.values()]
    assert abs(bars.values[0]) == max(sizes)
    assert found.parts[bars.labels[0]] == bars.values[0]
    assert isinstance(heads, HeatMap) and heads.scale == "signed" and (heads.values == found.heads).all()
    assert isinstance(ff, Bars) and list(ff.values) == found.feed_forwards.tolist()
    assert isinstance(sums, Table) and sums.rows[-1] == ["sum", found.value]
    assert sum(float(str(row[1])) for row in sums.rows[:-1]) == pytest.approx(found.value, abs=1e-9)
    assert isinstance(prose, Prose)
    assert ("bends" in " ".join(prose.lines)) == (name == "capped sandwich")
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["kind"] == "contributions" and data["labels"] == [str(i) for i in TEXT]
    assert data["heads"][1][2] == pytest.approx(found.heads[1, 2], rel=1e-8)
    for one in found.figures():
        json.dumps(one.to_dict(), allow_nan=False)
