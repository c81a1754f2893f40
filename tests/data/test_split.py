"""What is held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutaway.data.documents import Reader
from cutaway.data.files import find_sources
from cutaway.data.split import FEW, Split, Survey
from cutaway.data.vocabulary import Sample
from cutaway.errors import DataError


def survey(lengths: list[int]) -> Survey:
    return Survey(n_documents=len(lengths), lengths=lengths[:FEW], sample=Sample())


def held(split: Split, n: int) -> list[int]:
    return [i for i in range(n) if [part for part, _ in split.parts(i, ["x"])] == ["val"]]


def test_of_few_documents_the_last_part_of_each():
    split = Split.of(survey([10, 5, 1]), seed=0, fraction=0.2)
    assert list(split.parts(0, ["abcde", "fgh", "ij"])) == [("train", "abcde"), ("train", "fgh"), ("val", "ij")]
    assert list(split.parts(1, ["abcde"])) == [("train", "abcd"), ("val", "e")]
    assert list(split.parts(2, ["a"])) == [("train", "a")], "there is always something to train on"
    assert split.notes(2) == ["the last 0.2 of each document is held out for validation (fewer than 20 documents)"]


def test_of_many_whole_ones_by_the_seed():
    split = Split.of(survey([1] * 1000), seed=0, fraction=0.1)
    chosen = held(split, 1000)
    assert 70 < len(chosen) < 130
    assert chosen == held(Split.of(survey([1] * 1000), seed=0, fraction=0.1), 1000)
    assert chosen != held(Split.of(survey([1] * 1000), seed=1, fraction=0.1), 1000)
    assert chosen == [i for i in held(Split.of(survey([1] * 2000), seed=0, fraction=0.1), 2000) if i < 1000], (
        "a longer corpus holds out the same documents"
    )


def test_one_is_held_out_where_the_seed_chose_none():
    """T2: whoever asked for validation gets it."""
    for seed in range(30):
        assert len(held(Split.of(survey([1] * 20), seed=seed, fraction=0.001), 20)) == 1


def test_nothing_held_out():
    for n in (3, 30):
        split = Split.of(survey([7] * n), seed=0, fraction=0.0)
        assert held(split, n) == []
        assert split.notes(0) == []


def test_everything_held_out_is_refused():
    with pytest.raises(DataError, match=r"val_fraction 0\.9999999 holds out all 20 documents"):
        Split.of(survey([1] * 20), seed=0, fraction=0.9999999)


def test_a_survey_sees_every_document_once(tmp_path: Path):
    (tmp_path / "a.txt").write_text("héé")
    (tmp_path / "b.jsonl").write_text('{"text": "xy"}\n' * 30)
    seen = Survey.of(Reader(find_sources(tmp_path)[0]), Sample())
    assert seen.n_documents == 31
    assert seen.lengths == [3] + [2] * 19
    assert seen.sample.n_bytes == 5 + 60
    assert seen.sample.characters() == ["h", "x", "y", "é"]
