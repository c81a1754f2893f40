"""A GGUF file: its metadata at once, its tensors one by one.

The file is a header (magic, version, two counts), key-value metadata, one entry per tensor (name, dimensions,
type, offset) and the tensors' bytes. Nothing in it is trusted: every length and count is held against the
bytes that are really there before anything is allocated or read.

Source: the GGUF specification, ggml docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import mmap
import os
import reprlib
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.checkpoint.dequantise import BLOCK_FORMATS, TYPE_NAMES
from cutaway.errors import DamagedFileError, SourceError, UnsupportedError

__all__ = ["GGUFFile", "TensorInfo"]

# Far above what real files need (the largest vocabularies make about 2 million values and 20 MB), and low
# enough that a hostile header costs less than 1 GB.
_MAX_HEADER_BYTES = 1 << 27
_MAX_ENTRIES = 1 << 16  # of metadata, and of tensors
_MAX_VALUES = 1 << 23  # in all arrays
_MAX_DEPTH = 4  # of arrays inside arrays
_MAX_DIMS = 4

# The most elements torch works on without waking its thread pool. Larger chunks need a fork and a join per
# operation, thousands in all, and on a busy machine each may wait for a time slice: loading then took twenty
# times as long, not half. A chunk and its temporaries also stay in the cache.
_CHUNK_ELEMENTS = 1 << 15

_SCALAR_CODES = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

_short = reprlib.Repr()  # of what the file says, in messages
_short.maxstring = 80


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    `shape` is in torch's order, the fastest axis last (the file lists it first); `offset` counts from the
    start of the file [B].
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    n_bytes: int


class GGUFFile:
    """An open GGUF file: `metadata`, `architecture`, `tensors` by name, and `read`.

    The whole header is checked on opening. The weights are memory-mapped and stay on disk until `read`.

    Raises:
        SourceError: the file cannot be opened.
        UnsupportedError: version 1, big-endian, one part of several, or a tensor type without a reader.
        DamagedFileError: anything in the header that contradicts the format or the file's size.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                # An empty file cannot be mapped; `open` may also have been given a device of no size.
                if os.fstat(file.fileno()).st_size == 0:
                    raise DamagedFileError(f"{path}: the file is empty; fetch it again")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}; give the path of a readable .gguf file") from error
        try:
            header = _Header(self.path, self._map)
            n_tensors, n_entries = header.counts()
            self.metadata: dict[str, Any] = header.metadata(n_entries)
            self.architecture = header.architecture(self.metadata)
            self.tensors: dict[str, TensorInfo] = header.tensors(n_tensors, self.metadata)
        except Exception:
            self.close()
            raise

    def read(self, name: str, dtype: torch.dtype | None = None) -> Float[Tensor, "*shape"]:
        """One tensor, in memory of its own.

        Beside the result, less than 1 MB is held at a time. Threads may read at once.

        Args:
            dtype: a float type; None keeps the stored one, and makes quantised types float32.
        Raises:
            KeyError: no tensor of this name.
        """
        info = self.tensors[name]
        block = BLOCK_FORMATS[info.type_name]
        out = torch.empty(info.shape, dtype=dtype or block.dtype, device="cpu")
        rows = out.view(-1, block.n_elements)
        n_blocks = _CHUNK_ELEMENTS // block.n_elements
        for first in range(0, len(rows), n_blocks):
            chunk = rows[first : first + n_blocks]
            offset, n_bytes = info.offset + first * block.n_bytes, len(chunk) * block.n_bytes
            stored = np.frombuffer(self._map, np.uint8, n_bytes, offset).copy()
            self._drop_pages(offset, n_bytes)
            chunk.copy_(block.decode(torch.from_numpy(stored).view(-1, block.n_bytes)))
        return out

    def _drop_pages(self, offset: int, n_bytes: int) -> None:
        """Give back the memory of pages that have been read; the system may still cache the file."""
        if hasattr(self._map, "madvise"):
            # The last page stays for the next chunk: dropped and touched again, it would map others along.
            start, end = (at - at % mmap.PAGESIZE for at in (offset, offset + n_bytes))
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Unmap the file; tensors already read stay valid."""
        self._map.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Header:
    """A cursor that reads the header front to back and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0
        self.end = min(len(data), _MAX_HEADER_BYTES)
        self.n_values_left = _MAX_VALUES

    def damaged(self, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}: {what}; the file is truncated or damaged, fetch it again")

    def unsupported(self, what: str, instead: str) -> UnsupportedError:
        return UnsupportedError(f"{self.path}: {what}; {instead}")

    def take(self, n_bytes: int, what: str) -> int:
        """Step over `n_bytes` and return where they start."""
        start = self.at
        if n_bytes > self.end - start:
            raise self.damaged(f"{what} needs {n_bytes} B at byte {start}, the header may reach byte {self.end}")
        self.at = start + n_bytes
        return start

    def unpack(self, codes: str, what: str) -> tuple[Any, ...]:
        codes = f"<{codes}"
        return struct.unpack_from(codes, self.data, self.take(struct.calcsize(codes), what))

    def string(self, what: str) -> str:
        (length,) = self.unpack("Q", what)
        start = self.take(length, what)
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is not UTF-8 at byte {start + error.start}") from error

    def value_type(self, what: str) -> int:
        (kind,) = self.unpack("I", what)
        if kind not in _SCALAR_CODES and kind not in (_STRING, _ARRAY):
            raise self.damaged(f"{what} has the value type {kind}, the last known is {max(_SCALAR_CODES)}")
        return int(kind)

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what, depth + 1)
        return self.unpack(_SCALAR_CODES[kind], what)[0]

    def array(self, what: str, depth: int) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise self.damaged(f"{what} nests arrays deeper than {_MAX_DEPTH}")
        kind = self.value_type(what)
        (length,) = self.unpack("Q", what)
        if length > self.n_values_left:
            raise self.damaged(f"{what} has {length} values, {self.n_values_left} of {_MAX_VALUES} are left")
        self.n_values_left -= length
        if kind in _SCALAR_CODES:
            # The length is at most _MAX_VALUES here, so the format below stays small.
            return list(self.unpack(f"{length}{_SCALAR_CODES[kind]}", what))
        return [self.value(kind, what, depth) for _ in range(length)]

    def counts(self) -> tuple[int, int]:
        """The magic and version checked, the numbers of tensors and of metadata entries returned."""
        magic, version = self.unpack("4sI", "the file's start")
        if magic != b"GGUF":
            raise self.damaged(f"the file starts with {magic!r}, a GGUF file with b'GGUF'")
        if version in (1, 1 << 24, 2 << 24, 3 << 24):
            kind = "version 1" if version == 1 else "big-endian"
            raise self.unsupported(f"this GGUF file is {kind}", "convert the model again with a current llama.cpp")
        if version not in (2, 3):
            raise self.unsupported(f"GGUF version {version}", "versions 2 and 3 can be read")
        n_tensors, n_entries = self.unpack("QQ", "the pair of counts")
        if max(n_tensors, n_entries) > _MAX_ENTRIES:
            raise self.damaged(f"{n_tensors} tensors and {n_entries} metadata entries, at most {_MAX_ENTRIES} of each")
        return n_tensors, n_entries

    def metadata(self, n_entries: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for i in range(n_entries):
            key = self.string(f"the key of metadata entry {i}")
            what = f"metadata {_short.repr(key)}"
            if key in entries:
                raise self.damaged(f"{what} appears twice")
            entries[key] = self.value(self.value_type(what), what)
        return entries

    def architecture(self, metadata: dict[str, Any]) -> str:
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self.damaged(f"general.architecture is {_short.repr(architecture)}, not a name")
        n_parts = metadata.get("split.count", 1)
        if n_parts not in (0, 1):
            raise self.unsupported(
                f"the file is one of {_short.repr(n_parts)} parts (split.count)",
                "merge them with llama-gguf-split --merge",
            )
        return architecture

    def tensors(self, n_tensors: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        entries = [self.tensor_entry(i) for i in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment is {_short.repr(alignment)}, not a power of two")
        data_start = -(-self.at // alignment) * alignment
        infos: dict[str, TensorInfo] = {}
        for name, dims, kind, offset in entries:
            if name in infos:
                raise self.damaged(f"tensor {_short.repr(name)} appears twice")
            if offset % alignment:
                raise self.damaged(f"tensor {_short.repr(name)} has offset {offset}, not a multiple of {alignment}")
            infos[name] = self.tensor_info(name, dims, kind, data_start + offset)
        self.check_overlap(infos)
        return infos

    def tensor_entry(self, i: int) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string(f"the name of tensor {i}")
        what = f"tensor {_short.repr(name)}"
        (n_dims,) = self.unpack("I", what)
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.damaged(f"{what} has {n_dims} dimensions, the format allows 1 to {_MAX_DIMS}")
        dims = self.unpack(f"{n_dims}Q", what)
        kind, offset = self.unpack("IQ", what)
        return name, dims, kind, offset

    def tensor_info(self, name: str, dims: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        what = f"tensor {_short.repr(name)}"
        type_name = TYPE_NAMES.get(kind, f"number {kind}")
        if type_name not in BLOCK_FORMATS:
            raise self.unsupported(
                f"{what} has the type {type_name}", f"types that can be read: {', '.join(BLOCK_FORMATS)}"
            )
        block = BLOCK_FORMATS[type_name]
        if min(dims) < 1 or dims[0] % block.n_elements:
            raise self.damaged(
                f"{what} has dimensions {list(dims)}, all must be at least 1 and the first a multiple"
                f" of {block.n_elements} ({type_name})"
            )
        n_bytes = prod(dims) // block.n_elements * block.n_bytes
        if offset + n_bytes > len(self.data):
            raise self.damaged(f"{what} ends at byte {offset + n_bytes}, the file has {len(self.data)} B")
        return TensorInfo(name=name, shape=dims[::-1], type_name=type_name, offset=offset, n_bytes=n_bytes)

    def check_overlap(self, infos: dict[str, TensorInfo]) -> None:
        placed = sorted(infos.values(), key=lambda info: info.offset)
        for before, after in pairwise(placed):
            if after.offset < before.offset + before.n_bytes:
                raise self.damaged(
                    f"tensors {_short.repr(before.name)} and {_short.repr(after.name)} overlap at byte {after.offset}"
                )
