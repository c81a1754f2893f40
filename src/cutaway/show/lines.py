"""How lines look in a terminal: dots joined from point to point, a mark for each line, and a table of their ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.text import Text

from cutaway.figures import Cell, Lines, Series, Table
from cutaway.show import tables
from cutaway.show.cells import clean, fit, flow, line, widest

HIGH, LONG = 14, 72  # cells of a plot: its lines, and at most so many in each
MARKS = "●○■□▲△◆◇abcdefghijklmnopqrstuvwxyz"
SEVERAL = "✱"
PALETTE = ("#2f81c7", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f")
APART = 8  # marks on one line, at most
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character: [column][row]
COUNTED = 1e9  # a whole number from here on is read by its size


@dataclass(frozen=True)
class Scale:
    """From numbers to dots of an axis."""

    low: float
    high: float
    log: bool
    n_dots: int

    @classmethod
    def of(cls, values: Sequence[float], log: bool, n_dots: int) -> Scale:
        low, high = min(values), max(values)
        if low == high and log:
            low, high = low / 2, high * 2
        elif low == high:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        return cls(low, high, log, n_dots)

    def dot(self, value: float) -> int:
        way = (math.log(value / self.low) / math.log(self.high / self.low)) if self.log else None
        if way is None:
            way = (value - self.low) / (self.high - self.low)
        return round(way * (self.n_dots - 1))

    def ticks(self, most: int) -> list[float]:
        """Round numbers on the axis, at most so many."""
        if self.log:
            found = _decades(self.low, self.high)
            return found[:: -(-len(found) // most)] if len(found) > 1 else [self.low, self.high]
        step = _step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten between; where they are less than two, also 2 and 5 times those."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [float(f"{factor}e{power}") for power in powers for factor in factors]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) > 1:
            break
    return found


def _step(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


@dataclass
class Canvas:
    """Dots and marks in cells, each with the style of what was drawn last."""

    n_columns: int
    n_rows: int
    dots: dict[tuple[int, int], int] = field(default_factory=dict)
    marks: dict[tuple[int, int], str] = field(default_factory=dict)
    styles: dict[tuple[int, int], str] = field(default_factory=dict)

    def join(self, a: tuple[int, int], b: tuple[int, int], style: str) -> None:
        """A straight line of dots."""
        n = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
        for i in range(n + 1):
            x, y = (round(p + (q - p) * i / n) for p, q in zip(a, b, strict=True))
            cell = (y // 4, x // 2)
            self.dots[cell] = self.dots.get(cell, 0) | DOTS[x % 2][y % 4]
            self.styles[cell] = style

    def put(self, at: tuple[int, int], mark: str, style: str) -> None:
        """A mark over the dots."""
        cell = (at[1] // 4, at[0] // 2)
        self.marks[cell] = mark if self.marks.get(cell, mark) == mark else SEVERAL
        self.styles[cell] = style

    def row(self, y: int) -> Iterator[tuple[str, str]]:
        for x in range(self.n_columns):
            dots = self.dots.get((y, x), 0)
            mark = self.marks.get((y, x)) or (chr(0x2800 + dots) if dots else " ")
            yield mark, self.styles.get((y, x), "")


def draw(figure: Lines, width: int) -> Iterator[RenderableType]:
    """Lines in so many cells of a line of text."""
    kept = [_points(series, figure.log_x, figure.log_y) for series in figure.series]
    points = [point for one in kept for point in one if not math.isnan(point[1])]
    if not points:
        yield Text("no numbers", "dim")
        return
    y = Scale.of([point[1] for point in points], figure.log_y, 4 * HIGH)
    ticks = {HIGH - 1 - y.dot(tick) // 4: tick for tick in y.ticks(5)}
    margin = widest(map(_tick, ticks.values()))
    n_columns = min(max(width - margin - 2, 8), LONG)
    x = Scale.of([point[0] for point in points], figure.log_x, 2 * n_columns)
    canvas = Canvas(n_columns, HIGH)
    for i, one in enumerate(kept):
        _trace(canvas, one, x, y, mark=MARKS[i % len(MARKS)] if len(kept) > 1 else "", i=i)
    yield Text(clean(figure.y) + (" (logarithmic)" if figure.log_y else ""), "dim")
    for row in range(HIGH):
        edge = f"{fit(_tick(ticks[row]), margin, right=True)} ┤" if row in ticks else f"{' ' * margin} │"
        yield line((edge, "dim"), *canvas.row(row))
    yield from _foot(figure, x, margin, n_columns)
    n_lost = sum(_lost(series, figure) for series in figure.series)
    if n_lost:
        words = "1 point at or below 0 has" if n_lost == 1 else f"{n_lost} points at or below 0 have"
        yield Text(f"{words} no place on a logarithmic axis", "dim")
    if len(kept) > 1:
        several = [Text(f"{SEVERAL} several")] if SEVERAL in canvas.marks.values() else []
        yield from flow([*(_name(series, i) for i, series in enumerate(figure.series)), *several], width)
    yield from tables.draw(_ends(figure), width)


def _points(series: Series, log_x: bool, log_y: bool) -> list[tuple[float, float]]:
    """What can be drawn; a y of NaN where the line has a gap."""
    points = []
    for x, y in zip(series.x, series.y, strict=True):
        if not math.isfinite(x) or (log_x and x <= 0):
            continue
        points.append((float(x), float(y) if math.isfinite(y) and not (log_y and y <= 0) else math.nan))
    return points


def _lost(series: Series, figure: Lines) -> int:
    pairs = zip(series.x, series.y, strict=True)
    return sum((figure.log_x and x <= 0) or (figure.log_y and y <= 0) for x, y in pairs)


def _trace(canvas: Canvas, points: list[tuple[float, float]], x: Scale, y: Scale, *, mark: str, i: int) -> None:
    style = PALETTE[i % len(PALETTE)]
    at = [None if math.isnan(v) else (x.dot(u), 4 * HIGH - 1 - y.dot(v)) for u, v in points]
    for before, here, after in zip([None, *at], at, [*at[1:], None], strict=False):
        if here is not None:
            canvas.join(before or here, here, style)
        if here is not None and before is after is None:
            canvas.put(here, mark or MARKS[0], style)  # a dot by itself would not be seen
    seen = [spot for spot in at if spot is not None]
    if mark and seen:
        apart = -(-len(seen) // APART)
        # lines start their marks at different points, so that one does not cover another's
        for spot in [*seen[(i * apart // 3) % apart :: apart], seen[-1]]:
            canvas.put(spot, mark, style)


def _foot(figure: Lines, x: Scale, margin: int, n_columns: int) -> Iterator[Text]:
    """The axis below: its line, its numbers where they have room, its name."""
    rule, numbers = ["─"] * n_columns, ""
    for tick in x.ticks(max(n_columns // 12, 2)):
        column = min(x.dot(tick) // 2, n_columns - 1)
        text = _tick(tick)
        start = min(max(column - len(text) // 2, 0), n_columns - len(text))
        if start < len(numbers) + (2 if numbers else 0):
            continue
        rule[column] = "┴"
        numbers = numbers.ljust(start) + text
    yield line((f"{' ' * margin} └{''.join(rule)}", "dim"))
    yield line((f"{' ' * margin}  {numbers}", "dim"))
    name = clean(figure.x) + (" (logarithmic)" if figure.log_x else "")
    yield line((" " * (margin + 2) + fit(name, n_columns, right=True), "dim"))


def _tick(value: float) -> str:
    text = f"{value:.6g}" if abs(value) < 1e4 or abs(value) >= 1e7 else f"{value:,.0f}"
    return text.replace("-", "−")


def _name(series: Series, i: int) -> Text:
    return Text.assemble((MARKS[i % len(MARKS)], PALETTE[i % len(PALETTE)]), f" {clean(series.name)}")


def _ends(figure: Lines) -> Table:
    """The first and last point of each line that has a number, and its least and most."""
    rows: list[list[Cell]] = []
    y = int if all(_is_count(y) or math.isnan(y) for series in figure.series for y in series.y) else float
    for series in figure.series:
        found = [(a, b) for a, b in zip(series.x, series.y, strict=True) if not math.isnan(b)]
        if not found:
            rows.append([series.name, *[None] * 6])
            continue
        (first, start), (last, end), ys = found[0], found[-1], [b for _, b in found]
        x = int if _is_count(first) and _is_count(last) else float
        rows.append([series.name, x(first), y(start), x(last), y(end), y(min(ys)), y(max(ys))])
    columns = ["", ">first at", ">is", ">last at", ">is", ">least", ">most"]
    return Table(title="", columns=columns, rows=rows)


def _is_count(value: float) -> bool:
    """A step, a layer or a rank is counted, not measured; what nobody would count is shortened."""
    return math.isfinite(value) and value == int(value) and abs(value) < COUNTED
