"""How bars look in a terminal: a label, a number, and a bar from the line of zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from cutaway.figures import Bars
from cutaway.show.cells import aligned, clean, fit, line, number, widest
from cutaway.show.shades import BLUE, VERMILION

LABEL = 28  # cells of a label, at most
LONG = 50  # cells of all bars together, at most
MOST = 48  # bars
EIGHTHS = " ▏▎▍▌▋▊▉"


def draw(figure: Bars, width: int) -> Iterator[Text]:
    """Bars in so many cells of a line; where they are too many, those furthest from zero in their order."""
    values = np.asarray(figure.values, dtype=float)
    if not values.size:
        yield Text("no numbers", "dim")
        return
    chosen = sorted(np.argsort(-np.nan_to_num(np.abs(values), nan=-1.0), kind="stable")[:MOST].tolist())
    labels = [clean(figure.labels[i]) for i in chosen]
    numbers = aligned([number(float(values[i])) for i in chosen])
    margin = min(widest(labels), LABEL, max(width // 3, 6))
    room = min(max(width - margin - widest(numbers) - 5, 4), LONG)
    left, right = _sides(values, room)
    if figure.unit:
        yield line((f"{' ' * margin}  [{clean(figure.unit)}]", "dim"))
    for label, words, i in zip(labels, numbers, chosen, strict=True):
        yield line(f"{fit(label, margin)}  {words}  ", *_bar(float(values[i]), values, left, right))
    if len(chosen) < len(values):
        yield Text(f"shown: the {len(chosen)} furthest from zero of {len(values)}", "dim")


def _sides(values: np.ndarray, room: int) -> tuple[int, int]:
    """Cells to the left and right of zero, by how far the numbers go."""
    finite = values[np.isfinite(values)]
    low, high = max(-finite.min(initial=0.0), 0.0), max(finite.max(initial=0.0), 0.0)
    if not low:
        return 0, room
    if not high:
        return room, 0
    left = min(max(round(room * low / (low + high)), 1), room - 1)
    return left, room - left


def _bar(value: float, values: np.ndarray, left: int, right: int) -> Iterator[tuple[str, str]]:
    """One scale on both sides: the furthest number on either fills the side that it fits."""
    finite = values[np.isfinite(values)]
    low, high = max(-finite.min(initial=0.0), 0.0), max(finite.max(initial=0.0), 0.0)
    scale = min([side / reach for side, reach in ((left, low), (right, high)) if reach], default=0.0)
    length = value * scale if np.isfinite(value) else 0.0
    if left:
        halves = round(-2 * length) if length < 0 else 0
        text = "▐" * (halves % 2) + "█" * (halves // 2)
        yield text.rjust(left), VERMILION
        yield "│", "dim"
    if length > 0:
        eighths = round(8 * length)
        yield "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip(), BLUE
