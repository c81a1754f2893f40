"""Many processes compute what one does: losses, gradients, weights; and each goes on with what the others saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import cutaway
from cutaway.train.run import train
from support.runs import TINY, bottles, weights

OPTIONS = TINY | {
    "n_layers": 2,
    "batch_size": 8,
    "accumulate": 2,
    "eval_windows": 5,
    "eval_every": 3,
    "save_every": 3,
    "keep": 9,
}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(bottles(60))
    return path


def launched(n: int, *argv: str | Path) -> subprocess.CompletedProcess[str]:
    """A script or module in n processes on this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*torchrun, *map(str, argv)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def torchrun(n: int, *arguments: str | Path, **options: Any) -> str:
    """The run by the command line in n processes; what it printed."""
    flags = [f for name, value in options.items() for f in (f"--{name.replace('_', '-')}", str(value))]
    done = launched(n, "-m", "cutaway", "train", *arguments, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(out: Path) -> list[float]:
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [r.get("loss", r.get("val_loss")) for r in records if "loss" in r or "val_loss" in r]


def names(out: Path) -> set[str]:
    """Every tensor in the files of the last checkpoint."""
    return {name for file in (out / "step-00000006").rglob("*.safetensors") for name in load_file(file)}


@pytest.mark.parametrize(("n", "parallel"), [(2, "sharded"), (2, "data"), (4, "sharded")])
def test_many_are_as_one(text: Path, tmp_path: Path, n: int, parallel: str) -> None:
    """Contract 8: the loss within 1e-6 relative; with AdamW's first steps the gradient shows in the weights. R1: files
    have the names of a network that nothing is wrapped around."""
    options = OPTIONS | {"steps": 6, "optimizer": "adamw", "precision": "fp32"}
    train(text, out=tmp_path / "one", **options)
    printed = torchrun(n, text, **options, out=tmp_path / "many", parallel=parallel)
    assert printed.count("step 6/6") == printed.count("finished after 6 steps") == 1  # one process prints
    assert names(tmp_path / "many") == names(tmp_path / "one")
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)
    torch.testing.assert_close(weights(tmp_path / "many"), weights(tmp_path / "one"), atol=1e-5, rtol=1e-5)


def test_muon_sharded_is_muon_whole(text: Path, tmp_path: Path) -> None:
    options = OPTIONS | {"steps": 3, "optimizer": "muon", "precision": "fp32"}
    train(text, out=tmp_path / "one", **options)
    torchrun(2, text, **options, out=tmp_path / "many", parallel="sharded")
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)  # it rounds to bf16 inside


def test_saved_by_two_resumed_by_one_and_back(text: Path, tmp_path: Path) -> None:
    options = OPTIONS | {"optimizer": "adamw", "precision": "fp32"}
    train(text, out=tmp_path / "whole", **options, steps=9)
    out = tmp_path / "run"
    torchrun(2, text, **options, out=out, steps=9, parallel="sharded")
    keep_until(out, 3)
    train(out=out, resume=True)  # one goes on from what two saved
    keep_until(out, 6)
    torchrun(2, resume=out)  # and two from what one saved
    assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-6)
    torch.testing.assert_close(weights(out), weights(tmp_path / "whole"), atol=1e-5, rtol=1e-5)


def keep_until(out: Path, last: int) -> None:
    """As if the run had been killed after this step's checkpoint."""
    for step in out.glob("step-*"):
        if int(step.name.removeprefix("step-")) > last:
            step.rename(out / f".partial-{step.name}")


def test_sharded_in_bf16_the_saved_model_is_the_exact_one(text: Path, tmp_path: Path) -> None:
    """What evaluation leaves gathered in bf16 is not what is written."""
    out = tmp_path / "run"
    torchrun(2, text, **OPTIONS | {"steps": 3, "precision": "bf16"}, out=out, parallel="sharded")
    (step,) = out.glob("step-*")
    model = cutaway.load(step)
    assert model.dtype is torch.float32
    shards = [load_file(path) for path in sorted(step.glob("state/*"))]
    for name, parameter in model.network.named_parameters():
        parts = [shard[name] for shard in shards if name in shard]
        assert torch.equal(torch.cat(parts), parameter), name


DECIDE = """
import os, sys
import torch
from cutaway.data import prepare
from cutaway.train import plan, settle
from cutaway.train.config import TrainConfig
from cutaway.train.distributed import joined

rank = int(os.environ["RANK"])
settle.available_memory = lambda device: (10**12, 10**4)[rank]
settle._has_compiler = lambda: True
plan.matrix_peak = lambda dtype, device: (10**12, 10**3)[rank]
with joined(torch.device("cpu")) as ranks:
    config = TrainConfig(tokenizer="bytes", n_layers=1, n_heads=2, d_model=16, n_ctx=8, batch_size=4)
    settled = settle.settle(config, prepare(sys.argv[1], tokenizer="bytes"), None, ranks)
    print(f"{rank} has {settle.room(ranks)}: sharded {settled.sharded}, compiled {settled.compiled}\\n", end="")
"""


def test_processes_that_measure_differently_decide_alike(text: Path, tmp_path: Path) -> None:
    """Where one has too little memory all shard, and where one is fast enough none compiles."""
    script = tmp_path / "decide.py"
    script.write_text(DECIDE)
    done = launched(2, script, text)
    decided = "has 5000: sharded True, compiled False"
    assert sorted(done.stdout.splitlines()) == [f"0 {decided}", f"1 {decided}"], done.stderr[-3000:]


def test_an_error_is_told_once_on_a_machine(text: Path, tmp_path: Path) -> None:
    done = launched(2, "-m", "cutaway", "train", text, "--out", tmp_path / "run", "--batch-size", "3")
    assert done.returncode == 1
    assert done.stderr.count("error: batch_size = 3 does not split over 2 processes") == 1
