"""Filters of a row of logits: by eye, by property, and as transformers chains them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutaway.generate.sampling import (
    SamplingConfig,
    choose,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    new_generator,
    penalise,
    sample_steps,
)
from support.logits import INF, PLAIN, anytime, kept, logs, rows, sample


@pytest.mark.parametrize(
    ("logits", "k", "ids"),
    [
        ([1.0, 3.0, 2.0, 0.0], 2, [1, 2]),
        ([1.0, 3.0, 3.0, 3.0, 0.0], 2, [1, 2]),  # among equals the lowest ids stay
        ([3.0, 1.0, 1.0, 1.0], 3, [0, 1, 2]),
        ([1.0, -INF, -INF, -INF], 2, [0]),
    ],
)
def test_top_k_keeps_exactly_k(logits: list[float], k: int, ids: list[int]) -> None:
    row = torch.tensor(logits)
    after = keep_top_k(row, k)
    assert kept(after) == ids
    assert after[ids].tolist() == row[ids].tolist()


@pytest.mark.parametrize("top_k", [200, 65, 0, None])
def test_top_k_at_and_past_the_vocabulary_changes_nothing(top_k: int | None) -> None:
    """G2: vocabulary 65. 200 and 65 keep all, 0 is off; and each draws the same tokens as no top-k."""
    row = torch.linspace(-2, 2, 65)
    config = SamplingConfig(temperature=1, top_k=top_k)
    assert torch.equal(list(sample_steps(row, config, ()))[-1][1], row - row.max())
    assert sample(row, config, 50) == sample(row, PLAIN, 50)


def test_top_k_1_is_argmax_even_among_equals() -> None:
    """G2."""
    assert sample(torch.tensor([0.0, 5.0, 5.0]), SamplingConfig(temperature=9, top_k=1), 20) == {1: 20}


@pytest.mark.parametrize(
    ("probs", "p", "ids"),
    [
        ([0.1, 0.5, 0.4], 0.45, [1]),
        ([0.1, 0.5, 0.4], 0.6, [1, 2]),  # the one that crosses p is kept
        ([0.1, 0.5, 0.4], 0.95, [0, 1, 2]),
        ([0.1, 0.5, 0.4], 1e-300, [1]),  # always one
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),  # reached exactly; among equals the lowest ids
        ([0.25, 0.25, 0.25, 0.25], 0.51, [0, 1, 2]),
    ],
)
def test_top_p_keeps_the_fewest_that_reach_p(probs: list[float], p: float, ids: list[int]) -> None:
    assert kept(keep_top_p(logs(*probs), p)) == ids


def test_top_p_of_a_flat_row_passes_the_first_thousand() -> None:
    """4096 equal ids at 0.75: exactly 3072 stay, more than the short look at the best ones covers."""
    assert kept(keep_top_p(torch.zeros(4096), 0.75)) == list(range(3072))


@pytest.mark.parametrize(("min_p", "ids"), [(0.1, [0, 1, 2]), (0.3, [0, 1]), (0.9, [0]), (1, [0])])
def test_min_p_is_relative_to_the_best(min_p: float, ids: list[int]) -> None:
    assert kept(keep_min_p(logs(0.6, 0.25, 0.1, 0.05), min_p)) == ids


def test_penalty_lowers_each_seen_id_once() -> None:
    """A positive logit is divided, a negative one multiplied; twice in the text counts once."""
    row = torch.tensor([4.0, -4.0, 4.0, 0.0, -INF])
    assert penalise(row, [0, 1, 0, 3, 4], 2).tolist() == [2.0, -8.0, 4.0, 0.0, -INF]
    assert penalise(row, [], 2).tolist() == row.tolist()
    assert row[0] == 4


def test_greedy_obeys_the_penalty() -> None:
    row, config = torch.tensor([4.0, 3.0]), SamplingConfig(temperature=0, repetition_penalty=2)
    assert choose(row, config, [], new_generator(0)).token == 0
    assert choose(row, config, [0], new_generator(0)).token == 1


def test_each_filter_sees_what_the_one_before_left() -> None:
    """Of .4 .3 .2 .1 top-k 2 leaves 4/7 and 3/7, so top-p 0.5 then keeps one id; alone it keeps two."""
    row = logs(0.4, 0.3, 0.2, 0.1)
    both = list(sample_steps(row, SamplingConfig(temperature=1, top_k=2, top_p=0.5), ()))
    assert [name for name, _ in both] == ["raw", "temperature", "top_k", "top_p"]
    assert [kept(after) for _, after in both] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0]]
    assert kept(keep_top_p(row, 0.5)) == [0, 1]


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0.05, 0.99), st.floats(0.01, 0.9))
def test_the_chain_equals_that_of_transformers(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """Same order, same rules, on rows without equals: the kept ids and their probabilities agree."""
    from transformers.generation import logits_process as peer

    row = torch.randn(60, generator=torch.Generator().manual_seed(seed)) * 3
    seen = [1, 5, 5, 9]
    config = SamplingConfig(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=1.3)
    ours = list(sample_steps(row, config, seen))[-1][1].softmax(0)
    theirs = row[None]
    for processor in (
        peer.RepetitionPenaltyLogitsProcessor(1.3),
        peer.TemperatureLogitsWarper(0.7),
        peer.TopKLogitsWarper(top_k),
        peer.TopPLogitsWarper(top_p),
        peer.MinPLogitsWarper(min_p),
    ):
        theirs = processor(torch.tensor([seen]), theirs)
    torch.testing.assert_close(ours, theirs[0].softmax(0), rtol=1e-5, atol=1e-6)


@anytime
@given(rows, st.integers(1, 50), st.floats(0.01, 0.999), st.floats(0.01, 1))
def test_filters_only_remove_and_never_the_best(row: Tensor, k: int, p: float, min_p: float) -> None:
    for after in (keep_top_k(row, k), keep_top_p(row, p), keep_min_p(row, min_p)):
        ids = kept(after)
        assert int(row.argmax()) in ids
        assert torch.equal(after[ids], row[ids])
    assert len(kept(keep_top_k(row, k))) == min(k, len(row))
    nucleus = row.double().softmax(0)[kept(keep_top_p(row, p))].sort().values
    assert nucleus.sum() >= p - 1e-5
    assert nucleus[1:].sum() < p + 1e-5  # without its least likely id it would not reach p
