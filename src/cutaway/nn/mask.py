"""Who may look at whom: a pure function of query and key positions, so cached and uncached decoding share it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cutaway.config import MaskConfig, NoMaskConfig, WindowMaskConfig

Place = TypeVar("Place", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class Mask:
    """The mask of one pass: T queries a row, the first of row b at position `starts[b]`, over keys 0, 1, 2 …

    A key's slot is its position. Rows of a ragged batch are padded on the right, so a pad always lies in the future
    of every real query and the causal rule alone hides it. Where there is no rule, the lengths hide it.
    """

    starts: tuple[int, ...]
    n_queries: int
    window: int | None  # keys a query sees, itself included; None: its whole prefix
    lengths: tuple[int, ...] | None = None  # without a mask: how many keys each row has, all of them seen
    device: torch.device | None = None

    @property
    def n_keys(self) -> int:
        return max(self.starts) + self.n_queries

    @property
    def is_triangle(self) -> bool:
        """The plain square case that fused kernels know by themselves: no past, no window in reach."""
        causal = self.lengths is None
        return causal and max(self.starts) == 0 and (self.window is None or self.window >= self.n_queries)

    def keys(self, queries: slice) -> slice:
        """The range of keys that any of these queries may see."""
        if self.lengths is not None:
            return slice(0, self.n_keys)
        first = min(self.starts) + queries.start - (self.window or self.n_keys) + 1
        return slice(max(first, 0), max(self.starts) + queries.stop)

    @functools.cached_property
    def ranges(self) -> Int[Tensor, "B T 2"]:
        """For each query of each row: the first key it sees, and one past its last."""
        if self.lengths is None and self.n_queries == 1:  # asked for at each step: a list takes a quarter
            steps = [[rule(start, self.window)] for start in self.starts]
            return torch.tensor(steps, dtype=torch.int64, device=self.device)
        rows = torch.tensor(self.lengths or self.starts, dtype=torch.int64, device=self.device)[:, None]
        if self.lengths is not None:
            stops = rows.expand(-1, self.n_queries)
            return torch.stack((torch.zeros_like(stops), stops), dim=-1)
        return torch.stack(rule(rows + torch.arange(self.n_queries, device=self.device), self.window), dim=-1)

    def visible(self, queries: slice, keys: slice) -> Bool[Tensor, "b 1 t s"] | None:
        """True where a query may look; one row for all texts if they start together, None if all is visible."""
        k = torch.arange(keys.start, keys.stop, device=self.device)
        if self.lengths is not None:
            ends = torch.tensor(self.lengths, device=self.device)[:, None, None, None]
            return k.expand(queries.stop - queries.start, -1) < ends
        together = min(self.starts) == max(self.starts)
        if together and queries.stop - queries.start == 1 and keys == self.keys(queries):
            return None
        starts = torch.tensor(self.starts[:1] if together else self.starts, device=self.device)[:, None, None]
        q = starts + torch.arange(queries.start, queries.stop, device=self.device)[:, None]
        first, stop = rule(q, self.window)
        return ((first <= k) & (k < stop))[:, None]

    def hide(
        self, scaled: Float[Tensor, "B H T S"], queries: slice, keys: slice, *, in_place: bool
    ) -> Float[Tensor, "B H T S"]:
        """The scores with −∞ where a query may not look."""
        n = self.n_queries
        if in_place and self.is_triangle and queries.stop - queries.start == n:  # the same, five times as fast
            return scaled.tril_().add_(scaled.new_full((n, n), -math.inf).triu(1))
        visible = self.visible(queries, keys)
        if visible is None:
            return scaled
        fill = scaled.masked_fill_ if in_place else scaled.masked_fill
        return fill(~visible, -math.inf)


def rule(position: Place, window: int | None) -> tuple[Place, Place]:
    """The first key that a query at a position sees, and one past its last, which is itself; of one, or of a tensor."""
    stop = position + 1
    return (position * 0 if window is None else (stop - window) * (stop > window)), stop


def build_mask(
    config: MaskConfig, starts: Sequence[int], n_queries: int, lengths: Sequence[int], device: torch.device
) -> Mask:
    """The mask of one pass under `config`; `lengths` counts the keys of each row without its pads."""
    window = config.size if isinstance(config, WindowMaskConfig) else None
    ends = tuple(lengths) if isinstance(config, NoMaskConfig) else None
    return Mask(starts=tuple(starts), n_queries=n_queries, window=window, lengths=ends, device=device)
