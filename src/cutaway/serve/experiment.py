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


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment(Result):
    """What a change does, against the model as it is."""

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    changes: tuple[str, ...]
    plain: Run
    changed: Run
    candidates: tuple[tuple[int, str], ...]  # the likeliest of both

    @property
    def heading(self) -> str:
        return f"With {'; '.join(self.changes)}"

    @property
    def kl(self) -> float:
        """KL(changed ‖ plain) of the next token [nats]."""
        p, q = self.changed.next, self.plain.next
        terms = p * (p.clamp(min=1e-300).log() - q.clamp(min=1e-300).log())
        return max(0.0, float(terms.sum()))

    def figures(self) -> list[Figure]:
        a, b = self.plain, self.changed
        rows: list[list[Cell]] = [
            ["loss on the prompt [nats per token]", a.loss, b.loss, b.loss - a.loss],
            ["entropy of the next token [nats]", a.entropy, b.entropy, b.entropy - a.entropy],
            ["KL of the next token from the model's own [nats]", 0.0, self.kl, self.kl],
        ]
        chances = [(name, float(a.next[i]), float(b.next[i])) for i, name in self.candidates]
        series = [
            Series(name=name, x=list(range(1, len(self.tokens))), y=[float(loss) for loss in run.losses])
            for name, run in (("as it is", a), ("changed", b))
        ]
        texts = [("Written by the model as it is", a.text), ("Written with the change", b.text)]
        lines = [
            Lines(
                title="How surprising each token of the prompt is",
                series=series,
                x="position",
                y="loss [nats]",
            )
        ]
        return [
            *(Prose(title=title, lines=[text or "(nothing)"]) for title, text in texts if text is not None),
            Table(
                title="The next token",
                note="Probabilities.",
                columns=["token", ">as it is", ">changed", ">difference"],
                rows=[[name, before, after, after - before] for name, before, after in chances],
            ),
            Table(title="In numbers", columns=["number", ">as it is", ">changed", ">difference"], rows=rows),
            *(lines if len(self.tokens) > 1 else []),
        ]

    def to_dict(self) -> dict[str, Any]:
        runs = {
            name: {"text": run.text, "loss": run.loss, "losses": run.losses, "entropy": run.entropy}
            for name, run in (("plain", self.plain), ("changed", self.changed))
        }
        chances = [
            {"id": i, "label": name, "plain": float(self.plain.next[i]), "changed": float(self.changed.next[i])}
            for i, name in self.candidates
        ]
        found = {"tokens": self.tokens, "changes": self.changes, "next": chances, "kl": self.kl} | runs
        return {"kind": "experiment"} | {name: plain(value, 6) for name, value in found.items()}


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
            the numbers of both first, as they take a pass each.
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
    plain, changed = _read(model, ids, []), _read(other, ids, edits)
    best = torch.cat([run.next.topk(N_NEXT).indices for run in (plain, changed)]).unique().tolist()
    order = sorted(best, key=lambda i: -max(float(plain.next[i]), float(changed.next[i])))
    found = Experiment(
        tokens=tuple(ids),
        labels=tuple(labels(model.tokenizer, ids)),
        changes=tuple(_in_words(heads, feed_forwards, how, without)),
        plain=plain,
        changed=changed,
        candidates=tuple((i, label(model.tokenizer, i)) for i in order),
    )
    if not n_new:
        return found
    options: dict[str, Any] = {"max_tokens": n_new, "temperature": 0}
    for done, text in enumerate(_written(model, ids, **options)):
        found = replace(found, plain=replace(plain, text=text))
        progress(done, 2 * n_new, found)
    for done, text in enumerate(_written(other, ids, edits=edits, cache="mask" not in without, **options), n_new):
        found = replace(found, changed=replace(changed, text=text))
        progress(done, 2 * n_new, found)
    return found


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
