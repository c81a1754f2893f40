"""The feed-forward processes: each position by itself, the same weights for all."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cutaway.config import Activation, ModelConfig
from cutaway.nn import few_rows
from cutaway.nn.gelu import gelu_tanh
from cutaway.nn.linear import Linear
from cutaway.nn.tap import Tap

Activate = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[Activation, Activate] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """W_2 · act(W_1 · x): up to width F, a non-linearity, and back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        options = config.feedforward
        self.up = Linear(config.d_model, config.d_ff, bias=options.bias)
        self.down = Linear(config.d_ff, config.d_model, bias=options.bias)
        self.activation = ACTIVATIONS[options.activation]

    def forward(self, x: Float[Tensor, "B T D"], tap: Tap) -> Float[Tensor, "B T D"]:
        pre = tap("ff.pre", self.up(x))
        post = tap("ff.post", self.activation(pre))
        return self.down(post)


class GatedFeedForward(nn.Module):
    """W_2 · (act(W_gate · x) ⊙ W_up · x), with W_gate and W_up on top of each other in one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        options = config.feedforward
        self.gate_up = Linear(config.d_model, 2 * config.d_ff, bias=options.bias)
        self.down = Linear(config.d_ff, config.d_model, bias=options.bias)
        self.activation = ACTIVATIONS[options.activation]

    def forward(self, x: Float[Tensor, "B T D"], tap: Tap) -> Float[Tensor, "B T D"]:
        gate, up = self.gate_up.halves(x)
        pre, up = tap("ff.pre", gate), tap("ff.up", up)
        post = tap("ff.post", gated(self.activation, pre, up))
        return self.down(post)


def gated(act: Activate, gate: Float[Tensor, "B T F"], up: Float[Tensor, "B T F"]) -> Float[Tensor, "B T F"]:
    """act(gate) ⊙ up."""
    if act is F.silu and few_rows.silu_gate_applies(gate, up):
        return few_rows.silu_gate(gate, up)
    post = act(gate)
    if torch.is_grad_enabled():
        return post * up
    return post.mul_(up)  # in place: for a long prompt, fresh memory costs more than the product


def build_feedforward(config: ModelConfig) -> FeedForward | GatedFeedForward:
    """The plain or the gated kind."""
    return GatedFeedForward(config) if config.feedforward.gated else FeedForward(config)
