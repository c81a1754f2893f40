"""How results look in a terminal. Nothing is computed here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cutaway.checkpoint.sources import ModelEntry

# What a text might do to the terminal is shown instead: ␛ for the escape character, and so on.
CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


class Screen:
    """Standard output as text is streamed to it; what only a person wants to see goes to a terminal alone."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()

    def write(self, text: str) -> None:
        """Text as it comes; to a terminal without control characters."""
        sys.stdout.write(text.translate(CONTROLS) if self.is_terminal else text)
        sys.stdout.flush()

    def dim(self, text: str, end: str = "\n") -> None:
        """Text that is not the result."""
        if self.is_terminal:
            console().print(text.translate(CONTROLS), style="dim", end=end, soft_wrap=True)


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error, where that is a terminal, as long as something takes; call it to change the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.text import Text

    with console(stderr=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is, and outside a terminal never breaks a line."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() else 1000
    screen = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
    screen.on_broken_pipe = _nobody_reads  # type: ignore[method-assign]  # its own ends the process with code 1
    return screen


def _nobody_reads() -> None:
    raise BrokenPipeError


def print_models(entries: Sequence[ModelEntry]) -> None:
    """The table of `cutaway models`."""
    table = table_of("name", "where", ">parameters", ">on disk", "licence")
    for entry in entries:
        table.add_row(entry.name, entry.where, count(entry.n_parameters), size(entry.n_bytes), entry.licence or "")
    console().print(table)


def print_written(folder: str, files: Mapping[str, int], dtype: str) -> None:
    """What `cutaway convert` wrote: sizes by file name."""
    table = table_of("file", ">size")
    for name, n_bytes in files.items():
        table.add_row(name, size(n_bytes))
    screen = console()
    screen.print(f"{folder}: {len(files)} files, {size(sum(files.values()))}, weights in {dtype}")
    screen.print(table)


def table_of(*columns: str) -> Table:
    """An empty table; a column whose name begins with > holds numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    return table


def count(n: int | None) -> str:
    """A number of things, to four digits; 1 B is 10⁹."""
    return "" if n is None else _scaled(n, ("", " K", " M", " B", " T"))


def size(n_bytes: int | None) -> str:
    """A number of bytes, to four digits; 1 MB is 10⁶."""
    return "" if n_bytes is None else _scaled(n_bytes, (" B", " kB", " MB", " GB", " TB"))


def _scaled(n: float, units: Sequence[str]) -> str:
    step = 0
    while n >= 999.95 and step < len(units) - 1:
        n, step = n / 1000, step + 1
    return f"{n:.1f}".removesuffix(".0") + units[step]
