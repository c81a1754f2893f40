"""From queries, keys and values to what each head gathers: z = softmax(mask(scale · q·kᵀ)) · v.

Two kernels, equal within rounding. The reference one is the formula, stage by stage, and shows each; the fused one
never holds a T×T matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cutaway.nn import few_rows
from cutaway.nn.mask import Mask
from cutaway.nn.tap import IDLE, Tap

Heads = Float[Tensor, "B H T Dh"]
Keys = Float[Tensor, "B K S Dh"]

STAGES = ("attn.scores", "attn.scaled", "attn.masked", "attn.pattern")
CHUNK = 256  # queries at a time where a mask must be written out: its memory then grows with S, not T·S


Kernel = Callable[[Tensor, Tensor, Tensor, Mask, Tap], Tensor]  # what attention calls: q, k, v, mask, tap → z


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap): bounded by ±cap, the identity near 0."""
    return x if cap is None else cap * torch.tanh(x / cap)


class Reference:
    """The formula, stage by stage, every stage named."""

    def __init__(self, scale: float, cap: float | None) -> None:
        self.scale = scale
        self.cap = cap

    def __call__(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        everything = slice(0, q.shape[2])
        return self.attend(q, k, v, mask, everything, slice(0, k.shape[2]), tap)

    def attend(self, q: Heads, k: Keys, v: Keys, mask: Mask, queries: slice, keys: slice, tap: Tap) -> Heads:
        """z of some queries over some keys, already cut out."""
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        scores = tap("attn.scores", q @ k.mT)
        scaled = tap("attn.scaled", soft_cap(scores * self.scale, self.cap))
        visible = mask.visible(queries, keys)
        hidden = scaled if visible is None else scaled.masked_fill(~visible, -math.inf)
        masked = tap("attn.masked", hidden)
        # A query that sees nothing gathers nothing: zeros, where a plain softmax gives NaN.
        pattern = tap("attn.pattern", torch.ops.aten._safe_softmax(masked, -1, torch.float32).to(v.dtype))
        return pattern @ v


class Fused:
    """torch's fused attention: softmax on the fly, nothing of size T×T."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        if few_rows.attend_applies(q, k, v):
            return few_rows.attend(q, k, v, self.scale, mask.ranges)
        if mask.is_triangle:
            q, k, v = (t.contiguous() for t in (q, k, v))  # heads that lie apart are read slower than copied
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return in_chunks(self.attend, q, k, v, mask)

    def attend(self, q: Heads, k: Keys, v: Keys, mask: Mask, queries: slice, keys: slice, tap: Tap) -> Heads:
        visible = mask.visible(queries, keys)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.scale, enable_gqa=True)


class Chunked(Reference):
    """The formula on a few queries at a time, for soft-capped scores, which torch's fused attention does not know."""

    def __call__(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        return in_chunks(self.attend, q, k, v, mask)


def in_chunks(attend: Callable[..., Tensor], q: Heads, k: Keys, v: Keys, mask: Mask) -> Heads:
    """`attend` on CHUNK queries at a time, each with the keys in its reach."""
    parts = []
    for first in range(0, q.shape[2], CHUNK):
        queries = slice(first, min(first + CHUNK, q.shape[2]))
        keys = mask.keys(queries)
        parts.append(attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask, queries, keys, IDLE))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def build_kernels(scale: float, cap: float | None) -> tuple[Kernel, Reference]:
    """The fast kernel and the reference it must equal."""
    return (Fused(scale) if cap is None else Chunked(scale, cap)), Reference(scale, cap)
