"""Floats as a GGUF file stores them: the inverse of `dequantise`, for the types that are written.

Source: ggml, ggml-quants.c (quantize_row_q8_0_ref); the bytes are equal to its.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENCODERS", "stored_type"]

BLOCK = 32  # elements that share a scale in Q8_0


def f32(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Four bytes each, as they are."""
    return x.view(np.uint8)


def f16(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The nearest half-precision number.

    Raises:
        OverflowError: a number that half precision cannot hold.
    """
    return _half(x).view(np.uint8)


def q8_0(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks of 34 bytes: a half-precision scale, and 32 whole numbers from −127 to 127.

    Raises:
        OverflowError: a number that is not finite, or a block whose scale half precision cannot hold.
    """
    blocks = x.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    stored = _half(scales)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    inverse[np.isinf(inverse)] = 0  # all zeros, or so near that the stored scale is zero
    whole = _rounded(blocks * inverse).astype(np.int8)
    return np.concatenate((stored.view(np.uint8), whole.view(np.uint8)), axis=1).reshape(-1)


def _half(x: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    if not np.isfinite(half).all():
        raise OverflowError(f"{float(np.abs(x).max()):g}")
    return half


def _rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """To the nearest whole number, halves away from zero. Adding a half first would round 0.49999997 up."""
    size = np.abs(x)
    whole = np.floor(size)
    return np.copysign(whole + (size - whole >= 0.5), x)


ENCODERS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.uint8]]] = {"F32": f32, "F16": f16, "Q8_0": q8_0}


def stored_type(name: str, shape: tuple[int, ...], wanted: str) -> str:
    """The type of one tensor in a file of `wanted` matrices, as llama.cpp's converter chooses it.

    Vectors and position tables stay F32. Rows that blocks cannot tile become F16.
    """
    if len(shape) < 2 or name == "position_embd.weight":
        return "F32"
    return "F16" if wanted == "Q8_0" and shape[-1] % BLOCK else wanted
