"""The same prompt through the model as it is and through one that is changed: what comes, what is written, the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import Cell, Figure, Lines, Numbers, Prose, Result, Series, Table, plain
from cutaway.inside.altered import altered
from cutaway.inside.edits import Edit, Mean, Zero
from cutaway.inside.labels import label, labels
from cutaway.inside.targets import wide
from cutaway.inside.trace import trace
from cutaway.language_model import LanguageModel

P = TypeVar("P")
N_NEXT = 8
SAYS = {
    "mask": "every position sees every other",
    "scale": "scores are not divided by √d",
    "positions": "nothing tells where a token stands",
}
KINDS: dict[str, type[Edit]] = {"zero": Zero, "mean": Mean}


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One of the two: its probabilities of the next token [V], the loss at each position, and what it writes."""

    next: Tensor
    losses: Numbers  # [nats], of each token given those before it
    text: str | None = None  # None: nothing yet, or nothing was asked for

    @property
    def loss(self) -> float:
        return float(self.losses.mean()) if len(self.losses) else math.nan

    @property
    def entropy(self) -> float:
        return float(torch.special.entr(self.next).sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"text": self.text, "loss": self.loss, "losses": self.losses, "entropy": self.entropy}


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment(Result):
    """What a change does, against the model as it is."""

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    changes: tuple[str, ...]
    plain: Run
    changed: Run | None  # None: still to be run
    candidates: tuple[tuple[int, str], ...]  # the likeliest of both

    @property
    def heading(self) -> str:
        return f"With {'; '.join(self.changes)}"

    @property
    def kl(self) -> float | None:
        """KL(changed ‖ plain) of the next token [nats]."""
        if self.changed is None:
            return None
        p, q = self.changed.next, self.plain.next
        terms = p * (p.clamp(min=1e-300).log() - q.clamp(min=1e-300).log())
        return max(0.0, float(terms.sum()))

    def figures(self) -> list[Figure]:
        runs = [run for run in (self.plain, self.changed) if run is not None]
        names = ["as it is", "changed", "difference"][: 2 * len(runs) - 1]
        rows: list[list[Cell]] = [
            ["loss on the prompt [nats per token]", *_beside([run.loss for run in runs])],
            ["entropy of the next token [nats]", *_beside([run.entropy for run in runs])],
        ]
        if self.changed is not None:
            rows.append(["KL of the next token from the model's own [nats]", 0.0, self.kl, self.kl])
        series = [
            Series(name=name, x=list(range(1, len(self.tokens))), y=[float(loss) for loss in run.losses])
            for name, run in zip(names, runs, strict=False)
        ]
        titles = ("Written by the model as it is", "Written with the change")
        texts = [(title, run.text) for title, run in zip(titles, runs, strict=False) if run.text is not None]
        lines = Lines(title="How surprising each token of the prompt is", series=series, x="position", y="loss [nats]")
        return [
            *(Prose(title=title, lines=[text or "(nothing)"]) for title, text in texts),
            Table(
                title="The next token",
                note="Probabilities.",
                columns=["token", *(f">{name}" for name in names)],
                rows=[[name, *_beside([float(run.next[i]) for run in runs])] for i, name in self.candidates],
            ),
            Table(title="In numbers", columns=["number", *(f">{name}" for name in names)], rows=rows),
            *([lines] if len(self.tokens) > 1 else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        named = {"plain": self.plain, "changed": self.changed}
        runs = {name: None if run is None else run.to_dict() for name, run in named.items()}
        chances = [
            {"id": i, "label": label} | {name: run and float(run.next[i]) for name, run in named.items()}
            for i, label in self.candidates
        ]
        found = {"tokens": self.tokens, "changes": self.changes, "next": chances, "kl": self.kl} | runs
        return {"kind": "experiment"} | {name: plain(value, 6) for name, value in found.items()}


def _beside(numbers: list[float]) -> list[float]:
    """One number, or both and their difference."""
    return [*numbers, numbers[1] - numbers[0]] if len(numbers) > 1 else numbers


def experiment(
    model: LanguageModel,
    ids: list[int],
    *,
    heads: Sequence[tuple[int, int]] = (),
    feed_forwards: Sequence[int] = (),
    how: str = "zero",
    without: Sequence[str] = (),
    n_new: int = 24,
    progress: Callable[[int, int, Experiment], None] = lambda done, total, so_far: None,
) -> Experiment:
    """Both runs, greedily continued.

    Args:
        heads, feed_forwards: what is switched off, each once.
        how: "zero", or "mean" (over the prompt's positions).
        without: of "mask", "scale", "positions".
        progress: called with how many tokens are written, how many there will be at most, and what is found so far:
            the numbers of both first, as they take a pass each, and before them those of the model as it is.
    Raises:
        InsideError: nothing is changed, or a part that there is not.
    """
    if not (heads or feed_forwards or without):
        raise InsideError("nothing is changed: switch off a head or a feed-forward, or drop a part")
    if how not in KINDS:
        raise InsideError(f"how = {how!r:.40}: it must be one of {', '.join(KINDS)}")
    heads, feed_forwards, without = _once(heads), _once(feed_forwards), _once(without)
    wrong = next((layer for layer in feed_forwards if not 0 <= layer < model.config.n_layers), None)
    if wrong is not None:  # told before the first pass, as a head is
        raise InsideError(f"feed_forwards has {wrong}: the model has 0 to {model.config.n_layers - 1}")
    edits = [KINDS[how](f"blocks.{layer}.attn.z[head {head}]") for layer, head in heads]
    edits += [KINDS[how](f"blocks.{layer}.ff.out") for layer in feed_forwards]
    other = altered(model, without) if without else model

    def found(plain: Run, changed: Run | None = None) -> Experiment:
        runs = [run for run in (plain, changed) if run is not None]
        best = torch.cat([run.next.topk(N_NEXT).indices for run in runs]).unique().tolist()
        order = sorted(best, key=lambda i: -max(float(run.next[i]) for run in runs))
        return Experiment(
            tokens=tuple(ids),
            labels=tuple(labels(model.tokenizer, ids)),
            changes=tuple(_in_words(heads, feed_forwards, how, without)),
            plain=plain,
            changed=changed,
            candidates=tuple((i, label(model.tokenizer, i)) for i in order),
        )

    plain, n_all = _read(model, ids, []), 2 * n_new
    progress(0, n_all, found(plain))
    changed = _read(other, ids, edits)
    both = found(plain, changed)
    if not n_new:
        return both
    options: dict[str, Any] = {"max_tokens": n_new, "temperature": 0}
    for done, text in enumerate(_written(model, ids, **options)):
        both = replace(both, plain=replace(plain, text=text))
        progress(done, n_all, both)
    for done, text in enumerate(_written(other, ids, edits=edits, cache="mask" not in without, **options), n_new):
        both = replace(both, changed=replace(changed, text=text))
        progress(done, n_all, both)
    return both


def _read(model: LanguageModel, ids: list[int], edits: Sequence[Edit]) -> Run:
    """The prompt in one pass, nothing written yet."""
    (found,) = trace(model, [ids], keep=[], edits=edits)
    scores = wide(found.logits)
    said = torch.tensor(ids[1:], dtype=torch.long, device=scores.device)  # named: of no tokens it would be of floats
    losses = F.cross_entropy(scores[:-1], said, reduction="none")
    return Run(next=scores[-1].double().softmax(-1).cpu(), losses=losses.cpu().numpy())


def _written(model: LanguageModel, ids: list[int], **options: Any) -> Iterator[str | None]:
    """The new text as it grows, at first None."""
    text = None
    yield text
    for _, piece in model.run([ids], **options):
        text = (text or "") + piece.text
        yield text


def _once(parts: Sequence[P]) -> list[P]:
    return list(dict.fromkeys(parts))


def _in_words(
    heads: Sequence[tuple[int, int]], feed_forwards: Sequence[int], how: str, without: Sequence[str]
) -> Iterator[str]:
    off = "at zero" if how == "zero" else "at their mean"
    if heads:
        names = ", ".join(f"{layer}.{head}" for layer, head in heads[:6]) + ("…" if len(heads) > 6 else "")
        yield f"head{'s' * (len(heads) > 1)} {names} {off}"
    if feed_forwards:
        names = ", ".join(map(str, feed_forwards[:6])) + ("…" if len(feed_forwards) > 6 else "")
        yield f"feed-forward{'s' * (len(feed_forwards) > 1)} {names} {off}"
    yield from (f"no {part}: {SAYS[part]}" for part in without)
