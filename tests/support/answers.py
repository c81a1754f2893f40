"""Answers made by hand, with figures of every kind, to see how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.figures import Bars, Figure, HeatMap, HeatMaps, Lines, Numbers, Prose, Result, Series, Table, Tokens

WORDS = ["The", "·cat", "·sat", "·on", "·the", "·mat", "<", "·&", "·😸", "↵"]


@dataclass(frozen=True)
class Answer(Result):
    """A heading and whatever figures."""

    title: str
    shown: Sequence[Figure]

    @property
    def heading(self) -> str:
        return self.title

    def figures(self) -> list[Figure]:
        return list(self.shown)

    def to_dict(self) -> dict[str, Any]:
        return {"figures": [figure.to_dict() for figure in self.shown]}


def causal(n_maps: int, n: int, seed: int = 0) -> Numbers:
    """Random patterns as attention has them: rows sum to 1, NaN above the diagonal, some weight on the first key."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(n_maps, n, n)) * generator.uniform(0.5, 3, size=(n_maps, 1, 1))
    scores[:, :, 0] += generator.uniform(0, 8, size=(n_maps, 1))
    above = np.triu(np.ones((n, n), bool), 1)
    scores[:, above] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weights[:, above] = np.nan
    return weights


def heads(n_layers: int, n_heads: int, labels: Sequence[str], values: Numbers) -> HeatMaps:
    """The patterns of all heads."""
    return HeatMaps(
        title="Where every head looks",
        note="Each row is a query, and what it looks at.",
        names=[f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads)],
        across=n_heads,
        rows=labels,
        columns=labels,
        values=values,
        row_axis="query",
        column_axis="key",
        says="query ‘{row}’ looks at key ‘{column}’: {value}",
    )


def pattern(values: Numbers, labels: Sequence[str] = WORDS, **changes: Any) -> HeatMap:
    """The pattern of one head."""
    fields: dict[str, Any] = {
        "title": "Where head 3.5 looks",
        "rows": labels,
        "columns": labels,
        "values": values,
        "row_axis": "query",
        "column_axis": "key",
        "says": "query ‘{row}’ looks at key ‘{column}’: {value}",
    }
    return HeatMap(**fields | changes)


def every_kind() -> list[Result]:
    """Two answers that hold every kind of figure."""
    generator = np.random.default_rng(1)
    one = causal(1, len(WORDS))[0]
    adds = generator.normal(size=(6, 4))
    layers = list(range(1, 13))
    words = [["mat", "floor", "·sofa", "the"][i % 4] for i in range(60)]
    lens = HeatMap(
        title="What each layer would say",
        note="In each cell the likeliest next token, shaded by its probability.",
        rows=[f"layer {i}" for i in range(6)],
        columns=WORDS,
        values=generator.uniform(0, 1, size=(6, 10)) ** 2,
        row_axis="after layer",
        column_axis="at position",
        says="after {row}, at ‘{column}’: ‘{cell}’, probability {value}",
        unit="probability",
        cells=[words[10 * i : 10 * i + 10] for i in range(6)],
    )
    attention = Answer(
        "attention of “The cat sat on the mat”",
        [
            Prose(
                title="In short",
                lines=["Head 3.5 looks at the first token.", "It is <b>not</b> a previous-token head."],
            ),
            Tokens(title="The text", labels=WORDS, ids=[464, 3797, 3332, 319, 262, 2603, 27, 1222, 30325, 198]),
            pattern(one, note="A row sums to 1."),
            heads(4, 3, WORDS, causal(12, len(WORDS))),
        ],
    )
    others = Answer(
        "lens and contributions",
        [
            lens,
            Bars(
                title="What did most",
                labels=["head 3.5", "ff 11", "head 0.1", "embed"],
                values=[2.71828, -1.25, 0.5, 0.001],
                unit="logit",
            ),
            pattern(
                adds,
                title="Every head",
                rows=[str(i) for i in range(6)],
                columns=[str(i) for i in range(4)],
                row_axis="layer",
                column_axis="head",
                says="head {row}.{column} adds {value}",
                scale="signed",
                unit="logit",
            ),
            Lines(
                title="The way of ‘·mat’",
                series=[
                    Series(name="·mat", x=layers, y=[9000, 4000, 2500, 900, 400, 90, 40, 12, 6, 2, 1, 1]),
                    Series(name="·floor", x=layers, y=[700, 900, 800, 300, float("nan"), 200, 150, 60, 20, 5, 4, 3]),
                ],
                x="layer",
                y="rank, 1 = winner",
                log_y=True,
            ),
            Table(
                title="The heads",
                columns=["head", ">entropy", ">first token", "kind"],
                rows=[["3.5", 0.51234, 0.9, "sink"], ["0.1", 2.0, 0.01, "previous"], ["2.2", 1.25, None, None]],
            ),
        ],
    )
    return [attention, others]
