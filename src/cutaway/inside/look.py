"""One screen about a prompt: what comes next, how the layers got there, which parts did most, what to ask then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cutaway.figures import Bars, Cell, Figure, Prose, Result, Table, Tokens, plain
from cutaway.inside.contributions import Contributions, read, summed
from cutaway.inside.labels import label
from cutaway.inside.lens import measure
from cutaway.inside.targets import Reader, count_of
from cutaway.inside.trace import LIMIT, trace

N_PARTS = 5  # heads and feed-forwards shown


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a layer would say at the last position, and how the winner stands there."""

    after: str  # "embed", or the number of the layer
    says: str
    probability: float
    rank: int  # of the winner, 1 = first
    winner_probability: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Look(Result):
    """A prompt's next token and its way there."""

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    next: tuple[tuple[int, str, float], ...]  # id, label, probability; the likeliest first
    path: tuple[Step, ...]
    parts: Contributions

    @property
    def heading(self) -> str:
        _, winner, probability = self.next[0]
        return f"After {self.labels[-1]} comes {winner}, with probability {probability:.3g}"

    @property
    def heads(self) -> list[tuple[int, int, float]]:
        """The heads that did most for the winner: layer, head, logit."""
        values = self.parts.heads
        order = values.argsort(axis=None)[::-1][:N_PARTS]
        return [(*divmod(int(i), values.shape[1]), float(values.flat[i])) for i in order]

    @property
    def feed_forwards(self) -> list[tuple[int, float]]:
        """The feed-forwards that did most for the winner: layer, logit."""
        values = self.parts.feed_forwards
        return [(int(i), float(values[i])) for i in values.argsort()[::-1][:N_PARTS]]

    def figures(self) -> list[Figure]:
        winner = self.next[0][1]
        return [
            Tokens(title="The text, as the model reads it", labels=self.labels, ids=self.tokens),
            Bars(
                title="What may come next",
                labels=[name for _, name, _ in self.next],
                values=[probability for *_, probability in self.next],
                unit="probability",
            ),
            self._path(winner),
            self._parts(winner),
            Prose(title="What to ask next", lines=self._questions()),
        ]

    def to_dict(self) -> dict[str, Any]:
        found = {
            "kind": "look",
            "tokens": self.tokens,
            "labels": self.labels,
            "next": [{"id": i, "label": name, "probability": p} for i, name, p in self.next],
            "path": [vars(step) for step in self.path],
            "heads": [{"head": f"{layer}.{head}", "logit": value} for layer, head, value in self.heads],
            "feed_forwards": [{"layer": layer, "logit": value} for layer, value in self.feed_forwards],
        }
        return {name: plain(value, 6) for name, value in found.items()}

    def _path(self, winner: str) -> Table:
        """The layers at which what is said changes, the first and the last."""
        kept = [
            step
            for i, step in enumerate(self.path)
            if i in (0, len(self.path) - 1) or step.says != self.path[i - 1].says
        ]
        rows: list[list[Cell]] = [[s.after, s.says, s.probability, s.rank, s.winner_probability] for s in kept]
        left_out = " Layers that say the same as the one before are left out." * (len(kept) < len(self.path))
        return Table(
            title=f"How the layers come to {winner}",
            note=f"What would be said if the model stopped after that layer.{left_out}",
            columns=["after layer", "says", ">probability", f">rank of {winner}", ">its probability"],
            rows=rows,
        )

    def _parts(self, winner: str) -> Table:
        heads = [(f"{layer}.{head}", value) for layer, head, value in self.heads]
        feed_forwards = [(str(layer), value) for layer, value in self.feed_forwards]
        n_rows = max(len(heads), len(feed_forwards))
        pad: list[tuple[str, float | None]] = [("", None)] * n_rows
        pairs = zip([*heads, *pad][:n_rows], [*feed_forwards, *pad][:n_rows], strict=True)
        return Table(
            title=f"What did most for {winner}",
            note=f"What each adds to its logit by itself, of {self.parts.value:.4g} in all.".replace("-", "−"),
            columns=["head", ">logit", "feed-forward", ">logit"],
            rows=[[*head, *feed_forward] for head, feed_forward in pairs],
        )

    def _questions(self) -> list[str]:
        layer, head, _ = self.heads[0]
        asked = {
            f"--attention {layer}.{head}": f"where head {layer}.{head} looks, stage by stage",
            f"--edit 'zero blocks.{layer}.attn.z[head {head}]'": "what comes without it",
            "--lens": "what every layer would say",
            "--contributions": "what every part adds",
            "--html look.html": "this in a file for the browser",
        }
        width = max(map(len, asked))
        return [f"{option:{width}}  → {told}" for option, told in asked.items()]


@torch.no_grad()
def look(model: Reader, prompt: Any, *, k: int = 8, limit: int = LIMIT) -> Look:
    """One screen about what comes after a prompt.

    Args:
        k: how many next tokens are shown.
        limit: what the trace may hold [B].
    Raises:
        InsideError: k outside the vocabulary, or more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    network, ids = model.network, model.ids(prompt)
    config, last = network.config, len(ids) - 1
    k = count_of(k, config.d_vocab, "k")
    ends = [(0, "resid_pre"), *((i, "resid_post") for i in range(config.n_layers))]
    names = [f"blocks.{i}.{end}[position {last}]" for i, end in ends]
    (found,) = trace(model, [ids], keep=list(dict.fromkeys([*names, *read(config, last)])), limit=limit)
    parts = summed(model, found, last, target=None, versus=None, n_shown=N_PARTS)
    numbers = measure(network, [found[name] for name in names], [parts.target], k)
    top, probability = numbers["top"][:, 0], numbers["top_probability"][:, 0]
    return Look(
        tokens=parts.tokens,
        labels=parts.labels,
        next=tuple(
            (int(i), label(model.tokenizer, int(i)), float(p)) for i, p in zip(top[-1], probability[-1], strict=True)
        ),
        path=tuple(
            Step(
                after="embed" if i == 0 else str(i - 1),
                says=label(model.tokenizer, int(top[i, 0])),
                probability=float(probability[i, 0]),
                rank=int(numbers["rank"][i, 0]),
                winner_probability=float(numbers["probability"][i, 0]),
            )
            for i in range(len(names))
        ),
        parts=parts,
    )
