"""How many heat maps look in a terminal: small ones, or, where they are too many, one row of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from rich.text import Text

from cutaway.figures import HeatMaps, Numbers, Scale
from cutaway.show.cells import clean, fit, flow, line, widest
from cutaway.show.heatmap import edge, known
from cutaway.show.shades import Shades

SMALL = (6, 12)  # cells in a line of a small map: at least, at most
HIGH = 50  # lines of small maps, at most
LABEL = 8  # cells of a row's name, at most


def draw(figure: HeatMaps, width: int) -> Iterator[Text]:
    """The maps in so many cells of a line, all by one scale."""
    if not figure.values.size:
        yield Text(f"no numbers: {len(figure.names)} maps", "dim")
        return
    figure = replace(figure, values=known(figure.values))
    shades = Shades.of(figure.values, figure.scale, absent=figure.absent, unit=figure.unit)
    grid = Grid.of(figure, width)
    strips = _strips(figure, shades, width) if grid.n_lines > HIGH else []
    yield from strips or _small(figure, shades, grid)
    yield from flow(list(shades.legend()), width)
    if grid.is_pooled(figure):
        # heads have an option of their own; other maps are opened from Python
        is_heads = (figure.row_axis, figure.column_axis) == ("query", "key")
        name = clean(figure.names[-1])
        yield Text(f"open one: --attention {name}" if is_heads else f"open one: .one({name!r})", "dim")


@dataclass(frozen=True)
class Grid:
    """How many small maps stand side by side, and how large they are."""

    n_across: int
    height: int
    size: int  # cells in a line of one
    margin: int  # for names of rows, where each row has a line
    n_lines: int

    @classmethod
    def of(cls, figure: HeatMaps, width: int) -> Grid:
        """Whole maps if they are few and short; else each has half as many lines as cells in a line."""
        margin = min(widest(figure.rows), LABEL) + 1
        n_across = max(min(figure.across, (width - margin + 1) // (SMALL[0] + 2)), 1)
        n_rows = -(-len(figure.names) // n_across)
        room = (width - margin + 1) // n_across - 2
        if n_rows * (len(figure.rows) + 1) <= HIGH and len(figure.columns) <= room:
            return cls(n_across, len(figure.rows), len(figure.columns), margin, n_rows * (len(figure.rows) + 1))
        n_across = max(min(figure.across, (width + 1) // (SMALL[0] + 2)), 1)
        n_rows = -(-len(figure.names) // n_across)
        size = min(SMALL[1], max((width + 1) // n_across - 2, 1), len(figure.columns))
        height = min(-(-size // 2), len(figure.rows))
        return cls(n_across, height, size, 0, n_rows * (height + 1))

    def is_pooled(self, figure: HeatMaps) -> bool:
        return self.height < len(figure.rows) or self.size < len(figure.columns)


def pooled(values: Numbers, n_rows: int, n_columns: int, scale: Scale) -> Numbers:
    """The largest number of each part of a map, or, if it is signed, that furthest from zero; NaN where is none."""
    rows = np.array_split(np.arange(values.shape[0]), min(n_rows, values.shape[0]))
    columns = np.array_split(np.arange(values.shape[1]), min(n_columns, values.shape[1]))
    small = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            part = values[np.ix_(row, column)].ravel()
            part = part[~np.isnan(part)]
            if part.size:
                small[i, j] = part[(np.abs(part) if scale == "signed" else part).argmax()]
    return small


def _small(figure: HeatMaps, shades: Shades, grid: Grid) -> Iterator[Text]:
    names = [clean(name) for name in figure.names]
    step = max(grid.size, min(widest(names), SMALL[1])) + 2
    for first in range(0, len(names), grid.n_across):
        chosen = range(first, min(first + grid.n_across, len(names)))
        maps = [pooled(figure.values[i], grid.height, grid.size, figure.scale) for i in chosen]
        yield line(" " * grid.margin, ("".join(fit(names[i], step - 1) + " " for i in chosen), "bold"))
        if grid.margin:
            top = edge(figure.columns, list(range(grid.size)), grid.size)
            for text in top.lines if top.step == 1 and not top.listed else ():
                yield line(" " * grid.margin, (f" {text}".ljust(step) * len(chosen), "dim"))
        for level in range(grid.height):
            label = fit(clean(figure.rows[level]), grid.margin - 1) + " " if grid.margin else ""
            parts: list[str | tuple[str, str]] = [label]
            for small in maps:
                parts += [("│", "dim"), *map(shades.mark, small[level]), " " * (step - 1 - small.shape[1])]
            yield line(*parts)
    words = f"{clean(figure.row_axis)} ↓  {clean(figure.column_axis)} →"
    if grid.is_pooled(figure):
        words += f", {len(figure.rows)} × {len(figure.columns)} in {grid.height} × {grid.size} parts"
        words += f", of each {_largest(figure)}"
    yield Text(words, "dim")


def _largest(figure: HeatMaps) -> str:
    return "the number furthest from zero" if figure.scale == "signed" else "its largest number"


def _strips(figure: HeatMaps, shades: Shades, width: int) -> list[Text]:
    """The last row of each map, where names such as 3.5 fill a grid and there is room; nothing elsewhere."""
    halves = [clean(name).partition(".") for name in figure.names]
    layers = [row[0][0] for row in (halves[i : i + figure.across] for i in range(0, len(halves), figure.across))]
    heads = [half[2] for half in halves[: figure.across]]
    if [f"{layer}.{head}" for layer in layers for head in heads] != list(figure.names):
        return []
    margin = widest(layers) + 2
    size = min((width - margin) // figure.across - 2, SMALL[1], len(figure.columns))
    if size < 2:
        return []
    lines = [line(" " * margin, ("".join(fit(f".{head}", size + 2) for head in heads), "bold"))]
    for i, layer in enumerate(layers):
        parts: list[str | tuple[str, str]] = [(fit(f"{layer}.", margin), "bold")]
        for values in figure.values[i * figure.across : (i + 1) * figure.across]:
            parts += [("│", "dim"), *map(shades.mark, pooled(values[-1:], 1, size, figure.scale)[0]), " "]
        lines.append(line(*parts))
    row = f"of each map its last {clean(figure.row_axis)}, {clean(figure.rows[-1])}"
    parts_said = f", over {len(figure.columns)} {clean(figure.column_axis)}s"
    if size < len(figure.columns):
        parts_said += f" in {size} parts, of each part {_largest(figure)}"
    return [*lines, Text(row + parts_said, "dim")]
