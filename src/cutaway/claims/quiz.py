"""The quiz: fourteen questions in an order drawn from a seed, marked with what the model's own experiments show."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cutaway.checkpoint.files import write_atomically
from cutaway.checkpoint.sources import cache_folder
from cutaway.claims.claim import Finding, Number
from cutaway.claims.quiz_questions import QUESTIONS, Answer, Question
from cutaway.errors import InsideError
from cutaway.figures import Figure, Prose, Result, Table, plain

LETTERS = "abcd"
MAX_BYTES = 1 << 20  # of a kept quiz

RIGHT = {question.claim: question.answers[0] for question in QUESTIONS}


def questions(seed: int = 0) -> tuple[Question, ...]:
    """All questions, and the answers of each, in an order that depends on the seed alone."""
    draws = random.Random(seed)
    shuffled = [replace(one, answers=tuple(draws.sample(one.answers, len(one.answers)))) for one in QUESTIONS]
    return tuple(draws.sample(shuffled, len(shuffled)))


def right_letter(question: Question) -> str:
    """The letter of the right answer."""
    return LETTERS[question.answers.index(RIGHT[question.claim])]


def asked(question: Question) -> dict[str, Any]:
    """A question as it is put: nothing in it tells which answer is right."""
    answers = {letter: answer.text for letter, answer in zip(LETTERS, question.answers, strict=True)}
    return {"claim": question.claim, "question": question.text, "answers": answers}


def letter_of(text: str) -> str:
    """The letter that somebody typed.

    Raises:
        InsideError: it is none of the four.
    """
    letter = text.strip().lower().removesuffix(")").removesuffix(".")
    if letter not in tuple(LETTERS):
        raise InsideError(f"{text.strip()[:20]!r} is no answer: type {', '.join(LETTERS[:-1])} or {LETTERS[-1]}")
    return letter


@dataclass(frozen=True, kw_only=True, eq=False)
class Mark(Result):
    """How one question was answered, and what the experiment says to each answer."""

    question: Question
    given: str
    finding: Finding

    @property
    def is_right(self) -> bool:
        return self.given == right_letter(self.question)

    @property
    def heading(self) -> str:
        right = right_letter(self.question)
        return f"{self.given} is right" if self.is_right else f"{self.given} is wrong, {right} is right"

    def figures(self) -> list[Figure]:
        right = right_letter(self.question)
        order = sorted(zip(LETTERS, self.question.answers, strict=True), key=lambda pair: pair[0] != right)
        lines = [f"{letter}: {answer.why}" for letter, answer in order]
        shown = {name: pair for _, answer in order for name, pair in figures_for(answer, self.finding).items()}
        table = Table(
            title=f"claim {self.question.claim}, on {self.finding.subject}",
            columns=("figure", f">{self.finding.subject}", ">control"),
            rows=[[name, *pair] for name, pair in shown.items()],
        )
        return [Prose(title="", lines=lines), table]

    def to_dict(self) -> dict[str, Any]:
        answers = zip(LETTERS, self.question.answers, strict=True)
        return asked(self.question) | {
            "given": self.given,
            "right": right_letter(self.question),
            "is_right": self.is_right,
            "why": {
                letter: {"says": answer.why, "figures": plain(figures_for(answer, self.finding), 6)}
                for letter, answer in answers
            },
        }


def figures_for(answer: Answer, finding: Finding) -> dict[str, tuple[Number | None, Number | None]]:
    """The figures that show why an answer is right or wrong: the model's, and the control's."""
    found, control = finding.found.figures, finding.control.figures
    names = dict.fromkeys([*found, *control])
    return {
        name: (found.get(name), control.get(name))
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in answer.shown_by)
    }


def mark(question: Question, given: str, finding: Finding) -> Mark:
    """Hold an answer against the finding of the question's claim.

    Raises:
        InsideError: a letter that is none of the four, or the finding of another claim.
    """
    if finding.claim.number != question.claim:
        raise InsideError(f"a finding of claim {finding.claim.number}: the question is about claim {question.claim}")
    return Mark(question=question, given=letter_of(given), finding=finding)


@dataclass(frozen=True, kw_only=True, eq=False)
class Quiz(Result):
    """One sitting: which questions in which order, and what was answered so far."""

    seed: int
    model: str
    given: Mapping[int, str]  # letters, by claim
    marks: Mapping[int, Mark | Mapping[str, Any]]  # by claim; as data where they were made in an earlier sitting

    @property
    def questions(self) -> tuple[Question, ...]:
        return questions(self.seed)

    @property
    def left(self) -> tuple[Question, ...]:
        """What is not answered yet."""
        return tuple(question for question in self.questions if question.claim not in self.given)

    @property
    def score(self) -> int:
        """How many answers are right."""
        return sum(self.given.get(question.claim) == right_letter(question) for question in self.questions)

    @property
    def heading(self) -> str:
        n = len(self.given)
        return f"{self.score} of {n} right" + (f", {len(self.left)} questions left" if self.left else "")

    def figures(self) -> list[Figure]:
        table = Table(
            title="answers",
            columns=(">claim", "question", "given", "right"),
            rows=[
                [question.claim, question.text, self.given[question.claim], right_letter(question)]
                for question in self.questions
                if question.claim in self.given
            ],
        )
        return [table]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "quiz",
            "model": self.model,
            "seed": self.seed,
            "score": self.score,
            "answered": len(self.given),
            "of": len(self.questions),
            "answers": [self._answered(question) for question in self.questions if question.claim in self.given],
            "left": [asked(question) for question in self.left],
        }

    def _answered(self, question: Question) -> dict[str, Any]:
        made = self.marks.get(question.claim)
        if made is not None:
            return made.to_dict() if isinstance(made, Mark) else dict(made)
        given, right = self.given[question.claim], right_letter(question)
        return asked(question) | {"given": given, "right": right, "is_right": given == right}

    def answered(self, question: Question, letter: str) -> Quiz:
        """The quiz with one more answer."""
        return replace(self, given={**self.given, question.claim: letter_of(letter)})

    def marked(self, made: Mark) -> Quiz:
        """The quiz with one more mark."""
        return replace(self, marks={**self.marks, made.question.claim: made})

    def save(self, path: Path) -> None:
        """Keep it, whole or not at all.

        Raises:
            OSError: it cannot be written; what was kept before is still there.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False).encode())


def begun(seed: int, model: str) -> Quiz:
    """A quiz with nothing answered yet."""
    return Quiz(seed=seed, model=model, given={}, marks={})


def resumed(path: Path) -> Quiz:
    """The quiz that is kept there.

    Raises:
        InsideError: there is none, or the file is no quiz.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
        answers = {one["claim"]: one for one in _dicts(data["answers"])}
        given = {claim: letter_of(one["given"]) for claim, one in answers.items()}
        kept = Quiz(
            seed=int(data["seed"]),
            model=str(data["model"]),
            given=given,
            marks={claim: one for claim, one in answers.items() if "why" in one},
        )
        if not given.keys() <= RIGHT.keys():
            raise ValueError("an answer to a question that there is not")
    except FileNotFoundError:
        raise InsideError(f"{path}: no quiz is kept there: start one without --resume") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InsideError(f"{path}: not a quiz ({type(error).__name__}): start a new one without --resume") from error
    return kept


def _dicts(values: Iterable[Any]) -> list[dict[str, Any]]:
    found = list(values)
    if not all(isinstance(one, dict) for one in found):
        raise ValueError("an answer is an object")
    return found


def kept_at() -> Path:
    """Where a quiz is kept between sittings, if nowhere else is named."""
    return cache_folder() / "quiz.json"
