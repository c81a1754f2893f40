"""Which windows of the token stream a step reads: a pure function of the stream's length, the context and a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cutaway.errors import DataError

__all__ = ["Windows", "batch"]

N_ROUNDS = 6

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Readable(Protocol):
    """What a batch is read from."""

    def read(self, start: int, n: int) -> Ints: ...


class Windows:
    """Every epoch cuts the stream into windows that do not overlap, from a new offset, and takes them in a new order.

    There is no state: window number i is the same in any process at any time, so that a run that goes on needs only
    its number, and no array of the corpus' size is held.

    Args:
        n_tokens: of the stream.
        n_ctx: tokens a window reads; it needs one more, which the last one predicts.
    Raises:
        DataError: the stream is shorter than one window.
    """

    def __init__(self, n_tokens: int, n_ctx: int, seed: int) -> None:
        if n_tokens < n_ctx + 1:
            raise DataError(
                f"the text has {n_tokens} tokens, and a context of {n_ctx} needs {n_ctx + 1}: "
                "give more text, or a shorter context"
            )
        self.n_tokens, self.n_ctx, self.seed = n_tokens, n_ctx, seed
        # One window less than fit, where there are several: this is the room for the offset.
        self.n_per_epoch = max(1, (n_tokens - 1) // n_ctx - 1)

    def starts(self, first: int, n: int) -> Ints:
        """Where windows number `first` … `first + n - 1` begin in the stream; epochs follow each other."""
        numbers = np.arange(first, first + n, dtype=np.int64)
        starts = np.empty(n, dtype=np.int64)
        epochs = numbers // self.n_per_epoch
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1) if n else ():
            here = epochs == epoch
            offset, keys = self._draw(epoch)
            order = permuted(numbers[here] - epoch * self.n_per_epoch, self.n_per_epoch, keys)
            starts[here] = offset + order * self.n_ctx
        return starts

    def _draw(self, epoch: int) -> tuple[int, Words]:
        """The offset of an epoch, and the keys of its order."""
        drawn = hashlib.blake2b(
            f"cutaway windows {self.seed} {epoch}".encode(), digest_size=8 * (1 + N_ROUNDS)
        ).digest()
        first, *keys = np.frombuffer(drawn, "<u8")
        return int(first) % (self.n_tokens - self.n_per_epoch * self.n_ctx), np.array(keys, dtype=np.uint64)


def batch(stream: Readable, starts: Iterable[int] | Ints, n_ctx: int) -> tuple[Ints, Ints]:
    """The ids of windows [n T], and the ids that follow each of them [n T]."""
    positions = [int(start) for start in starts]
    ids = np.empty((len(positions), n_ctx + 1), dtype=np.int64)
    for row, start in zip(ids, positions, strict=True):
        row[:] = stream.read(start, n_ctx + 1)
    return ids[:, :-1], ids[:, 1:]


def permuted(numbers: Ints, n: int, keys: Words) -> Ints:
    """The places of `numbers` in a permutation of 0 … n-1 that the keys choose.

    A Feistel network on pairs (number mod a, number div a) with a·b just above n; what falls outside goes through
    again until it is inside, which it must, as the whole is a bijection.

    Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    places = numbers.copy()
    outside = np.ones(len(places), dtype=bool)
    while outside.any():
        left, right = (half.astype(np.uint64) for half in (places[outside] % a, places[outside] // a))
        for i, key in enumerate(keys):
            if i % 2:
                right = (right + _mixed(left, key) % np.uint64(b)) % np.uint64(b)
            else:
                left = (left + _mixed(right, key) % np.uint64(a)) % np.uint64(a)
        places[outside] = (left + right * np.uint64(a)).astype(np.int64)
        outside = places >= n
    return places


def _mixed(words: Words, key: np.uint64) -> Words:
    """A hash of each word. Source: Steele, Lea and Flood, SplittableRandom, 2014 (its finaliser)."""
    mixed = words * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
