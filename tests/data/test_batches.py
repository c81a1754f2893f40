"""Which windows a step reads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.data.batches import Windows, batch, permuted
from cutaway.data.shards import TokenStream
from cutaway.errors import DataError


def stream(n: int) -> TokenStream:
    return TokenStream([np.arange(n, dtype="<u2")], n)


def test_eight_tokens_are_too_few_for_a_context_of_eight():
    """T1, A."""
    with pytest.raises(DataError, match="has 8 tokens, and a context of 8 needs 9"):
        Windows(8, 8, seed=0)


def test_nine_tokens_are_one_window():
    """T1, B: the only start gives a whole target. X6: what follows position i is i + 1."""
    windows = Windows(9, 8, seed=0)
    assert windows.n_per_epoch == 1
    for first in range(3):
        assert windows.starts(first, 1).tolist() == [0]
    x, y = batch(stream(9), windows.starts(0, 1), 8)
    assert x.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert y.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_batch_across_files():
    """X6."""
    parts = TokenStream([np.arange(0, 3, dtype="u1"), np.arange(3, 4, dtype="u1"), np.arange(4, 9, dtype="u1")], 9)
    x, y = batch(parts, [2, 0], 4)
    assert x.tolist() == [[2, 3, 4, 5], [0, 1, 2, 3]]
    assert y.tolist() == [[3, 4, 5, 6], [1, 2, 3, 4]]
    assert x.dtype == np.int64
    assert batch(parts, [], 4)[0].shape == (0, 4)


@given(st.integers(1, 40), st.integers(1, 400), st.integers(0, 2**63), st.integers(0, 5))
def test_an_epoch_reads_windows_that_do_not_overlap(n_ctx: int, more: int, seed: int, epoch: int):
    n_tokens = n_ctx + more
    windows = Windows(n_tokens, n_ctx, seed)
    n = windows.n_per_epoch
    starts = windows.starts(epoch * n, n)
    assert n == max(1, (n_tokens - 1) // n_ctx - 1)
    assert starts.min() >= 0
    assert starts.max() + n_ctx + 1 <= n_tokens
    assert (np.diff(np.sort(starts)) == n_ctx).all()


@given(st.integers(1, 20), st.integers(1, 200), st.integers(0, 9), st.integers(0, 100), st.integers(0, 50))
def test_many_at_once_are_the_same_as_one_by_one(n_ctx: int, more: int, seed: int, first: int, n: int):
    """R2's ground: a window depends on its number alone."""
    windows = Windows(n_ctx + more, n_ctx, seed)
    single = [int(windows.starts(i, 1)[0]) for i in range(first, first + n)]
    assert windows.starts(first, n).tolist() == single


@given(st.integers(1, 3000), st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_the_order_is_a_permutation(n: int, keys: list[int]):
    order = permuted(np.arange(n, dtype=np.int64), n, np.array(keys, dtype=np.uint64))
    assert sorted(order.tolist()) == list(range(n))


def test_orders_are_well_mixed():
    """Over many seeds each of 5 windows comes first about as often, and neighbours are not neighbours."""
    firsts = np.bincount([int(Windows(61, 10, seed).starts(0, 1)[0]) // 10 for seed in range(2000)], minlength=5)
    assert firsts.sum() == 2000
    assert (abs(firsts[:5] - 400) < 100).all()  # 5 standard deviations are 90
    starts = Windows(100_000, 10, seed=1).starts(0, 9_998)
    assert abs(np.corrcoef(starts[:-1], starts[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(np.arange(len(starts)), starts)[0, 1]) < 0.05


def test_epochs_and_seeds_differ():
    windows = Windows(10_001, 10, seed=3)
    n = windows.n_per_epoch
    first, second = windows.starts(0, n), windows.starts(n, n)
    assert (first != second).mean() > 0.9
    assert (first != Windows(10_001, 10, seed=4).starts(0, n)).mean() > 0.9
    offsets = {int(windows.starts(epoch * n, n).min()) for epoch in range(50)}
    assert len(offsets) > 5, "the offset moves, so that a window's end is not always the same"
    assert max(offsets) <= 10


def test_a_corpus_of_any_size_costs_nothing():
    windows = Windows(10**15, 1024, seed=0)
    starts = windows.starts(10**11, 4)
    assert len(set(starts.tolist())) == 4
    assert starts.max() < 10**15 - 1024


def test_the_same_in_another_process():
    """R2: what a resumed run reads next is what it would have read."""
    code = "from cutaway.data.batches import Windows; print(*Windows(1001, 10, 7).starts(95, 9))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(start) for start in Windows(1001, 10, 7).starts(95, 9)]
    assert Windows(1001, 10, 7).starts(0, 5).tolist() == [96, 226, 836, 606, 916], (
        "a change of the order breaks the resume of every run"
    )
