"""What an edit does to the next token: the same prompt with it and without."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import Figure, Lines, Result, Series, Table, Tokens, plain
from cutaway.inside.edits import Edit, KnockOut, Mean, Resample, Scale, Zero
from cutaway.inside.labels import labels
from cutaway.inside.targets import Reader
from cutaway.inside.trace import LAST, LIMIT, trace

NO_NUMBERS = "Probabilities. With the edits the pass ends in NaN: a number in it became too large, or none. Edit less."
BY_WORD = {"zero": Zero, "mean": Mean, "resample": Resample, "knockout": KnockOut}


@dataclass(frozen=True, kw_only=True)
class Token:
    """A next token: its probability without the edits and with them."""

    id: int
    label: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Edited(Result):
    """The next token with and without the edits."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    edits: tuple[str, ...]
    tokens: tuple[Token, ...]  # the likeliest of both, the one that was first before at the top
    kl: float  # of the edited distribution from the plain one [nats]
    moved: tuple[float, ...]  # of the residual stream at the last position, after each block: ‖Δ‖ / ‖plain‖

    @property
    def heading(self) -> str:
        return f"What comes next with {'; '.join(self.edits)}"

    def figures(self) -> list[Figure]:
        rows = [(t.label, t.before, t.after, t.after - t.before) for t in self.tokens]
        layers = list(range(len(self.moved)))
        return [
            Tokens(title="The text", labels=self.labels, ids=self.ids),
            Table(
                title="The next token, without and with",
                columns=("token", ">without", ">with", ">change"),
                rows=rows,
                note=NO_NUMBERS if math.isnan(self.kl) else f"Probabilities; KL(with ‖ without) is {self.kl:.4g} nats.",
            ),
            Lines(
                title="How far the residual stream is moved",
                note="At the last position after each block: length of the change, over the plain length.",
                series=[Series(name="moved", x=layers, y=self.moved)],
                x="layer",
                y="share",
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        found = {
            "kind": "edited",
            "tokens": self.ids,
            "labels": self.labels,
            "edits": self.edits,
            "next": [vars(token) for token in self.tokens],
            "kl": self.kl,
            "moved": self.moved,
        }
        return {name: plain(value, 9) for name, value in found.items()}


def edited(
    model: Reader, prompt: Any, edits: Edit | str | Sequence[Edit | str], *, k: int = 10, limit: int = LIMIT
) -> Edited:
    """What the next token becomes when a pass is changed on the way.

    Args:
        edits: one or several, as in `trace`, or in words, as `edit` reads them.
        k: how many of the likeliest tokens, of each of the two passes.
    Raises:
        InsideError: no edit, one that does not fit, or one that cannot be read.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    listed = [edits] if isinstance(edits, Edit | str) else edits
    wanted = [edit(one) if isinstance(one, str) else one for one in listed]
    if not wanted:
        raise InsideError("no edits: give one, such as 'zero blocks.3.attn.z[head 5]'")
    if k < 1:
        raise InsideError(f"k = {k}: ask for one token at least")
    keep = ["blocks.*.resid_post[position -1]", LAST]
    (plain,) = trace(model, [prompt], keep=keep, limit=limit)
    (other,) = trace(model, [prompt], keep=keep, edits=wanted, limit=limit)
    before, after = (one.logits[-1].double().log_softmax(-1) for one in (plain, other))
    shown = dict.fromkeys(torch.cat([x.topk(min(k, len(x))).indices for x in (before, after)]).tolist())
    ids = sorted(shown, key=lambda i: -float(before[i]))
    return Edited(
        ids=tuple(plain.tokens),
        labels=tuple(labels(model.tokenizer, plain.tokens)),
        edits=tuple(in_words(one) for one in wanted),
        tokens=tuple(
            Token(id=i, label=labels(model.tokenizer, [i])[0], before=_share(before[i]), after=_share(after[i]))
            for i in ids
        ),
        kl=_divergence(after, before),
        moved=tuple(float((other[name] - plain[name]).norm() / plain[name].norm()) for name in plain if name != LAST),
    )


def edit(words: str) -> Edit:
    """An edit in words: `zero blocks.3.attn.z[head 5]`, `scale blocks.*.ff.out 0.5`, and mean, resample, knockout.

    Raises:
        InsideError: words that are none.
    """
    match = re.fullmatch(r"\s*(\S+)\s+([^\[\]\s]+\s*(?:\[[^\[\]]*\])?)\s*(\S+)?\s*", words)
    kinds = [*BY_WORD, "scale"]
    if match is None:
        raise InsideError(f"{words!r} is no edit: write one of {', '.join(kinds)}, then a name such as blocks.3.ff.out")
    kind, at, factor = match[1], match[2].strip(), match[3]
    if kind not in kinds:
        near = difflib.get_close_matches(kind, kinds, n=1)
        meant = f"did you mean {near[0]}?" if near else f"use one of {', '.join(kinds)}"
        raise InsideError(f"{kind!r} is no edit: {meant}")
    if kind == "scale" and factor is None:
        raise InsideError(f"{words!r}: scale takes a factor, such as 0.5")
    if kind != "scale" and factor is not None:
        raise InsideError(f"{words!r}: {kind} takes no {factor!r}")
    if factor is None:
        return BY_WORD[kind](at)
    try:
        number = float(factor)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InsideError(f"{words!r}: the factor must be a number, such as 0.5")
    return Scale(at, number)


def in_words(one: Edit) -> str:
    """An edit as `edit` reads it, where it can."""
    word = next((word for word, kind in BY_WORD.items() if type(one) is kind), type(one).__name__.lower())
    return f"{word} {one.at}" + (f" {one.factor:g}" if isinstance(one, Scale) else "")


def _share(log: Tensor) -> float:
    return float(log.exp())


def _divergence(p: Tensor, q: Tensor) -> float:
    """KL(p ‖ q) [nats]; what p never gives counts nothing."""
    terms = p.exp() * (p - q)
    return float(terms.where(p != -math.inf, 0).sum().clamp(min=0))  # NaN stays NaN
