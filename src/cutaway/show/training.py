"""How a training run looks in a terminal: what it will cost, how it goes, what it writes by now."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cutaway.show.terminal import CONTROLS, console, count, size
from cutaway.train.display import Display
from cutaway.train.plan import Plan
from cutaway.train.run import TrainResult

KEPT = 0.95  # of the smooth loss and speed, by each further step
PAUSE = 10.0  # between two plain lines [s] …
LINES = 20  # … or as many of them as a run has, whichever is sooner


class TrainingDisplay(Display):
    """A run as it goes on. A terminal has a bar and the latest numbers below all else; other outputs get plain lines.

    `n_steps` may be corrected by a plan. `quiet` shows nothing.
    """

    def __init__(self, n_steps: int, console: Console, first_step: int = 0, *, quiet: bool = False) -> None:
        self.n_steps = n_steps
        self.console = console
        self.quiet = quiet
        self.lively = console.is_terminal and not quiet
        self._live: Live | None = None
        self._reading = (0, 1)
        self._loss, self._speed, self._share = Smooth(), Smooth(), Smooth()
        self._bits: float | None = None
        self._first: Mapping[str, Any] | None = None
        self._last: Mapping[str, Any] = {"step": first_step, "seconds": 0.0}
        self._told: Mapping[str, Any] = self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._hide()

    def reading(self, done: int, total: int) -> None:
        """So many bytes of text read; only a terminal is told."""
        self._reading = (done, total)
        self._show()

    def planned(self, plan: Plan, notes: Sequence[str]) -> None:
        """What the run will cost, before its first step."""
        self._hide()
        self.n_steps = plan.n_steps
        self._print(plan_table(plan, notes))
        self._print("")
        if self.closed:
            raise BrokenPipeError  # nothing is made yet that could be saved

    def step(self, record: Mapping[str, Any]) -> None:
        """A step was made."""
        self._loss.add(record["loss"])
        self._speed.add(record["tokens_per_s"])
        self._share.add(record["share_of_peak"])
        self._first, self._last = self._first or record, record  # last: the view is drawn by another thread
        self._show()
        soon = record["seconds"] - self._told["seconds"] >= PAUSE
        far = record["step"] - self._told["step"] >= self.n_steps / LINES
        if not self.lively and (soon or far or record is self._first or record["step"] == self.n_steps):
            self._told = record
            words = [f"step {record['step']:,}/{self.n_steps:,}", *self._numbers(), self._left()]
            self._print("  ".join(words).rstrip())

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """The validation loss was taken."""
        self._bits = record["val_bpb"]
        words = f"validation loss {record['val_loss']:.4f}  {self._bits:.3f} bits per byte"
        self._print(f"step {record['step']:,}  {words}", style="bold")

    def sample(self, text: str) -> None:
        """What the model writes by now."""
        self._print("\n".join(f"│ {line}".rstrip() for line in text.rstrip().split("\n")), style="dim")

    def note(self, text: str) -> None:
        """Something to know."""
        self._print(f"note: {text}", style="yellow")

    def _print(self, what: str | Table, style: str = "") -> None:
        """Above the bar, where there is one; never with characters that a terminal would act on.

        What cannot be written, because the file it goes to has no more room, is not worth the run.
        """
        if self.quiet or self.closed:
            return
        try:
            self.console.print(Text(what.translate(CONTROLS), style) if isinstance(what, str) else what)
        except BrokenPipeError:
            self.closed = True
        except OSError:
            pass

    def _show(self) -> None:
        if self.lively and self._live is None:
            self._live = Live(console=self.console, get_renderable=self._view, refresh_per_second=4)
            self._live.start()

    def _hide(self) -> None:
        """The bar stays where the run ended; that of reading goes."""
        if self._live is not None:
            self._live.transient = self._first is None
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.stop()
            self._live = None

    def _view(self) -> RenderableType:
        if self._first is None:
            done, total = self._reading
            return bar(done, total, f"{size(done)} of {size(total)} of text read")
        step = self._last["step"]
        view = Table.grid(expand=True)
        view.add_row(bar(step, self.n_steps, f"{step:,}/{self.n_steps:,}  {self._left()}"))
        view.add_row(Text(" · ".join(self._numbers()), no_wrap=True, overflow="ellipsis"))
        return view

    def _numbers(self) -> list[str]:
        bits = [] if self._bits is None else [f"{self._bits:.3f} bits per byte"]
        share = f"{self._share.value:.0%}".replace("%", " % of peak")
        return [f"loss {self._loss.value:.3f}", *bits, f"{count(round(self._speed.value))} tokens/s", share]

    def _left(self) -> str:
        """Time to go at the pace since the second step; the first may have compiled."""
        if self._first is None or self._last["step"] == self._first["step"]:
            return ""
        n_made = self._last["step"] - self._first["step"]
        pace = (self._last["seconds"] - self._first["seconds"]) / n_made
        return f"{duration(pace * (self.n_steps - self._last['step']))} left"


class Smooth:
    """A running mean that forgets; its first values weigh as much as any."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, value: float) -> None:
        self.total, self.weight = KEPT * self.total + value, KEPT * self.weight + 1.0

    @property
    def value(self) -> float:
        return self.total / self.weight


def plan_table(plan: Plan, data_notes: Sequence[str]) -> Table:
    """What a run will take, line by line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    val = f", {count(plan.n_val_tokens)} more to validate with" if plan.n_val_tokens else ", none to validate with"
    documents = "1 document" if plan.n_documents == 1 else f"{plan.n_documents:,} documents"
    table.add_row("text", f"{count(plan.n_tokens)} tokens in {documents}{val}")
    read = f"{plan.n_steps:,} steps of {count(plan.tokens_per_step)} tokens"
    made = f", {plan.n_made:,} made before" if plan.n_made else ""
    table.add_row("steps", f"{read}: {plan.epochs:.2g} {'epoch' if plan.epochs == 1 else 'epochs'}{made}")
    table.add_row("model", f"{count(plan.n_parameters)} parameters")
    work = f"{flops(plan.n_flops)}, {flops(plan.flops_per_token)} a token"
    table.add_row("work", f"{work} (a multiply-add is 2, the causal half not cut)")
    parts = sorted(plan.memory.items(), key=lambda part: -part[1])
    table.add_row("memory", f"{size(plan.n_bytes)}: {', '.join(f'{name} {size(n)}' for name, n in parts)}")
    pace = f"at {plan.share:.0%} of the {flops(plan.peak)}/s".replace("%", " %")
    left = " for the rest" if plan.n_made else ""
    table.add_row("time", f"about {duration(plan.seconds)}{left}, {pace} measured here for a matrix product")
    for note in data_notes:
        table.add_row("note", Text(note.translate(CONTROLS)))
    return table


def bar(done: float, total: float, words: str) -> Table:
    """A line that fills up, and words at its end."""
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(ratio=1)
    table.add_column(no_wrap=True)
    table.add_row(ProgressBar(total=max(total, 1), completed=done), words)
    return table


def flops(n: float) -> str:
    """A number of floating-point operations; 1 GFLOP is 10⁹."""
    step = 0
    while n >= 999.95 and step < 6:
        n, step = n / 1000, step + 1
    return f"{n:.1f}".removesuffix(".0") + " " + ("", "k", "M", "G", "T", "P", "E")[step] + "FLOP"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    n = round(seconds)
    if n < 60:
        return f"{n} s"
    if n < 3600:
        return f"{n // 60} min {n % 60:02} s"
    if n < 48 * 3600:
        return f"{n // 3600} h {n % 3600 // 60:02} min"
    return f"{n // 86400} days {n % 86400 // 3600} h"


def print_trained(result: TrainResult) -> None:
    """How the run ended, and what to do with it."""
    best = (
        "" if result.best_loss is None else f", best at step {result.best_step:,}: {result.best_loss:.4f} nats a token"
    )
    ends = {"early": "stopped early, no longer better", "stopped": "stopped, and saved", "finished": "finished"}
    console().print(f"{ends[result.end]} after {result.step:,} steps, {duration(result.seconds)}{best}")
    if result.end == "stopped":
        console().print(f"go on:   cutaway train --resume {result.folder}")
    console().print(f"use it:  cutaway run -m {result.folder}")
    console().print(f"curve:   {result.folder}/curve.png")
