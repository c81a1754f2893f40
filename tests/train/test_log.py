"""A log survives what befalls a run: a kill, a resume, numbers that are none, a full disk."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.errors import TrainingError
from cutaway.train.log import RunLog


def record(step: int) -> dict[str, Any]:
    return {"step": step, "loss": 4.0 / step, "lr": 0.001, "sample": "zwölf 🎭\n"}


def written(folder: Path, *steps: int) -> bytes:
    log = RunLog(folder, resume_step=None, tensorboard=False)
    for step in steps:
        log.write(record(step))
    log.close()
    return (folder / "log.jsonl").read_bytes()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_each_record_is_a_line_that_is_there_at_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run", resume_step=None, tensorboard=False)
    for step in (1, 2):
        log.write(record(step))
        assert lines(tmp_path / "run") == log.records == [record(n) for n in range(1, step + 1)]
    log.close()


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3)
    assert written(tmp_path, 1) == written(tmp_path / "other", 1)


def test_a_resumed_run_takes_away_what_it_will_make_again(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 3, 4)
    log = RunLog(tmp_path, resume_step=2, tensorboard=False)
    assert [r["step"] for r in log.records] == [1, 2] == [r["step"] for r in lines(tmp_path)]
    log.write(record(3))
    log.close()
    assert lines(tmp_path) == [record(1), record(2), record(3)]
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]  # nothing temporary is left


@given(st.data())
def test_a_kill_at_any_byte_costs_one_record_at_most(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = written(folder, 1, 2, 3)
        cut = data.draw(st.integers(0, len(content)))
        (folder / "log.jsonl").write_bytes(content[:cut])
        log = RunLog(folder, resume_step=10, tensorboard=False)
        n_whole = content[:cut].count(b"\n")
        assert log.records == [record(step) for step in range(1, n_whole + 1)]
        log.write(record(11))
        log.close()
        assert lines(folder) == log.records


@given(st.binary(max_size=60))
def test_damage_is_dropped(damage: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = written(folder, 1, 2)
        (folder / "log.jsonl").write_bytes(content + damage + b"\n" + content)
        log = RunLog(folder, resume_step=2, tensorboard=False)
        log.close()
        assert log.records[:2] == log.records[-2:] == [record(1), record(2)]
        assert lines(folder) == log.records


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    log = RunLog(tmp_path, resume_step=None, tensorboard=False)
    log.write({"step": 1, "loss": math.nan, "grad_norm": math.inf, "lr": 1.0})
    log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": null, "grad_norm": null, "lr": 1.0}\n'
    assert log.records == lines(tmp_path)


class FullDisk:
    """A file on a disk that takes `room` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        n: int = self.file.write(content[: self.room])
        self.room -= n
        return n

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_full_disk_is_told_once_and_loses_nothing_when_room_returns(tmp_path: Path) -> None:
    notes: list[str] = []
    log = RunLog(tmp_path, resume_step=None, tensorboard=False, note=notes.append)
    log.write(record(1))
    disk = FullDisk(log._file, room=10)
    log._file = disk  # type: ignore[assignment]
    log.write(record(2))
    log.write(record(3))
    (note,) = notes
    assert "No space left on device" in note and "training goes on" in note
    disk.room = 1 << 20
    log.write(record(4))
    log.close()
    assert lines(tmp_path) == log.records == [record(step) for step in (1, 2, 3, 4)]


def test_by_default_the_note_is_a_warning(tmp_path: Path) -> None:
    log = RunLog(tmp_path, resume_step=None, tensorboard=False)
    log._file = FullDisk(log._file, room=0)  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="the log cannot be written"):
        log.write(record(1))
    log.close()


def test_a_log_that_cannot_be_begun_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r"log\.jsonl: cannot be written"):
        RunLog(tmp_path, resume_step=None)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_reads_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for resume_step, steps in ((None, (1, 2, 3)), (2, (3, 4))):
        log = RunLog(tmp_path, resume_step=resume_step)
        for step in steps:
            log.write(record(step) | {"loss": step / (2 if resume_step else 1)})
        log.write({"step": steps[-1], "val_loss": 2.5, "loss": math.nan})
        log.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["loss", "lr", "val_loss"]
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 1.5), (4, 2.0)]


def test_without_tensorboard_the_lines_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    log = RunLog(tmp_path, resume_step=None)
    log.write(record(1))
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
