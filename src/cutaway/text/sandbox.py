"""Where chat templates run: without Python's internals, and with a bound on time, on memory and on every value.

A template is code from a stranger's file. jinja2's immutable sandbox keeps it from Python; it does not keep it from
`'a' * 10**9` or from two nested loops of a hundred thousand. Here every loop pass, call, filter, test and comparison
first looks at the clock, no value grows past `VALUE_LIMIT`, and whatever can grow faster than its inputs is
checked before it runs.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial, wraps
from types import GeneratorType
from typing import Any

from jinja2 import Environment, Template, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from cutaway.errors import TemplateError
from cutaway.text.marked import READING_METHODS

__all__ = ["SECONDS", "VALUE_LIMIT", "TemplateSandbox", "time_limit"]

SECONDS = 2.0
VALUE_LIMIT = 2**22  # characters of one value and all it holds
ENTRY_SIZE = 16  # characters that an entry of a list or a dict counts as
FORMAT_LIMIT = 4096  # characters of a pattern for % and format
BIT_LIMIT = 4096  # of an integer

_FILTERS = (
    *("default", "d", "trim", "upper", "lower", "capitalize", "title", "string", "int", "float", "abs", "min", "max"),
    *("length", "count", "first", "last", "list", "items", "dictsort", "sort", "reverse", "unique"),
    *("map", "select", "reject", "selectattr", "rejectattr"),
)
_STR_METHODS = READING_METHODS | {"format", "join"}
_DICT_METHODS = frozenset({"get", "items", "keys", "values"})

_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let what runs inside go on for this long [s]."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _tick(*_: object) -> None:
    if time.monotonic() > _deadline.get():
        raise TemplateError(f"the chat template ran longer than {SECONDS:g} s; use another template")


def _check_size(size: int) -> None:
    if size > VALUE_LIMIT:
        raise TemplateError(
            f"the chat template made a value of more than {VALUE_LIMIT} characters; shorten the messages or use "
            "another template"
        )


def _size(value: Any) -> int:
    """Characters of a value and all it holds, counted up to the limit."""
    total, rest = 0, [value]
    while rest and total <= VALUE_LIMIT:
        entry = rest.pop()
        total += ENTRY_SIZE
        if isinstance(entry, str):
            total += len(entry)
        elif isinstance(entry, dict | list | tuple):
            if len(entry) * ENTRY_SIZE > VALUE_LIMIT:
                return len(entry) * ENTRY_SIZE
            rest.extend(entry)
            rest.extend(entry.values() if isinstance(entry, dict) else ())
    return total


def _bound(value: Any) -> Any:
    """The value itself, if there was time and room for it."""
    _tick()
    if isinstance(value, GeneratorType):
        return _bound_each(value)
    _check_size(_size(value))
    return value


def _bound_each(values: Iterable[Any]) -> Iterator[Any]:
    total = 0
    for value in values:
        _tick()
        total += _size(value)
        _check_size(total)
        yield value


def _bounded(function: Any) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _tick()
        return _bound(function(*args, **kwargs))

    return call


def _concat(parts: Iterable[Any]) -> str:
    return "".join(_bound_each(map(str, parts)))


def _join(separator: str, parts: Iterable[Any]) -> str:
    texts = list(_bound_each(map(str, parts)))
    _check_size(len(texts) * len(separator))
    return separator.join(texts)


@pass_environment
def _join_filter(environment: Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    return _join(str(d), value if attribute is None else map(make_attrgetter(environment, attribute), value))


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text = text if isinstance(text, str) else str(text)
    _check_size(text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _check_size((text.count("\n") + 2) * (width if isinstance(width, int) else len(width)))
    return do_indent(text, width, first, blank)


def _escape(text: Any) -> str:
    return str(FILTERS["escape"](str(text)))


def _safe(text: Any) -> str:
    return str(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _check_size(indent if isinstance(indent, int) else len(indent or ""))
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        check_circular=False,
    )
    return _concat(encoder.iterencode(value))


def _format(pattern: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(str(pattern), [*args, *kwargs.values()])
    return str(pattern) % (kwargs or args)


def _strftime_now(pattern: str) -> str:
    _check_format(pattern, ())
    return datetime.now().strftime(pattern)


def _raise_exception(message: str) -> None:
    raise TemplateError(f"the chat template refuses these messages: {' '.join(str(message).split())[:200]}")


def _check_format(pattern: str, values: Any) -> None:
    """Refuse widths that an argument states, widths above 999, and results that could pass the limit."""
    wide = r"%[^a-zA-Z%]*(\*|\d{4})|\{[^{}]*(\{|:[^{}]*\d{4})"
    if len(pattern) > FORMAT_LIMIT or re.search(wide, pattern.replace("{{", "").replace("%%", "")):
        raise TemplateError(
            f"the chat template formats by more than {FORMAT_LIMIT} characters or to a width above 999; use another"
        )
    _check_size(len(pattern) + (pattern.count("%") + pattern.count("{")) * (1000 + _size(values)))


class _Bounds(NodeTransformer):
    """Puts the checks into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        here = nodes.ContextReference(lineno=node.lineno)
        tick = nodes.Filter(here, "_tick", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_concat", [], [], None, None, lineno=node.lineno)

    def visit_List(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        return nodes.Filter(node, "_bound", [], [], None, None, lineno=node.lineno)

    visit_Tuple = visit_Dict = visit_Compare = visit_List


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only groups."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A jinja2 environment with the filters and names that chat templates use, all of them bounded."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        filters: dict[str, Callable[..., Any]] = {name: self.filters[name] for name in _FILTERS}
        filters |= {"join": _join_filter, "replace": _replace, "indent": _indent, "tojson": _tojson, "format": _format}
        filters |= {"escape": _escape, "e": _escape, "safe": _safe, "_concat": _concat, "_bound": _bound}
        self.filters = {name: _bounded(function) for name, function in filters.items()} | {"_tick": _tick}
        self.tests = {name: _bounded(function) for name, function in self.tests.items()}
        self.globals = {
            "range": self.globals["range"],
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": lambda *args, **kwargs: Namespace(*args, **kwargs),
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def compile_bounded(self, source: str) -> Template:
        """The template with its checks in place."""
        tree = _Bounds().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, list | tuple | int | float | range):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left, right)
        elif operator == "**":
            self._check_number(_bits(left) * (right if isinstance(right, int) else 1))
        elif operator == "*" and isinstance(left, int | float) and isinstance(right, int | float):
            self._check_number(_bits(left) + _bits(right))
        elif operator == "*":
            _check_size(_times(left, right) or _times(right, left))
        return _bound(super().call_binop(context, operator, left, right))

    def _check_number(self, bits: int) -> None:
        if bits > BIT_LIMIT:
            raise TemplateError(f"the chat template made a number of more than {BIT_LIMIT} bits; use another template")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapper = super().wrap_str_format(value)
        if wrapper is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, [*args, *kwargs.values()])
            return wrapper(*args, **kwargs)

        return bounded

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is out of a template's reach")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _tick()
        if isinstance(owner := getattr(obj, "__self__", None), str) and obj.__name__ in ("join", "replace"):
            obj = partial(_join if obj.__name__ == "join" else _replace, owner)
        return _bound(super().call(context, obj, *args, **kwargs))


def _bits(number: float) -> int:
    return number.bit_length() if isinstance(number, int) else 0


def _times(sequence: Any, number: Any) -> int:
    if not isinstance(number, int) or not isinstance(sequence, str | list | tuple):
        return 0
    return number * (len(sequence) if isinstance(sequence, str) else _size(sequence))
