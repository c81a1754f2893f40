"""Named tensors on disk, read one at a time: what a loader needs of any file format."""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway.checkpoint.files import read_json
from cutaway.errors import CheckpointError, DamagedFileError, UnsupportedError

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@runtime_checkable
class Weights(Protocol):
    """The tensors of a checkpoint. `dtype` is the type most of their bytes are stored in, or decode to."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self, name: str) -> Tensor:
        """One tensor; valid until the next read."""
        ...


class SafetensorsFile:
    """One .safetensors file, memory-mapped; pages are handed back as soon as a tensor has been copied out.

    Raises:
        DamagedFileError: not a safetensors file, or one whose header contradicts its size.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt"):  # the library validates names, types, shapes and offsets
                pass
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (SafetensorError, ValueError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else "empty"
            raise DamagedFileError(f"{path}: no valid safetensors file ({reason}): fetch it again") from error
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
        n_header = int.from_bytes(self._map[:8], "little")
        header = json.loads(self._map[8 : 8 + n_header])
        header.pop("__metadata__", None)
        self.entries = header
        self._data = 8 + n_header
        self.shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}

    def read(self, name: str) -> Tensor:
        """A view of the mapped bytes. Valid until the next read, which hands its pages back."""
        entry = self.entries[name]
        if entry["dtype"] not in FLOATS:
            raise UnsupportedError(
                f"{self.path}: {name} is stored as {entry['dtype']}; Cutaway reads {', '.join(FLOATS)}: "
                "convert the checkpoint to one of them"
            )
        dtype = FLOATS[entry["dtype"]]
        start, stop = (self._data + offset for offset in entry["data_offsets"])
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
        if start == stop:
            return torch.empty(entry["shape"], dtype=dtype)
        aligned = start % dtype.itemsize == 0
        source = self._map if aligned else bytearray(self._map[start:stop])
        count = (stop - start) // dtype.itemsize
        return torch.frombuffer(source, dtype=dtype, count=count, offset=start if aligned else 0).view(entry["shape"])


class SafetensorsFolder:
    """All .safetensors files of a folder: one, or the shards its index names.

    Raises:
        CheckpointError: no weights, a missing shard, or weights only in a format that could run code.
        DamagedFileError: an index that is no index, or that contradicts its shards.
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, SafetensorsFile] = {}
        for path in _shards(folder):
            file = SafetensorsFile(path)
            for name in file.shapes:
                if name in self._files:
                    other = self._files[name].path.name
                    raise DamagedFileError(f"{folder}: tensor {name} is in both {other} and {path.name}")
                self._files[name] = file
        self.shapes = {name: file.shapes[name] for name, file in self._files.items()}
        n_bytes: Counter[str] = Counter()
        for name, file in self._files.items():
            start, stop = file.entries[name]["data_offsets"]
            n_bytes[file.entries[name]["dtype"]] += stop - start
        self.dtype = FLOATS[max(FLOATS, key=lambda kind: n_bytes[kind])]

    def read(self, name: str) -> Tensor:
        """One tensor; valid until the next read."""
        return self._files[name].read(name)


def _shards(folder: Path) -> list[Path]:
    # The whole file before an index, as transformers has it: where it saves over shards, it leaves their index behind.
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        return [_member(folder, name) for name in sorted(set(_weight_map(index).values()))]
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth"))
    if pickled:
        raise CheckpointError(
            f"{folder}: only {pickled[0]} holds weights, and loading a pickle can run code in it: "
            "save the model as safetensors (transformers does by default) and load that"
        )
    raise CheckpointError(f"{folder}: no *.safetensors file: download the weights too")


def _weight_map(index: Path) -> dict[str, str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(v, str) for v in table.values()):
        raise DamagedFileError(f"{index}: weight_map must map tensor names to file names: fetch the index again")
    return table


def _member(folder: Path, name: str) -> Path:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise DamagedFileError(f"{folder}: the index names {name[:80]!r}, which is no .safetensors file of this folder")
    if not (folder / name).is_file():
        raise CheckpointError(f"{folder}: shard {name} is named by the index but missing: download it too")
    return folder / name


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Clean name → stored name: the prefixes that torch.compile and data-parallel wrappers leave are dropped."""
    clean: dict[str, str] = {}
    for stored in names:
        name = stored
        while name.startswith(("_orig_mod.", "module.")):
            name = name.split(".", 1)[1]
        if name in clean:
            raise DamagedFileError(f"tensor {name} is stored twice, as {clean[name]} and {stored}")
        clean[name] = stored
    return clean
