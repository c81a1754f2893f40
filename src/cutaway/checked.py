"""Data that checks itself: every value of a config fits the type and the range its field is declared with."""

from __future__ import annotations

import math
from types import NoneType
from typing import Any, Literal, TypeGuard, get_args, get_origin, get_type_hints

from cutaway.errors import ConfigError

WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}


class Checked:
    """Checks, once and at construction, that every value fits the type its field is declared with."""

    def __post_init__(self) -> None:
        check_types(self, f"{type(self).__name__}: ")


def check_types(config: object, prefix: str = "") -> None:
    """Check that every value of a dataclass fits the type of its field; `prefix` says whose field it is.

    Raises:
        ConfigError: one does not.
    """
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not _fits(value, hint):
            wanted = _in_words(hint)
            must = "" if wanted.startswith("one of ") else "it must be "
            raise ConfigError(f"{prefix}{name} = {short(value)}: {must}{wanted}")


def _fits(value: object, hint: Any) -> bool:
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in options
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, options[0]) for item in value)
    if options:
        return any(_fits(value, option) for option in options)
    if hint is float:
        return is_finite(value)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool))


def _in_words(hint: Any) -> str:
    """What a type lets in, but for None: that is the same as leaving a field out."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, options))}"
    if origin is tuple:
        return f"a tuple, each {_in_words(options[0])}"
    if options:
        return " or ".join(_in_words(option) for option in options if option is not NoneType)
    return WORDS.get(hint) or str(hint.__name__)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold; a whole number may be too large for that."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def short(value: object) -> str:
    """A value as a message shows it: on one line, 60 characters at most."""
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "…"


def check_count(name: str, value: int, limit: int = 2**31 - 1) -> None:
    if not 1 <= value <= limit:
        raise ConfigError(f"{name} = {short(value)}: it must be a whole number from 1 to {limit}")


def check_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ConfigError(f"{name} = {short(value)}: it must be above 0")
