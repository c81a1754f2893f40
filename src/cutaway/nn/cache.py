"""Keys and values of the tokens already seen, so that the next pass computes only the new ones.

`append(k, v)` gives all keys and values a query may look at. Without a cache these are the new ones themselves, so
attention has no branch for it. Slot and position are the same number: row b holds its tokens in slots 0 … length−1,
and what a ragged batch leaves in later slots lies in the future, where no query looks, until real tokens replace it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.config import ModelConfig
from cutaway.nn import few_rows

KV = tuple[Float[Tensor, "B K S Dh"], Float[Tensor, "B K S Dh"]]


class NoLayerCache:
    """Remembers nothing: the keys of this pass are all there are."""

    def append(self, k: Float[Tensor, "B K T Dh"], v: Float[Tensor, "B K T Dh"]) -> KV:
        return k, v


class NoCache:
    """The default of a pass: every text starts at position 0."""

    def __init__(self, n_rows: int) -> None:
        self.lengths = [0] * n_rows

    def layer(self, i: int) -> NoLayerCache:
        return NoLayerCache()

    def prepare(self, n_new: int) -> None:
        """Nothing to reserve."""

    def advance(self, n_new: Sequence[int]) -> None:
        """Nothing to count."""


class LayerCache:
    """One layer's keys and values, in buffers that the whole cache sizes and keeps."""

    def __init__(self, cache: Cache, k: Float[Tensor, "R K N Dh"], v: Float[Tensor, "R K N Dh"]) -> None:
        self.cache = cache
        self.k = k
        self.v = v

    def append(self, k: Float[Tensor, "B K T Dh"], v: Float[Tensor, "B K T Dh"]) -> KV:
        """Write the new keys and values behind the old ones; all of them, as views of the buffer."""
        n_rows, n_new = k.shape[0], k.shape[2]
        all_k, all_v = self.k[:n_rows], self.v[:n_rows]
        start, stop = min(self.cache.lengths), max(self.cache.lengths) + n_new
        if few_rows.append_applies(k, all_k):
            few_rows.append(k, v, all_k, all_v, self.cache.slots)
        elif start + n_new == stop:
            all_k.narrow(2, start, n_new).copy_(k)
            all_v.narrow(2, start, n_new).copy_(v)
        else:
            for row, length in enumerate(self.cache.lengths):
                all_k[row, :, length : length + n_new] = k[row]
                all_v[row, :, length : length + n_new] = v[row]
        return all_k.narrow(2, 0, stop), all_v.narrow(2, 0, stop)


class Cache:
    """All layers' keys and values of B texts, each of its own length, in buffers of R ≥ B rows and N slots.

    A pass makes room for its tokens by doubling N. Texts may leave and others join between two passes.
    """

    def __init__(self, config: ModelConfig, n_rows: int, like: Tensor, n_slots: int = 0) -> None:
        """Buffers of the type and place of `like` with room for `n_slots` tokens a row."""
        self.lengths = [0] * n_rows
        # Where each row's next token goes, for the loops.
        self.slots = torch.zeros(n_rows, dtype=torch.int64, device="cpu")
        shape = (n_rows, config.n_kv_heads, n_slots, config.d_head)
        self.layers: list[KV] = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in range(config.n_layers)]

    @property
    def n_rows(self) -> int:
        """Texts there is room for."""
        return self.layers[0][0].shape[0]

    @property
    def n_slots(self) -> int:
        """Tokens of a text there is room for."""
        return self.layers[0][0].shape[2]

    @property
    def n_bytes(self) -> int:
        """What the buffers hold now [B]."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in layer)

    def layer(self, i: int) -> LayerCache:
        return LayerCache(self, *self.layers[i])

    def prepare(self, n_new: int) -> None:
        """Make room for `n_new` more tokens a row."""
        self.slots = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        needed = max(self.lengths) + n_new
        if needed > self.n_slots:
            self.resize(self.n_rows, max(needed, 2 * self.n_slots))

    def advance(self, n_new: Sequence[int]) -> None:
        """Count the tokens a finished pass has added; a pass that failed half-way leaves no trace."""
        self.lengths = [length + n for length, n in zip(self.lengths, n_new, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these, in this order; only those that change their row are copied."""
        moves = [(row, to) for to, row in enumerate(rows) if row != to]
        self.lengths = [self.lengths[row] for row in rows]
        if not moves:
            return
        old, new = torch.tensor(moves, device=self.layers[0][0].device).unbind(1)
        for layer in self.layers:
            for buffer in layer:
                buffer[new] = buffer[old]  # all are read before one is written

    def resize(self, n_rows: int, n_slots: int) -> None:
        """Buffers of exactly this room; what the texts have read moves there."""
        n_texts, n_read = len(self.lengths), max(self.lengths, default=0)
        for i, layer in enumerate(self.layers):
            k, v = (t.new_zeros(n_rows, t.shape[1], n_slots, t.shape[3]) for t in layer)
            for new, old in zip((k, v), layer, strict=True):
                new[:n_texts, :, :n_read] = old[:n_texts, :, :n_read]
            self.layers[i] = k, v  # so that both sizes are held of one layer at a time

    def join(self, other: Cache) -> None:
        """Take in the texts of another cache of the same model, behind the ones here."""
        first = len(self.lengths)
        n_rows, n_slots = first + len(other.lengths), max(other.lengths, default=0)
        if n_rows > self.n_rows or n_slots > self.n_slots:
            self.resize(max(n_rows, self.n_rows), max(n_slots, self.n_slots))
        for layer, others in zip(self.layers, other.layers, strict=True):
            for buffer, new in zip(layer, others, strict=True):
                buffer[first:n_rows, :, :n_slots] = new[: len(other.lengths), :, :n_slots]
                buffer[first:n_rows, :, n_slots:] = 0  # a NaN that was left there would reach through the mask
        self.lengths += other.lengths

    def copy(self, row: int, n_tokens: int) -> Cache:
        """The first tokens of one text, in a cache of their own."""
        other = copy.copy(self)
        other.lengths = [n_tokens]
        other.layers = [
            (k[row : row + 1, :, :n_tokens].clone(), v[row : row + 1, :, :n_tokens].clone()) for k, v in self.layers
        ]
        return other
