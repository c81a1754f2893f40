"""Linear maps, and the embedding whose table they may share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cutaway.nn import few_rows

LONG = 512  # positions from which a prompt is long


class Linear(nn.Linear):
    """y = x Wᵀ + b. A few rows go through the loop that reads the weight at memory speed."""

    def forward(self, x: Float[Tensor, "*axes D_in"]) -> Float[Tensor, "*axes D_out"]:
        weight, bias = self.weight, self.bias
        if few_rows.linear_applies(x, weight, bias):
            return few_rows.linear(x, weight, bias)
        return F.linear(x, weight, bias)

    def halves(self, x: Float[Tensor, "B T D_in"]) -> tuple[Tensor, Tensor]:
        """Both halves of y. A prompt takes a product for each: torch is faster on two results than on a large one."""
        if x.shape[1] < LONG or torch.is_grad_enabled():
            first, second = self(x).chunk(2, dim=-1)
            return first, second
        biases = (None, None) if self.bias is None else self.bias.chunk(2)
        first, second = (F.linear(x, w, b) for w, b in zip(self.weight.chunk(2), biases, strict=True))
        return first, second


class Embedding(nn.Embedding):
    """Token ids to learned rows, times a constant (Gemma: √d_model)."""

    def __init__(self, d_vocab: int, d_model: int, scale: float) -> None:
        super().__init__(d_vocab, d_model)
        self.scale = scale

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        rows = F.embedding(tokens, self.weight)
        # The reference rounds the constant to the weights' type before it multiplies.
        return rows if self.scale == 1.0 else rows * rows.new_tensor(self.scale)
