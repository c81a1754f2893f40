"""cutaway quiz: fourteen questions, and what the model's own experiments say to each answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.common import as_text, model_name, open_model, print_json, reported, tell
from cutaway.cli.options import Debug, Json, Model, Seed
from cutaway.errors import InsideError

if TYPE_CHECKING:
    from cutaway.claims.quiz import Mark, Quiz
    from cutaway.claims.quiz_questions import Question


@reported
def quiz(
    model: Model = None,
    seed: Seed = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the quiz that was broken off.")] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it is kept.", show_default="in the user's cache")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Answer fourteen questions, and see each answer on the model.

    Type a letter after each question; in a pipe, one letter a line. Every answer is kept at once: Ctrl-C or Ctrl-D
    breaks off, --resume goes on. Order depends on the seed.
    """
    from cutaway.claims.quiz import begun, kept_at, resumed

    path = file or kept_at()
    sitting = resumed(path) if resume else None
    if sitting is not None and seed not in (None, sitting.seed):
        raise InsideError(f"--seed {seed}: the quiz kept in {path} has {sitting.seed}; leave --seed or --resume out")
    name = model_name(sitting.model if sitting is not None and model is None else model)
    if sitting is not None and sitting.model != name:
        raise InsideError(
            f"--model {name}: the quiz kept in {path} is on {sitting.model}; leave --model or --resume out"
        )
    if sitting is None:
        sitting = begun(SystemRandom().randrange(10**6) if seed is None else seed, name)
    asking = Sitting(sitting, path, show_all=not json)
    try:
        sitting = asking.take()
    except KeyboardInterrupt:
        if sys.stdin.isatty():
            print(file=sys.stderr)  # what was being typed stays in its line
        _tell_kept(asking.quiz, path, file)
        raise
    if json:
        print_json(sitting.to_dict())
        return
    from cutaway.show.terminal import console

    console().print(sitting)
    if sitting.left:
        _tell_kept(sitting, path, file)


def _tell_kept(sitting: Quiz, path: Path, file: Path | None) -> None:
    """How to go on; nothing where nothing was answered, and so nothing kept."""
    if sitting.given:
        where = "" if file is None else f" --file {shlex.quote(str(file))}"
        tell("note", f"kept in {path}: `cutaway quiz --resume{where}` goes on")


class Sitting:
    """The questions that are left, one after another, from a terminal or a pipe."""

    def __init__(self, quiz: Quiz, path: Path, *, show_all: bool) -> None:
        from cutaway.show.terminal import console

        self.quiz = quiz
        self.path = path
        self.is_typed = sys.stdin.isatty()
        self.show_all = show_all
        self.screen = console(stderr=not show_all)  # questions are not the data
        self.mark: _Marker | None = None

    def take(self) -> Quiz:
        """Ask until nothing is left, or nobody answers. The first answer takes the place of a quiz kept before."""
        lines = _lines()
        for number, question in enumerate(self.quiz.left, len(self.quiz.given) + 1):
            if self.show_all or self.is_typed:
                self._put(number, question)
            letter = self._letter(lines)
            if letter is None:
                break
            self.quiz = self.quiz.answered(question, letter)
            self.quiz.save(self.path)  # before the experiment, which may be broken off
            self.mark = self.mark or _Marker(self.quiz.model, self.quiz.seed)
            made = self.mark(question, letter)
            self.quiz = self.quiz.marked(made)
            self.quiz.save(self.path)
            if self.show_all or self.is_typed:
                self.screen.print(made)
        return self.quiz

    def _put(self, number: int, question: Question) -> None:
        from cutaway.claims.quiz import LETTERS

        self.screen.print(f"\n{number}/{len(self.quiz.questions)}  {question.text}\n")
        for letter, answer in zip(LETTERS, question.answers, strict=True):
            self.screen.print(f"  {letter}  {answer.text}")
        self.screen.print()

    def _letter(self, lines: Iterator[str]) -> str | None:
        """The next letter; on a terminal a wrong key is told, and asked for again."""
        from cutaway.claims.quiz import letter_of

        while True:
            if self.is_typed:
                self.screen.print("> ", end="")
            line = next(lines, None)
            if line is None or line.strip():
                try:
                    return None if line is None else letter_of(line)
                except InsideError as error:
                    if not self.is_typed:
                        raise
                    tell("error", str(error))


class _Marker:
    """Marks answers, and runs an experiment when its first question is answered."""

    def __init__(self, name: str, seed: int) -> None:
        from cutaway.claims.lab import Lab

        self.lab = Lab(model=open_model(name, "float32", "cpu"), name=name, seed=0)

    def __call__(self, question: Question, letter: str) -> Mark:
        from cutaway.claims.quiz import mark
        from cutaway.claims.run import CLAIMS
        from cutaway.show.terminal import waiting

        claim = CLAIMS[question.claim - 1]
        with waiting(f"the experiment: {claim.title}"):
            finding = claim.test(self.lab)
        return mark(question, letter, finding)


def _lines() -> Iterator[str]:
    """Lines of standard input as they come."""
    for line in sys.stdin.buffer:
        yield as_text(line)
