"""Scores of heads: patterns of hand's size, whose numbers can be checked by eye."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from cutaway.errors import InsideError
from cutaway.inside.heads import KINDS, entropy, has_repeats, probe, summaries
from cutaway.language_model import LanguageModel, load

Build = Callable[..., LanguageModel]
NAN = math.nan

# A text "a b a b", and what three heads make of it: row = query, column = key.
TEXT = [7, 8, 7, 8]
INDUCES = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0]]
LOOKS_BACK = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
EVEN = [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4, 1 / 4, 1 / 4, 1 / 4]]


def scores(pattern: list[list[float]], tokens: list[int]) -> dict[str, float]:
    found = summaries(torch.tensor(pattern, dtype=torch.float64), tokens)
    assert list(found) == list(KINDS)
    return {name: round(float(value), 9) for name, value in found.items()}


def test_a_head_that_induces() -> None:
    """Query 2 (a) looks at 1, after the first a; query 3 (b) looks with 0.75 at 2, after the first b."""
    two_keys = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert scores(INDUCES, TEXT) == {
        "previous": round((0 + 1 + 0.75) / 3, 9),
        "induction": (1 + 0.75) / 2,
        "duplicate": 0.0,  # query 3's b stood at 1; where query 2's a stood is the first position
        "own": round(1 / 3, 9),
        "first": round(0.25 / 3, 9),
        "entropy": round(two_keys / 3, 9),
    }


def test_a_head_that_looks_back_and_one_that_looks_everywhere() -> None:
    assert scores(LOOKS_BACK, TEXT) == {
        "previous": 1.0,
        "induction": 1.0,  # in a text that repeats every second token, what followed is what is before
        "duplicate": 0.0,
        "own": 0.0,
        "first": round(1 / 3, 9),
        "entropy": 0.0,
    }
    spread = scores(EVEN, TEXT)
    assert spread["entropy"] == pytest.approx((math.log(2) + math.log(3) + math.log(4)) / 3)
    assert spread["first"] == spread["own"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert spread["duplicate"] == pytest.approx(1 / 4)


def test_a_text_without_repetition_gives_no_induction() -> None:
    found = scores(EVEN, [1, 2, 3, 4])
    assert math.isnan(found["induction"])
    assert math.isnan(found["duplicate"])
    assert found["previous"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert not has_repeats([1, 2, 3, 4])
    assert not has_repeats([1, 1])  # what followed is the query itself
    assert has_repeats([1, 2, 1])


def test_all_earlier_places_count_together() -> None:
    """The fourth a looks at what followed each a before: 2 and 4, not at itself."""
    pattern = torch.zeros(7, 7, dtype=torch.float64)
    pattern[:, 0] = 1
    pattern[6] = torch.tensor([0.1, 0.2, 0.1, 0.3, 0.1, 0.2, 0.0])
    tokens = [9, 5, 1, 5, 2, 3, 5]
    found = summaries(pattern, tokens)
    assert float(found["induction"]) == pytest.approx((0 + 0.1 + 0.1) / 2)  # queries 3 and 6 have occasion
    assert float(found["duplicate"]) == pytest.approx((0 + 0.2 + 0.3) / 2)


def test_many_heads_at_once_and_one_token() -> None:
    stacked = torch.tensor([[INDUCES, LOOKS_BACK], [EVEN, INDUCES]])
    found = summaries(stacked, TEXT)
    assert all(value.shape == (2, 2) for value in found.values())
    assert found["previous"][0, 1] == 1
    assert found["induction"][1, 1] == pytest.approx(0.875)
    assert all(torch.isnan(value).all() for value in summaries(torch.ones(2, 3, 1, 1), [4]).values())
    assert float(entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))) == pytest.approx(math.log(2))


def test_the_probe_repeats_random_tokens(build: Build) -> None:
    model = build("grouped")
    ids = probe(model, n=20, seed=3)
    assert ids[:20] == ids[20:]
    assert len(set(ids)) == 20
    assert probe(model, n=20, seed=3) == ids != probe(model, n=20, seed=4)
    with pytest.raises(InsideError, match="n = 33: it must be from 1 to 32"):
        probe(model, n=33)


def test_the_probe_begins_as_the_model_does_and_holds_no_special_token() -> None:
    model = load("bard")
    ids = probe(model, n=8)
    assert model.tokenizer.bos_id is not None
    assert ids[0] == model.tokenizer.bos_id
    assert ids[1:9] == ids[9:]
    assert not {*ids[1:]} & {model.tokenizer.bos_id, *model.end_ids}
