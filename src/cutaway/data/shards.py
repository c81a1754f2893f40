"""Tokens on disk: runs of little-endian integers in files that are mapped, not read, and a description of them."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from cutaway.errors import CheckpointError, DataError
from cutaway.text.tokenizer import Tokenizer

__all__ = [
    "META",
    "VERSION",
    "Prepared",
    "ShardWriter",
    "TokenStream",
    "integer_type",
    "is_prepared",
    "open_prepared",
]

VERSION = 1  # of what `prepare` writes; part of every key
META = "meta.json"
SHARD_TOKENS = 2**27
PART = re.compile(r"shard-(\d+)-of-(\d+)")

Json = dict[str, Any]
Ints = npt.NDArray[np.int64]


class TokenStream:
    """A run of token ids over one or many files, mapped into memory.

    `len` is in tokens; `n_bytes` is the UTF-8 text they stand for, without end tokens.
    """

    def __init__(self, files: Sequence[npt.NDArray[Any]], n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._files = list(files)
        self._ends = list(accumulate(map(len, self._files)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, n: int) -> Ints:
        """The ids of `n` tokens from token `start` on.

        Raises:
            DataError: they are not all there.
        """
        if start < 0 or n < 0 or start + n > len(self):
            raise DataError(f"tokens {start} to {start + n} were asked for; the text has {len(self)}, ask for others")
        ids = np.empty(n, dtype=np.int64)
        i, done = bisect_right(self._ends, start), 0
        while done < n:
            here = start + done - (self._ends[i] - len(self._files[i]))
            part = self._files[i][here : here + n - done]
            ids[done : done + len(part)] = part
            done, i = done + len(part), i + 1
        return ids

    @classmethod
    def joined(cls, streams: Sequence[TokenStream]) -> TokenStream:
        """Several streams, one after the other."""
        return cls([file for stream in streams for file in stream._files], sum(stream.n_bytes for stream in streams))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A corpus as tokens: what training reads."""

    folder: Path
    key: str  # a hash of the texts' bytes and of all that was asked for
    tokenizer: Tokenizer
    train: TokenStream
    val: TokenStream | None
    n_documents: int  # with those held out
    n_val_documents: int  # held out, whole or in part
    notes: list[str] = field(default_factory=list)


class ShardWriter:
    """Writes a stream of ids as files of at most `SHARD_TOKENS` tokens each."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self.folder, self.name, self.dtype = folder, name, dtype
        self.n_bytes = 0  # of text; the caller counts them
        self.files: list[Json] = []
        self._file: BinaryIO | None = None

    def append(self, ids: npt.NDArray[Any]) -> None:
        """Write more ids."""
        ids = ids.astype(self.dtype)
        while len(ids):
            if self._file is None or self.files[-1]["n_tokens"] == SHARD_TOKENS:
                self.close()
                self.files.append({"name": f"{self.name}-{len(self.files):05}.bin", "n_tokens": 0})
                self._file = (self.folder / self.files[-1]["name"]).open("wb")
            part = ids[: SHARD_TOKENS - self.files[-1]["n_tokens"]]
            self._file.write(part.tobytes())
            self.files[-1]["n_tokens"] += len(part)
            ids = ids[len(part) :]

    def close(self) -> None:
        """Have the bytes on the disk."""
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                file, self._file = self._file, None
                file.close()

    def meta(self) -> Json | None:
        """What was written, or None if nothing was."""
        return {"files": self.files, "n_bytes": self.n_bytes} if self.files else None


def integer_type(d_vocab: int) -> np.dtype[Any]:
    """The smallest little-endian integer that holds every id."""
    return np.dtype("u1" if d_vocab <= 2**8 else "<u2" if d_vocab <= 2**16 else "<u4")


def is_prepared(folder: str | Path) -> bool:
    """Whether a folder holds tokens that `prepare` wrote, or parts of them, where others hold texts."""
    places = [Path(folder), *(path for path in Path(folder).glob("shard-*-of-*") if PART.fullmatch(path.name))]
    return any((place / META).is_file() and (place / "tokenizer.json").is_file() for place in places)


def open_prepared(folder: str | Path) -> Prepared:
    """What `prepare` wrote into a folder, or all the parts that `prepare(shard=…)` wrote into folders below it.

    Raises:
        DataError: nothing there, damage, parts that are missing, or parts that do not belong together.
    """
    folder = Path(folder)
    parts = {} if (folder / META).is_file() else _parts(folder)
    if not parts:
        return _open(folder)[0]
    opened = [_open(part) for _, part in sorted(parts.items())]
    first, meta = opened[0]
    for prepared, other in opened[1:]:
        for name, what in (("tokenizer", "another tokenizer"), ("corpus", "other texts or options")):
            if other[name] != meta[name]:
                raise DataError(
                    f"{prepared.folder} was made with {what} than {first.folder}: make all parts with the same"
                )
    held = [prepared.val for prepared, _ in opened if prepared.val is not None]
    return Prepared(
        folder=folder,
        key=meta["corpus"],
        tokenizer=first.tokenizer,
        train=TokenStream.joined([prepared.train for prepared, _ in opened]),
        val=TokenStream.joined(held) if held else None,
        n_documents=sum(prepared.n_documents for prepared, _ in opened),
        n_val_documents=sum(prepared.n_val_documents for prepared, _ in opened),
        notes=list(dict.fromkeys(note for prepared, _ in opened for note in prepared.notes)),
    )


def _parts(folder: Path) -> dict[int, Path]:
    """The folders of all parts, by number."""
    found = {path: match for path in folder.glob("shard-*-of-*") if (match := PART.fullmatch(path.name))}
    totals = {int(match[2]) for match in found.values()}
    if len(totals) > 1:
        raise DataError(
            f"{folder} has parts of {' and of '.join(map(str, sorted(totals)))}: keep those of one division"
        )
    parts = {int(match[1]): path for path, match in found.items()}
    missing = [str(i) for i in range(max(totals, default=0)) if i not in parts]
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} of {max(totals)} parts: prepare number {', '.join(missing[:8])} first"
        )
    return parts


def _open(folder: Path) -> tuple[Prepared, Json]:
    try:
        meta: Json = json.loads((folder / META).read_bytes())
        if meta["version"] != VERSION:
            raise DataError(f"{folder} is of version {meta['version']}, not {VERSION}: prepare the texts again")
        streams = {name: _stream(folder, meta, name) for name in ("train", "val")}
        tokenizer = Tokenizer.from_folder(folder)
        if tokenizer is None:
            raise DataError(f"{folder} has lost its tokenizer.json: prepare the texts again")
        if tokenizer.d_vocab != meta["d_vocab"]:
            raise DataError(
                f"{folder} has a tokenizer of {tokenizer.d_vocab} ids, and tokens of {meta['d_vocab']}: "
                "prepare the texts again"
            )
        prepared = Prepared(
            folder=folder,
            key=meta["key"],
            tokenizer=tokenizer,
            train=streams["train"] or TokenStream([], 0),
            val=streams["val"],
            n_documents=meta["n_documents"],
            n_val_documents=meta["n_val_documents"],
            notes=meta["notes"],
        )
    except FileNotFoundError as error:
        raise DataError(f"{folder} holds no prepared texts ({META} is absent): prepare them first") from error
    except (OSError, ValueError, TypeError, KeyError, CheckpointError) as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{folder} is damaged ({type(error).__name__}: {said}): prepare the texts again") from error
    return prepared, meta


def _stream(folder: Path, meta: Json, name: str) -> TokenStream | None:
    if meta[name] is None:
        return None
    dtype = integer_type(meta["d_vocab"])
    files = []
    for entry in meta[name]["files"]:
        path = folder / Path(entry["name"]).name
        size, needed = path.stat().st_size if path.is_file() else 0, entry["n_tokens"] * dtype.itemsize
        if size != needed or not needed:
            raise DataError(f"{path} has {size} bytes, not the {needed} that were written: prepare the texts again")
        files.append(np.memmap(path, dtype=dtype, mode="r").view(np.ndarray))  # slices of it are cheaper
    return TokenStream(files, meta[name]["n_bytes"])
