"""Texts that leave a cache and join it: each row holds its own text, and nothing of those that were there before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

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
    for layer in cache.layers:
        for row in range(len(lengths)):
            layer.k[row] = (first + row + torch.arange(8) / 100)[None, :, None]
        layer.v.copy_(-layer.k)
    cache.lengths = list(lengths)
    return cache


def texts(cache: Cache) -> list[tuple[float, int]]:
    """Which text each row holds, and how much of it; every layer, head and coordinate agree."""
    found = []
    for row, length in enumerate(cache.lengths):
        for layer in cache.layers:
            k = layer.k[row, :, :length]
            assert torch.equal(layer.v[row, :, :length], -k)
            assert torch.equal(k, (k[0, 0, 0] + torch.arange(length) / 100)[None, :, None].expand_as(k))
        found.append((float(cache.layers[-1].k[row, 0, 0, 0]), length))
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
    for layer in cache.layers:
        layer.k[1] = layer.v[1] = float("nan")
    cache.keep([0])
    cache.join(numbered(CONFIG, [2], first=10))
    for layer in cache.layers:
        assert layer.k.isfinite().all()
        assert layer.v.isfinite().all()


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
    part.layers[0].k.zero_()
    assert texts(cache) == [(0, 3), (1, 8)]


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
