"""A run killed at any moment, five times, ends as one never killed; a full disk loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cutaway.errors import TrainingError
from cutaway.train import state
from cutaway.train.display import Display
from cutaway.train.run import train
from support.runs import TINY, bottles, weights

OPTIONS = TINY | {"steps": 1000, "eval_every": 50, "eval_windows": 2, "save_every": 20, "dropout": 0.1}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(bottles(60))
    return path


def test_killed_at_random_five_times(text: Path, tmp_path: Path) -> None:
    """Contract 7: weights of every checkpoint left at the end are bit for bit those of the run never killed."""
    train(text, out=tmp_path / "whole", **OPTIONS)
    out = tmp_path / "run"
    chance = random.Random(time.time_ns())
    flags = [f for name, value in OPTIONS.items() for f in (f"--{name.replace('_', '-')}", str(value))]
    n_kills, reached = 0, []
    for attempt in range(30):
        given = [str(text), "--out", str(out), *flags] if attempt == 0 else ["--resume", str(out)]
        process = subprocess.Popen(
            [sys.executable, "-m", "cutaway", "train", *given],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if n_kills < 5:
            wait_for_a_step(process, out)
            time.sleep(chance.random() * 0.6)
        if n_kills < 5 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            n_kills += 1
            process.communicate()
            reached.append(max((int(p.name[5:]) for p in state.steps(out)), default=0))
            continue
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said[-2000:]
        break
    assert n_kills == 5, reached
    assert [p.name for p in state.steps(out)] == [p.name for p in state.steps(tmp_path / "whole")]
    for mine, other in zip(state.steps(out), state.steps(tmp_path / "whole"), strict=True):
        assert torch.equal(weights(mine), weights(other))
        for shard in mine.glob("state/*"):
            mine_kept, other_kept = load_file(shard), load_file(other / "state" / shard.name)
            assert mine_kept.keys() == other_kept.keys()
            assert all(torch.equal(kept, other_kept[name]) for name, kept in mine_kept.items())


def wait_for_a_step(process: subprocess.Popen[str], out: Path) -> None:
    """Until this process has written to the log, so that a kill falls into its training and not into its imports."""
    log = out / "log.jsonl"
    began = log.stat().st_mtime_ns if log.exists() else 0
    while process.poll() is None and (not log.exists() or log.stat().st_mtime_ns == began):
        time.sleep(0.005)


def test_a_full_disk_loses_nothing_that_was_saved(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: a checkpoint that does not fit is said; the run goes on. At its end it is an error."""

    class Notes(Display):
        notes: list[str] = []  # noqa: RUF012

        def note(self, text: str) -> None:
            self.notes.append(text)

    options = OPTIONS | {"steps": 20, "save_every": 5, "eval_every": 100, "val_fraction": 0.0}
    seal, n_saves = state._seal, iter(range(100))

    def full(partial: Path, position: state.Position) -> None:
        if next(n_saves) in broken:
            raise OSError(28, "No space left on device")
        seal(partial, position)

    monkeypatch.setattr(state, "_seal", full)
    broken = {1}
    seen = Notes()
    train(text, out=tmp_path / "run", display=seen, **options)
    assert any("step 10 could not be saved" in note and "No space left" in note for note in seen.notes)
    assert [p.name for p in state.steps(tmp_path / "run")] == ["step-00000020", "step-00000015"]
    n_saves, broken = iter(range(100)), {3}
    with pytest.raises(TrainingError, match=r"step 20 could not be saved .*saved there: step-00000015"):
        train(text, out=tmp_path / "other", **options)
    assert not list((tmp_path / "other").glob(".partial-*"))
    monkeypatch.undo()
    train(out=tmp_path / "other", resume=True)
    assert torch.equal(weights(tmp_path / "other"), weights(tmp_path / "run"))
