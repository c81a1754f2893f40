"""Keys and values of the tokens already seen, so that the next pass computes only the new ones.

`append(k, v)` gives all keys and values a query may look at. Without a cache these are the new ones themselves, so
attention has no branch for it. Slot and position are the same number: row b holds its tokens in slots 0 … length−1,
and what a ragged batch leaves in later slots lies in the future, where no query looks, until real tokens replace it.
"""

from __future__ import annotations

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
    """One layer's keys and values, in a buffer that the whole cache sizes."""

    def __init__(self, cache: Cache, k: Float[Tensor, "B K N Dh"], v: Float[Tensor, "B K N Dh"]) -> None:
        self.cache = cache
        self.k = k
        self.v = v

    def append(self, k: Float[Tensor, "B K T Dh"], v: Float[Tensor, "B K T Dh"]) -> KV:
        """Write the new keys and values behind the old ones; all of them, as views of the buffer."""
        start, stop = min(self.cache.lengths), max(self.cache.lengths) + k.shape[2]
        if few_rows.append_applies(k, self.k):
            few_rows.append(k, v, self.k, self.v, self.cache.slots)
        elif start + k.shape[2] == stop:
            self.k.narrow(2, start, k.shape[2]).copy_(k)
            self.v.narrow(2, start, k.shape[2]).copy_(v)
        else:
            for row, length in enumerate(self.cache.lengths):
                self.k[row, :, length : length + k.shape[2]] = k[row]
                self.v[row, :, length : length + k.shape[2]] = v[row]
        return self.k.narrow(2, 0, stop), self.v.narrow(2, 0, stop)


class Cache:
    """All layers' keys and values of B texts, each of its own length; the buffers grow by doubling."""

    def __init__(self, config: ModelConfig, n_rows: int, like: Tensor, n_slots: int = 0) -> None:
        """Buffers of the type and place of `like` with room for `n_slots` tokens a row."""
        self.lengths = [0] * n_rows
        self.slots = torch.zeros(
            n_rows, dtype=torch.int64, device="cpu"
        )  # where each row's next token goes, for the loops
        shape = (n_rows, config.n_kv_heads, n_slots, config.d_head)
        self.layers = [LayerCache(self, like.new_zeros(shape), like.new_zeros(shape)) for _ in range(config.n_layers)]

    @property
    def n_slots(self) -> int:
        return self.layers[0].k.shape[2]

    @property
    def n_bytes(self) -> int:
        """What the buffers hold now [B]."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.k, layer.v))

    def layer(self, i: int) -> LayerCache:
        return self.layers[i]

    def prepare(self, n_new: int) -> None:
        """Make room for `n_new` more tokens a row."""
        self.slots = torch.tensor(self.lengths, dtype=torch.int64, device="cpu")
        needed = max(self.lengths) + n_new
        if needed > self.n_slots:
            n_more = max(needed, 2 * self.n_slots) - self.n_slots
            for layer in self.layers:
                layer.k, layer.v = (torch.nn.functional.pad(t, (0, 0, 0, n_more)) for t in (layer.k, layer.v))

    def advance(self, n_new: Sequence[int]) -> None:
        """Count the tokens a finished pass has added; a pass that failed half-way leaves no trace."""
        self.lengths = [length + n for length, n in zip(self.lengths, n_new, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these."""
        self.lengths = [self.lengths[row] for row in rows]
        for layer in self.layers:
            index = torch.tensor(rows, device=layer.k.device)
            layer.k, layer.v = layer.k[index], layer.v[index]
