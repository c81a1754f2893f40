"""The keys and values of the last few texts: one that begins like an earlier one is read from where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.network import Transformer
from cutaway.nn.cache import Cache

Ids = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """What was read, and what it left in the cache."""

    tokens: Ids
    cache: Cache


class Prefixes:
    """Bounded by bytes; what has not been used for longest goes first. Owned by one thread.

    A cached key depends on the tokens before it and on nothing else, except where the rotation depends on the length
    of the text: such a prefix is used only where the longer text rotates alike.
    """

    def __init__(self, network: Transformer, limit: int) -> None:
        self.network = network
        self.limit = limit
        self._entries: list[Entry] = []  # the last used at the end

    @property
    def n_bytes(self) -> int:
        """What is held [B]."""
        return sum(entry.cache.n_bytes for entry in self._entries)

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many tokens of this text need not be read."""
        return self._longest(tokens)[0]

    def start(self, tokens: Sequence[int]) -> Cache | None:
        """A cache of the longest known beginning of a text, its last token left to read; None if nothing is known."""
        n, i = self._longest(tokens)
        if not n:
            return None
        entry = self._entries.pop(i)
        self._entries.append(entry)
        return entry.cache.copy(0, n)

    def _longest(self, tokens: Sequence[int]) -> tuple[int, int]:
        """How much is known, and by which entry."""
        wanted = np.array(tokens[:-1], dtype=np.int64)
        fitting = (
            (common(entry.tokens, wanted), i)
            for i, entry in enumerate(self._entries)
            if not self.network.rotation_changes(len(entry.tokens), len(tokens))
        )
        return max(fitting, default=(0, 0))

    def add(self, tokens: Sequence[int], cache: Cache, row: int) -> None:
        """Remember one text as far as it has been read. It takes the place of what it begins with."""
        n = cache.lengths[row]
        if self.network.rotation_changes(n, n + 1):
            return  # no longer text could use it
        new = np.array(tokens[:n], dtype=np.int64)
        size = n * cache.n_bytes // max(1, cache.n_rows * cache.n_slots)
        if not 0 < size <= self.limit or any(common(e.tokens, new) == n for e in self._entries):
            return
        self._entries = [e for e in self._entries if common(e.tokens, new) < len(e.tokens)]
        while self._entries and self.n_bytes + size > self.limit:
            self._entries.pop(0)
        self._entries.append(Entry(tokens=new, cache=cache.copy(row, n)))


def common(a: Ids, b: Ids) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
