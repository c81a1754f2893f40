"""What to read: paths, folders and globs become a list of sources, each with its kind."""

from __future__ import annotations

import glob
import hashlib
import importlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cutaway.data.shards import META, is_prepared
from cutaway.errors import DataError

__all__ = ["Source", "extra", "find_sources", "reason"]

# Suffixes that are no text, in a folder.
BINARY = frozenset(
    f".{suffix}"
    for suffixes in (
        ("png", "jpg", "jpeg", "gif", "bmp", "tif", "tiff", "webp", "ico", "heic", "psd"),
        ("mp3", "wav", "flac", "ogg", "m4a", "mp4", "mov", "avi", "mkv", "webm"),
        ("pdf", "doc", "docx", "xls", "xlsx", "ppt", "pptx", "odt", "epub", "mobi", "djvu"),
        ("zip", "tar", "tgz", "7z", "rar", "xz", "bz2", "lz4", "jar", "whl", "iso", "dmg", "deb", "rpm"),
        ("pyc", "pyo", "pyd", "so", "a", "o", "obj", "lib", "dll", "dylib", "exe", "class", "wasm", "mo"),
        ("bin", "safetensors", "gguf", "ggml", "pt", "pth", "ckpt", "onnx", "pkl", "pickle", "joblib"),
        ("h5", "npy", "npz", "arrow", "feather", "orc", "db", "sqlite", "sqlite3", "ttf", "otf", "woff", "woff2"),
    )
    for suffix in suffixes
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of text.

    `name` is its path below what the user named, so that a corpus is the same corpus in another place.
    """

    path: Path
    name: str
    kind: Literal["text", "jsonl", "parquet"]
    packing: Literal["", ".gz", ".zst"]
    n_bytes: int  # on disk

    def digest(self) -> str:
        """A hash of the bytes on disk.

        Raises:
            DataError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "blake2b").hexdigest()
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read ({reason(error)}): check its rights, or leave it out"
            ) from error


def find_sources(paths: str | Path | Sequence[str | Path]) -> tuple[list[Source], list[str]]:
    """The files that the paths stand for, and notes on what was left out.

    A folder gives every file below it, sorted by path; names that begin with a dot, and names of well-known binary
    kinds, are left out. What the user names itself is read as text whatever its name. A file that several paths
    reach is read once.

    Raises:
        DataError: no such path, a path that cannot be read, or a folder without text.
    """
    found: dict[str, Source] = {}
    binary: Counter[str] = Counter()
    for given in [paths] if isinstance(paths, str | Path) else paths:
        n_text = 0
        for path, name, named in _files(Path(given).expanduser()):
            if path.name == META and is_prepared(path.parent):
                raise DataError(
                    f"{path.parent} holds tokens, not text: name it alone to train on them, or the folder of all parts"
                )
            if not named and (suffix := _suffixes(path)[0]) in BINARY:
                binary[suffix] += 1
            else:
                n_text += 1
                found.setdefault(os.path.realpath(path), _source(path, name))
        if not n_text:
            skipped = f" (binary kinds are not read: {_listed(binary)})" if binary else ""
            raise DataError(f"{given} holds no text files{skipped}: give a folder or files of text")
    if not found:
        raise DataError("no paths were given: name files or folders of text")
    notes = [f"files of binary kinds left out: {_listed(binary)}"] if binary else []
    return list(found.values()), notes


def extra(module: str, what: str) -> Any:
    """A module of the `train` extra, imported when a file asks for it.

    Raises:
        DataError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"{what} needs the package {package}: pip install 'cutaway[train]'") from error


def reason(error: BaseException) -> str:
    """Why the system refused, in its words, on one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())[:200] or type(error).__name__


def _files(given: Path) -> Iterator[tuple[Path, str, bool]]:
    """Path, name, and whether the user named the file itself."""
    if given.is_dir():
        for path in _walk(given):
            yield path, path.relative_to(given).as_posix(), False
    elif given.is_file():
        yield given, given.name, True
    elif glob.has_magic(str(given)):
        matches = sorted(glob.glob(str(given), recursive=True))  # noqa: PTH207 (it leaves hidden names out)
        if not matches:
            raise DataError(f"no file matches {given}: check the pattern")
        for match in map(Path, matches):
            for path in _walk(match) if match.is_dir() else [match]:
                yield path, path.relative_to(_fixed_part(given)).as_posix(), False
    elif given.exists():
        raise DataError(f"{given} is no regular file, and texts are read more than once: save it to a file first")
    else:
        raise DataError(f"{given} does not exist: check the path")


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read ({reason(error)}): check its rights, or leave it out")

    files: list[Path] = []
    been: set[str] = set()
    for here, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        been.add(os.path.realpath(here))
        # A link to a folder around this one would go on for ever.
        folders[:] = [name for name in folders if name[0] != "." and os.path.realpath(Path(here, name)) not in been]
        files += [path for name in names if name[0] != "." and (path := Path(here, name)).is_file()]
    return iter(sorted(files, key=lambda path: path.relative_to(folder).parts))


def _fixed_part(pattern: Path) -> Path:
    """The folders of a glob before its first wildcard."""
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _source(path: Path, name: str) -> Source:
    suffix, packing = _suffixes(path)
    kind: Literal["text", "jsonl", "parquet"] = (
        "jsonl" if suffix == ".jsonl" else "parquet" if suffix == ".parquet" else "text"
    )
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read ({reason(error)}): check its rights, or leave it out") from error
    return Source(path=path, name=name, kind=kind, packing=packing, n_bytes=n_bytes)


def _suffixes(path: Path) -> tuple[str, Literal["", ".gz", ".zst"]]:
    """The suffixes of the content and of the packing, as in `a.jsonl.gz`."""
    name = path.name.lower()
    packing: Literal["", ".gz", ".zst"] = ".gz" if name.endswith(".gz") else ".zst" if name.endswith(".zst") else ""
    return Path(name.removesuffix(packing)).suffix, packing


def _listed(binary: Counter[str]) -> str:
    return ", ".join(f"{n} {suffix}" for suffix, n in sorted(binary.items()))
