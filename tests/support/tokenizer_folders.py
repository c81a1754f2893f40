"""Folders with a tokenizer's files in them, right and wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from cutaway.text.tokenizer import Tokenizer
from support.vocabularies import BYTES


def write(folder: Path, backend: Backend | None = None, **files: Any) -> Path:
    """A folder with a tokenizer.json and other JSON files, named by their stem."""
    folder.mkdir(exist_ok=True)
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def load(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    return tokenizer


LEGACY = {"Ġt": 256, "h e": 257, "e x": 258, "h e x": 259, "<|endoftext|>": 260}


def write_legacy(folder: Path, *lines: str, **files: Any) -> Path:
    write(folder, vocab={**BYTES, **LEGACY}, **files)
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8", newline="")
    return folder
