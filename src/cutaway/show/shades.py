"""The marks of a heat map: from numbers to characters that can be told apart without colour, and their legend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from cutaway.figures import Numbers, Scale
from cutaway.show.cells import clean, number

UP = " ░▒▓█"
DOWN = " ╌─═≡"  # strokes, as of a minus
NONE = "·"
BLUE, VERMILION = "#2f81c7", "#d55e00"  # told apart by every kind of colour vision, on black and on white
SHARES: tuple[float, ...] = (0.01, 0.05, 0.2, 0.5)
PARTS = (0.1, 0.25, 0.5, 0.75)  # of the number furthest from zero
STEPS = (0.2, 0.4, 0.6, 0.8)  # of the way from the least to the most


@dataclass(frozen=True)
class Shades:
    """Where each mark begins, in the numbers of the map."""

    scale: Scale
    edges: tuple[float, ...]
    least: float
    most: float
    absent: str
    unit: str
    has_absent: bool

    @classmethod
    def of(cls, values: Numbers, scale: Scale, *, absent: str, unit: str) -> Shades:
        """For all numbers of a figure, shown or not, so that its parts compare."""
        finite = np.isfinite(values)
        least = float(np.min(values, where=finite, initial=np.inf))
        most = float(np.max(values, where=finite, initial=-np.inf))
        edges = SHARES
        if least > most:
            edges = (np.inf,) * 4
        elif scale == "signed":
            furthest = max(-least, most)
            edges = tuple(part * furthest for part in PARTS)
        elif scale == "size":
            edges = tuple(least + step * (most - least) for step in STEPS)
        return cls(scale, edges, least, most, absent, unit, bool(np.isnan(values).any()))

    def mark(self, value: float) -> tuple[str, str]:
        """The character of a number, and its style."""
        if np.isnan(value):
            return NONE, "dim"
        if value == 0 and self.scale == "signed":
            return " ", ""
        below = value < 0 and self.scale == "signed"
        level = sum(edge <= (-value if below else value) for edge in self.edges)
        return (DOWN[level], VERMILION) if below else (UP[level], BLUE)

    def legend(self) -> Iterator[Text]:
        """What each mark stands for."""
        if self.least > self.most:
            yield Text("no numbers")
        elif self.scale == "size" and self.least == self.most:
            yield _item(UP[-1], BLUE, f"all {number(self.most)}")
        elif self.scale == "signed":
            yield from self._down() if self.least < 0 else ()
            yield Text("blank around 0" if self.least or self.most else "all 0")
            yield from self._up() if self.most > 0 else ()
        else:
            yield Text(f"blank < {self._edge(1)}")
            yield from self._up()
        if self.unit:
            yield Text(f"[{clean(self.unit)}]")
        if self.has_absent:
            yield _item(NONE, "dim", clean(self.absent))

    def _up(self) -> Iterator[Text]:
        for level in (1, 2, 3, 4):
            yield _item(UP[level], BLUE, f"≥ {self._edge(level)}")

    def _down(self) -> Iterator[Text]:
        for level in (4, 3, 2, 1):
            yield _item(DOWN[level], VERMILION, f"≤ {number(-self.edges[level - 1])}")

    @property
    def digits(self) -> int:
        """Three, or as many more as tell the edges of a narrow map apart."""
        return next((n for n in range(3, 9) if len({number(edge, n) for edge in self.edges}) == len(self.edges)), 9)

    def _edge(self, level: int) -> str:
        edge = self.edges[level - 1]
        return str(edge) if self.scale == "share" else number(edge, self.digits)


def _item(mark: str, style: str, words: str) -> Text:
    return Text.assemble((mark, style), f" {words}")
