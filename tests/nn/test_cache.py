"""Texts that leave a cache and join it: each row holds its own text, and nothing of those that were there before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cutaway.generate.decoding import Batch
from cutaway.network import Transformer
from cutaway.nn.cache import Cache
from support.tiny import OURS, distance, random_network, random_tokens


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def numbered(config: Any, lengths: list[int], first: int = 0) -> Cache:
    """A cache in which the key of token t of text i is i + t/100 and the value its negative."""
    cache = Cache(config, len(lengths), torch.zeros(()), n_slots=8)
    for k, v in cache.layers:
        for row in range(len(lengths)):
            k[row] = (first + row + torch.arange(8) / 100)[None, :, None]
        v.copy_(-k)
    cache.lengths = list(lengths)
    return cache


def texts(cache: Cache) -> list[tuple[float, int]]:
    """Which text each row holds, and how much of it; every layer, head and coordinate agree."""
    found = []
    for row, length in enumerate(cache.lengths):
        for keys, values in cache.layers:
            k = keys[row, :, :length]
            assert torch.equal(values[row, :, :length], -k)
            assert torch.equal(k, (k[0, 0, 0] + torch.arange(length) / 100)[None, :, None].expand_as(k))
        found.append((float(cache.layers[-1][0][row, 0, 0, 0]), length))
    return found


CONFIG = OURS["grouped"]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 3, 2], [3, 0], [2], [1, 2, 3], [3, 2, 1, 0], []])
def test_texts_leave(rows: list[int]) -> None:
    cache = numbered(CONFIG, [3, 5, 2, 7])
    cache.keep(rows)
    assert texts(cache) == [(row, [3, 5, 2, 7][row]) for row in rows]
    assert cache.n_rows == 4


def test_texts_join() -> None:
    cache = numbered(CONFIG, [3, 5])
    cache.join(numbered(CONFIG, [7, 1], first=10))
    assert texts(cache) == [(0, 3), (1, 5), (10, 7), (11, 1)]
    assert (cache.n_rows, cache.n_slots) == (4, 8)
    cache.keep([3, 1])
    cache.join(numbered(CONFIG, [2], first=20))
    assert texts(cache) == [(11, 1), (1, 5), (20, 2)]
    assert cache.n_rows == 4


def test_an_empty_cache_takes_texts_in() -> None:
    cache = Cache(CONFIG, 0, torch.zeros(()))
    cache.join(numbered(CONFIG, [2, 4]))
    assert texts(cache) == [(0, 2), (1, 4)]
    assert cache.n_slots == 4


def test_who_joins_a_row_finds_nothing_of_who_was_there() -> None:
    """A NaN behind a text lies in the future of its queries, and would reach them through the mask all the same."""
    cache = numbered(CONFIG, [3, 8])
    for k, v in cache.layers:
        k[1] = v[1] = float("nan")
    cache.keep([0])
    cache.join(numbered(CONFIG, [2], first=10))
    for k, v in cache.layers:
        assert k.isfinite().all()
        assert v.isfinite().all()


def test_room_grows_and_shrinks_around_the_texts() -> None:
    cache = numbered(CONFIG, [3, 5])
    for n_rows, n_slots in ((4, 16), (2, 5), (3, 6)):
        cache.resize(n_rows, n_slots)
        assert (cache.n_rows, cache.n_slots) == (n_rows, n_slots)
        assert texts(cache) == [(0, 3), (1, 5)]
        # layers · (k, v) · rows · kv heads · slots · d_head · 4 B
        assert cache.n_bytes == 3 * 2 * n_rows * 2 * n_slots * 8 * 4


def test_the_beginning_of_a_text_is_copied() -> None:
    cache = numbered(CONFIG, [3, 8])
    part = cache.copy(1, 4)
    assert texts(part) == [(1, 4)]
    assert part.n_bytes == 3 * 2 * 1 * 2 * 4 * 8 * 4
    part.layers[0][0].zero_()
    assert texts(cache) == [(0, 3), (1, 8)]


def test_memory_is_free_as_soon_as_nobody_has_the_cache() -> None:
    """A ring of references would keep it until the collector comes, which counts objects and not bytes."""
    gc.disable()
    try:
        batch = Batch(random_network(CONFIG), [])
        batch.cache = cache = numbered(CONFIG, [3, 8])
        batch.cache.layer(0)
        gone = [weakref.ref(one) for one in (batch, cache, cache.layers[0][0], cache.copy(0, 2))]
        del batch, cache
        assert [one() for one in gone] == [None] * 4
    finally:
        gc.enable()


def read(network: Transformer, cache: Cache, new: list[list[int]]) -> torch.Tensor:
    """The scores after each row's new tokens."""
    n_new = [len(tokens) for tokens in new]
    padded = torch.tensor([tokens + [0] * (max(n_new) - len(tokens)) for tokens in new])
    x = network.residual(padded, cache, n_new)
    return network.unembed(x[torch.arange(len(new)), torch.tensor(n_new) - 1][:, None])[:, 0]


@pytest.mark.parametrize("name", OURS)
def test_rows_that_come_and_go_equal_each_text_alone(name: str) -> None:
    """Contract 3: texts of several lengths join, grow, leave their rows to others; logits within 1e-5 of solo ones.

    Lengths stay below 8, where no rotation depends on them.
    """
    network = random_network(OURS[name])
    tokens = [random_tokens(1, 8, seed=i)[0].tolist() for i in range(5)]
    cache = Cache(network.config, 0, network.embed.weight)

    def join(*rows: tuple[int, int]) -> None:
        other = Cache(network.config, len(rows), network.embed.weight)
        read(network, other, [tokens[i][:n] for i, n in rows])
        cache.join(other)

    def grow(*texts: int) -> None:
        found = read(network, cache, [[tokens[i][n]] for i, n in zip(texts, cache.lengths, strict=True)])
        for row, i, n in zip(found, texts, cache.lengths, strict=True):
            assert distance(row, network(torch.tensor([tokens[i][:n]]))[0, -1]) <= 1e-5

    join((0, 3), (1, 1))
    grow(0, 1)
    join((2, 5))
    grow(0, 1, 2)
    cache.keep([2, 1])
    grow(2, 1)
    join((3, 2), (4, 4))
    grow(2, 1, 3, 4)
    cache.keep([3, 2, 1])
    cache.resize(4, 8)
    grow(4, 3, 1)
