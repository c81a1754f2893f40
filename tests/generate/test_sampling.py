from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cutaway.errors import GenerationError, NumericsError
from cutaway.generate.sampling import (
    Choice,
    Removed,
    SamplingConfig,
    choose,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    new_generator,
    penalise,
    rank_logprobs,
    sample_steps,
    scale,
)

INF = math.inf
GREEDY = SamplingConfig(temperature=0)
PLAIN = SamplingConfig(temperature=1)

anytime = settings(deadline=None)
rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(torch.tensor)
configs = st.builds(
    SamplingConfig,
    temperature=st.floats(0.01, 10),
    top_k=st.none() | st.integers(0, 50),
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
)


def logs(*probs: float) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64).log().float()


def kept(logits: Tensor) -> list[int]:
    return logits.isfinite().nonzero()[:, 0].tolist()


def sample(logits: Tensor, config: SamplingConfig, n: int, seed: int = 0) -> Counter[int]:
    generator = new_generator(seed)
    return Counter(choose(logits, config, (), generator).token for _ in range(n))


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


# filters


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
    config = SamplingConfig(repetition_penalty=1e-300)
    with pytest.raises(NumericsError, match="1 \\+inf in the logits under repetition_penalty = 1e-300"):
        choose(torch.tensor([5.0, 1.0]), config, [0], new_generator(0))


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("temperature", [-1, -1e-9, math.nan, INF, 10**400, True], "0 (greedy) or a finite number above"),
        ("top_k", [-1, -100, True], "a whole number from 0 (off)"),
        ("top_p", [0, -0.1, 1.01, math.nan, INF, True], "above 0 up to 1 (off)"),
        ("min_p", [-0.1, 1.01, math.nan, INF, True], "0 (off) up to 1"),
        ("repetition_penalty", [0, -1, math.nan, INF, True], "finite, above 0"),
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
    SamplingConfig(temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=5e-324)
    SamplingConfig(temperature=1e308, top_k=10**9, top_p=5e-324, min_p=1)
    assert SamplingConfig() == SamplingConfig(temperature=0.8, repetition_penalty=1.0)
