"""GGUF files written by hand, byte by byte."""

from __future__ import annotations

import struct


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, length: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + values


def tensor(name: str, dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


WEIGHT = tensor("w")
ARCHITECTURE = entry("general.architecture", 8, string("llama"))
UINT32, STRING, ARRAY = 4, 8, 9


def gguf_file(
    *,
    entries: list[bytes] = [ARCHITECTURE],  # noqa: B006
    tensors: list[bytes] = [WEIGHT],  # noqa: B006
    data: bytes = bytes(32),
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_entries: int | None = None,
) -> bytes:
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_entries is None else n_entries,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data
