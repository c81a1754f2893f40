"""The lens: what the model would say if it stopped after each layer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.figures import Bars, Cell, Figure, HeatMap, Lines, Numbers, Prose, Result, Series, Table, plain
from cutaway.inside.edits import Edit
from cutaway.inside.labels import label, labels
from cutaway.inside.names import AFTER, matching, names
from cutaway.inside.targets import Counts, Reader, Token, count_of, position_of, token_of, wide
from cutaway.inside.trace import LAST, LIMIT, trace
from cutaway.network import Transformer

AT_ONCE = 1 << 21  # logits held at a time: a stack of layers × positions × vocabulary would not fit
SHOWN_FIRST = 8  # positions, the last ones, that are told before the others are read
NOTE = (
    "Each row is read by the model's own final norm, with that row's own statistics, and by its head: what would be "
    "said if all later layers were left out. The last row is what the model does say.",
    "Early rows may be far from words and still hold what later layers need: the lens shows what can be read out by "
    "the head, not all that is there.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lens(Result):
    """The next token of every layer at every position from `first` on; the last row is the model's own.

    `states` are the trace names of the rows. A target belongs to each position: `rank` 1 is the winner. `entropy` is
    of the row's distribution, `kl` = Σ p_final · ln(p_final / p_row), both [nats].
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    states: tuple[str, ...]
    first: int  # the position that is column 0 of all below
    targets: tuple[int, ...]
    words: Mapping[int, str]  # what the tokens below are called
    top: Counts  # [state, position, k]: ids, the likeliest first
    top_probability: Numbers
    logit: Numbers  # [state, position], as all below: of the target
    probability: Numbers
    rank: Counts
    entropy: Numbers
    kl: Numbers

    @property
    def heading(self) -> str:
        return f"Lens: what every layer would say next, {self.words[self.targets[-1]]} followed to the end"

    @property
    def rows(self) -> tuple[str, ...]:
        """What the states are called in figures: "embed", then the number of each layer."""
        halves = any(name.endswith("resid_mid") for name in self.states)
        ends = {"resid_pre": "", "resid_mid": " attn", "resid_post": " ff" if halves else ""}
        named = [(name.split(".")[1], name.rpartition(".")[2]) for name in self.states]
        return tuple("embed" if part == "resid_pre" else f"{layer}{ends[part]}" for layer, part in named)

    def path(self, position: int = -1) -> Table:
        """Layer by layer at one position: the winner, and how the target stands.

        Raises:
            InsideError: no such position, or one that was not read.
        """
        place = position_of(position, len(self.tokens))
        at = place - self.first
        if at < 0:
            raise InsideError(f"position = {position}: this lens has the positions from {self.first} on; raise last")
        target = self.words[self.targets[at]]
        rows: list[list[Cell]] = [
            [
                row,
                self.words[int(self.top[i, at, 0])],
                float(self.top_probability[i, at, 0]),
                int(self.rank[i, at]),
                float(self.probability[i, at]),
                float(self.logit[i, at]),
                float(self.entropy[i, at]),
                float(self.kl[i, at]),
            ]
            for i, row in enumerate(self.rows)
        ]
        said = ["after", "says", ">p", f">rank of {target}", ">its p", ">its logit"]
        return Table(
            title=f"At {self.labels[place]} ({place}), {target} followed",
            note="p is a probability; rank 1 is the winner. Entropy is of the row; KL(final ‖ row) is its distance to "
            "what the model says in the end.",
            columns=[*said, ">entropy [nats]", ">KL [nats]"],
            rows=rows,
        )

    def figures(self) -> list[Figure]:
        target, here = self.words[self.targets[-1]], f"{self.labels[-1]} ({len(self.tokens) - 1})"
        layers = list(range(len(self.states)))
        halves = any(name.endswith("resid_mid") for name in self.states)
        steps = "sub-layers passed" if halves else "layers passed"

        def lines(title: str, y: str, numbers: Mapping[str, Any], *, log_y: bool = False) -> Lines:
            series = [Series(name=name, x=layers, y=[float(v) for v in row[:, -1]]) for name, row in numbers.items()]
            return Lines(title=title, series=series, x=steps, y=y, log_y=log_y)

        actual = [self._actual()] if len(set(self.targets)) > 1 else []
        return [
            self._says(),
            *actual,
            lines(
                f"The rank of {target} at {here}, layer by layer", "rank, 1 = winner", {target: self.rank}, log_y=True
            ),
            Bars(
                title=f"What the model says after {here}",
                labels=[self.words[int(i)] for i in self.top[-1, -1]],
                values=[float(p) for p in self.top_probability[-1, -1]],
                unit="probability",
            ),
            lines(
                f"How sure each layer is, and how far from the end, at {here}",
                "nats",
                {"entropy": self.entropy, "KL": self.kl},
            ),
            self.path(),
            Prose(title="How to read it", lines=NOTE),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "lens", "rows": list(self.rows)} | {
            name: plain({str(i): word for i, word in value.items()} if name == "words" else value, 6)
            for name, value in vars(self).items()
        }

    def _says(self) -> HeatMap:
        return HeatMap(
            title="What each layer would say",
            note="In each cell the likeliest next token, shaded by its probability. The last row is the model's own.",
            rows=self.rows,
            columns=self.labels[self.first :],
            values=self.top_probability[:, :, 0],
            row_axis="after layer",
            column_axis="at position",
            says="after {row}, at ‘{column}’: ‘{cell}’, probability {value}",
            unit="probability",
            cells=[[self.words[int(i)] for i in row] for row in self.top[:, :, 0]],
        )

    def _actual(self) -> HeatMap:
        return HeatMap(
            title="The token that is to come",
            note="How likely each layer finds what the text goes on with, and its rank in the cell: 1 is the winner.",
            rows=self.rows,
            columns=self.labels[self.first :],
            values=self.probability,
            row_axis="after layer",
            column_axis="at position",
            says="after {row}, at ‘{column}’, what comes next has rank {cell}, probability {value}",
            unit="probability",
            cells=[[str(rank) for rank in row] for row in self.rank],
        )


@torch.no_grad()
def lens(
    model: Reader,
    prompt: Any,
    *,
    target: Token | None = None,
    actual: bool = False,
    k: int = 5,
    sublayers: bool = False,
    last: int | None = None,
    edits: Sequence[Edit] = (),
    limit: int = LIMIT,
    progress: Callable[[int, int, Lens | None], None] = lambda done, total, so_far: None,
) -> Lens:
    """What each layer would say at each position: the final norm with the row's own statistics, the head, the soft cap.

    Rows are the embedding and the stream after every block.

    Args:
        target: the token whose rank, logit and probability are followed, by its text or id;
            None takes what the model itself says at the end.
        actual: follow at each position the token that the prompt goes on with, and `target` at the last alone.
        k: how many of the likeliest tokens each cell holds.
        sublayers: also a row after every attention.
        last: how many positions are read, counted back from the end; None reads all. A position costs as many products
            with the head as there are rows.
        edits: what to change on the way, as in `trace`, up to the end of the last block: the norm and the head that
            read each row are the model's own.
        limit: what the traced streams may hold [B].
        progress: called with how many cells are read, how many there are, and once with the lens of the last few
            positions, which are read first.
    Raises:
        InsideError: a target that is not one token, k outside the vocabulary, last below 1, an edit of what the rows
            are read by, or more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    Source: nostalgebraist, "interpreting GPT: the logit lens", 2020; the distance to the end as in arXiv:2303.08112.
    """
    network, ids, config = model.network, model.ids(prompt), model.network.config
    k = count_of(k, config.d_vocab, "k")
    chosen = None if target is None else token_of(model, target, "target")
    parts = ("resid_mid", "resid_post") if sublayers else ("resid_post",)
    states = ["blocks.0.resid_pre", *(f"blocks.{i}.{part}" for i in range(config.n_layers) for part in parts)]
    first = 0 if last is None else max(0, len(ids) - count_of(last, sys.maxsize, "last"))
    keep = [f"{name}[position {first}:]" for name in states]
    (found,) = trace(model, [ids], keep=[*keep, LAST], edits=edits, limit=limit)
    refuse_behind(config, [edits] if isinstance(edits, Edit) else edits)
    if chosen is None:
        chosen = int(found.logits[-1].argmax())
    targets = ([*ids[1:], chosen] if actual else [chosen] * len(ids))[first:]
    n_cells = len(targets) * len(states)

    def read(columns: slice, n_before: int) -> dict[str, Any]:
        rows = [found[name][:, columns] for name in keep]
        return measure(network, rows, targets[columns], k, lambda done: progress(n_before + done, n_cells, None))

    def named(at: int, numbers: dict[str, Any]) -> Lens:
        return Lens(
            tokens=tuple(ids),
            labels=tuple(labels(model.tokenizer, ids)),
            states=tuple(states),
            first=first + at,
            targets=tuple(targets[at:]),
            words={int(i): label(model.tokenizer, int(i)) for i in np.unique([*numbers["top"].flat, *targets[at:]])},
            **numbers,
        )

    cut = max(0, len(targets) - SHOWN_FIRST)
    end = read(slice(cut, None), 0)
    if not cut:
        return named(0, end)
    n_read = (len(targets) - cut) * len(states)
    progress(n_read, n_cells, named(cut, end))
    begin = read(slice(0, cut), n_read)
    return named(0, {name: np.concatenate([begin[name], end[name]], axis=1) for name in end})


def refuse_behind(config: ModelConfig, edits: Sequence[Edit]) -> None:
    """Edits behind the last block would be in what the model says and in no row.

    Raises:
        InsideError: there is one.
    """
    for edit in edits:
        behind = [target for target in matching(names(config), edit.at) if target.name in AFTER]
        if behind:
            raise InsideError(
                f"{behind[0]} cannot be edited for the lens, which reads every row by the model's own norm and head: "
                "use `edited` (--edit alone), or edit the last block"
            )


def measure(
    network: Transformer,
    states: Sequence[Tensor],
    targets: Sequence[int],
    k: int,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """The numbers of every state [1 T D] at every position, one state and a stretch of positions at a time."""
    n_tokens = states[-1].shape[1]
    stretch = max(1, AT_ONCE // network.config.d_vocab)
    wanted = torch.tensor(targets, device=states[-1].device)[:, None]
    stretches = []
    for first in range(0, n_tokens, stretch):
        at = slice(first, first + stretch)
        final: Tensor | None = None
        rows = []
        for state in reversed(states):  # the last first: all others are compared with it
            logits = wide(network.unembed(state[:, at])[0])
            log_p = logits.log_softmax(-1)
            p = log_p.exp()
            final = p if final is None else final
            rows.append(_cells(logits, log_p, p, final, wanted[at], k))
            progress(first * len(states) + len(rows) * len(p))
        stretches.append({name: torch.stack([row[name] for row in reversed(rows)]) for name in rows[0]})
    found = {name: torch.cat([one[name] for one in stretches], dim=1) for name in stretches[0]}
    cross = found.pop("cross_entropy")
    found["kl"] = (cross - cross[-1]).clamp(min=0)  # rounding may leave −1e-7
    return {name: value.cpu().numpy() for name, value in found.items()}


def _cells(logits: Tensor, log_p: Tensor, p: Tensor, final: Tensor, targets: Tensor, k: int) -> dict[str, Tensor]:
    """What is known of one state at some positions: its logits, their log-probabilities and probabilities [T V], the
    last state's probabilities [T V], targets [T 1]."""
    top_log_p, top = log_p.topk(k, dim=-1)
    logit = logits.gather(-1, targets)
    return {
        "top": top,
        "top_probability": top_log_p.exp(),
        "logit": logit[:, 0],
        "probability": log_p.gather(-1, targets)[:, 0].exp(),
        "rank": 1 + torch.stack([torch.count_nonzero(row > at) for row, at in zip(logits, logit, strict=True)]),
        "entropy": -dot(p, log_p),
        "cross_entropy": -dot(final, log_p),
    }


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Σ x·y of every row, as a product of matrices: nothing of their size is written on the way."""
    return (x[:, None] @ y[:, :, None])[:, 0, 0]
