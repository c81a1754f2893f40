"""A tiny model in a folder; and sources apart from the user's own caches and from the network."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from cutaway.checkpoint import sources, wheel
from cutaway.checkpoint.aliases import Wheel
from support.sources import (
    GGUF,
    MEMBER,
    SUBFOLDERS,
    UNWANTED,
    WANTED,
    Hub,
    pin,
    unreachable,
)
from support.tiny import reference_folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    reference_folder(tmp_path / "model", "llama")
    return tmp_path / "model"


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own caches and working folder; a Hub that nobody reaches."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTAWAY_MODEL", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sources, "BUNDLED", tmp_path / "bundled")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def hub(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(tmp_path / "snapshot", WANTED + UNWANTED + SUBFOLDERS)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


@pytest.fixture
def pinned(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """`smollm2` as a tiny wheel in a local folder that stands in for the package index."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_smol-1.0-py3-none-any.whl"
    info = "tiny_smol-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, GGUF)
        archive.writestr("tiny_smol/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-smol\nVersion: 1.0\nRequires-Dist: not-to-be-fetched\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    fake = Wheel(
        project="tiny-smol",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        n_bytes=path.stat().st_size,
        member=MEMBER,
        member_sha256=hashlib.sha256(GGUF).hexdigest(),
        member_n_bytes=len(GGUF),
    )
    pin(monkeypatch, fake)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return fake


@pytest.fixture
def copied(pinned: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """The same, with a copy in pip's place: for what comes after the download."""
    [path] = (tmp_path / "index").iterdir()
    monkeypatch.setattr(wheel, "_download", lambda _, partial, *, progress: Path(shutil.copy(path, partial)))
    return pinned
