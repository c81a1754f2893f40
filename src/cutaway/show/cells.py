"""Texts and numbers as cells of a terminal: cleaned, cut, padded, aligned."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from cutaway.show.terminal import CONTROLS

# A label has one line, and nothing in it turns the direction of what follows.
ONE_LINE = CONTROLS | {0x0A: "↵", 0x09: "⇥", 0x2028: "↵", 0x2029: "↵"}
ONE_LINE |= dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")


def clean(text: str) -> str:
    """Text of one line that a terminal shows and does not act on; a mark that would join its neighbour has a ◌."""
    text = text.translate(ONE_LINE)
    return "◌" + text if text and unicodedata.category(text[0]).startswith("M") else text


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Text in exactly so many cells, cut with … where it is longer."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def widest(texts: Iterable[str]) -> int:
    """Cells of the longest."""
    return max(map(cell_len, texts), default=0)


def line(*parts: str | tuple[str, str]) -> Text:
    """A line that stays one, from texts, some with a style."""
    styled = (part if isinstance(part, tuple) else (part, "") for part in parts)
    runs = (("".join(text for text, _ in run), style) for style, run in groupby(styled, lambda part: part[1]))
    text = Text.assemble(*runs, no_wrap=True, overflow="crop")
    text.rstrip()
    return text


def flow(items: Sequence[Text], width: int, gap: int = 2) -> Iterator[Text]:
    """Items side by side, each whole, on as many lines as it takes."""
    row = Text(no_wrap=True, overflow="ellipsis")
    for item in items:
        if row and row.cell_len + gap + item.cell_len > width:
            yield row
            row = Text(no_wrap=True, overflow="ellipsis")
        row.append(" " * gap if row else "").append_text(item)
    if row:
        yield row


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, or all before the point; – where there is none."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    text = f"{value:.{digits - 1}e}" if not -5 < exponent < 6 else f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return text.replace("-", "−")


def aligned(texts: Sequence[str]) -> list[str]:
    """Numbers padded to the same width, their points below each other."""
    halves = [text.partition(".") for text in texts]
    left, right = widest(whole for whole, _, _ in halves), widest(point + rest for _, point, rest in halves)
    return [fit(whole, left, right=True) + fit(point + rest, right) for whole, point, rest in halves]
