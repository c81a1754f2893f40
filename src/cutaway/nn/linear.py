"""Linear maps, and the embedding whose table they may share."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cutaway.nn import few_rows


class Linear(nn.Linear):
    """y = x Wᵀ + b. A few rows go through the loop that reads the weight at memory speed."""

    def forward(self, x: Float[Tensor, "*axes D_in"]) -> Float[Tensor, "*axes D_out"]:
        weight, bias = self.weight, self.bias
        if few_rows.linear_applies(x, weight, bias):
            return few_rows.linear(x, weight, bias)
        return F.linear(x, weight, bias)


class Embedding(nn.Embedding):
    """Token ids to learned rows, times a constant (Gemma: √d_model)."""

    def __init__(self, d_vocab: int, d_model: int, scale: float) -> None:
        super().__init__(d_vocab, d_model)
        self.scale = scale

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        rows = F.embedding(tokens, self.weight)
        # The reference rounds the constant to the weights' type before it multiplies.
        return rows if self.scale == 1.0 else rows * rows.new_tensor(self.scale)
