"""The metadata of a GGUF file's model, each value checked where it is read.

Source: the GGUF specification, ggml docs/gguf.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.errors import CheckpointError, DamagedFileError, UnsupportedError

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


class Metadata(Fields):
    """The metadata of the file's architecture, under the rest of their keys; `used` are tensors read beside them."""

    def __init__(self, file: GGUFFile) -> None:
        prefix = f"{file.architecture}."
        data = {k.removeprefix(prefix): _as_written(v) for k, v in file.metadata.items() if k.startswith(prefix)}
        super().__init__(data, f"{file.path}, {file.architecture}")
        self.file = file
        self.used: list[str] = []

    def same_in_all_layers(self, name: str, default: int | None = None) -> int:
        """A count that the format lets differ from layer to layer."""
        value = self.data.get(name)
        if not isinstance(value, list) or not value:
            return self.count(name, default)
        if any(entry != value[0] for entry in value):
            raise self.unsupported(name, "only layers that are all alike are implemented")
        return Fields({name: value[0]}, self.origin).count(name)

    def window(self) -> int | None:
        """The size of the sliding window; the file says none by 0 or by silence."""
        return self.count(WINDOW) if self.data.get(WINDOW) else None

    def layer_types(self, period: int) -> list[str]:
        """Every `period`-th layer sees its whole prefix; the file may give another period, or each layer's type."""
        n_layers = self.count("block_count")
        if isinstance(self.data.get(PATTERN), list):
            windowed = [bool(entry) for entry in self.items(PATTERN, int, n_layers)]
        else:
            period = self.count(PATTERN, period)
            windowed = [i % period < period - 1 for i in range(n_layers)]
        return ["sliding_attention" if here else "full_attention" for here in windowed]

    def divisors(self, name: str, d_rotary: int) -> list[float]:
        """A tensor of one number for each pair of coordinates that turns."""
        if name not in self.file.tensors:
            raise CheckpointError(f"{self.file.path}: the file has no tensor {name}, which its rotary scaling needs")
        shape = self.file.tensors[name].shape
        if shape != (d_rotary // 2,):
            raise DamagedFileError(f"{self.file.path}: {name} has shape {list(shape)}, {d_rotary // 2} pairs turn")
        self.used.append(name)
        return [float(value) for value in self.file.read(name).tolist()]

    def unsupported(self, name: str, why: str) -> UnsupportedError:
        """The error for a value that is right but not implemented."""
        return UnsupportedError(f"{self.origin}: {name} = {self.data.get(name)!r:.80}: {why}")


def _as_written(value: Any) -> Any:
    """The decimal that a single-precision number came from: 1e-05, not 9.999999747378752e-06."""
    if isinstance(value, float) and abs(value) < 3e38 and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value
