"""Loops and the threads that run them: kept on disk, across a fork, called from everywhere at once."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

import cutaway
from cutaway.nn import few_rows

team = pytest.importorskip("cutaway.nn.team", reason="this build of torch has another OpenMP", exc_type=ImportError)


FORK = """
import os, sys, torch
from cutaway.nn import few_rows, linear
assert "numba" not in sys.modules
torch.set_num_threads(2)
torch.set_grad_enabled(False)
layer, x = linear.Linear(64, 64, bias=False), torch.ones(1, 64)
layer.weight.fill_(1)
assert few_rows.linear_applies(x, layer.weight, None) and (layer(x) == 64).all()
child = os.fork()
right = bool((layer(x) == 64).all())
if child == 0:
    os._exit(0 if right and not few_rows.linear_applies(x, layer.weight, None) else 3)
assert right and few_rows.linear_applies(x, layer.weight, None)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(program: str, package: Path, **environment: str) -> None:
    """In a process of its own: what crashes or hangs there must not do so here."""
    environment = os.environ | {"PYTHONPATH": str(package)} | environment
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    """It computes by torch's operations; the parent goes on as before. Nothing loads numba before the first row."""
    run(FORK, Path(cutaway.__file__).parents[1])


DOUBLE = """
from numba import carray
from cutaway.nn import loops

@loops.loop(1)
def double(arguments):
    x = loops.numbers(carray(arguments, 2)[1], 1, loops.FP32)
    x[0] += x[0]
"""


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Gives one small loop, imported anew by each call."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    path = tmp_path / "package" / "small.py"
    path.parent.mkdir()
    path.write_text(DOUBLE)
    return lambda: runpy.run_path(str(path))["double"]


@pytest.fixture
def doubled(double: Callable[[], Any]) -> Callable[[], int]:
    """Imports the loop and runs it; whether a compiled one was found on disk."""

    def load_and_run() -> int:
        loop, x = double(), torch.tensor([21.0])
        loop(1, x.data_ptr())
        assert x.tolist() == [42.0]
        return loop._compiled.cache_hits

    return load_and_run


@pytest.mark.parametrize("n_kept", [0, 0.5, 0.99])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_loop_is_compiled_again(
    suffix: str, n_kept: float, doubled: Callable[[], int], tmp_path: Path
) -> None:
    assert [doubled(), doubled()] == [0, 1]
    (kept,) = tmp_path.rglob(f"*.{suffix}")
    kept.write_bytes(kept.read_bytes()[: int(n_kept * kept.stat().st_size)])
    assert doubled() == 0


def test_a_package_nobody_may_write_to(
    doubled: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops are kept in the user's cache, or nowhere if there is none. A file stands where a folder would be."""
    for path in (tmp_path / "package" / "__pycache__", tmp_path / "nobody"):
        path.touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [doubled(), doubled()] == [0, 1]
    assert list((tmp_path / "home").rglob("*.nbi"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    assert [doubled(), doubled()] == [0, 0]


DAMAGED = """
import torch
from cutaway.nn import few_rows
torch.set_grad_enabled(False)
loops = few_rows.loops()
for dtype in few_rows.DTYPES:
    new, old = torch.ones(2, 1, 1, 1, 3, dtype=dtype), torch.zeros(2, 1, 1, 2, 3, dtype=dtype)
    few_rows.append(*new, *old, torch.tensor([1]))
    assert old.tolist() == [[[[[0] * 3, [1] * 3]]]] * 2
few_rows.add(torch.ones(1, 3), torch.ones(1, 3))
assert [f._compiled.cache_hits for f in (loops.append_fp32, loops.append_bf16, loops.add_fp32)] == [0, 0, 1]
"""


def test_damaged_loops_of_the_package(tmp_path: Path) -> None:
    """One cut short, one empty; another is still found. In a copy of the package, with a copy of what it keeps."""
    with torch.no_grad():
        few_rows.add(torch.ones(1, 3), torch.ones(1, 3))
    kept = few_rows.loops().add_fp32._compiled._cache.cache_path
    if kept is None:
        pytest.skip("this machine lets numba keep nothing")
    shutil.copytree(Path(cutaway.__file__).parent, tmp_path / "cutaway", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "cutaway" / "nn" / "__pycache__"
    folder.mkdir()
    for file in Path(kept).glob("loops.*.nb[ic]"):
        shutil.copy2(file, folder)
    for file in folder.glob("loops.append_fp32*.nbi"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for file in folder.glob("loops.append_bf16*.nbc"):
        file.write_bytes(b"")
    run(DAMAGED, tmp_path, NUMBA_CACHE_DIR="")


def test_a_loop_called_first_from_four_threads_is_compiled_once(
    double: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second compilation would take the place of the first, whose instructions another thread may be running."""
    loop, compiled, together, original = double(), [], Barrier(4), team.cfunc
    monkeypatch.setattr(team, "cfunc", lambda *a, **options: compiled.append(1) or original(*a, **options))
    xs = torch.full((4, 1), 21.0)

    def work(i: int) -> None:
        together.wait()
        loop(1, xs[i].data_ptr())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert xs.flatten().tolist() == [42.0] * 4
    assert compiled == [1]
