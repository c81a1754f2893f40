"""What a run leaves to read: a JSON object a line, and the same numbers for TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cutaway.checkpoint.files import write_atomically
from cutaway.errors import TrainingError

SCALARS = ("loss", "val_loss", "val_bpb", "lr", "grad_norm", "tokens_per_s")  # what TensorBoard draws
FLUSH = 20  # how long TensorBoard waits for what is new [s]

Note = Callable[[str], None]


class RunLog:
    """The records of a run: `records` in memory, log.jsonl and TensorBoard's events in its folder.

    Each record is handed to the system as it comes, so a killed run keeps all but the one it was writing. A number
    that is not finite becomes null. A full disk is told once through `note`; the records wait, and are written when
    there is room again.

    Args:
        resume_step: the step the run goes on from: what was written of later ones is taken away, because they will be
            made again. None: a new run, whose log begins empty.
        tensorboard: events too, where the package is installed.
    Raises:
        TrainingError: the log cannot be read or begun.
    """

    def __init__(
        self, folder: Path, *, resume_step: int | None, tensorboard: bool = True, note: Note = warnings.warn
    ) -> None:
        self.path = folder / "log.jsonl"
        self.records: list[dict[str, Any]] = []
        self._note = note
        self._noted = False
        self._waiting = b""  # lines there was no room for
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._keep(-1 if resume_step is None else resume_step)
            self.path.touch()
            self._file = self.path.open("r+b", buffering=0)
            self._end = self._file.seek(0, 2)
        except OSError as error:
            raise TrainingError(
                f"{self.path}: cannot be written ({error.strerror}): make room and rights there, or train elsewhere"
            ) from error
        self._events: Any = None
        if tensorboard and importlib.util.find_spec("tensorboard"):
            with self._forgiven():
                self._events = _events(folder / "tensorboard", (resume_step or 0) + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """One more record."""
        kept = {name: _finite(value) for name, value in record.items()}
        self.records.append(kept)
        self._waiting += json.dumps(kept, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._forgiven():
            self._write_waiting()
        if self._events is not None:
            with self._forgiven():
                for name in SCALARS:
                    if kept.get(name) is not None:
                        self._events.add_scalar(name, kept[name], kept["step"])

    def close(self) -> None:
        """Nothing more will be written."""
        if self._events is not None:
            with self._forgiven():
                self._events.close()
        self._file.close()

    def _write_waiting(self) -> None:
        """At the end of the last whole line, so that half a line left by a full disk is written over."""
        self._file.seek(self._end)
        n_written = 0
        while n_written < len(self._waiting):
            n_written += self._file.write(self._waiting[n_written:])
        self._end += n_written
        self._waiting = b""

    def _keep(self, last: int) -> None:
        """Read what an earlier session wrote up to step `last`; half a line, or damage, is dropped from the file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        kept = []
        for line in content.splitlines(keepends=True):
            record = _parsed(line)
            if record is not None and record["step"] <= last:
                kept.append(line)
                self.records.append(record)
        if b"".join(kept) != content:
            write_atomically(self.path, b"".join(kept))

    @contextlib.contextmanager
    def _forgiven(self) -> Iterator[None]:
        """A log is not worth a run: what keeps it from being written is told once."""
        try:
            yield
        except OSError as error:
            if not self._noted:
                self._noted = True
                reason = error.strerror or error
                self._note(f"{self.path.parent}: the log cannot be written ({reason}): training goes on, make room")


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step"), int)
    return record if whole else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _events(folder: Path, first_step: int) -> Any:
    """TensorBoard's writer; events of `first_step` and later, left by a killed run, are no longer shown."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first_step, flush_secs=FLUSH)
