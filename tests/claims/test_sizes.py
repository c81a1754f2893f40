"""Claims 9, 11, 12 and 13: sizes by formula, and networks that have others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cutaway.claims import heads, length, share, square
from cutaway.claims.lab import Lab
from cutaway.config import ModelConfig
from cutaway.network import Transformer
from support.breaks import blocks, output_projection
from support.trials import fresh, measured, tried


@pytest.mark.parametrize("n_heads", [1, 4, 32])
def test_the_weights_of_a_block_by_formula(n_heads: int) -> None:
    assert heads.weights_of(n_heads, 256 // n_heads) == (3 * 256**2, 256**2, 8 * 256**2)
    assert heads.weights_of(n_heads, 64) == (3 * 64 * 256 * n_heads, 64 * 256 * n_heads, 8 * 256**2)


@pytest.mark.parametrize("what", ["classic", "parallel"])
@pytest.mark.parametrize("weight", [torch.zeros_like, lambda w: torch.eye(len(w))], ids=["zeros", "identity"])
def test_heads_without_their_output_projection_fail(what: str, weight: Any) -> None:
    found = measured(heads.CLAIM, output_projection(fresh(what), weight))
    assert not found.holds
    assert found.figures["least share of what a head adds that no copy of its result explains"] < 1e-6


def test_one_head_needs_its_output_projection_too() -> None:
    config = ModelConfig(n_layers=2, n_ctx=64, d_model=16, d_vocab=67, n_heads=1)
    assert tried(heads.CLAIM, fresh(config)).verdict == "holds"
    assert not measured(heads.CLAIM, output_projection(fresh(config), lambda w: torch.eye(16))).holds


def test_a_matrix_too_many_in_attention_fails() -> None:
    model = fresh("grouped")
    blocks(model)[0].attn.register_parameter("more", nn.Parameter(torch.zeros(32, 32)))
    assert not measured(heads.CLAIM, model).holds


@pytest.mark.parametrize("d", [64, 12288])
def test_the_share_of_a_block_by_formula(d: int) -> None:
    """A block of GPT-2: 4d² + 4d in attention, 8d² + 5d in the feed-forward, 4d in norms."""
    assert share.share_of(share.classic(d, narrow=False)) == pytest.approx((8 * d + 5) / (12 * d + 13))


def test_gpt3_in_full() -> None:
    figures = measured(share.CLAIM, fresh("grouped")).figures
    d, layers = 12288, 96
    assert figures["GPT-3: billions of weights in feed-forwards"] == layers * (8 * d**2 + 5 * d) / 10**9
    assert figures["GPT-3: billions of weights in all"] == pytest.approx(174.6, abs=0.01)


@pytest.mark.parametrize("where", ["", "blocks.1.ff", "blocks.0.attn"])
def test_weights_that_the_account_does_not_know_fail(where: str) -> None:
    model = fresh("grouped")
    model.network.get_submodule(where).register_parameter("more", nn.Parameter(torch.zeros(3)))
    found = measured(share.CLAIM, model)
    assert not found.holds
    figures = found.figures
    assert figures["the model's weights, counted"] == figures["the model's weights, predicted"] + 3


def test_shapes_that_depend_on_the_context() -> None:
    assert measured(length.CLAIM, fresh("gpt2")).figures["tensors whose shape depends on the context"] == 0
    excepted = "of these excepted, because they are a table of positions"
    assert measured(length.CLAIM, fresh("gpt2")).figures[excepted] == 1
    assert measured(length.CLAIM, fresh("grouped")).figures[excepted] == 0


class Leaky(Transformer):
    """A network with a table of the context's size that is no table of positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.leaked = nn.Parameter(torch.zeros(config.n_ctx, config.d_model))


def test_a_table_that_leaked_into_the_weights_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "Transformer", Leaky)
    found = measured(length.CLAIM, fresh("grouped"))
    assert not found.holds
    assert found.figures["tensors whose shape depends on the context"] == 1


def test_weights_that_a_pass_writes_to_fail() -> None:
    model = fresh("grouped")
    weight = blocks(model)[1].ff.get_parameter("down.weight")

    def write(module: nn.Module, args: Any, out: torch.Tensor) -> None:
        weight.data.mul_(1.001)

    model.network.embed.register_forward_hook(write)
    assert not measured(length.CLAIM, model).holds


def test_the_flops_of_scores_and_mixing_by_formula() -> None:
    lab = Lab(model=fresh("grouped"))
    for n in (32, 64):
        assert square._flops(square._kernel(lab, n, fused=False)) == 2 * 2 * 8 * n * n * 8  # two products, 8 heads of 8
        assert square._largest(square._kernel(lab, n, fused=False)) == 8 * n * n


def test_an_exponent_is_fitted() -> None:
    assert square.exponent((2, 4, 8), [3 * 4, 3 * 16, 3 * 64]) == pytest.approx(2)


def test_a_fused_kernel_that_holds_the_square_fails() -> None:
    model = fresh("grouped")
    blocks(model)[0].attn.kernel = blocks(model)[0].attn.reference
    found = measured(square.CLAIM, model)
    assert not found.holds
    assert found.figures["exponent of the largest tensor: the fused kernel"] > 1.5


def test_a_feed_forward_that_meets_all_pairs_fails() -> None:
    model = fresh("grouped")
    blocks(model)[0].ff.register_forward_hook(lambda module, args, out: (out @ out.mT) @ out)
    found = measured(square.CLAIM, model)
    assert not found.holds
    assert found.figures["exponent of the FLOPs: feed-forward"] > 1.05
