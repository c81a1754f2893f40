"""How a heat map looks in a terminal: a mark for each cell, what the marks mean, and the strongest cells in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.text import Text

from cutaway.figures import HeatMap, Numbers
from cutaway.show.cells import clean, fit, flow, line, number, widest
from cutaway.show.shades import Shades

ROWS = 64  # of a map, at most
LABEL = 18  # cells of a row's label, at most
TEXT = (12, 10, 8, 6)  # cells of a text, the widest that fits
STRONGEST = 3  # cells that are put in words
Picks = list[int | None]  # indices of what is shown; None where something is left out


def draw(figure: HeatMap, width: int) -> Iterator[Text]:
    """A heat map in so many cells of a line."""
    figure = replace(figure, values=known(figure.values))
    if not figure.values.size:
        yield Text(f"no numbers: {len(figure.rows)} rows, {len(figure.columns)} columns", "dim")
        return
    shades = Shades.of(figure.values, figure.scale, absent=figure.absent, unit=figure.unit)
    yield from _texts(figure, shades, width) if figure.cells is not None else _marks(figure, shades, width)
    yield from flow(list(shades.legend()), width)
    for i, words in enumerate(strongest(figure)):
        yield Text.assemble(("           " if i else "strongest: ", "dim"), words)


def known(values: Numbers) -> Numbers:
    """NaN also for the −∞ of a score that was masked."""
    masked = np.isneginf(values)
    return np.where(masked, np.nan, values) if masked.any() else values


def picked(n: int, room: int, *, first: bool = True) -> Picks:
    """Which of n are shown where there is room for fewer: the last, where a text goes on, and the first."""
    if n <= room:
        return list(range(n))
    if not first or room < 3:
        return list(range(n - max(room, 1), n))
    return [0, None, *range(n - room + 2, n)]


def shown(axis: str, picks: Picks, n: int) -> str:
    """The part of an axis that is shown, in words; none where it is all."""
    n_last = len(picks) - (2 if None in picks else 0)
    if n_last == n:
        return ""
    return f"{axis}: {'the first and ' if None in picks else ''}the last {n_last} of {n}"


def strongest(figure: HeatMap) -> Iterator[str]:
    """The cells with the largest numbers, in words; a row that gives all to its one cell had no choice, and is none."""
    values = np.where(np.isfinite(figure.values), figure.values, np.nan)
    alone = np.isfinite(values).sum(1) == 1
    if figure.scale == "share" and not alone.all():
        values = np.where(alone[:, None], np.nan, values)
    key = np.abs(values) if figure.scale == "signed" else values
    order = np.argsort(-key, axis=None, kind="stable")  # NaN last
    for row, column in (divmod(int(i), values.shape[1]) for i in order[:STRONGEST]):
        if np.isfinite(values[row, column]):
            yield in_words(figure, row, column)


def in_words(figure: HeatMap, row: int, column: int) -> str:
    """One cell as a sentence."""
    value = number(float(figure.values[row, column]))
    if figure.unit and figure.unit not in figure.says:
        value += f" {figure.unit}"
    words = {"row": clean(figure.rows[row]), "column": clean(figure.columns[column]), "value": value}
    words["cell"] = clean(figure.cells[row][column]) if figure.cells is not None else ""
    # a name in quotes is a token's: the same one may be there twice, and its position tells which
    words |= {"‘{row}’": f"‘{words['row']}’({row})", "‘{column}’": f"‘{words['column']}’({column})"}
    return clean(
        re.sub(r"‘\{(?:row|column)\}’|\{(row|column|value|cell)\}", lambda m: words[m[1] or m[0]], figure.says)
    )


@dataclass(frozen=True)
class Edge:
    """How the columns are called: lines above the map, cells a column takes, and whether a list tells their names."""

    lines: list[str]
    step: int
    listed: bool


def edge(labels: Sequence[str], picks: Picks, room: int) -> Edge:
    """Names where all fit, else upright numbers."""
    names = [clean(label) for label in labels]
    natural = widest(names) + 1
    if None not in picks and natural <= 9 and natural * len(picks) <= room:
        return Edge(["".join(fit(names[i], natural) for i in picks if i is not None)], natural, False)
    step = 2 if 2 * len(picks) <= room else 1
    own = all(name.isascii() and name.isdigit() for name in names)
    marks = ["┊" if i is None else names[i] if own else str(i) for i in picks]
    height = widest(marks)
    upright = ["".join(mark.rjust(height)[level].ljust(step) for mark in marks) for level in range(height)]
    return Edge(upright, step, not own)


def _marks(figure: HeatMap, shades: Shades, width: int) -> Iterator[Text]:
    names = [clean(label) for label in figure.rows]
    margin, columns, top = _laid(figure, names, width)
    same = list(figure.rows) == list(figure.columns)
    if same and top.listed:  # the rows tell which number is which
        names = [f"{i:>{len(str(len(names) - 1))}} {name}" for i, name in enumerate(names)]
        margin, columns, top = _laid(figure, names, width)
    rows = picked(len(names), ROWS)
    yield Text(f"{clean(figure.row_axis)} ↓  {clean(figure.column_axis)} →", "dim")
    for text in top.lines:
        yield line(" " * (margin + 2), (text, "dim"))
    for row in rows:
        if row is None:
            yield line((fit("⋮", margin), "dim"), (f" ├{'┈' * (top.step * len(columns))}┤", "dim"))
            continue
        yield line(fit(names[row], margin), (" │", "dim"), *_row(figure, shades, row, columns, top.step), ("│", "dim"))
    parts = [shown(figure.row_axis, rows, len(names)), shown(figure.column_axis, columns, len(figure.columns))]
    yield from _cut(parts)
    if top.listed and not same:
        listed = [f"{i} {fit(clean(label), LABEL).rstrip()}" for i, label in enumerate(figure.columns)]
        items = [Text(listed[i]) for i in columns if i is not None]
        yield from flow([Text(f"{clean(figure.column_axis)}:", "dim"), *items], width)


def _laid(figure: HeatMap, names: Sequence[str], width: int) -> tuple[int, Picks, Edge]:
    """Cells for the names of rows, and what fits beside them."""
    margin = min(widest(names), LABEL, max(width // 3, 6))
    room = max(width - margin - 3, 1)
    columns = picked(len(figure.columns), room)
    return margin, columns, edge(figure.columns, columns, room)


def _row(figure: HeatMap, shades: Shades, row: int, columns: Picks, step: int) -> Iterator[tuple[str, str]]:
    for column in columns:
        if column is None:
            yield "┊".ljust(step), "dim"
            continue
        mark, style = shades.mark(figure.values[row, column])
        yield (mark.ljust(step) if style == "dim" else mark * step), style


def _texts(figure: HeatMap, shades: Shades, width: int) -> Iterator[Text]:
    assert figure.cells is not None
    names = [clean(label) for label in figure.rows]
    heads = [clean(label) for label in figure.columns]
    cells = [[clean(cell) for cell in row] for row in figure.cells]
    margin = min(widest([*names, figure.row_axis + " ↓"]), LABEL, max(width // 3, 6))
    room = max(width - margin - 1, 1)
    longest = widest([*heads, *(cell for row in cells for cell in row)])
    size = next((n for n in TEXT if (min(n, longest) + 3) * len(heads) <= room), TEXT[-1])
    size = min(size, longest)
    # what comes next is decided at the end of a text
    rows, columns = picked(len(names), ROWS), picked(len(heads), room // (size + 3), first=False)
    columns_shown = [column for column in columns if column is not None]
    yield Text(f"{clean(figure.column_axis)} →", "dim")
    yield line(
        (fit(f"{clean(figure.row_axis)} ↓", margin) + " ", "dim"),
        ("".join(f"  {fit(heads[column], size)} " for column in columns_shown), "bold"),
    )
    for row in rows:
        if row is None:
            yield line(("⋮", "dim"))
            continue
        parts: list[str | tuple[str, str]] = [fit(names[row], margin) + " "]
        for column in columns_shown:
            parts += [shades.mark(figure.values[row, column]), f" {fit(cells[row][column], size)} "]
        yield line(*parts)
    yield from _cut([shown(figure.row_axis, rows, len(names)), shown(figure.column_axis, columns, len(heads))])


def _cut(parts: Sequence[str]) -> Iterator[Text]:
    if any(parts):
        yield Text(f"shown: {'; '.join(part for part in parts if part)}; all of it: --html FILE or --json", "dim")
