"""How an evaluation looks in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cutaway.show.terminal import console, count, table_of

if TYPE_CHECKING:
    from cutaway.train.evaluate import Evaluation


@contextmanager
def scoring() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while texts are scored, where that is a terminal; call it with bytes done, and all."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("scoring", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_evaluation(result: Evaluation) -> None:
    """The table of `cutaway eval`."""
    table = table_of("", ">", "")
    table.add_row("loss", f"{result.loss:.4f}", "nats per token")
    table.add_row("perplexity", f"{result.perplexity:.2f}", "")
    table.add_row("bits per byte", f"{result.bits_per_byte:.4f}", "does not depend on the tokenizer")
    table.add_row("scored", count(result.n_tokens), f"tokens, {count(result.n_bytes)} bytes")
    table.add_row("documents", count(result.n_documents), "")
    table.add_row("window", str(result.n_ctx), f"tokens, sliding by {result.stride}")
    console().print(table)
