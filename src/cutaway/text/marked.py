"""Message text that a template can handle like any other, and that can be told from the template's own text.

A chat template is free to trim, split or test a message before it writes it, so the message cannot be replaced
by a placeholder. `Marked` answers every question as the message itself would; what reaches the output has a mark
around each character. A control token in the output without a mark inside it was therefore written by the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["READING_METHODS", "Marked", "mark_all"]

_WORD = re.compile(r"\S+")

# Methods of a string that make nothing larger than what they are given.
READING_METHODS = frozenset(name for name in dir(str) if not name.startswith("_")) - {
    *("center", "ljust", "rjust", "zfill", "expandtabs"),
    *("encode", "format", "format_map", "join", "maketrans", "translate"),
}
READING_OPERATORS = frozenset(
    f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "contains", "getitem", "len", "hash", "repr")
)


class Marked(str):
    """A string that reads as `raw` and is written with `mark` around every character but white space.

    White space stays bare, so trimming the written form trims the message.
    """

    raw: str
    mark: str

    def __new__(cls, raw: str, mark: str) -> Marked:
        marked = super().__new__(cls, _WORD.sub(lambda word: mark + mark.join(word[0]) + mark, raw))
        marked.raw, marked.mark = raw, mark
        return marked

    def __iter__(self) -> Iterator[str]:
        return (Marked(character, self.mark) for character in self.raw)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, Marked) else value


def _reads_raw(name: str) -> Callable[..., Any]:
    of_str = getattr(str, name)

    def method(self: Marked, *args: Any, **kwargs: Any) -> Any:
        return mark_all(of_str(self.raw, *map(_raw, args), **kwargs), self.mark)

    method.__name__ = name
    return method


for _name in READING_METHODS | READING_OPERATORS:
    setattr(Marked, _name, _reads_raw(_name))


def mark_all(value: Any, mark: str) -> Any:
    """The same JSON-like value with every string in it marked."""
    if isinstance(value, str):
        return Marked(value, mark)
    if isinstance(value, dict):
        return {mark_all(key, mark): mark_all(entry, mark) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mark_all(entry, mark) for entry in value)
    return value
