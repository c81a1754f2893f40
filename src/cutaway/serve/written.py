"""The next token before it is picked: how likely each is, and what every step of sampling makes of that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.figures import Bars, Cell, Figure, Result, Table, Tokens, plain
from cutaway.generate.decoding import Generation, Piece
from cutaway.generate.sampling import FILTERS, Removed, sample_steps
from cutaway.inside.labels import label, labels
from cutaway.language_model import LanguageModel
from cutaway.text.ids import IdTokenizer

N_SHOWN = 12
CALLED = {"known": "not in the tokenizer", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}


class Explained(Generation):
    """One new token, and for the likeliest ones how they fare on the way to it."""

    def take(self, logits: Tensor) -> Piece:
        request = self.request
        rows = list(sample_steps(logits, request.sampling, self.tokens, n_known=request.n_known))
        piece = super().take(logits)
        best = rows[0][1].topk(min(N_SHOWN, len(logits))).indices.tolist()
        self.shown = best if piece.choice.token in best else [*best[:-1], piece.choice.token]
        heated = next((row for name, row in rows if name == "temperature"), rows[-1][1])
        if request.sampling.temperature == 0:  # all of it goes to the highest
            rows.append(("greedy", torch.full_like(heated, -math.inf).index_fill_(0, heated.argmax(), 0)))
        chances = [row.double().softmax(0) for row in (rows[0][1], heated, rows[-1][1])]
        self.shares = [tuple(float(row[i]) for row in chances) for i in self.shown]
        self.taken = [next((n for n, row in rows if n in FILTERS and row[i] == -math.inf), None) for i in self.shown]
        return piece


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A token that may come next: its probability to the model, at the temperature, and after all filters."""

    id: int
    label: str
    model: float
    heated: float
    final: float
    removed_by: str | None
    ends: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Next(Result):
    """A text as tokens, what may come next, and what would be picked."""

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    bytes: tuple[str, ...]  # of each token, in hexadecimal
    text: str
    candidates: tuple[Candidate, ...]
    removed: tuple[Removed, ...]
    picked: int

    @property
    def heading(self) -> str:
        return f"After {self.labels[-1]}: {next(c.label for c in self.candidates if c.id == self.picked)}"

    def figures(self) -> list[Figure]:
        rows: list[list[Cell]] = [
            [c.label, c.id, c.model, c.heated, c.final, CALLED.get(c.removed_by or "", "")] for c in self.candidates
        ]
        return [
            Tokens(title="The text, as the model reads it", labels=self.labels, ids=self.tokens),
            Bars(
                title="What may come next",
                labels=[c.label for c in self.candidates],
                values=[c.final for c in self.candidates],
                unit="probability",
            ),
            Table(
                title="From the model's probabilities to the draw",
                columns=["token", ">id", ">the model's", ">at the temperature", ">drawn with", "removed by"],
                rows=rows,
            ),
            Table(
                title="What each filter removed",
                note="The share is of the distribution that the filter was given.",
                columns=["filter", ">tokens", ">share"],
                rows=[[CALLED[one.filter], one.n_ids, one.mass] for one in self.removed],
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        found = vars(self) | {
            "candidates": [vars(c) for c in self.candidates],
            "removed": [{"filter": CALLED[one.filter], "n_ids": one.n_ids, "mass": one.mass} for one in self.removed],
        }
        return {"kind": "next"} | {name: plain(value, 6) for name, value in found.items()}


def explained(model: LanguageModel, ids: list[int], options: dict[str, Any]) -> Explained:
    """A generation of one token, ready to be submitted.

    Raises:
        GenerationError: an option out of its range.
    """
    (made,) = model.generations([ids], max_tokens=1, explain=True, **options)
    return Explained(made.request, model.tokenizer.stream(skip_special=True, continues=True), model.config.n_ctx)


def next_of(model: LanguageModel, generation: Explained) -> Next:
    """What came of it."""
    ids, (choice,) = list(generation.request.prompt), generation.choices
    numbers = zip(generation.shown, generation.shares, generation.taken, strict=True)
    return Next(
        tokens=tuple(ids),
        labels=tuple(labels(model.tokenizer, ids)),
        bytes=tuple(bytes_of(model, ids)),
        text=model.decode(ids),
        candidates=tuple(
            Candidate(
                id=i,
                label=label(model.tokenizer, i),
                model=before,
                heated=heated,
                final=final,
                removed_by=taken,
                ends=i in model.end_ids,
            )
            for i, (before, heated, final), taken in numbers
        ),
        removed=choice.removed,
        picked=choice.token,
    )


def bytes_of(model: LanguageModel, ids: list[int]) -> list[str]:
    """What each token writes, in hexadecimal; nothing where there is no tokenizer."""
    tokenizer = model.tokenizer
    return ["" if isinstance(tokenizer, IdTokenizer) else tokenizer.token_bytes(i).hex(" ") for i in ids]
