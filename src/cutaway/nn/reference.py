"""The formula of attention, every stage named: what the fast kernels must equal, and what is looked into."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.nn import few_rows
from cutaway.nn.mask import Mask
from cutaway.nn.softmax import soften
from cutaway.nn.tap import Tap

Heads = Float[Tensor, "B H T Dh"]
Keys = Float[Tensor, "B K S Dh"]

STAGES = ("attn.scores", "attn.scaled", "attn.masked", "attn.pattern")
NEAR = 128  # queries at a time whose scores the processor's cache still has when they are read again


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
        scores = tap("attn.scores", by_groups(q, k.mT))
        scaled = tap("attn.scaled", self.scaled(scores, in_place=is_spare(tap, "attn.scores")))
        masked = tap("attn.masked", mask.hide(scaled, queries, keys, in_place=is_spare(tap, "attn.scaled")))
        pattern = tap("attn.pattern", softmax(masked).to(v.dtype))
        return by_groups(pattern, v.contiguous())  # wherever it lies, so that this can be done again bit for bit

    def scaled(self, scores: Float[Tensor, "B H T S"], *, in_place: bool = False) -> Float[Tensor, "B H T S"]:
        """Scores as the mask and the softmax read them."""
        return soft_cap((scores.mul_ if in_place else scores.mul)(self.scale), self.cap)

    def is_near(self, q: Tensor, k: Tensor) -> bool:
        """Whether `attend_near` is for these."""
        return self.cap is None and q.dtype is torch.float32 and few_rows.computable(q, k)

    def attend_near(self, q: Heads, k: Keys, v: Keys, mask: Mask, tap: Tap) -> Heads:
        """The same a few queries at a time, each with the keys in its reach, while the cache has their scores.

        Bit for bit the same whatever is wanted, and whatever is put in place of its equal.
        """
        pattern, z = q.new_empty(*q.shape[:3], k.shape[2]), None
        if tap.wants("attn.scores", "attn.scaled", "attn.masked"):
            scores = tap("attn.scores", self.scores(q, k, mask))
            scaled = tap("attn.scaled", self.scaled(scores))
            hidden = mask.hide(scaled, slice(0, q.shape[2]), slice(0, k.shape[2]), in_place=False)
            masked = tap("attn.masked", hidden)
            if masked is not hidden and looks_ahead(masked, mask, -math.inf):
                return by_groups(tap("attn.pattern", softmax(masked)), v)
            spare = masked.to(pattern.dtype, copy=True, memory_format=torch.contiguous_format)
            soften(spare, pattern, 1.0, mask.ranges, 0, 0)
        else:
            z = self.fill(pattern, q, k, v, mask)
        shown = tap("attn.pattern", pattern)
        if shown is not pattern and looks_ahead(shown, mask, 0.0):
            return by_groups(shown, v)
        return gather_near(shown, v, mask) if z is None or shown is not pattern else z

    def fill(self, pattern: Float[Tensor, "B H T S"], q: Heads, k: Keys, v: Keys, mask: Mask) -> Heads:
        """Write the pattern, and gather by each piece of it before the next."""
        n_rows, n_heads, n_queries, _ = q.shape
        v = v.contiguous()
        parts, room = [], q.new_empty(n_rows * n_heads * min(n_queries, NEAR) * k.shape[2])  # for all pieces the same
        for queries, keys in chunks(mask, NEAR):
            scores = by_groups(q[:, :, queries], k[:, :, keys].mT, room)
            soften(scores, pattern, self.scale, mask.ranges, queries.start, keys.start)
            parts.append(by_groups(scores, v[:, :, keys]))
        return by_token(parts)

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

    def gathered(self, pattern: Float[Tensor, "B H T S"], v: Keys, mask: Mask) -> Heads:
        """z of a pattern that looks no further than the mask lets it, bit for bit as a pass has it.

        The values tell which way that went, as queries and keys do there: all three are of one type in one place.
        """
        return gather_near(pattern, v, mask) if self.is_near(v, v) else by_groups(pattern, v.contiguous())


def gather_near(pattern: Float[Tensor, "B H T S"], v: Keys, mask: Mask) -> Heads:
    """pattern @ v, each query over the keys in its reach."""
    v = v.contiguous()
    return by_token([by_groups(pattern[:, :, queries, keys], v[:, :, keys]) for queries, keys in chunks(mask, NEAR)])


def looks_ahead(x: Float[Tensor, "B H T S"], mask: Mask, blank: float) -> bool:
    """Whether a stage has anything but its blank where the mask lets no query look."""
    visible = mask.visible(slice(0, mask.n_queries), slice(0, mask.n_keys))
    return visible is not None and not bool(((x == blank) | visible).all())


def by_groups(
    x: Float[Tensor, "B H T X"], y: Float[Tensor, "B K X Y"], room: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "B H T Y"]:
    """x @ y, where the H/K query heads of a group share one y: stacked to one product, not y copied for each.

    With `room`, at least as many numbers, it is written there.
    """
    n_rows, n_heads, n_queries, width = x.shape
    shape = (n_rows, n_heads, n_queries, y.shape[-1])
    stacked = x.reshape(n_rows * y.shape[1], -1, width)
    out = None if room is None else room[: math.prod(shape)].view(len(stacked), -1, y.shape[-1])
    return torch.bmm(stacked, y.flatten(0, 1), out=out).view(shape)


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


def chunks(mask: Mask, n: int) -> Iterator[tuple[slice, slice]]:
    """n queries at a time, and the keys in their reach."""
    for first in range(0, mask.n_queries, n):
        queries = slice(first, min(first + n, mask.n_queries))
        yield queries, mask.keys(queries)


def joined(parts: Sequence[Tensor], dim: int = 2) -> Tensor:
    """What chunks gave, as one."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=dim)


def by_token(parts: Sequence[Tensor]) -> Heads:
    """What some queries after others gathered, laid as the output projection reads it: token by token."""
    return torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)
