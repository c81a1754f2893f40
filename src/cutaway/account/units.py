"""Numbers in words: four digits and a unit."""

from __future__ import annotations

from collections.abc import Sequence


def amount(n: float) -> str:
    """A number of things: 12.35 M."""
    return _scaled(n, ("", " K", " M", " G", " T", " P", " E", " Z", " Y"))


def size(n_bytes: float) -> str:
    """A number of bytes: 1 MB is 10⁶."""
    return _scaled(n_bytes, (" B", " kB", " MB", " GB", " TB", " PB"))


def span(seconds: float) -> str:
    """A length of time."""
    for unit, n in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= n:
            return f"{seconds / n:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} µs"


def per_cent(share: float) -> str:
    """A share of a whole: 65.9 %, and as many digits as a small one needs."""
    percent = 100 * share
    return f"{percent:.1f} %" if percent >= 0.1 or percent == 0 else f"{percent:.1g} %"


def _scaled(n: float, units: Sequence[str]) -> str:
    step = 0
    while n >= 999.95 and step < len(units) - 1:
        n, step = n / 1000, step + 1
    return f"{n:.4g}{units[step]}"
