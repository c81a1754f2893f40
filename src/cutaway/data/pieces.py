"""A text of any length in pieces of bounded length, cut where its tokens do not notice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LINE", "SPACE", "even_pieces"]

LINE = re.compile(r"\n(?=\S)")  # a new line begins
SPACE = re.compile(r"(?<=\S)(?= \S)")  # a new word begins, and its space with it
SEARCHED = 1 << 16  # characters before the last place for a cut that are searched for a better one


def even_pieces(texts: Iterable[str], size: int, seams: Sequence[re.Pattern[str]] = (LINE, SPACE)) -> Iterator[str]:
    """The same text in pieces of at most `size` characters, cut at the first kind of seam that is near the end."""
    rest = ""
    for text in texts:
        rest += text
        start = 0
        while len(rest) - start > size:
            cut = _cut(rest, start, start + size, seams)
            yield rest[start:cut]
            start = cut
        rest = rest[start:]
    if rest:
        yield rest


def _cut(text: str, start: int, end: int, seams: Sequence[re.Pattern[str]]) -> int:
    """The last seam in the second half of start … end, else the end."""
    searched = max(start + 1, start + (end - start) // 2, end - SEARCHED)
    for seam in seams:
        cuts = [match.end() for match in seam.finditer(text, searched, end + 1)]
        if cuts:
            return cuts[-1]
    return end
