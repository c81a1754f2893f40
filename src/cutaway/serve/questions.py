"""What the page may ask: a body for each question, checked and bounded, and what answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from cutaway.account.cost import Cost, cost
from cutaway.claims.quiz import mark, questions
from cutaway.claims.run import claims
from cutaway.errors import ConfigError, ServeError
from cutaway.figures import Result
from cutaway.inside.attention import head_of
from cutaway.inside.compare import compare
from cutaway.inside.contributions import contributions
from cutaway.inside.effects import effects
from cutaway.inside.exactness import exact
from cutaway.inside.lens import lens
from cutaway.inside.look import look
from cutaway.inside.neighbours import neighbours
from cutaway.inside.senses import senses
from cutaway.inside.targets import token_of
from cutaway.language_model import LanguageModel
from cutaway.presets import PRESETS
from cutaway.serve.experiment import experiment
from cutaway.serve.neurons import neurons
from cutaway.serve.requests import Body, OnePrompt, Target, prompt_of
from cutaway.serve.runlog import growing
from cutaway.serve.staged import staged
from cutaway.serve.tower import tower
from cutaway.serve.turns import Said, Tell

MOST = 1024  # tokens of a text that is looked into
MOST_PER_TOKEN = 64  # characters of its tokens on average: a longer text is not even read, as texts wait meanwhile
MOST_SWEPT = 128  # of one that is read again for every part
MOST_HELD = 256  # of one of which much is held at once, or that keeps the network for some passes in a row
MOST_CHANGED = 512  # heads and feed-forwards switched off
LONG = 4000  # characters of a short field


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a question is asked of. `others` are the models, `run` the training run that the server was started with."""

    model: LanguageModel
    name: str
    others: Mapping[str, LanguageModel]
    run: Path | None
    tell: Tell

    def ids(self, prompt: Any, most: int = MOST, instead: str = "shorten it") -> list[int]:
        """A prompt's ids, not too many for the question; `instead` says what to do about more.

        Raises:
            ServeError: more of them.
        """
        given = prompt_of(prompt)
        if isinstance(given, str) and len(given) > most * MOST_PER_TOKEN:
            raise ServeError(f"prompt = {len(given)} characters: this looks at {most} tokens at most; {instead}")
        ids = self.model.ids(given)
        if len(ids) > most:
            raise ServeError(f"prompt = {len(ids)} tokens: this looks at {most} at most; {instead}")
        return ids


class Question(Body):
    """The base: a body knows how it is answered."""

    # Whether it takes many passes: then it tells how far it is, and shares the network with texts meanwhile. Not where
    # weights are exchanged for a while.
    long: ClassVar[bool] = False
    yields: ClassVar[bool] = True

    def answer(self, asked: Asked) -> Result:
        """The result, worked out where the network may be used."""
        raise NotImplementedError


class LookQuestion(Question):
    """One screen about a prompt."""

    prompt: OnePrompt

    def answer(self, asked: Asked) -> Result:
        return look(asked.model, asked.ids(self.prompt))


class TowerQuestion(Question):
    """The model as it is, on a text."""

    long = True
    prompt: OnePrompt

    def answer(self, asked: Asked) -> Result:
        return tower(
            asked.model,
            asked.ids(self.prompt),
            progress=lambda done, total: asked.tell(Said(done, total, "layers")),
        )


class HeadQuestion(Question):
    """One head through its stages."""

    prompt: OnePrompt
    head: str = Field(max_length=16)

    def answer(self, asked: Asked) -> Result:
        return staged(asked.model, asked.ids(self.prompt), self.head)


class NeuronsQuestion(Question):
    """What a feed-forward's neurons do at one position."""

    prompt: OnePrompt
    layer: int
    position: int = -1

    def answer(self, asked: Asked) -> Result:
        return neurons(asked.model, asked.ids(self.prompt), self.layer, self.position)


class LensQuestion(Question):
    """What every layer would say."""

    long = True
    prompt: OnePrompt
    target: Target = None
    actual: bool = False
    sublayers: bool = False
    last: int | None = Field(32, ge=1)

    def answer(self, asked: Asked) -> Result:
        return lens(
            asked.model,
            asked.ids(self.prompt),
            target=_token(self.target),
            actual=self.actual,
            sublayers=self.sublayers,
            last=self.last,
            progress=lambda done, total, so_far: asked.tell(Said(done, total, "cells", so_far)),
        )


class ContributionsQuestion(Question):
    """What every part adds to a logit."""

    prompt: OnePrompt
    target: Target = None
    versus: Target = None
    position: int = -1

    def answer(self, asked: Asked) -> Result:
        ids, target, versus = asked.ids(self.prompt), _token(self.target), _token(self.versus)
        return contributions(asked.model, ids, target=target, versus=versus, position=self.position)


class NeighboursQuestion(Question):
    """Which tokens have rows like this one's."""

    token: Target
    by: Literal["cosine", "dot"] = "cosine"
    space: Literal["embedding", "unembedding"] = "embedding"

    def answer(self, asked: Asked) -> Result:
        token = token_of(asked.model, _token(self.token), "token")
        return neighbours(asked.model, token, by=self.by, space=self.space, k=20)


class SensesQuestion(Question):
    """One word in several sentences."""

    long = True
    word: str = Field(max_length=LONG)
    sentences: list[str] = Field(min_length=2, max_length=8)
    groups: list[str] | None = Field(None, max_length=8)

    def answer(self, asked: Asked) -> Result:
        for sentence in self.sentences:
            asked.ids(sentence, MOST_SWEPT)
        return senses(asked.model, self.word, self.sentences, groups=self.groups)


class EffectsQuestion(Question):
    """What each part does, found by taking it away or patching it."""

    long = True
    prompt: OnePrompt
    source: OnePrompt | None = None
    what: Literal["heads", "attn", "ff", "resid"] = "heads"
    how: Literal["zero", "mean", "patch"] = "zero"
    target: Target = None
    versus: Target = None
    estimate: bool = False  # nothing but the estimate, which else is told first

    def answer(self, asked: Asked) -> Result:
        most, instead = (MOST_HELD, "shorten it") if self.estimate else (MOST_SWEPT, "shorten it, or only estimate")
        ids = asked.ids(self.prompt, most, instead)
        source = asked.ids(self.source, most, instead) if self.how == "patch" and self.source else None
        chosen: dict[str, Any] = {"source": source, "what": self.what, "how": self.how}
        chosen |= {"target": _token(self.target), "versus": _token(self.versus)}
        estimated = effects(asked.model, ids, estimate=True, **chosen)
        if self.estimate:
            return estimated
        asked.tell(Said(0, 0, "passes", estimated))
        return effects(asked.model, ids, progress=lambda done, total: asked.tell(Said(done, total, "passes")), **chosen)


class ExactQuestion(Question):
    """Whether what is shown here adds up."""

    long = True
    prompt: OnePrompt

    def answer(self, asked: Asked) -> Result:
        return exact(
            asked.model,
            asked.ids(self.prompt, MOST_HELD),
            progress=lambda done, total, so_far: asked.tell(Said(done, total, "promises", so_far)),
        )


class CompareQuestion(Question):
    """Another model beside this one."""

    long = True
    prompt: OnePrompt
    other: str = Field(max_length=LONG)
    last: int | None = Field(32, ge=1)

    def answer(self, asked: Asked) -> Result:
        if self.other not in asked.others:
            known = ", ".join(asked.others) or "none"
            raise ServeError(f"other = {self.other[:40]!r}: the server was started with {known} to compare with")
        asked.ids(self.prompt, MOST_HELD)
        return compare(
            asked.model,
            asked.others[self.other],
            prompt_of(self.prompt),
            names=(asked.name, self.other),
            last=self.last,
            progress=lambda done, total, so_far: asked.tell(Said(done, total, "layers", so_far)),
        )


class ExperimentQuestion(Question):
    """The model with parts of it switched off or dropped."""

    long = True
    prompt: OnePrompt
    heads: list[str] = Field([], max_length=MOST_CHANGED)  # such as 3.5
    feed_forwards: list[int] = Field([], max_length=MOST_CHANGED)
    how: Literal["zero", "mean"] = "zero"
    without: list[Literal["mask", "scale", "positions"]] = Field([], max_length=3)
    n_new: int = Field(24, ge=0, le=200)

    def answer(self, asked: Asked) -> Result:
        return experiment(
            asked.model,
            asked.ids(self.prompt),
            heads=[head_of(asked.model.config, head) for head in self.heads],
            feed_forwards=self.feed_forwards,
            how=self.how,
            without=self.without,
            n_new=self.n_new,
            progress=lambda done, total, so_far: asked.tell(
                Said(done, total, "tokens", so_far if done in (0, self.n_new) else None)
            ),
        )


class GrowingQuestion(Question):
    """One head over the checkpoints of the run."""

    long = True
    prompt: str = Field(max_length=LONG)
    head: str = Field(max_length=16)

    def answer(self, asked: Asked) -> Result:
        if asked.run is None:
            raise ServeError("no run is shown: start the server with --run FOLDER")
        return growing(
            asked.run,
            self.prompt,
            self.head,
            most=MOST_SWEPT,
            progress=lambda done, total: asked.tell(Said(done, total, "checkpoints")),
        )


class CostQuestion(Question):
    """What a model costs: this one, or a published size."""

    long = True
    of: str | None = Field(None, max_length=64)
    context: int | None = Field(None, ge=1)
    batch: int = Field(1, ge=1, le=2**20)
    tokens: int = Field(500, ge=1, le=10**9)
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    hardware: str | None = Field(None, max_length=64)
    measure: bool = False

    def answer(self, asked: Asked) -> Result:
        if self.of is not None and self.of not in PRESETS:
            raise ServeError(f"of = {self.of!r}: one of {', '.join(PRESETS)}, or leave it out for {asked.name}")
        if self.measure and (self.of is not None or (self.context or 0) > MOST):
            raise ServeError(f"measure: only {asked.name} is measured here, on {MOST} tokens at most")
        try:
            found = self._cost(asked)
        except ConfigError as error:  # here it is the client's
            raise ServeError(str(error)) from error
        return replace(found, model=self.of or asked.name)

    def _cost(self, asked: Asked) -> Cost:
        return cost(
            PRESETS[self.of] if self.of else asked.model.config,
            context=self.context,
            batch=self.batch,
            tokens=self.tokens,
            dtype=self.dtype,
            hardware=self.hardware or None,
            measure=self.measure,
            progress=lambda words: asked.tell(Said(0, 0, words)),
        )


class ClaimQuestion(Question):
    """One of the fourteen claims, put to the test."""

    long = True
    yields = False
    number: int = Field(ge=1, le=99)

    def answer(self, asked: Asked) -> Result:
        found = claims(asked.model, self.number, progress=lambda words: asked.tell(Said(0, 0, words)))
        return found.findings[0]


class QuizQuestion(Question):
    """An answer to a question of the quiz, held against the experiment."""

    long = True
    yields = False
    seed: int = Field(0, ge=0, lt=2**31)
    claim: int = Field(ge=1, le=99)
    given: Literal["a", "b", "c", "d"]

    def answer(self, asked: Asked) -> Result:
        found = claims(asked.model, self.claim, progress=lambda words: asked.tell(Said(0, 0, words)))
        question = next(one for one in questions(self.seed) if one.claim == self.claim)
        return mark(question, self.given, found.findings[0])


QUESTIONS: dict[str, type[Question]] = {
    "look": LookQuestion,
    "tower": TowerQuestion,
    "head": HeadQuestion,
    "neurons": NeuronsQuestion,
    "lens": LensQuestion,
    "contributions": ContributionsQuestion,
    "neighbours": NeighboursQuestion,
    "senses": SensesQuestion,
    "effects": EffectsQuestion,
    "exact": ExactQuestion,
    "compare": CompareQuestion,
    "experiment": ExperimentQuestion,
    "growing": GrowingQuestion,
    "cost": CostQuestion,
    "claim": ClaimQuestion,
    "quiz": QuizQuestion,
}


def _token(given: Any) -> Any:
    """A token as it is given: nothing is none, digits behind a # are an id."""
    if isinstance(given, str) and given[:1] == "#" and given[1:].isdecimal() and len(given) < 12:
        return int(given[1:])
    if given is not None and not isinstance(given, str | int):
        raise ServeError(f"token = {str(given)[:40]}: give its text, or its id as a number")
    return given if given != "" else None
