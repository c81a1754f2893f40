"""Block formats: values that can be checked by eye, then the gguf library as the judge, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.checkpoint.dequantise import BLOCK_FORMATS, TYPE_NAMES

QUANTISED = [name for name, block in BLOCK_FORMATS.items() if block.n_elements > 1]
# Where the half-precision numbers of a block start.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def decode(type_name: str, block: bytes) -> list[float]:
    blocks = torch.tensor([list(block)], dtype=torch.uint8)
    return BLOCK_FORMATS[type_name].decode(blocks)[0].tolist()


def random_blocks(type_name: str, n_blocks: int, seed: int) -> np.ndarray:
    """Random bits everywhere, except that every half-precision number is finite."""
    blocks = np.random.default_rng(seed).integers(0, 256, (n_blocks, BLOCK_FORMATS[type_name].n_bytes), dtype=np.uint8)
    for at in HALVES.get(type_name, (0,)):
        high = blocks[:, at + 1]
        high[high & 0x7C == 0x7C] &= 0xBF
    return blocks


def test_floats_keep_their_stored_type():
    assert decode("F32", np.float32(1.1).tobytes()) == [np.float32(1.1)]
    assert decode("F16", half(1.5)) == [1.5]
    assert decode("BF16", bytes([0x80, 0x3F])) == [1.0]
    assert [BLOCK_FORMATS[name].dtype for name in ("F32", "F16", "BF16", "Q4_K")] == [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]


def test_q8_0_is_scale_times_signed_bytes():
    assert decode("Q8_0", half(0.5) + bytes([2, 255, 128, 127] + [0] * 28)) == [1, -0.5, -64, 63.5] + [0] * 28


def test_q4_0_holds_low_nibbles_first_around_eight():
    assert decode("Q4_0", half(2) + bytes([0xF0] * 16)) == [-16] * 16 + [14] * 16


def test_q4_1_adds_its_minimum():
    assert decode("Q4_1", half(2) + half(-3) + bytes([0x21] * 16)) == [-1] * 16 + [1] * 16


def test_q5_0_takes_the_fifth_bit_of_element_i_from_bit_i():
    values = decode("Q5_0", half(1) + bytes([0b10, 0, 0, 0x80]) + bytes(16))
    assert values == [-16, 0] + [-16] * 29 + [0]


def test_q5_1_adds_its_minimum():
    values = decode("Q5_1", half(1) + half(10) + bytes([1, 0, 0, 0]) + bytes([0x43] * 16))
    assert values == [29] + [13] * 15 + [14] * 16


# Scales 1, 2, 3, 4 and 5, 22, 39, 56; minima 6, 7, 8, 9 and 10, 27, 44, 61 for the eight groups.
# The high two bits of numbers 4-7 lie above numbers 0-3, their low four in the last four bytes.
GROUP_SCALES = bytes(
    [
        *(1, 2 | 1 << 6, 3 | 2 << 6, 4 | 3 << 6),
        *(6, 7 | 1 << 6, 8 | 2 << 6, 9 | 3 << 6),
        0xA5,
        0xB6,
        0xC7,
        0xD8,
    ]
)
SCALES, MINIMA = [1, 2, 3, 4, 5, 22, 39, 56], [6, 7, 8, 9, 10, 27, 44, 61]


def test_q4_k_scales_eight_groups_of_32():
    values = decode("Q4_K", half(0.5) + half(2) + GROUP_SCALES + bytes([0x31] * 128))
    quants = [1, 3] * 4
    assert values[::32] == [0.5 * s * q - 2 * m for s, q, m in zip(SCALES, quants, MINIMA, strict=True)]
    assert all(len(set(values[i : i + 32])) == 1 for i in range(0, 256, 32))


def test_q5_k_takes_the_fifth_bit_of_group_g_from_bit_g():
    values = decode("Q5_K", half(1) + half(0) + GROUP_SCALES + bytes([0b100] + [0] * 31) + bytes([0x31] * 128))
    assert values[64] == 3 * (1 + 16)
    assert values[65] == 3 * 1
    assert values[::32][:2] == [1 * 1, 2 * 3]


def test_q6_k_scales_sixteen_groups_of_16():
    scales = [1, -1] * 8
    values = decode("Q6_K", bytes([0x21] * 128) + bytes([0b11100100] * 64) + bytes(s % 256 for s in scales) + half(2))
    # Each half of 128 has the nibbles 1 1 2 2 and the high bits 0 1 2 3, in runs of 32.
    quants = [1 - 32, 17 - 32, 34 - 32, 50 - 32] * 2
    assert values[::16] == [2 * s * quants[i // 2] for i, s in enumerate(scales)]


@pytest.mark.parametrize("type_name", QUANTISED)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_blocks=st.integers(1, 50))
def test_equals_the_library_bit_for_bit(type_name: str, seed: int, n_blocks: int):
    blocks = random_blocks(type_name, n_blocks, seed)
    expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[type_name])
    actual = BLOCK_FORMATS[type_name].decode(torch.from_numpy(blocks)).numpy()
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"])
def test_equals_the_library_on_weights_it_quantised(type_name: str):
    block, kind = BLOCK_FORMATS[type_name], GGMLQuantizationType[type_name]
    weights = np.random.default_rng(0).normal(0, 0.02, (64, 320)).astype(np.float32)
    stored = gguf.quants.quantize(weights, kind).view(np.uint8)
    actual = block.decode(torch.from_numpy(stored).view(-1, block.n_bytes)).float().view(64, 320).numpy()
    np.testing.assert_array_equal(actual, gguf.quants.dequantize(stored, kind))
    # 4 bits over ±4 sigma: half a step is 0.0053, and the library's scale may miss one end by a step.
    assert np.abs(actual - weights).max() < 0.012


@pytest.mark.parametrize("type_name", BLOCK_FORMATS)
def test_sizes_equal_the_library_s(type_name: str):
    block = BLOCK_FORMATS[type_name]
    assert (block.n_elements, block.n_bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]


def test_type_numbers_equal_the_library_s():
    library = {int(kind): kind.name for kind in GGMLQuantizationType}
    assert {number: library.get(number) for number in TYPE_NAMES} == TYPE_NAMES
