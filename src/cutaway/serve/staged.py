"""One head opened: every stage from q·k to what it adds, and one cell followed through all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cutaway.figures import Cell, Figure, HeatMap, Numbers, Result, Table, plain
from cutaway.inside.attention import HeadAttention, head_of, seen, stages_of
from cutaway.inside.targets import position_of
from cutaway.inside.trace import LAST, trace
from cutaway.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step of the computation: what it is called, its formula, and the values it shows."""

    name: str
    formula: str
    shown: str  # a field of HeadAttention, or "z"


STAGES = (
    Stage(name="q · k", formula="score(t, s) = Σ q(t) · k(s), over the numbers of the head", shown="scores"),
    Stage(name="÷ √d", formula="scaled(t, s) = score(t, s) × scale", shown="scaled"),
    Stage(name="mask", formula="masked(t, s) = scaled(t, s), and −∞ where t may not look at s", shown="masked"),
    Stage(name="softmax", formula="pattern(t, s) = exp masked(t, s) ÷ Σ exp masked(t, ·)", shown="pattern"),
    Stage(name="× v", formula="z(t) = Σ pattern(t, s) · v(s), over all keys s", shown="z"),
    Stage(name="W_O", formula="added(t, s) = ‖pattern(t, s) · v(s) · W_O‖: what key s adds", shown="moved"),
)
SAYS = "query ‘{row}’, key ‘{column}’: {value}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Staged(Result):
    """All stages of one head on a text; `z` [query, number], `q` and `k` [position, number] after the rotation."""

    found: HeadAttention
    z: Numbers
    q: Numbers
    k: Numbers

    @property
    def heading(self) -> str:
        return self.found.heading

    def figures(self) -> list[Figure]:
        """The stages in their order, then the share of what each key adds, and what kind of head it is."""
        found = self.found.figures()
        share = next(i for i, figure in enumerate(found) if figure.title == "share")
        return [*(self._map(stage) for stage in STAGES), *found[share:]]

    def to_dict(self) -> dict[str, Any]:
        return self.found.to_dict() | {name: plain(getattr(self, name), 6) for name in ("z", "q", "k")}

    def cell(self, query: int, key: int) -> list[Figure]:
        """One query and one key through every stage, and the products that their score is the sum of.

        Raises:
            InsideError: no such position.
        """
        found, n = self.found, len(self.found.tokens)
        t, s = position_of(query, n), position_of(key, n)
        seen = bool(found.pattern[t, s] == found.pattern[t, s])
        numbers = [getattr(found, stage.shown)[t, s] if stage.shown != "z" else None for stage in STAGES]
        scale = f"× {found.scale:.4g}" + ("" if found.soft_cap is None else f", bent to ±{found.soft_cap:g}")
        share = f"{found.share[t, s]:.1%} of the row".replace("%", " %")
        said = ["", scale, "seen" if seen else "hidden: −∞", "", "all keys together: see the stage", share]
        rows: list[list[Cell]] = [
            [stage.name, None if number is None or number != number else float(number), words if seen or i < 3 else ""]
            for i, (stage, number, words) in enumerate(zip(STAGES, numbers, said, strict=True))
        ]
        products = self.q[t] * self.k[s]
        order = abs(products).argsort()[::-1][:8]
        return [
            Table(
                title=f"From {found.labels[t]} ({t}) to {found.labels[s]} ({s})",
                columns=["stage", ">number", "how"],
                rows=rows,
            ),
            Table(
                title="What the score is the sum of",
                note=f"The largest of {len(products)} products; all together {products.sum():.4g}.",
                columns=[">number of the head", ">q", ">k", ">q · k"],
                rows=[[int(i), float(self.q[t, i]), float(self.k[s, i]), float(products[i])] for i in order],
            ),
        ]

    def _map(self, stage: Stage) -> HeatMap:
        found = self.found
        title = f"{stage.name} in head {found.layer}.{found.head}"
        if stage.shown == "z":
            return HeatMap(
                title=title,
                note=stage.formula,
                rows=found.labels,
                columns=[str(i) for i in range(self.z.shape[1])],
                values=self.z,
                row_axis="query",
                column_axis="number",
                says="query ‘{row}’, number {column} of the head: {value}",
                scale="signed",
            )
        return HeatMap(
            title=title,
            note=stage.formula,
            rows=found.labels,
            columns=found.labels,
            values=getattr(found, stage.shown),
            row_axis="query",
            column_axis="key",
            says=SAYS,
            scale={"pattern": "share", "moved": "size"}.get(stage.shown, "signed"),  # type: ignore[arg-type]
        )


@torch.no_grad()
def staged(model: LanguageModel, ids: list[int], head: str) -> Staged:
    """One head through all stages.

    Raises:
        InsideError: no such head.
    """
    layer, number = head_of(model.config, head)
    stages = stages_of(model.config, layer, number)
    at, kv_head = f"blocks.{layer}.attn", number * model.config.n_kv_heads // model.config.n_heads
    more = [f"{at}.z[head {number}]", f"{at}.q[head {number}]", f"{at}.k[head {kv_head}]"]
    (kept,) = trace(model, [ids], keep=[*stages.values(), *more, LAST])
    z, q, k = (kept[name][0, 0].float().cpu().numpy() for name in more)
    return Staged(found=seen(model, kept, layer, number), z=z, q=q, k=k)
