"""From queries, keys and values to what each head gathers: z = softmax(mask(scale · q·kᵀ)) · v.

Two kernels, equal within rounding. The reference one is the formula, stage by stage, and shows each; the fused one
never holds a T×T matrix, but a small one where that is faster to train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cutaway.nn import few_rows
from cutaway.nn.mask import Mask
from cutaway.nn.softmax import soften
from cutaway.nn.tap import IDLE, Tap

Heads = Float[Tensor, "B H T Dh"]
Keys = Float[Tensor, "B K S Dh"]

STAGES = ("attn.scores", "attn.scaled", "attn.masked", "attn.pattern")
SHORT = 256  # keys up to which products learn faster than the fused kernel: on two cores 7 times at 64, 3 at 256
CHUNK = 256  # queries at a time where a mask must be written out: its memory then grows with S, not T·S
NEAR = 128  # queries at a time whose scores the processor's cache still has when they are read again


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
        if self.is_near(q, k) and few_rows.readable(q, k):
            return self.attend_near(q, k, v, mask, tap)
        everything = slice(0, q.shape[2])
        return self.attend(q, k, v, mask, everything, slice(0, k.shape[2]), tap)

    def attend(self, q: Heads, k: Keys, v: Keys, mask: Mask, queries: slice, keys: slice, tap: Tap) -> Heads:
        """z of some queries over some keys, already cut out. A stage that nobody wants becomes the next in place."""
        scaled = self.scaled(by_groups(q, k.mT), tap)
        masked = tap("attn.masked", mask.hide(scaled, queries, keys, in_place=is_spare(tap, "attn.scaled")))
        pattern = tap("attn.pattern", softmax(masked).to(v.dtype))
        return by_groups(pattern, v)

    def scaled(self, scores: Float[Tensor, "B H T S"], tap: Tap) -> Float[Tensor, "B H T S"]:
        """The stages before the mask."""
        scores = tap("attn.scores", scores)
        times = scores.mul_ if is_spare(tap, "attn.scores") else scores.mul
        return tap("attn.scaled", soft_cap(times(self.scale), self.cap))

    def is_near(self, q: Heads, k: Keys) -> bool:
        """Whether `attend_near` is for these."""
        return self.cap is None and q.dtype is torch.float32 and few_rows.computable(q, k)

    def attend_near(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        """The same a few queries at a time, each with the keys in its reach, while the cache has their scores.

        Bit for bit the same whatever is wanted, and whatever is put in place of its equal.
        """
        pattern = q.new_empty(*q.shape[:3], k.shape[2])
        if tap.wants("attn.scores", "attn.scaled", "attn.masked"):
            everything = slice(0, q.shape[2]), slice(0, k.shape[2])
            hidden = mask.hide(self.scaled(self.scores(q, k, mask), tap), *everything, in_place=False)
            masked = tap("attn.masked", hidden)
            if masked is not hidden and looks_ahead(masked, mask, -math.inf):
                return by_groups(tap("attn.pattern", softmax(masked)), v)
            soften(masked, pattern, 1.0, mask.ranges, 0, 0)
            return gather_near(tap("attn.pattern", pattern), v, mask)
        parts = []
        values = each_head(v, q.shape[1], q.shape[2])
        for queries, keys in chunks(mask, NEAR):
            scores = by_groups(q[:, :, queries], k[:, :, keys].mT)
            soften(scores, pattern, self.scale, mask.ranges, queries.start, keys.start)
            parts.append(by_groups(pattern[:, :, queries, keys], values[:, :, keys]))
        shown = tap("attn.pattern", pattern)
        return joined(parts) if shown is pattern else gather_near(shown, v, mask)

    def scores(self, q: Heads, k: Keys, mask: Mask) -> Float[Tensor, "B H T S"]:
        """q·kᵀ, bit for bit as a pass has it, and where no query looks besides."""
        if not self.is_near(q, k):
            return by_groups(q, k.mT)
        rows = []
        for queries, keys in chunks(mask, NEAR):
            parts = (slice(0, keys.start), keys, slice(keys.stop, mask.n_keys))
            products = [by_groups(q[:, :, queries], k[:, :, one].mT) for one in parts if one.start < one.stop]
            rows.append(joined(products, dim=3))
        return joined(rows)


def gather_near(pattern: Float[Tensor, "B H T S"], v: Keys, mask: Mask) -> Heads:
    """pattern @ v, over the keys in reach alone unless an edit looks further."""
    if looks_ahead(pattern, mask, 0.0):
        return by_groups(pattern, v)
    v = each_head(v, pattern.shape[1], pattern.shape[2])
    return joined([by_groups(pattern[:, :, queries, keys], v[:, :, keys]) for queries, keys in chunks(mask, NEAR)])


def each_head(v: Keys, n_heads: int, n_queries: int) -> Float[Tensor, "B X S Dh"]:
    """The values of each head where queries come in chunks: a group's rows lie apart there, and would be copied."""
    return v.repeat_interleave(n_heads // v.shape[1], 1) if n_queries > NEAR else v


def looks_ahead(x: Float[Tensor, "B H T S"], mask: Mask, blank: float) -> bool:
    """Whether a stage has anything but its blank where the mask lets no query look."""
    visible = mask.visible(slice(0, mask.n_queries), slice(0, mask.n_keys))
    return visible is not None and not bool(((x == blank) | visible).all())


def by_groups(x: Float[Tensor, "B H T X"], y: Float[Tensor, "B K X Y"]) -> Float[Tensor, "B H T Y"]:
    """x @ y, where the H/K query heads of a group share one y: stacked to one product, not y copied for each."""
    n_rows, n_heads, n_queries, width = x.shape
    n_groups = y.shape[1]
    if n_heads == n_groups:
        return x @ y
    stacked = x.reshape(n_rows, n_groups, n_heads // n_groups * n_queries, width)
    return (stacked @ y).view(n_rows, n_heads, n_queries, -1)


def is_spare(tap: Tap, name: str) -> bool:
    """Whether a value may be written over: nobody wants it, and no gradient needs it."""
    return not (torch.is_grad_enabled() or tap.wants(name))


def softmax(masked: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Rows that sum to 1, computed in fp32; a query that sees nothing gathers nothing, where plain softmax gives NaN.

    To look for such queries costs as much as the softmax itself, and where there are none, no row is NaN.
    """
    if masked.is_cpu and not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        pattern = masked.softmax(-1, dtype=torch.float32)
        if not bool(pattern[..., 0].isnan().any()):
            return pattern
    return torch.ops.aten._safe_softmax(masked.float(), -1)  # its own cast has no gradient in fp16


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


def chunks(mask: Mask, n: int) -> Iterator[tuple[slice, slice]]:
    """n queries at a time, and the keys in their reach."""
    for first in range(0, mask.n_queries, n):
        queries = slice(first, min(first + n, mask.n_queries))
        yield queries, mask.keys(queries)


def in_chunks(attend: Callable[..., Tensor], q: Heads, k: Keys, v: Keys, mask: Mask, n: int = CHUNK) -> Heads:
    """`attend` on n queries at a time, each with the keys in its reach."""
    parts = [
        attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask, queries, keys, IDLE)
        for queries, keys in chunks(mask, n)
    ]
    return joined(parts)


def joined(parts: Sequence[Tensor], dim: int = 2) -> Tensor:
    """What chunks gave, as one."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=dim)


def build_kernels(scale: float, cap: float | None) -> tuple[Kernel, Reference]:
    """The fast kernel and the reference it must equal."""
    return (Fused(scale) if cap is None else Chunked(scale, cap)), Reference(scale, cap)
