"""Runs that stop and go on: a resumed run is an uninterrupted one, and says so."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import cutaway
from cutaway.data import prepare
from cutaway.errors import TrainingError
from cutaway.train.loop import Loop
from cutaway.train.run import train
from support import runs
from support.runs import Watching, weights

TEXT = runs.bottles(120)
TINY = runs.TINY | {"tokenizer": "chars"}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_a_resumed_run_is_an_uninterrupted_one(text: Path, tmp_path: Path) -> None:
    """R2: with dropout, 10 steps at once against 5 + resume + 5 and against resumes of 2 steps, bit for bit."""
    options = TINY | {"steps": 10, "dropout": 0.1, "eval_every": 5, "accumulate": 2}
    whole = Watching()
    train(text, out=tmp_path / "whole", display=whole, **options)
    for stops in ([5], [2, 4, 6, 8]):
        out = tmp_path / f"parts-{len(stops)}"
        losses, vals = [], []
        for i, stop in enumerate([*stops, 0]):
            part = Watching(stop_at=stop)
            given = {"texts": text, **options} if i == 0 else {"resume": True}
            result = train(out=out, display=part, **given)
            assert result.end == ("stopped" if stop else "finished")
            losses += part.losses
            vals += part.vals
        assert losses == whole.losses
        assert vals == whole.vals
        assert torch.equal(weights(out), weights(tmp_path / "whole"))
        logged = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        assert [r["step"] for r in logged if "loss" in r] == list(range(1, 11))


def test_resuming_a_finished_run_changes_nothing(text: Path, tmp_path: Path) -> None:
    first = train(text, out=tmp_path / "run", **TINY, steps=3)
    before = weights(tmp_path / "run")
    again = train(out=tmp_path / "run", resume=True)
    assert (again.step, again.end, again.best_loss) == (3, "finished", first.best_loss)
    assert torch.equal(weights(tmp_path / "run"), before)


def test_a_run_without_a_checkpoint_resumes_from_its_beginning(text: Path, tmp_path: Path) -> None:
    """A kill before the first checkpoint leaves run.json alone."""
    train(text, out=tmp_path / "whole", **TINY, steps=4)
    out = tmp_path / "run"
    train(text, out=out, **TINY, steps=4)
    for step in out.glob("step-*"):
        step.rename(tmp_path / step.name)
    assert train(out=out, resume=True).step == 4
    assert torch.equal(weights(out), weights(tmp_path / "whole"))


@pytest.mark.parametrize("harm", ["half", "empty", "gone"])
def test_a_damaged_newest_checkpoint_is_said_and_passed_over(text: Path, tmp_path: Path, harm: str) -> None:
    """R4: the newest file cut to half, emptied or gone: resume says so and goes on from the one before."""
    out = tmp_path / "run"
    train(text, out=out, **TINY, steps=6, save_every=2, eval_every=100, val_fraction=0.0)
    before = weights(out)
    newest = max(out.glob("step-*"))
    (shard,) = newest.glob("state/*.safetensors")
    if harm == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2] if harm == "half" else b"")
    (out / ".partial-step-00000008").mkdir()  # what a kill may leave
    seen = Watching()
    train(out=out, resume=True, display=seen)
    assert any("damaged" in note and newest.name in note for note in seen.notes)
    assert any("step-00000004" in note for note in seen.notes)
    assert torch.equal(weights(out), before)
    assert not list(out.glob(".partial-*"))


def test_all_checkpoints_damaged_is_an_error(text: Path, tmp_path: Path) -> None:
    train(text, out=tmp_path / "run", **TINY, steps=2)
    for path in (tmp_path / "run").glob("step-*/state.json"):
        path.write_text("{}")
    with pytest.raises(TrainingError, match="no whole checkpoint"):
        train(out=tmp_path / "run", resume=True)


def test_a_resumed_run_says_what_is_left(text: Path, tmp_path: Path) -> None:
    first, second = Watching(stop_at=3), Watching()
    train(text, out=tmp_path / "run", display=first, **TINY, steps=4)
    result = train(out=tmp_path / "run", resume=True, display=second)
    assert (result.end, second.plan.n_made) == ("finished", 3)
    whole = second.plan.n_flops / (second.plan.peak * second.plan.share)
    assert second.plan.seconds == pytest.approx(whole / 4)
    with pytest.raises(TrainingError, match="steps = 2: the run has made 4 already"):
        train(out=tmp_path / "run", resume=True, steps=2)
    assert train(out=tmp_path / "run", resume=True).step == 4


def test_a_wish_to_stop_that_comes_with_the_last_step_finds_a_finished_run(text: Path, tmp_path: Path) -> None:
    assert train(text, out=tmp_path / "run", display=Watching(stop_at=3), **TINY, steps=3).end == "finished"


def test_a_wish_to_stop_is_heard_while_the_output_is_written(text: Path, tmp_path: Path) -> None:
    """What a signal's handler prints then is refused by Python."""

    class Writing(Watching):
        def note(self, text: str) -> None:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    result = train(text, out=tmp_path / "run", display=Writing(stop_at=2), **TINY, steps=4)
    assert (result.end, result.step) == ("stopped", 2)


def test_patience_ends_a_run_early(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For good: resumed it makes no further step, until it is given more patience."""
    monkeypatch.setattr(Loop, "evaluate", lambda self, stream: 1.0)
    result = train(text, out=tmp_path / "run", **TINY, steps=50, eval_every=1, patience=3)
    assert (result.end, result.step, result.best_step) == ("early", 4, 1)
    again = train(out=tmp_path / "run", resume=True)
    assert (again.end, again.step) == ("early", 4)
    again = train(out=tmp_path / "run", resume=True, patience=5)
    assert (again.end, again.step) == ("early", 6)


def test_a_run_from_a_model_killed_before_its_first_checkpoint_starts_from_that_model_again(
    text: Path, tmp_path: Path
) -> None:
    train(text, out=tmp_path / "first", **TINY, steps=30)
    first = Watching()
    options = {"from_model": str(tmp_path / "first"), "steps": 2, "batch_size": 4, "compile": "off", "sample_every": 0}
    train(text, out=tmp_path / "run", display=first, **options)
    for step in (tmp_path / "run").glob("step-*"):
        step.rename(tmp_path / step.name)
    again = Watching()
    train(out=tmp_path / "run", resume=True, display=again)
    assert again.losses == first.losses


def test_a_damaged_checkpoint_does_not_count_as_kept(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = TINY | {"val_fraction": 0.0, "eval_every": 100}
    train(text, out=out, **options, steps=8, save_every=4)
    (max(out.glob("step-*")) / "model.safetensors").write_bytes(b"")
    train(out=out, resume=True, keep=1, save_every=1, steps=6)
    assert [p.name for p in out.glob("step-*")] == ["step-00000006"]
    cutaway.load(out)


def test_tokens_that_were_made_anew_are_not_taken_for_the_old(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("something else entirely. " * 40)
    prepare(text, folder=tmp_path / "tokens", tokenizer="bytes")
    options = {name: value for name, value in TINY.items() if name != "tokenizer"}
    train(tmp_path / "tokens", out=tmp_path / "run", **options, steps=2)
    shutil.rmtree(tmp_path / "tokens")
    prepare(other, folder=tmp_path / "tokens", tokenizer="bytes")
    with pytest.raises(TrainingError, match="other texts by now"):
        train(out=tmp_path / "run", resume=True, steps=4)


class HangingUp(Watching):
    """Raises SIGHUP twice at step 2, as a shell and the system do when a terminal is closed."""

    def step(self, record: dict[str, Any]) -> None:
        super().step(record)
        if record["step"] == 2:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no terminals that hang up")
def test_a_terminal_that_goes_away_saves_first(text: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGHUP)
    result = train(text, out=tmp_path / "run", display=HangingUp(), **TINY, steps=4)
    assert (result.end, result.step) == ("stopped", 2)
    assert signal.getsignal(signal.SIGHUP) is before
    assert train(out=tmp_path / "run", resume=True).end == "finished"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no terminals that hang up")
def test_under_nohup_a_run_outlives_its_terminal(text: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = train(text, out=tmp_path / "run", display=HangingUp(), **TINY, steps=4)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (result.end, result.step) == ("finished", 4)
