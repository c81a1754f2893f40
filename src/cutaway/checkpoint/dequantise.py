"""GGUF's block formats, from their bytes to floats.

A quantised tensor is a row of blocks. Each block holds its own scale (and, in some formats, its own minimum)
and a few bits per element. The simple formats hold 32 elements under one half-precision scale; the K formats
hold 256 elements in groups of 16 or 32, and each group scales the block's scale by a small integer.

Every function here takes one block per row. The order of its multiplications is part of the format: the
same products and sums, in the same order, give the same float32 bits as other readers of the format.

Source: ggml, ggml-common.h (layouts) and ggml-quants.c (arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import BFloat16, Float16, Float32, UInt8
from torch import Tensor

__all__ = ["BLOCK_FORMATS", "TYPE_NAMES", "BlockFormat"]


def _half(blocks: UInt8[Tensor, "N n_bytes"], at: int) -> Float32[Tensor, "N 1"]:
    """The half-precision number at byte `at` of every block."""
    return blocks[:, at : at + 2].view(torch.float16).float()


def _nibbles(packed: UInt8[Tensor, "N *groups n"]) -> UInt8[Tensor, "N *groups 2*n"]:
    """Four-bit numbers: the low halves of all bytes first, then the high halves."""
    # The bytes are a slice of wider blocks: a packed copy lets the two passes below run at full vector width.
    packed = packed.contiguous()
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _bit_planes(packed: UInt8[Tensor, "N *groups n"], n_bits: int) -> UInt8[Tensor, "N *groups planes n"]:
    """Fields of `n_bits` bits: plane p is the p-th field, from the low end, of every byte."""
    shifts = torch.arange(0, 8, n_bits, dtype=torch.uint8, device=packed.device)[:, None]
    return (packed.unsqueeze(-2) >> shifts) & ((1 << n_bits) - 1)


def f32(blocks: UInt8[Tensor, "N 4"]) -> Float32[Tensor, "N 1"]:
    return blocks.view(torch.float32)


def f16(blocks: UInt8[Tensor, "N 2"]) -> Float16[Tensor, "N 1"]:
    return blocks.view(torch.float16)


def bf16(blocks: UInt8[Tensor, "N 2"]) -> BFloat16[Tensor, "N 1"]:
    return blocks.view(torch.bfloat16)


def q8_0(blocks: UInt8[Tensor, "N 34"]) -> Float32[Tensor, "N 32"]:
    """scale 2 | 32 signed bytes."""
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def q4_0(blocks: UInt8[Tensor, "N 18"]) -> Float32[Tensor, "N 32"]:
    """scale 2 | nibbles 16, where 8 means zero."""
    return _nibbles(blocks[:, 2:]).float().sub_(8).mul_(_half(blocks, 0))


def q4_1(blocks: UInt8[Tensor, "N 20"]) -> Float32[Tensor, "N 32"]:
    """scale 2 | minimum 2 | nibbles 16."""
    return _nibbles(blocks[:, 4:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _five_bits(high: UInt8[Tensor, "N 4"], low: UInt8[Tensor, "N 16"]) -> UInt8[Tensor, "N 32"]:
    """Nibbles under a fifth bit each: element i has bit i of the four bytes `high`, read low end first."""
    fifth = _bit_planes(high.unsqueeze(-1), 1).flatten(1)
    return _nibbles(low) | (fifth << 4)


def q5_0(blocks: UInt8[Tensor, "N 22"]) -> Float32[Tensor, "N 32"]:
    """scale 2 | fifth bits 4 | nibbles 16, where 16 means zero."""
    return _five_bits(blocks[:, 2:6], blocks[:, 6:]).float().sub_(16).mul_(_half(blocks, 0))


def q5_1(blocks: UInt8[Tensor, "N 24"]) -> Float32[Tensor, "N 32"]:
    """scale 2 | minimum 2 | fifth bits 4 | nibbles 16."""
    return _five_bits(blocks[:, 4:8], blocks[:, 8:]).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _group_scales_and_minima(
    blocks: UInt8[Tensor, "N n_bytes"],
) -> tuple[Float32[Tensor, "N 8 1"], Float32[Tensor, "N 8 1"]]:
    """What Q4_K and Q5_K begin with: scale 2 | minimum's scale 2 | eight 6-bit scales and minima in 12 bytes.

    The first four bytes hold scales 0-3 in their low six bits, the next four minima 0-3. Scales and minima
    4-7 have their low four bits in the last four bytes, their high two in the bits left over above 0-3.
    """
    scales, minima, low_bits = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((scales & 63, (low_bits & 15) | ((scales >> 2) & 48)), dim=1)
    minima = torch.cat((minima & 63, (low_bits >> 4) | ((minima >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scales).unsqueeze(-1), (_half(blocks, 2) * minima).unsqueeze(-1)


def q4_k(blocks: UInt8[Tensor, "N 144"]) -> Float32[Tensor, "N 256"]:
    """scales and minima 16 | nibbles 128, in four runs of 32 bytes for 64 elements."""
    scales, minima = _group_scales_and_minima(blocks)
    quants = _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return quants.float().mul_(scales).sub_(minima).flatten(1)


def q5_k(blocks: UInt8[Tensor, "N 176"]) -> Float32[Tensor, "N 256"]:
    """scales and minima 16 | fifth bits 32, one bit plane per group | nibbles 128 as in Q4_K."""
    scales, minima = _group_scales_and_minima(blocks)
    quants = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | (_bit_planes(blocks[:, 16:48], 1) << 4)
    return quants.float().mul_(scales).sub_(minima).flatten(1)


def q6_k(blocks: UInt8[Tensor, "N 210"]) -> Float32[Tensor, "N 256"]:
    """nibbles 128 | bits five and six 64 | 16 signed group scales | scale 2; 32 means zero."""
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 16, 16)
    high = _bit_planes(blocks[:, 128:192].view(-1, 2, 32), 2).view(-1, 16, 16)
    scales = (_half(blocks, 208) * blocks[:, 192:208].view(torch.int8)).unsqueeze(-1)
    return (low | (high << 4)).float().sub_(32).mul_(scales).flatten(1)


class BlockFormat(NamedTuple):
    """How one tensor type is stored, and the function that turns its blocks into floats of type `dtype`."""

    n_elements: int
    n_bytes: int
    decode: Callable[[Tensor], Tensor]
    dtype: torch.dtype = torch.float32


BLOCK_FORMATS: dict[str, BlockFormat] = {
    "F32": BlockFormat(1, 4, f32),
    "F16": BlockFormat(1, 2, f16, torch.float16),
    "BF16": BlockFormat(1, 2, bf16, torch.bfloat16),
    "Q8_0": BlockFormat(32, 34, q8_0),
    "Q4_0": BlockFormat(32, 18, q4_0),
    "Q4_1": BlockFormat(32, 20, q4_1),
    "Q5_0": BlockFormat(32, 22, q5_0),
    "Q5_1": BlockFormat(32, 24, q5_1),
    "Q4_K": BlockFormat(256, 144, q4_k),
    "Q5_K": BlockFormat(256, 176, q5_k),
    "Q6_K": BlockFormat(256, 210, q6_k),
}

# By the number in the file. It also holds the types that have no reader here, so that an error can name them;
# importing the gguf package for its table would cost 0.1 s.
TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
