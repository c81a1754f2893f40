"""Logits become a token: temperature, the draw, seeds, logprobs, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutaway.errors import GenerationError, NumericsError
from cutaway.generate.sampling import (
    Choice,
    Removed,
    SamplingConfig,
    choose,
    draw,
    new_generator,
    plain,
    rank_logprobs,
    sample_steps,
    scale,
)
from support.logits import GREEDY, INF, PLAIN, anytime, configs, logs, rows, sample

# temperature


def test_temperature_0_is_argmax_and_draws_nothing() -> None:
    """G1: [2, 1, -1] at 0 gives id 0 on every call, and the generator stays where it was."""
    generator = new_generator(1)
    before = generator.get_state()
    picks = [choose(torch.tensor([2.0, 1.0, -1.0]), GREEDY, (), generator).token for _ in range(20)]
    assert picks == [0] * 20
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-300, 5e-324])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    """G1: 1e-8, and below what fp32 can hold, behave as the limit they approach."""
    config = SamplingConfig(temperature=temperature)
    assert sample(torch.tensor([2.0, 1.0, -1.0, -INF]), config, 20) == {0: 20}


@pytest.mark.parametrize("temperature", [1e30, 1e300])
def test_a_huge_temperature_is_uniform_over_what_is_possible(temperature: float) -> None:
    row = scale(torch.tensor([2.0, -1.0, -INF]), temperature)
    assert row.softmax(0).tolist() == [0.5, 0.5, 0.0]


def test_the_lowest_id_of_equals_is_greedy() -> None:
    assert choose(torch.tensor([0.0, 3.0, 3.0]), GREEDY, (), new_generator(0)).token == 1


def test_temperature_divides() -> None:
    assert scale(torch.tensor([4.0, 3.0, 0.0]), 0.5).tolist() == [0.0, -2.0, -8.0]


# the draw


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1 - 2**-53, 3)])
def test_the_draw_never_lands_on_probability_0(monkeypatch: pytest.MonkeyPatch, u: float, token: int) -> None:
    """G4: ids 0, 2 and 4 have p = 0; no uniform number, up to the last below 1, picks them or none at all."""
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(u, dtype=torch.float64))
    assert draw(logs(0, 0.25, 0, 0.75, 0), new_generator(0)) == token


@anytime
@given(rows, configs, st.integers(0, 2**32))
def test_the_token_has_probability_above_0(row: Tensor, config: SamplingConfig, seed: int) -> None:
    choice = choose(row, config, [0], new_generator(seed))
    assert list(sample_steps(row, config, [0]))[-1][1].softmax(0)[choice.token] > 0


def test_frequencies_follow_the_probabilities() -> None:
    counts = sample(logs(0.5, 0.3, 0.2, 0), PLAIN, 4000)
    assert [counts[i] / 4000 for i in range(4)] == pytest.approx([0.5, 0.3, 0.2, 0], abs=0.03)


@pytest.mark.parametrize("d_vocab", [40000, 40001, 1])
def test_odd_vocabularies_sample_in_kind(d_vocab: int) -> None:
    """X25: with the mass on the same three ids, every size draws the same tokens from the same seed."""
    row = torch.full((d_vocab,), -INF)
    row[:3] = logs(0.5, 0.3, 0.2)[:d_vocab]
    every = SamplingConfig(temperature=1, top_k=3, top_p=0.99, min_p=0.01)
    expected = sample(logs(0.5, 0.3, 0.2), PLAIN, 8) if d_vocab > 1 else {0: 8}
    assert sample(row, PLAIN, 8) == sample(row, every, 8) == expected


def test_one_number_a_token_whatever_the_filters() -> None:
    """So a filter changes which token is drawn, never the random numbers of the tokens after it."""
    row, left, right = torch.randn(100), new_generator(7), new_generator(7)
    choose(row, SamplingConfig(top_k=5, top_p=0.5, min_p=0.1), (), left)
    torch.rand((), dtype=torch.float64, generator=right)
    assert torch.equal(left.get_state(), right.get_state())


# seeds


def test_a_seed_repeats_in_any_company() -> None:
    """G13: A with seed 42 alone, among unseeded requests, and twice at once: the same tokens each time."""
    row = torch.linspace(0, 3, 200)

    def tokens(seeds: list[int | None]) -> list[list[int]]:
        requests = [new_generator(seed) for seed in seeds]
        steps = [[choose(row, PLAIN, (), generator).token for generator in requests] for _ in range(30)]
        return [list(request) for request in zip(*steps, strict=True)]

    [alone] = tokens([42])
    assert tokens([None, 42])[1] == alone
    assert tokens([42, None, 42])[::2] == [alone, alone]
    assert tokens([43]) != [alone]


def test_unseeded_requests_differ() -> None:
    """G13."""
    assert new_generator(None).initial_seed() != new_generator(None).initial_seed()


def test_the_global_generator_is_untouched() -> None:
    """G13: neither read nor moved."""
    row = torch.linspace(0, 3, 200)
    picks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        picks.append(choose(row, PLAIN, (), new_generator(5)).token)
        new_generator(None)
        assert torch.equal(torch.get_rng_state(), before)
    assert picks[0] == picks[1]


def test_bf16_rows_and_rows_with_gradients_are_taken() -> None:
    row = torch.tensor([0.0, 9.0], requires_grad=True)
    assert choose(row, GREEDY, (), new_generator(0)).token == 1
    assert choose(row.bfloat16(), SamplingConfig(top_p=0.9), (), new_generator(0)).token == 1


# what can be asked


def test_logprobs_are_the_models_own() -> None:
    """X21: practice conflicts; chosen: those of the raw logits, whatever temperature and filters do."""
    row = logs(0.2, 0.5, 0.3)
    config = SamplingConfig(temperature=0.5, top_p=0.5, repetition_penalty=3)
    choice = choose(row, config, [0], new_generator(0), n_logprobs=2)
    assert choice.token == 1
    assert choice.logprob == pytest.approx(math.log(0.5))
    assert [token for token, _ in choice.top_logprobs] == [1, 2]
    assert [value for _, value in choice.top_logprobs] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_logprobs_of_what_was_drawn_from() -> None:
    """X21: the other reading, from the last of the steps."""
    steps = list(sample_steps(logs(0.2, 0.5, 0.3), SamplingConfig(temperature=1, top_k=2), ()))
    logprob, best = rank_logprobs(steps[-1][1], 2, 9)
    assert logprob == pytest.approx(math.log(0.375))
    assert dict(best) == pytest.approx({1: math.log(0.625), 2: math.log(0.375)})


def test_logprobs_cost_nothing_unasked_and_rank_equals_by_id() -> None:
    row = torch.tensor([0.0, 2.0, 0.0, 2.0, -INF])
    assert choose(row, GREEDY, (), new_generator(0)) == Choice(token=1)
    zero = choose(row, GREEDY, (), new_generator(0), n_logprobs=0)
    assert (zero.logprob is not None, zero.top_logprobs) == (True, ())
    for n, ids in ((1, [1]), (3, [1, 3, 0]), (99, [1, 3, 0, 2])):
        best = choose(row, GREEDY, (), new_generator(0), n_logprobs=n).top_logprobs
        assert [token for token, _ in best] == ids
    equals = choose(torch.zeros(100), GREEDY, (), new_generator(0), n_logprobs=50).top_logprobs
    assert [token for token, _ in equals] == list(range(50))


def test_explain_says_what_each_filter_removed() -> None:
    """Padding had .05 of 1.05; top-k 3 drops .1; of .5 .3 .2 top-p .7 drops .2; then min-p .9 drops 3/8."""
    row = logs(0.9 * 0.5, 0.9 * 0.3, 0.9 * 0.2, 0.1, 0.025, 0.025)
    config = SamplingConfig(temperature=1, top_k=3, top_p=0.7, min_p=0.9)
    removed = choose(row, config, (), new_generator(0), n_known=4, explain=True).removed
    assert [(r.filter, r.n_ids) for r in removed] == [("known", 2), ("top_k", 1), ("top_p", 1), ("min_p", 1)]
    assert [r.mass for r in removed] == pytest.approx([0.05 / 1.05, 0.1, 0.2, 3 / 8], abs=1e-6)


def test_explain_lists_only_what_is_on() -> None:
    row = torch.tensor([0.0, 1.0])
    assert choose(row, GREEDY, (), new_generator(0), explain=True).removed == ()
    [only] = choose(row, SamplingConfig(min_p=0.01), (), new_generator(0), explain=True).removed
    assert only == Removed(filter="min_p", n_ids=0, mass=0.0)


@anytime
@given(rows, configs, st.integers(0, 2**32))
def test_explaining_changes_nothing(row: Tensor, config: SamplingConfig, seed: int) -> None:
    silent = choose(row, config, [0], new_generator(seed))
    assert choose(row, config, [0], new_generator(seed), explain=True, n_logprobs=3).token == silent.token


def test_ids_past_the_tokenizer_are_never_picked() -> None:
    """K5: model vocabulary 128, largest known id 99, and the highest logit is at 110."""
    row = torch.zeros(128)
    row[110], row[42] = 50, 20
    assert choose(row, GREEDY, (), new_generator(0)).token == 110
    assert choose(row, GREEDY, (), new_generator(0), n_known=100).token == 42
    assert choose(row, PLAIN, (), new_generator(0), n_known=100).token == 42
    assert choose(row, PLAIN, (), new_generator(0), n_known=128).token == 110


# what cannot be served


@pytest.mark.parametrize("config", [GREEDY, PLAIN, SamplingConfig(top_k=2, top_p=0.5, repetition_penalty=1.1)])
@pytest.mark.parametrize(
    ("logits", "cause"),
    [
        ([1.0, math.nan, 0.0], "1 NaN and 0 +inf in the model's logits (V = 3)"),
        ([1.0, INF, 0.0], "0 NaN and 1 +inf in the model's logits (V = 3)"),
        ([-INF, -INF, -INF], "nothing but -inf in the model's logits (V = 3)"),
    ],
)
def test_logits_that_are_not_numbers(logits: list[float], cause: str, config: SamplingConfig) -> None:
    """G4: the step and the cause, never an id."""
    with pytest.raises(NumericsError) as error:
        choose(torch.tensor(logits), config, [0], new_generator(0), step=3)
    assert str(error.value).startswith(f"step 3: {cause}")
    assert "\n" not in str(error.value)


def test_nothing_left_to_pick_names_the_step_that_took_it() -> None:
    with pytest.raises(NumericsError, match="nothing but -inf in the logits of the 2 known ids"):
        choose(torch.tensor([-INF, -INF, 1.0]), GREEDY, (), new_generator(0), n_known=2)
    config = SamplingConfig(repetition_penalty=1e-9)
    with pytest.raises(NumericsError, match="1 \\+inf in the logits under repetition_penalty = 1e-09"):
        choose(torch.tensor([5e30, 1.0]), config, [0], new_generator(0))


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("temperature", [-1, -1e-9, math.nan, INF, 10**400, True], "0 (greedy) or a finite number above"),
        ("top_k", [-1, -100, True], "a whole number from 0 (off)"),
        ("top_p", [0, -0.1, 1.01, math.nan, INF, True], "above 0 up to 1 (off)"),
        ("min_p", [-0.1, 1.01, math.nan, INF, True], "0 (off) up to 1"),
        ("repetition_penalty", [0, 1e-300, 1e10, -1, math.nan, INF, True], "from 1e-9 to 1e9"),
    ],
)
def test_settings_outside_their_range(field: str, values: list[float], allowed: str) -> None:
    """G1, G2: temperatures below 0, NaN or inf, top-k -1 and their like: the field, its value, its range."""
    for value in values:
        with pytest.raises(GenerationError) as error:
            SamplingConfig(**{field: value})
        assert str(error.value) == f"{field} = {value!r}: use {allowed}"


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64, True])
def test_seeds_outside_64_bits(seed: int) -> None:
    with pytest.raises(GenerationError, match=f"seed = {seed}: use a whole number from"):
        new_generator(seed)
    assert new_generator(2**64 - 1).initial_seed() == 2**64 - 1
    new_generator(-(2**63))


def test_the_ends_of_each_range_are_allowed() -> None:
    SamplingConfig(temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1e-9)
    SamplingConfig(temperature=1e308, top_k=10**9, top_p=5e-324, min_p=1, repetition_penalty=1e9)
    assert SamplingConfig() == SamplingConfig(temperature=0.8, repetition_penalty=1.0)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int8(3), int, 3),
        (np.uint64(2**64 - 1), int, 2**64 - 1),
        (np.float16(0.5), float, 0.5),
        (np.float32(0.5), float, 0.5),
        (np.float64(0.5), float, 0.5),
        (Fraction(1, 2), float, 0.5),
        (Fraction(10**400), Fraction, Fraction(10**400)),
        (10**400, int, 10**400),
        (np.True_, bool, True),
        (True, bool, True),
        ("1", str, "1"),
        (None, type(None), None),
    ],
)
def test_numbers_of_other_libraries_become_pythons_own(value: object, kind: type, expected: object) -> None:
    found = plain(value)
    assert (type(found), found) == (kind, expected)


@pytest.mark.parametrize("field", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"])
def test_false_is_no_number_either(field: str) -> None:
    with pytest.raises(GenerationError, match=f"{field} = False: "):
        SamplingConfig(**{field: False})
