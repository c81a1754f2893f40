"""The quiz as plain Python: orders, marks, what is kept."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from cutaway.claims import quiz
from cutaway.claims.claim import Finding
from cutaway.claims.quiz_questions import QUESTIONS, Question
from cutaway.errors import InsideError
from support.trials import found_on_grouped


@pytest.fixture(scope="module")
def context_finding() -> Finding:
    return found_on_grouped(3)


def about(claim: int, seed: int = 0) -> Question:
    [question] = [one for one in quiz.questions(seed) if one.claim == claim]
    return question


def test_there_is_a_question_for_each_claim_with_four_different_answers() -> None:
    assert [question.claim for question in QUESTIONS] == list(range(1, 15))
    for question in QUESTIONS:
        assert len({answer.text for answer in question.answers}) == 4
        assert question.text.endswith("?")
        for answer in question.answers:
            assert answer.why.endswith(".")
            assert answer.shown_by


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question.claim))
def test_every_answer_has_a_figure_of_the_experiment(question: Question) -> None:
    finding = found_on_grouped(question.claim)
    names = [*finding.found.figures, *finding.control.figures]
    for answer in question.answers:
        for pattern in answer.shown_by:
            assert any(fnmatchcase(name, pattern) for name in names), pattern
        assert quiz.figures_for(answer, finding)


def test_the_order_depends_on_the_seed_alone() -> None:
    assert quiz.questions(3) == quiz.questions(3)
    assert quiz.questions(3) != quiz.questions(4)
    letters = {quiz.right_letter(one) for seed in range(5) for one in quiz.questions(seed)}
    assert letters == set("abcd")
    for seed in range(5):
        for one in quiz.questions(seed):
            assert sorted(one.answers, key=str) == sorted(QUESTIONS[one.claim - 1].answers, key=str)
            right = one.answers["abcd".index(quiz.right_letter(one))]
            assert right == QUESTIONS[one.claim - 1].answers[0]


def test_what_is_asked_gives_nothing_away() -> None:
    sent = json.dumps([quiz.asked(question) for question in quiz.questions(0)])
    assert "why" not in sent
    assert "right" not in json.loads(sent)[0]


@pytest.mark.parametrize(("typed", "letter"), [("a", "a"), (" B\n", "b"), ("c)", "c"), ("D.", "d")])
def test_letters(typed: str, letter: str) -> None:
    assert quiz.letter_of(typed) == letter


@pytest.mark.parametrize("typed", ["", "e", "ab", "1", "abcd"])
def test_what_is_no_letter(typed: str) -> None:
    with pytest.raises(InsideError, match="is no answer: type a, b, c or d"):
        quiz.letter_of(typed)


def test_a_mark_says_why_with_figures(context_finding: Finding) -> None:
    question = about(3)
    right = quiz.right_letter(question)
    wrong = next(letter for letter in "abcd" if letter != right)
    good, bad = quiz.mark(question, right, context_finding), quiz.mark(question, wrong, context_finding)
    assert good.is_right
    assert not bad.is_right
    assert bad.heading == f"{wrong} is wrong, {right} is right"
    prose, table = bad.figures()
    assert [line[0] for line in prose.lines] == [right, *(letter for letter in "abcd" if letter != right)]  # type: ignore[attr-defined]
    rows = {row[0]: row[1:] for row in table.rows}  # type: ignore[attr-defined]
    assert rows["difference of the two rows"] == [0.0, 0.0]
    assert rows["1 − cosine after the last block"][0] > 1e-3 > rows["1 − cosine after the last block"][1]
    data = json.loads(json.dumps(bad.to_dict(), allow_nan=False))
    assert data["given"] == wrong
    assert data["is_right"] is False
    assert data["why"].keys() == set("abcd")


def test_a_finding_of_another_claim_marks_nothing(context_finding: Finding) -> None:
    with pytest.raises(InsideError, match="a finding of claim 3: the question is about claim 4"):
        quiz.mark(about(4), "a", context_finding)


def test_a_quiz_is_kept_and_goes_on(tmp_path: Path, context_finding: Finding) -> None:
    sitting = quiz.begun(7, "bard")
    first, second = sitting.questions[:2]
    assert sitting.left == sitting.questions
    sitting = sitting.answered(first, quiz.right_letter(first))
    wrong = next(letter for letter in "abcd" if letter != quiz.right_letter(about(3, 7)))
    sitting = sitting.answered(about(3, 7), wrong).marked(quiz.mark(about(3, 7), wrong, context_finding))
    assert sitting.heading == "1 of 2 right, 12 questions left"
    sitting.save(tmp_path / "deep" / "quiz.json")
    again = quiz.resumed(tmp_path / "deep" / "quiz.json")
    assert (again.seed, again.model, again.given, again.score) == (7, "bard", sitting.given, 1)
    assert again.left == sitting.left
    assert again.to_dict() == json.loads(json.dumps(sitting.to_dict()))
    assert len(again.to_dict()["left"]) == 12
    assert second in again.left or second.claim == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"seed": 1, "model": "m", "answers": [1]}',
        '{"seed": 1, "model": "m", "answers": [{"claim": 99, "given": "a"}]}',
        '{"seed": 1, "model": "m", "answers": [{"claim": 1, "given": "z"}]}',
        '{"seed": 1, "model": "m", "answers": [{"claim": [], "given": "a"}]}',
        '{"seed": "x", "model": "m", "answers": []}',
        '{"seed": 1e400, "model": "m", "answers": []}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_quiz(tmp_path: Path, text: str) -> None:
    (tmp_path / "quiz.json").write_text(text)
    with pytest.raises(InsideError, match=r"not a quiz|is no answer"):
        quiz.resumed(tmp_path / "quiz.json")


def test_no_quiz_is_kept(tmp_path: Path) -> None:
    with pytest.raises(InsideError, match="no quiz is kept there"):
        quiz.resumed(tmp_path / "quiz.json")
