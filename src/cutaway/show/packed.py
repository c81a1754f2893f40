"""Numbers of heat maps as they travel to a browser: whole numbers, deflated, as text."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np

from cutaway.figures import Numbers, Scale

THUMB = 24  # rows and columns of a small picture, at most
MANY = 1 << 18  # cells of a figure
LIMIT = 2**31 - 2  # what fits into four bytes, with one number left for "none"


def packed(values: Numbers, scale: Scale, keep: int = 7) -> dict[str, Any]:
    """An array as text: how many digits after the point are kept, the least of its whole numbers, and the rest above.

    A cell without a number is 0 and the least number 1. Bytes of equal weight lie together, so that the upper ones,
    nearly all zero, take no room. Runs are all that deflate looks for: on attention patterns that takes a fifth of the
    time of its usual search, and less room.
    """
    there = np.isfinite(values)
    present = values[there].astype(np.float64)
    digits = decimals(present, scale, keep)
    whole = np.rint(present * 10.0**digits).astype(np.int64)
    least = int(whole.min()) if whole.size else 0
    cells = np.zeros(values.shape, np.uint32)
    cells[there] = whole - least + 1
    width = max(1, (int(cells.max(initial=0)).bit_length() + 7) // 8)
    planes = cells.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width].T
    deflate = zlib.compressobj(6, strategy=zlib.Z_RLE)
    data = deflate.compress(planes.tobytes()) + deflate.flush()
    return {
        "shape": list(values.shape),
        "digits": digits,
        "least": least,
        "width": width,
        "data": base64.b64encode(data).decode("ascii"),
    }


def kept(n_cells: int) -> int:
    """How many significant digits of the largest number are sent: fewer where the numbers are many."""
    return 7 if n_cells <= MANY else 4


def decimals(present: Numbers, scale: Scale, keep: int) -> int:
    """How many digits after the point leave so many significant ones of the largest number; none of whole numbers.

    The largest of shares counts as 1. Fewer than none where the numbers are huge: −2 keeps hundreds.
    """
    largest = float(np.abs(present).max(initial=0))
    if scale == "share" and not 0 < largest < 0.1:
        return keep - 1
    if not largest or (largest < LIMIT / 2 and bool((present == np.rint(present)).all())):
        return 0
    return min(300, keep - 1 - math.floor(math.log10(largest)))


def extent(values: Numbers) -> tuple[float, float]:
    """The least and the largest number that is there; 0 and 0 where there is none."""
    least, largest = math.inf, -math.inf
    for part in values:  # a part at a time: a mask of everything would double the memory
        present = part[np.isfinite(part)]
        least = min(least, float(present.min(initial=math.inf)))
        largest = max(largest, float(present.max(initial=-math.inf)))
    return (least, largest) if least <= largest else (0.0, 0.0)


def pooled(values: Numbers, scale: Scale) -> Numbers:
    """A smaller picture of the last two axes: of each patch the largest number, of a signed one the farthest from zero.

    NaN where a whole patch has no number.
    """
    there = np.isfinite(values)
    low, high = np.where(there, values, np.inf), np.where(there, values, -np.inf)
    for axis in (-2, -1):
        n = values.shape[axis]
        starts = np.unique(np.arange(min(n, THUMB)) * n // max(1, min(n, THUMB)))
        low, high = np.minimum.reduceat(low, starts, axis), np.maximum.reduceat(high, starts, axis)
    chosen = np.where(-low > high, low, high) if scale == "signed" else high
    return np.where(np.isfinite(chosen), chosen, np.nan)
