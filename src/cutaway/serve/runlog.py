"""A training run as its folder tells it: how the loss fell, and what the model wrote on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.errors import ServeError
from cutaway.figures import Cell, Figure, HeatMaps, Lines, Numbers, Result, Series, Table, plain
from cutaway.inside.attention import attention
from cutaway.language_model import load
from cutaway.train.curve import smoothed
from cutaway.train.state import steps

MAX_BYTES = 64 * 2**20  # of a log that are read, the newest
MAX_POINTS = 1500  # of a line
MAX_SAMPLES = 40
MAX_CHECKPOINTS = 8
SMOOTH = 0.02  # of the run, to each side

Points = tuple[list[int], list[float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunLog(Result):
    """The records of a run by now."""

    name: str
    losses: Points
    val_losses: Points
    rates: Points
    speeds: Points
    samples: tuple[tuple[int, str], ...]
    checkpoints: tuple[str, ...]

    @property
    def heading(self) -> str:
        step = max((points[0][-1] for points in (self.losses, self.val_losses) if points[0]), default=0)
        best = f", best validation loss {min(self.val_losses[1]):.4g}" if self.val_losses[1] else ""
        return f"The run {self.name} at step {step:,}{best}"

    def figures(self) -> list[Figure]:
        xs = self.losses[0]
        series = [Series(name="training, smooth", x=xs, y=self._smooth())] if xs else []
        if self.val_losses[0]:
            series.append(Series(name="validation", x=self.val_losses[0], y=self.val_losses[1]))
        rows: list[list[Cell]] = [[step, text] for step, text in reversed(self.samples)]
        found: list[Figure] = [Lines(title="The loss", series=series, x="step", y="loss [nats per token]")]
        if rows:
            found.append(Table(title="What it wrote", note="The newest first.", columns=[">step", "text"], rows=rows))
        if self.rates[0]:
            found.append(_line("The learning rate", "learning rate", self.rates))
        if self.speeds[0]:
            found.append(_line("How fast it reads", "tokens/s", self.speeds))
        kept: list[list[Cell]] = [[name] for name in self.checkpoints]
        return [*found, Table(title="Checkpoints kept", columns=["folder"], rows=kept)]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "run"} | {name: plain(value, 6) for name, value in vars(self).items()}

    def _smooth(self) -> list[float]:
        xs, ys = self.losses
        return smoothed(xs, ys, SMOOTH * (xs[-1] - xs[0]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Growing(Result):
    """One head over the checkpoints of a run [checkpoint, query, key], NaN where the mask hides a key."""

    head: str
    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    checkpoints: tuple[str, ...]
    patterns: Numbers

    @property
    def heading(self) -> str:
        return f"Head {self.head} over {len(self.checkpoints)} checkpoints"

    def figures(self) -> list[Figure]:
        return [
            HeatMaps(
                title="Where it looks, checkpoint by checkpoint",
                note="The oldest first. Each row is a query, whose attention sums to 1.",
                names=self.checkpoints,
                across=len(self.checkpoints),
                rows=self.labels,
                columns=self.labels,
                values=self.patterns,
                row_axis="query",
                column_axis="key",
                says="query ‘{row}’ looks at key ‘{column}’: {value}",
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "growing"} | {name: plain(value, 6) for name, value in vars(self).items()}


def growing(
    folder: Path, prompt: str, head: str, *, most: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Growing:
    """One head of each checkpoint that a run has kept, the newest few.

    Args:
        most: tokens of the prompt.
        progress: called with how many checkpoints are read, and how many there are.
    Raises:
        ServeError: no checkpoint, or too long a prompt.
        InsideError: no such head.
    """
    kept = steps(folder)[:MAX_CHECKPOINTS][::-1]
    if not kept:
        raise ServeError("the run has no checkpoint yet: wait for its first, or set save_every lower")
    found = []
    for i, path in enumerate(kept):
        model = load(path, dtype="float32", device="cpu", progress=False)
        ids = model.ids(prompt)
        if len(ids) > most:
            raise ServeError(f"prompt = {len(ids)} tokens: this looks at {most} at most; shorten it")
        one = attention(model, ids, head=head)
        found.append(one)
        progress(i + 1, len(kept))
    return Growing(
        head=head,
        tokens=found[-1].tokens,
        labels=found[-1].labels,
        checkpoints=tuple(path.name.removeprefix("step-").lstrip("0") or "0" for path in kept),
        patterns=np.stack([one.pattern for one in found]),
    )


def read_run(folder: Path) -> RunLog:
    """What the folder tells now; half a line at the log's end is left for later.

    Raises:
        ServeError: no log there.
    """
    try:
        with (folder / "log.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_BYTES))
            lines = file.read(MAX_BYTES).splitlines(keepends=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ServeError(f"run = {folder.name}: its log.jsonl cannot be read ({reason}): has the run begun?") from error
    records = [record for line in lines[size > MAX_BYTES :] if (record := _parsed(line)) is not None]
    return RunLog(
        name=folder.resolve().name,
        losses=_points(records, "loss"),
        val_losses=_points(records, "val_loss"),
        rates=_points(records, "lr"),
        speeds=_points(records, "tokens_per_s"),
        samples=tuple((r["step"], str(r["sample"])[:2000]) for r in records if "sample" in r)[-MAX_SAMPLES:],
        checkpoints=tuple(path.name for path in steps(folder)),
    )


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(record, dict) and type(record.get("step")) is int
    return record if whole else None


def _points(records: Sequence[dict[str, Any]], name: str) -> Points:
    found = [(r["step"], float(r[name])) for r in records if isinstance(r.get(name), int | float)]
    every = -(-len(found) // MAX_POINTS) or 1
    thinned = found[::every] + (found[-1:] if found and (len(found) - 1) % every else [])
    return [step for step, _ in thinned], [value for _, value in thinned]


def _line(title: str, y: str, points: Points) -> Lines:
    return Lines(title=title, series=[Series(name=y, x=points[0], y=points[1])], x="step", y=y)
