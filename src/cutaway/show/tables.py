"""How a table of words and numbers looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from cutaway.figures import Cell, Table
from cutaway.show.cells import aligned, clean, fit, number, widest
from cutaway.show.terminal import table_of

GAP = 3  # cells between columns
WORD = 8  # cells of a heading, at least, before it goes on below
FOLDED = 16  # cells that a column of words may be folded to


@dataclass(frozen=True)
class Column:
    """Cells of one column, ready to be put below each other."""

    heading: list[str]  # line by line
    texts: list[str]
    is_number: bool
    is_aligned: bool  # in place already: rich would take the spaces off the right end

    @property
    def least(self) -> int:
        """Cells that it needs: numbers are never cut."""
        width = widest([*self.heading, *self.texts])
        return width if self.is_aligned else min(width, FOLDED)


def draw(figure: Table, width: int) -> Iterator[RenderableType]:
    """A table in so many cells of a line; one that is too wide goes on below, with its first column once more."""
    columns = [_column(figure, i, fold=False) for i in range(len(figure.columns))]
    if _width(columns) > width:
        columns = [_column(figure, i, fold=True) for i in range(len(figure.columns))]
    while columns:
        n = 1
        while n < len(columns) and (n < 2 or _width(columns[: n + 1]) <= width):
            n += 1
        yield _table(columns[:n])
        columns = [columns[0], *columns[n:]] if n < len(columns) else []
        if columns:
            yield Text()


def _width(columns: Sequence[Column]) -> int:
    return sum(column.least for column in columns) + GAP * (len(columns) - 1)


def _column(figure: Table, i: int, *, fold: bool) -> Column:
    name = figure.columns[i]
    heading, texts = clean(name.removeprefix(">")), [_cell(row[i]) for row in figure.rows]
    is_number = name.startswith(">")
    is_aligned = is_number and all(isinstance(row[i], int | float | None) for row in figure.rows)
    if is_aligned:
        texts = aligned(texts)
    lines = _folded(heading, max(widest(texts), WORD)) if fold else [heading]
    if is_aligned:
        width = widest([*lines, *texts])
        lines, texts = ([fit(text, width, right=True) for text in some] for some in (lines, texts))
    return Column(lines, texts, is_number, is_aligned)


def _folded(heading: str, width: int) -> list[str]:
    """Lines of whole words, no wider than the numbers below where the words allow it."""
    lines = [""]
    for word in heading.split():
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if not lines[-1] or cell_len(longer) <= width else [*lines, word]
    return lines


def _table(columns: Sequence[Column]) -> RenderableType:
    drawn = table_of(*("" if column.is_aligned else ">"[: column.is_number] for column in columns))
    for made, column in zip(drawn.columns, columns, strict=True):
        made.header = Text("\n".join(column.heading))
        made.no_wrap = column.is_aligned
    for cells in zip(*(column.texts for column in columns), strict=True):
        drawn.add_row(*map(Text, cells))
    return drawn


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return number(value)
    return clean(value) if isinstance(value, str) else str(value).replace("-", "−")
