"""A network from a GGUF file: its metadata make the config, its tensors the parameters.

Quantised tensors are turned into floats of the network's type as they are read, a piece at a time; a tensor that
fills a whole parameter becomes it. So beside the network itself hardly more than a part of one tensor is ever held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.checkpoint.dequantise import BLOCK_FORMATS
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_config import read_config
from cutaway.checkpoint.gguf_layout import gguf_layout
from cutaway.checkpoint.load import LoadReport, load_network
from cutaway.network import Transformer

__all__ = ["load_gguf"]

# The inverse frequencies that very old converters wrote for every layer.
BUFFERS = (r"^blk\.\d+\.attn_rot_embd\.weight$",)


def load_gguf(
    file: GGUFFile, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> tuple[Transformer, LoadReport]:
    """The network in an open GGUF file, and what was found there.

    Args:
        dtype: of the parameters; None is the type of the file's matrices, float32 where they are quantised.
    Raises:
        CheckpointError, ConfigError: see the classes.
    """
    reading = read_config(file)
    weights = GGUFWeights(file, dtype)
    layout = gguf_layout(
        reading.family.layout(reading.config), reading.config, file.tensors, rope_pairs=reading.rope_pairs
    )
    report = LoadReport(
        family=reading.family.model_type,
        source=str(file.path),
        stored=", ".join(weights.type_names),
        used=reading.used,
        notes=reading.notes,
    )
    with _one_thread():
        network = load_network(
            weights, reading.config, layout, report, buffers=BUFFERS, dtype=weights.dtype, device=device, owned=True
        )
    return network, report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Loading is many short copies. Shared out, each waits for the slower thread, on a busy machine for long."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


class GGUFWeights:
    """The tensors of a GGUF file, each read into memory of its own: matrices in `dtype`, vectors as they are stored.

    Vectors are small, and what a layout does to them (Gemma's norms stand near 1, the network's near 0) is to
    happen before they are rounded.
    """

    def __init__(self, file: GGUFFile, dtype: torch.dtype | None = None) -> None:
        self._file = file
        self.shapes = {name: info.shape for name, info in file.tensors.items()}
        n_bytes: Counter[str] = Counter()
        for info in file.tensors.values():
            n_bytes[info.type_name] += info.n_bytes
        self.type_names = [name for name, _ in n_bytes.most_common()]
        quantised = any(BLOCK_FORMATS[name].n_elements > 1 for name in self.type_names)
        self.dtype = dtype or (torch.float32 if quantised else BLOCK_FORMATS[self.type_names[0]].dtype)

    def read(self, name: str) -> Float[Tensor, "*shape"]:
        """One tensor."""
        return self._file.read(name, self.dtype if len(self.shapes[name]) > 1 else None)
