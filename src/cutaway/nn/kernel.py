"""From queries, keys and values to what each head gathers: z = softmax(mask(scale · q·kᵀ)) · v.

Two kernels, equal within rounding. The reference one (reference.py) is the formula, stage by stage, and shows each; the
fused one never holds a T×T matrix, but a small one where that is faster to train.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.nn import few_rows
from cutaway.nn.mask import Mask
from cutaway.nn.reference import Heads, Keys, Reference, chunks, joined
from cutaway.nn.tap import IDLE, Tap

SHORT = 256  # keys up to which products learn faster than the fused kernel: on two cores 7 times at 64, 3 at 256
CHUNK = 256  # queries at a time where a mask must be written out: its memory then grows with S, not T·S

Kernel = Callable[[Tensor, Tensor, Tensor, Mask, Tap], Tensor]  # what attention calls: q, k, v, mask, tap → z


class Fused:
    """torch's fused attention: softmax on the fly, nothing of size T×T."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        if few_rows.attend_applies(q, k, v):
            return few_rows.attend(q, k, v, self.scale, mask.ranges)
        if hides_nan(q, k):
            return Chunked(self.scale, None)(q, k, v, mask, tap)
        return self.by_torch(q, k, v, mask)

    def by_torch(self, q: Heads, k: Keys, v: Keys, mask: Mask) -> Heads:
        """A whole text at once, anything else in chunks."""
        return self.triangle(q, k, v) if mask.is_triangle else in_chunks(self.attend, q, k, v, mask)

    def triangle(self, q: Heads, k: Keys, v: Keys) -> Heads:
        """A whole text, without a mask to write out."""
        if learns_short(q):
            return in_products(q, k, v, self.scale)
        q, k, v = (t.contiguous() for t in (q, k, v))  # heads that lie apart are read slower than copied
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)

    def attend(self, q: Heads, k: Keys, v: Keys, mask: Mask, queries: slice, keys: slice, tap: Tap) -> Heads:
        visible = mask.visible(queries, keys)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.scale, enable_gqa=True)


def hides_nan(q: Heads, k: Keys) -> bool:
    """Whether there is a NaN or infinity that torch's fused kernel may lose: in a short text on the CPU it takes such
    a score for a masked one. The head then gathers nothing, and the logits look sound.
    """
    if not q.is_cpu or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    both = q.sum(dtype=torch.float32) + k.sum(dtype=torch.float32)  # finite only if every term is
    return not math.isfinite(both)


def learns_short(q: Heads) -> bool:
    """Whether a gradient is to come through a short text in 16 bits on the CPU: torch's fused kernel is slow there."""
    is_short = q.shape[2] <= SHORT and q.is_cpu and q.dtype in (torch.bfloat16, torch.float16)
    return is_short and torch.is_grad_enabled() and q.requires_grad


def in_products(q: Heads, k: Keys, v: Keys, scale: float) -> Heads:
    """The formula as two products and a softmax, the heads of a group stacked to one; keeps their patterns."""
    n_rows, n_heads, n_queries, d_head = q.shape
    n_groups = k.shape[1]
    q = q.reshape(n_rows * n_groups, -1, d_head)
    k, v = (x.reshape(n_rows * n_groups, n_queries, d_head) for x in (k, v))
    hidden = q.new_full((n_queries, n_queries), -math.inf).triu(1).repeat(n_heads // n_groups, 1)
    pattern = torch.baddbmm(hidden, q, k.mT, alpha=scale).softmax(-1)
    return (pattern @ v).view(n_rows, n_heads, n_queries, d_head)


class Chunked(Reference):
    """The formula on a few queries at a time, for soft-capped scores, which torch's fused attention does not know."""

    def __call__(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        return in_chunks(self.attend, q, k, v, mask)


def in_chunks(attend: Callable[..., Tensor], q: Heads, k: Keys, v: Keys, mask: Mask) -> Heads:
    """`attend` on CHUNK queries at a time, each with the keys in its reach."""
    parts = [
        attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask, queries, keys, IDLE)
        for queries, keys in chunks(mask, CHUNK)
    ]
    return joined(parts)


def build_kernels(scale: float, cap: float | None) -> tuple[Kernel, Reference]:
    """The fast kernel and the reference it must equal."""
    return (Fused(scale) if cap is None else Chunked(scale, cap)), Reference(scale, cap)
