"""What answers are made of: a few kinds of figure, as plain data.

Every question has one result, and every result is drawn from these figures in four ways: in the terminal (rich), as
plain data (`to_dict`), in a notebook, and as one HTML file. The drawing itself is the business of `cutaway.show`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Cell = str | int | float | None
Numbers = np.ndarray[Any, np.dtype[np.floating[Any]]]

# share: 0 to 1, dark is much. signed: zero in the middle. size: from the least to the most of what is shown.
Scale = Literal["share", "signed", "size"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure(ABC):
    """The base: a title, and a line that says how to read it."""

    kind: ClassVar[str]
    title: str
    note: str = ""

    def to_dict(self, *, digits: int = 6) -> dict[str, Any]:
        """Plain data, numbers rounded to that many significant digits; None where there is no number."""
        return {"kind": self.kind} | {name: plain(value, digits) for name, value in vars(self).items()}

    def __str__(self) -> str:
        """What a terminal of 80 columns shows, without colour."""
        from cutaway.show.figures import as_text, drawing

        return as_text(drawing(self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prose(Figure):
    """A few sentences."""

    kind = "prose"
    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens(Figure):
    """A text as the tokens that the model reads; `first` is the position of the first."""

    kind = "tokens"
    labels: Sequence[str]
    ids: Sequence[int]
    first: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Figure):
    """Rows of words and numbers; a column whose name begins with > holds numbers."""

    kind = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bars(Figure):
    """A number for each label; negative ones go the other way from zero."""

    kind = "bars"
    labels: Sequence[str]
    values: Sequence[float]
    unit: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """One line of a plot; a y of NaN is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines(Figure):
    """How numbers depend on another; `x` and `y` name the axes with their units."""

    kind = "lines"
    series: Sequence[Series]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class HeatMap(Figure):
    """A number for every row and column; NaN where there is none, which `absent` says in a word.

    `says` puts a cell in words, with {row}, {column}, {value} and, where there are `cells`, {cell}.
    """

    kind = "heatmap"
    rows: Sequence[str]
    columns: Sequence[str]
    values: Numbers  # [row, column]
    row_axis: str  # such as "query"
    column_axis: str
    says: str
    scale: Scale = "share"
    unit: str = ""
    absent: str = "masked"
    cells: Sequence[Sequence[str]] | None = None  # a short text in each


@dataclass(frozen=True, kw_only=True, eq=False)
class HeatMaps(Figure):
    """Many heat maps of the same rows and columns: small ones in a grid, of which one is opened at a time."""

    kind = "heatmaps"
    names: Sequence[str]  # of the maps, such as "3.5": layer 3, head 5
    across: int  # how many in a row of the grid
    rows: Sequence[str]
    columns: Sequence[str]
    values: Numbers  # [map, row, column]
    row_axis: str
    column_axis: str
    says: str
    scale: Scale = "share"
    unit: str = ""
    absent: str = "masked"

    def one(self, name: str) -> HeatMap:
        """The heat map of that name."""
        return HeatMap(
            title=f"{self.title}: {name}",
            note=self.note,
            rows=self.rows,
            columns=self.columns,
            values=self.values[list(self.names).index(name)],
            row_axis=self.row_axis,
            column_axis=self.column_axis,
            says=self.says,
            scale=self.scale,
            unit=self.unit,
            absent=self.absent,
        )


class Result(ABC):
    """The answer to one question: plain data, and the figures that show it."""

    @property
    @abstractmethod
    def heading(self) -> str:
        """The question and what it was asked of, in a line."""

    @abstractmethod
    def figures(self) -> list[Figure]:
        """What shows it, the most telling first."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, every number of the answer."""

    def __str__(self) -> str:
        """What a terminal of 80 columns shows, without colour."""
        from cutaway.show.figures import as_text

        return as_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from cutaway.show.figures import drawn

        yield from drawn(self)

    def _repr_html_(self) -> str:
        from cutaway.show.html import fragment

        return fragment([self])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows: the figures, or where it shows none, the text of a terminal."""
        return {"text/html": self._repr_html_(), "text/plain": str(self)}

    @property
    def answers(self) -> Sequence[Result]:
        """The answers that it is made of, where it is the answer to several questions; a page shows them below it."""
        return ()

    def to_html(self, path: str | Path) -> None:
        """Write one file that shows it in any browser, without a network.

        Raises:
            OSError: it cannot be written; a file of before is still there.
        """
        from cutaway.show.html import write

        write(path, [self, *self.answers])


def plain(value: Any, digits: int) -> Any:
    """Lists, numbers and words, as JSON has them."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), digits)
    if isinstance(value, Series):
        return plain(vars(value), digits)
    if isinstance(value, dict):
        return {name: plain(item, digits) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if np.isfinite(value) else None
    return value


def flat(results: Sequence[Result]) -> Iterator[Figure]:
    """All figures of several results, in order."""
    for result in results:
        yield from result.figures()
