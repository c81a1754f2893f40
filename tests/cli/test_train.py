"""cutaway train and cutaway eval, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.commands import Commands, start

TINY = (
    *("--n-layers", "1", "--n-heads", "2", "--d-model", "16", "--n-ctx", "8", "--batch-size", "4"),
    *("--compile", "off", "--sample-every", "0"),
)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(4):
        lines = (f"{i}: {n} bottles hang on the wall, take {n % 7} down.\n" for n in range(20))
        (folder / f"{i}.txt").write_text("".join(lines))
    return folder


def test_a_run_is_told_and_can_be_used(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    code, out, err = cutaway("train", text, "--out", tmp_path / "run", *TINY, "--steps", "4", "--tokenizer", "bytes")
    assert code == 0, err
    for said in (
        "tokens in 4 documents",
        "parameters",
        "FLOP",
        "step 4/4",
        "validation loss",
        "finished after 4 steps",
    ):
        assert said in out, out
    assert (tmp_path / "run" / "curve.svg").read_text().startswith("<?xml")
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = cutaway("run", "-m", tmp_path / "run", "7 bot", "--max-tokens", "3", "--seed", "0")
    assert code == 0, err
    code, out, err = cutaway("eval", tmp_path / "run", text, "--json")
    result = json.loads(out)
    assert result["n_documents"] == 4
    assert 4 < result["loss"] < 7
    code, out, _ = cutaway("eval", tmp_path / "run", text)
    assert "bits per byte" in out


def test_json_is_all_that_is_printed(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    code, out, err = cutaway("train", text, "--out", tmp_path / "run", *TINY, "--steps", "2", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["step"] == 2


def test_parts_made_apart_are_trained_together(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "first"
    assert cutaway("train", text, "--out", tokenizer, *TINY, "--steps", "1", "--tokenizer", "bytes")[0] == 0
    (model,) = tokenizer.glob("step-*")
    for part in ("0/2", "1/2"):
        arguments = ("--out", tmp_path / "tokens", "--shard", part, "--tokenizer", model)
        code, out, err = cutaway("train", text, *arguments)
        assert code == 0, err
        assert "tokens of 2 documents" in out
    code, out, err = cutaway("train", tmp_path / "tokens", "--out", tmp_path / "run", *TINY, "--steps", "2")
    assert code == 0, err
    assert "in 4 documents" in out


def test_tokens_that_are_gone_are_made_again_or_missed(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert cutaway("train", text, "--out", run, *TINY, "--steps", "2")[0] == 0
    shutil.rmtree(tmp_path / "cache")
    code, _, err = cutaway("train", "--resume", run, "--steps", "3")
    assert code == 0, err
    shutil.rmtree(tmp_path / "cache")
    (text / "0.txt").write_text("another text altogether, and a little longer than eight tokens")
    assert "other texts by now" in cutaway.error("train", "--resume", run, "--steps", "4")


def test_what_cannot_be_is_refused(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    for arguments in ((), (text,), (text, "--resume", tmp_path), ("--out", tmp_path, "--resume", tmp_path)):
        code, _, err = cutaway("train", *arguments)
        assert (code, "TEXTS and --out" in err) == (2, True), err
    assert cutaway("train", text, "--out", tmp_path / "a", "--shard", "zero/2")[0] == 2
    assert cutaway("train", text, "--out", tmp_path / "a", "--shard", "0/2", "--steps", "3")[0] == 2
    assert "does not exist" in cutaway.error("train", tmp_path / "nothing", "--out", tmp_path / "run")
    assert "optimizer" in cutaway.error("train", text, "--out", tmp_path / "run", "--optimizer", "sgd")


def test_a_parts_folder_is_told_without_detours(cutaway: Commands, text: Path, tmp_path: Path) -> None:
    arguments = ("--out", tmp_path / "texts" / ".." / "tokens", "--shard", "0/2", "--tokenizer", "bytes")
    code, out, err = cutaway("train", text, *arguments)
    assert code == 0, err
    assert out.startswith(f"{(tmp_path / 'tokens').resolve()}/shard-0-of-2: ")


def test_a_run_that_nobody_reads_saves_first(text: Path, tmp_path: Path) -> None:
    """As behind `| head`: the step that was made last is kept, and the code is that of a broken pipe."""
    run = tmp_path / "run"
    process = start("train", text, "--out", run, *TINY, "--steps", "20000", stdout=subprocess.PIPE)
    assert process.stdout is not None
    while b"step 1/20,000" not in process.stdout.readline():
        assert process.poll() is None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, b"")
    (step,) = run.glob("step-*/state.json")
    done = json.loads(step.read_text())["position"]["step"]
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert done == [r["step"] for r in records if "loss" in r][-1] < 20000


def test_a_run_that_nobody_reads_at_all_makes_no_step(text: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("train", text, "--out", tmp_path / "run", *TINY, "--steps", "20000", stdout=writer)
    os.close(writer)
    assert (process.wait(timeout=120), process.communicate()[1]) == (141, b"")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_first(text: Path, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = start("train", text, "--out", run, *TINY, "--steps", "100000", stdout=subprocess.PIPE)
    log = run / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > 3):
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert b"stopped, and saved" in out
    (step,) = run.glob("step-*/state.json")
    done = json.loads(step.read_text())["position"]["step"]
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert done == records[-1]["step"]
