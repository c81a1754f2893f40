"""How figures look in a terminal: each with its title, how to read it, and the drawing of its kind."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from cutaway.figures import Bars, Figure, HeatMap, HeatMaps, Lines, Prose, Result, Table, Tokens
from cutaway.show import bars, heatmap, lines, tables, thumbnails
from cutaway.show.cells import clean, fit, line, widest

LABEL = 24  # cells of a token, at most


def drawn(result: Result) -> Iterator[RenderableType]:
    """A result as it is printed: what was asked, then every figure."""
    yield Text(clean(result.heading), "bold")
    for figure in result.figures():
        yield Text()
        yield drawing(figure)


def as_text(shown: RenderableType, width: int = 80) -> str:
    """What a terminal that wide would show, without colour."""
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def drawing(figure: Figure) -> RenderableType:
    """A figure as it is printed, in whatever width there is."""
    return Drawing(figure)


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that adapts to the console that it is printed on."""

    figure: Figure

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.figure.title:
            yield Text(clean(self.figure.title), "bold")
        if self.figure.note:
            yield Text(clean(self.figure.note), "dim")
        yield from _drawn(self.figure, options.max_width)


def _drawn(figure: Figure, width: int) -> Iterator[RenderableType]:
    match figure:
        case Prose():
            yield from (Text(clean(part)) for text in figure.lines for part in text.split("\n"))
        case Tokens():
            yield from chips(figure.labels, figure.first, width)
        case Table():
            yield from tables.draw(figure, width)
        case Bars():
            yield from bars.draw(figure, width)
        case Lines():
            yield from lines.draw(figure, width)
        case HeatMap():
            yield from heatmap.draw(figure, width)
        case HeatMaps():
            yield from thumbnails.draw(figure, width)
        case _:
            raise TypeError(f"no drawing of a {type(figure).__name__}")


def chips(labels: Sequence[str], first: int, width: int) -> Iterator[Text]:
    """Tokens side by side, each with its position below."""
    cells = []
    for position, label in enumerate(labels, first):
        text = fit(clean(label), LABEL).rstrip() if label else ""
        size = max(widest([text]), len(str(position)))
        cells.append((fit(text, size), fit(str(position), size)))
    while cells:
        n, used = 0, 1
        while n < len(cells) and (not n or used + widest([cells[n][0]]) + 1 <= width):
            used += widest([cells[n][0]]) + 1
            n += 1
        row, cells = cells[:n], cells[n:]
        bound = ("│", "dim")
        yield line(bound, *(part for text, _ in row for part in (text, bound)))
        yield line((" " + " ".join(position for _, position in row), "dim"))
