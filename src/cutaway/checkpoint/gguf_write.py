"""A network written as a GGUF file, for llama.cpp and whatever reads its files.

Source: the GGUF specification, ggml docs/gguf.md (version 3); llama.cpp's converter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from cutaway.checkpoint.dequantise import BLOCK_FORMATS, TYPE_NAMES
from cutaway.checkpoint.files import replacing, writing
from cutaway.checkpoint.gguf import GGUFFile
from cutaway.checkpoint.gguf_describe import Description, describe
from cutaway.checkpoint.gguf_layout import gguf_layout
from cutaway.checkpoint.gguf_quantise import ENCODERS, stored_type
from cutaway.checkpoint.layout import Change, foreign_parts, same
from cutaway.checkpoint.weights import without_wrappers
from cutaway.errors import ConfigError, UnsupportedError
from cutaway.network import Transformer
from cutaway.text.gguf_vocabulary import tokenizer_fields, tokenizer_fields_of_file, unsaid
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

__all__ = ["Written", "gguf_dtype", "save_gguf"]

DTYPES = {"f32": "F32", "float32": "F32", "fp32": "F32", "f16": "F16", "float16": "F16", "fp16": "F16", "q8_0": "Q8_0"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q8_0": 7}  # llama.cpp's words for what most of a file is stored in
TYPE_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}
ALIGNMENT = 32
CHUNK_ELEMENTS = 1 << 20  # a multiple of every block's size


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a file holds: the type of its matrices, and `notes` of what it could not say."""

    dtype: str
    notes: list[str]


def gguf_dtype(name: str) -> str:
    """The tensor type by its name.

    Raises:
        ConfigError: one that is not written.
    """
    if name.lower() not in DTYPES:
        raise ConfigError(f"dtype = {name!r}: a GGUF file is written in f32, f16 or q8_0")
    return DTYPES[name.lower()]


def save_gguf(
    network: Transformer,
    path: Path,
    *,
    tokenizer: Tokenizer | IdTokenizer,
    dtype: str | None = None,
    source: Path | None = None,
) -> Written:
    """Write one file that holds config, tokenizer and weights.

    Norms, biases and the position table stay F32; in a Q8_0 file, rows that are no multiple of 32 long become F16.
    The file is written beside its final name, flushed and renamed; nothing is written before all is known to fit.

    Args:
        dtype: f32, f16 or q8_0; None changes no number.
        source: where the model came from. A GGUF file's tokenizer goes over as it stands there.
    Raises:
        UnsupportedError: an architecture or a tokenizer that llama.cpp does not have under gpt2 or llama, or weights
            that the type cannot hold.
        CheckpointError: the file cannot be written.
    """
    first = next(iter(network.parameters()))
    wanted = gguf_dtype(dtype) if dtype is not None else "F16" if first.dtype == torch.float16 else "F32"
    description = describe(network.config)
    reader = tokenizer if isinstance(tokenizer, Tokenizer) else None
    vocabulary = _vocabulary(reader, source, network.config.d_vocab)
    entries = list(_entries(network, description, wanted))
    metadata = {
        "general.architecture": description.architecture,
        "general.type": "model",
        "general.name": path.stem,
        "general.file_type": FILE_TYPES[wanted],
        "general.quantization_version": 2,
        **{f"{description.architecture}.{key}": value for key, value in description.metadata.items()},
        **vocabulary,
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(_header(metadata, entries))
            for entry in entries:
                file.write(bytes(-file.tell() % ALIGNMENT))
                _write_tensor(file, entry)
            file.write(bytes(-file.tell() % ALIGNMENT))
    return Written(dtype=wanted.lower(), notes=unsaid(reader) if reader is not None else [])


def _vocabulary(tokenizer: Tokenizer | None, source: Path | None, d_vocab: int) -> dict[str, Any]:
    if tokenizer is not None and source is not None and source.is_file():
        with GGUFFile(source) as file:
            return tokenizer_fields_of_file(file.metadata, d_vocab)
    return tokenizer_fields(tokenizer, d_vocab)


# --- tensors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One tensor of the file: our rows, and what is done to them on the way."""

    name: str
    rows: Tensor
    change: Change
    kind: str

    @property
    def n_bytes(self) -> int:
        block = BLOCK_FORMATS[self.kind]
        return self.rows.numel() // block.n_elements * block.n_bytes


def _entries(network: Transformer, description: Description, wanted: str) -> Iterator[_Entry]:
    stored = dict(network.named_parameters())
    parameters = {name: stored[wrapped].detach() for name, wrapped in without_wrappers(stored).items()}
    for name, divisors in description.divisors.items():
        yield _Entry(name=name, rows=torch.tensor(divisors), change=same, kind="F32")
    layers, kinds = range(network.config.n_layers), ("weight", "bias")
    parts = "ffn_gate" if description.separate else "attn_qkv"
    there = {f"blk.{i}.{parts}.{kind}" for i in layers for kind in kinds}
    layout = gguf_layout(parameters, network.config, there, rope_pairs=description.separate)
    for ours, part in foreign_parts(layout):
        rows = parameters[ours][part.rows]
        kind = stored_type(part.theirs, tuple(rows.shape), wanted)
        yield _Entry(name=part.theirs, rows=rows, change=part.to_theirs, kind=kind)


def _write_tensor(file: BinaryIO, entry: _Entry) -> None:
    """The tensor's bytes; beside one reordered copy of it, less than 20 MB is held."""
    for chunk in entry.change(entry.rows).reshape(-1).split(CHUNK_ELEMENTS):
        try:
            encoded = ENCODERS[entry.kind](chunk.float().cpu().numpy())
        except OverflowError as error:
            raise UnsupportedError(
                f"{entry.name} holds {error}, which {entry.kind} cannot: choose dtype f32"
            ) from error
        file.write(encoded.data)


# --- the header --------------------------------------------------------------------------------------------


def _header(metadata: Mapping[str, Any], entries: list[_Entry]) -> bytes:
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(entries), len(metadata))]
    for key, value in metadata.items():
        kind, packed = _packed(value)
        parts += [_string(key), struct.pack("<I", kind), packed]
    offset = 0
    for entry in entries:
        dims = tuple(entry.rows.shape)[::-1]  # the fastest axis first
        parts += [
            _string(entry.name),
            struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPE_NUMBERS[entry.kind], offset),
        ]
        offset += entry.n_bytes + -entry.n_bytes % ALIGNMENT
    return b"".join(parts)


def _packed(value: Any) -> tuple[int, bytes]:
    """A value's type number and its bytes. Whole numbers alone are unsigned, in lists signed, as in llama.cpp's own."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
        case [int(), *_]:
            return 9, struct.pack("<IQ", 5, len(value)) + np.array(value, "<i4").tobytes()
        case [float(), *_]:
            return 9, struct.pack("<IQ", 6, len(value)) + np.array(value, "<f4").tobytes()
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(_string, value))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
