"""The two norms, over the last axis."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cutaway.config import LayerNormConfig, NormConfig, QKNorm, RMSNormConfig
from cutaway.nn import few_rows


class LayerNorm(nn.LayerNorm):
    """(x − mean) / √(variance + eps), scaled and shifted."""

    def __init__(self, d: int, config: LayerNormConfig) -> None:
        super().__init__(d, eps=config.eps, bias=config.bias)


class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps), scaled by offset + weight; computed in fp32 whatever the weights are."""

    def __init__(self, d: int, config: RMSNormConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((d,), 1.0 - config.offset))
        self.eps = config.eps
        self.offset = config.offset

    def forward(self, x: Float[Tensor, "*axes D"]) -> Float[Tensor, "*axes D"]:
        weight = self.weight
        if few_rows.rms_norm_applies(x, weight):
            return few_rows.rms_norm(x, weight, self.eps, self.offset)
        if self.offset:  # in fp32, rounded once, as the weights around 0 need it
            return F.rms_norm(x.float(), weight.shape, weight.float() + self.offset, self.eps).to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps)


class WidthNorm(nn.Module):
    """A norm over all heads of a token together."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Float[Tensor, "B T H Dh"]) -> Float[Tensor, "B T H Dh"]:
        return self.norm(x.flatten(-2)).view_as(x)


def build_norm(config: NormConfig, d: int) -> LayerNorm | RMSNorm:
    """The norm of width `d`."""
    return LayerNorm(d, config) if isinstance(config, LayerNormConfig) else RMSNorm(d, config)


def no_norm(x: Tensor) -> Tensor:
    """Stands where a config has no norm."""
    return x


def build_qk_norm(kind: QKNorm | None, config: NormConfig, n_heads: int, d_head: int) -> Callable[[Tensor], Tensor]:
    """The norm on q or k: none, per head, or over all heads."""
    if kind is None:
        return no_norm
    return build_norm(config, d_head) if kind == "head" else WidthNorm(build_norm(config, n_heads * d_head))
