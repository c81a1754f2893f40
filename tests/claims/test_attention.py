"""Claims 5, 6, 7, 8 and 10: what attention does, by hand, and models in which it does something else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cutaway.claims import gather, mask, order, roles, scale
from cutaway.claims.lab import SMALL, Lab, loss_all_at_once, loss_from_before, source_text, train_small
from cutaway.config import AttentionConfig, CausalMaskConfig, NoMaskConfig, WindowMaskConfig
from cutaway.inside.altered import altered
from cutaway.nn import mask as masks
from cutaway.nn.cache import NoCache, NoLayerCache
from cutaway.nn.linear import Embedding
from cutaway.nn.tap import IDLE
from cutaway.train.config import TrainConfig
from support.breaks import blocks, feed_forward, one_projection, output_projection
from support.tiny import OURS
from support.trials import found_on_grouped, fresh, measured


def test_the_influence_of_a_token_by_hand() -> None:
    """Layer 0's attention called alone, on what it reads and on that with one position pushed."""
    model, ids = fresh("classic"), [5, 9, 2, 60]
    network, block = model.network, blocks(model)[0]
    with torch.no_grad():
        x, shared = network.enter(torch.tensor([ids]), NoCache(1), [4])
        read = block.attn_norm(x)
        pushed = gather.push("blocks.0.attn.norm", read[0, 1])
        other = read.clone()
        other[0, 1] += pushed.vector
        plain, moved = (
            block.attn(one, shared.rotations[0], shared.masks[0], NoLayerCache(), IDLE)[0] for one in (read, other)
        )
    expected = (moved - plain).norm(dim=-1) / plain.norm(dim=-1)
    assert expected[0] == 0
    assert expected[3] > 0
    found = gather.influence(model, ids, 0, "attn", [])
    assert found[:, 1].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("what", ["grouped", "parallel", "windows"])
def test_a_feed_forward_that_mixes_positions_fails(what: str) -> None:
    model = feed_forward(fresh(what), lambda out: out + 0.01 * out.mean(dim=1, keepdim=True))
    assert not measured(gather.CLAIM, model).holds


def test_a_feed_forward_that_does_nothing_fails() -> None:
    assert not measured(gather.CLAIM, feed_forward(fresh("grouped"), lambda out: out * 0)).holds


def test_attention_that_gathers_nothing_fails() -> None:
    assert not measured(gather.CLAIM, output_projection(fresh("grouped"), torch.zeros_like, layer=1)).holds


def test_without_the_mask_a_push_reaches_back_and_fails() -> None:
    found = measured(gather.CLAIM, altered(fresh("grouped"), "mask"))
    assert not found.holds


def test_the_pattern_with_another_key_projection_by_hand() -> None:
    model, ids = fresh("classic"), Lab(model=fresh("classic")).ids(16)
    keys, values = roles.rows_of(model)
    assert (keys, values) == (slice(32, 64), slice(64, 96))
    weight = roles.projections(model)
    patterns = []
    for one in (weight, roles.scrambled(weight, keys, seed=0)):
        with torch.no_grad():
            x, _ = model.network.enter(torch.tensor([ids]), NoCache(1), [16])
            read = blocks(model)[0].attn_norm(x)[0]
            qkv = read @ one.T + blocks(model)[0].attn.qkv.bias
        q, k = (qkv[:, first : first + 32].unflatten(-1, (4, 8)).transpose(0, 1) for first in (0, 32))
        hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)
        patterns.append((q @ k.mT / math.sqrt(8)).masked_fill(hidden, -math.inf).softmax(-1))
    found = measured(roles.CLAIM, model).figures["change of the pattern by another W_K"]
    assert found == pytest.approx(float((patterns[0] - patterns[1]).abs().max()), abs=1e-5)


def test_values_that_are_keys_fail() -> None:
    found = measured(roles.CLAIM, one_projection(fresh("grouped")))
    assert not found.holds
    assert found.figures["change of the values by another W_K"] > 0
    assert found.figures["change of what is gathered by another W_V"] == 0


def test_what_random_scores_do() -> None:
    divided, raw = scale.softmax_at(4096, 1 / 64, seed=1), scale.softmax_at(4096, 1.0, seed=1)
    assert divided["variance before"] == pytest.approx(4096, rel=0.05)
    assert divided["entropy"] == pytest.approx(1 - 0.5 / math.log(256), abs=0.02)  # of scores of variance 1: ln n − ½
    assert raw["entropy"] < 0.05
    assert raw["gradient"] < divided["gradient"] / 3
    assert divided["largest"] > 1  # it bounds nothing
    assert raw["row sum error"] < 1e-12  # it makes no row sum to one


@pytest.mark.parametrize(("what", "factor"), [("grouped", 1), ("capped sandwich", 1), ("gemma2", math.sqrt(8 / 20))])
def test_the_models_own_constant_is_found(what: str, factor: float) -> None:
    figures = measured(scale.CLAIM, fresh(what)).figures
    assert figures["what the model multiplies its scores by, of 1/√d"] == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("what", ["grouped", "capped sandwich", "classic"])
def test_a_model_without_its_scale_fails(what: str) -> None:
    found = measured(scale.CLAIM, altered(fresh(what), "scale"))
    assert not found.holds
    assert found.figures["what the model multiplies its scores by, of 1/√d"] == pytest.approx(8**0.5, rel=1e-3)


def test_a_scale_of_one_over_d_fails() -> None:
    attention = AttentionConfig(qkv_bias=True, out_bias=True, scale=1 / 8)
    assert not measured(scale.CLAIM, fresh(replace(OURS["classic"], attention=attention))).holds


@pytest.mark.parametrize("what", ["classic", "windows"])
def test_a_model_without_its_mask_fails(what: str) -> None:
    found = measured(mask.CLAIM, altered(fresh(what), "mask"))
    assert not found.holds
    assert found.figures["largest weight above the diagonal"] > 0.01


def rule(*, diagonal: bool = True, last: int | None = None) -> Any:
    def seen(position: Any, window: int | None) -> tuple[Any, Any]:
        first = position * 0 if last is None else (position + 1 - last) * (position + 1 > last)
        return first, position + diagonal

    return seen


@pytest.mark.parametrize("broken", [rule(diagonal=False), rule(last=3)], ids=["no diagonal", "last three"])
def test_a_mask_that_hides_more_than_what_comes_later_fails(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found_on_grouped(8)  # the small ones are trained under the true rule
    monkeypatch.setattr(masks, "rule", broken)
    monkeypatch.setattr(masks.Mask, "is_triangle", False)  # else the plain case is not asked of the rule
    assert not measured(mask.CLAIM, fresh("grouped")).holds


def test_windows_are_seen_whole() -> None:
    pattern = torch.ones(2, 5, 5).tril().triu(-1)  # itself and one before
    assert mask.share_seen(pattern[None], [2]) == 1
    assert mask.share_seen(pattern[None], [5]) == pytest.approx(9 / 15)


def test_a_small_model_without_the_mask_cheats_and_cannot_write() -> None:
    finding = found_on_grouped(8)
    name, in_use = list(finding.found.figures)[-2:]
    honest, cheat = finding.found.figures, finding.control.figures
    assert honest[name] == pytest.approx(honest[in_use], abs=1e-4)
    assert 1.8 < honest[name] < 3
    assert cheat[name] < 0.5
    assert cheat[in_use] > honest[in_use] + 0.5


def test_if_the_cheat_does_not_show_the_claim_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few steps to learn to look ahead: then the control has not come out the other way."""
    lab = Lab(model=fresh("grouped"))
    few = TrainConfig(steps=10, batch_size=8, warmup=2, optimizer="muon", lr=1e-2)
    for config in (SMALL, replace(SMALL, mask=NoMaskConfig())):
        lab._small[config] = train_small(config, training=few)
    finding = mask.CLAIM.test(lab)
    assert (finding.found.holds, finding.control.holds, finding.verdict) == (True, True, "fails")


@pytest.mark.parametrize("kind", [CausalMaskConfig(), NoMaskConfig(), WindowMaskConfig(size=3)])
def test_losses_by_hand(kind: Any) -> None:
    """Byte by byte: one pass over all, and a pass for each prefix."""
    network = fresh(replace(OURS["grouped"], mask=kind)).network
    window = torch.tensor([[5, 9, 2, 60, 7]])
    with torch.no_grad():
        together = [-float(network(window[:, :-1])[0, i].log_softmax(-1)[window[0, i + 1]]) for i in range(4)]
        alone = [-float(network(window[:, : i + 1])[0, -1].log_softmax(-1)[window[0, i + 1]]) for i in range(4)]
    assert loss_all_at_once(network, window) == pytest.approx(sum(together) / 4, rel=1e-5)
    assert loss_from_before(network, window) == pytest.approx(sum(alone) / 4, rel=1e-5)
    assert (together == pytest.approx(alone, rel=1e-5)) == (kind != NoMaskConfig())


def test_what_is_trained_on_is_this_program() -> None:
    tokenizer, text = source_text()
    assert "class Transformer(nn.Module)" in tokenizer.decode(text.tolist())


def test_two_tokens_without_order_by_hand() -> None:
    """Without mask and positions, exchanging two tokens exchanges their scores."""
    bag = altered(fresh("classic"), ["mask", "positions"])
    with torch.no_grad():
        one, other = bag.network(torch.tensor([[5, 9], [9, 5]]))
    assert torch.allclose(one, other.flip(0), atol=1e-5)
    assert order.moved(bag, [5, 9], [1, 0]) <= 1e-5
    assert order.moved(fresh("classic"), [5, 9], [1, 0]) > 0.01


@pytest.mark.parametrize("what", ["classic", "grouped"])
def test_positions_taken_away_fail(what: str) -> None:
    found = measured(order.CLAIM, altered(fresh(what), "positions"))
    assert not found.holds
    assert found.figures["change with positions, without the mask"] <= 1e-5


def test_a_table_of_zeros_fails() -> None:
    model = fresh("gpt2")
    model.network.get_parameter("positions.0.weight").data.zero_()
    assert not measured(order.CLAIM, model).holds


def test_an_order_that_leaks_in_elsewhere_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = Embedding.forward

    def numbered(self: Embedding, tokens: Tensor) -> Tensor:
        return look_up(self, tokens) + torch.arange(tokens.shape[1])[:, None] / 10 * torch.arange(32) / 32

    monkeypatch.setattr(Embedding, "forward", numbered)
    found = measured(order.CLAIM, fresh("grouped"))
    assert not found.holds
    assert found.figures["change without positions and mask"] > 0.01
