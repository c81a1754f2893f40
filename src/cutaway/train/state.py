"""Checkpoints of a run: written whole or not at all, checked before they are trusted, free of code.

    runs/mine/
      run.json                what the run was asked to do, and what it settled
      step-00000500/          one checkpoint: an ordinary model folder …
        state/*.safetensors   … and beside it the exact weights and the optimizers' past, one file a process
        state.json            where the run stood, its best step, and size and checksum of every file; written last
      log.jsonl curve.svg …   see log.py

Every random number of a run is drawn from its seed and the number of the step, so no generator has a state to keep.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from cutaway.checkpoint.files import read_json, write_atomically
from cutaway.errors import CutawayError, TrainingError
from cutaway.train.distributed import Ranks

STEP = re.compile(r"step-(\d{8})")
PARTIAL = ".partial-"


@dataclass(kw_only=True)
class Position:
    """Where a run stands: steps done, the best validation so far, evaluations since then, seconds spent."""

    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    worse: int = 0
    seconds: float = 0.0
    world: int = 1
    threads: int = 0


def save(
    folder: Path,
    position: Position,
    tensors: Mapping[str, Tensor],
    write_model: Callable[[Path], None],
    ranks: Ranks,
    *,
    keep: int,
) -> None:
    """Write the checkpoint of this step, then remove those that are no longer wanted. All processes call it.

    Raises:
        TrainingError: it could not be written, for want of room or rights; what was saved before is untouched.
    """
    final = folder / f"step-{position.step:08d}"
    partial = folder / f"{PARTIAL}{final.name}"

    def prepare() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "state").mkdir(parents=True)

    def write_shards() -> None:
        writer = HuggingFaceStorageWriter(str(partial / "state"), save_distributed=True)
        with _quietly():
            save_shards(dict(tensors), storage_writer=writer, no_dist=ranks.world == 1)

    def finish() -> None:
        write_model(partial)
        _seal(partial, position)
        partial.rename(final)
        _flush(folder)
        _remove_old(folder, position, keep)

    problem = _together(ranks, prepare if ranks.leads else None)
    problem = problem or _together(ranks, write_shards)
    problem = problem or _together(ranks, finish if ranks.leads else None)
    if problem:
        if ranks.leads:
            shutil.rmtree(partial, ignore_errors=True)
        kept = [found.name for found in steps(folder)]
        raise TrainingError(
            f"step {position.step} could not be saved ({problem}): make room or rights in "
            f"{folder}; {('saved there: ' + ', '.join(kept)) if kept else 'nothing was saved before'}"
        )


def _together(ranks: Ranks, work: Callable[[], None] | None) -> str:
    """One part of a common work; what went wrong with it, here or in another process, or nothing."""
    problem = ""
    try:
        if work is not None:
            work()
    except (OSError, SafetensorError, CutawayError, CheckpointException) as error:
        problem = _reason(error)
    failed = ranks.sum(float(bool(problem)))[0]
    return problem or ("another process failed" if failed else "")


def _reason(error: BaseException) -> str:
    """The innermost cause, in one line."""
    if isinstance(error, CheckpointException):
        return _reason(next(iter(error.failures.values()))[0])
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200] or type(error).__name__


def _seal(partial: Path, position: Position) -> None:
    """Everything onto the disk, then the list that says it is whole."""
    files = {}
    for path in sorted(partial.rglob("*")):
        if path.is_file():
            files[path.relative_to(partial).as_posix()] = [path.stat().st_size, _checksum(path)]
            with path.open("rb") as file:
                os.fsync(file.fileno())
    content = json.dumps({"position": asdict(position), "files": files}, indent=2).encode() + b"\n"
    write_atomically(partial / "state.json", content)
    _flush(partial)


def _flush(folder: Path) -> None:
    """A folder's list of names onto the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_old(folder: Path, position: Position, keep: int) -> None:
    """All but the newest few and the best. A folder is renamed before it is emptied, so none is ever half there."""
    best = f"step-{position.best_step or 0:08d}"
    for old in steps(folder)[keep:]:
        if old.name != best:
            set_aside(old)
    for left in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)


def set_aside(old: Path) -> None:
    """Take a checkpoint out of the run."""
    doomed = old.with_name(f"{PARTIAL}old-{old.name}")
    old.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first, whole or not."""
    return sorted((p for p in folder.glob("step-*") if STEP.fullmatch(p.name) and p.is_dir()), reverse=True)


def newest(folder: Path) -> tuple[Path, Position, list[str]]:
    """The newest whole checkpoint, where it stood, and what is wrong with any newer one.

    Raises:
        TrainingError: none is whole.
    """
    damaged: list[str] = []
    for path in steps(folder):
        try:
            return path, read(path), damaged
        except CutawayError as error:
            damaged.append(str(error))
    raise TrainingError(
        f"{folder} has no whole checkpoint to resume from{': ' + '; '.join(damaged) if damaged else ''}: "
        "start the run again in a new folder"
    )


def read(path: Path) -> Position:
    """Where a checkpoint stood, once every file of it was found as it was written.

    Raises:
        TrainingError: a file is missing, cut short, or changed.
    """
    content = read_json(path / "state.json")
    try:
        files, position = content["files"], Position(**content["position"])
        for name, (size, checksum) in files.items():
            file = path / name
            if not file.is_file() or file.stat().st_size != size or _checksum(file) != checksum:
                raise TrainingError(f"{file} is missing or damaged")
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"{path / 'state.json'} is damaged ({type(error).__name__})") from error
    return position


def restore(path: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill the tensors from a checkpoint, whatever the number of processes that wrote it.

    Raises:
        TrainingError: it has other tensors than this run.
    """
    reader = HuggingFaceStorageReader(str(path / "state"))
    try:
        with _quietly():
            load(tensors, storage_reader=reader, no_dist=ranks.world == 1)
    except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
        raise TrainingError(f"{path}: its state does not fit this run ({_reason(error)})") from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that one process alone is one process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _checksum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            total = zlib.crc32(block, total)
    return total
