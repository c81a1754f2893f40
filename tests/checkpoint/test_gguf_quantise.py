"""Numbers in GGUF's types: the bytes of the library, and the type that a shape gets."""

from __future__ import annotations

import gguf
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cutaway.checkpoint.gguf_quantise import ENCODERS, q8_0, stored_type

# Nearer to zero the library divides by zero; that end has a test of its own.
FLOATS = st.floats(-3e4, 3e4, width=32).map(lambda x: x if abs(x) > 1e-30 else 0.0)
BLOCKS = arrays.arrays(np.float32, st.integers(1, 3).map(lambda n: (n, 32)), elements=FLOATS)


def test_a_block_by_eye() -> None:
    """127 sets the scale to 1, so numbers are rounded as they stand: halves away from zero, 0.49999997 down."""
    x = np.zeros(32, np.float32)
    x[:8] = [127, 0.5, -0.5, 1.5, -2.5, 2.4, 0.49999997, -126.5]
    stored = q8_0(x)
    assert stored[:2].view(np.float16).tolist() == [1.0]
    assert stored[2:10].view(np.int8).tolist() == [127, 1, -1, 2, -3, 2, 0, -127]
    assert not stored[10:].any()


@given(x=BLOCKS)
def test_bytes_equal_those_of_the_library(x: np.ndarray) -> None:
    """Bit for bit the bytes of the gguf library, which it promises to be those of ggml."""
    expected = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    assert q8_0(x).tobytes() == expected.tobytes()


def test_a_million_numbers_equal_those_of_the_library() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1024, 1024)) * 10.0 ** rng.integers(-30, 4, (1024, 1))).astype(np.float32)
    x[:4] = 0
    assert q8_0(x).tobytes() == gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0).tobytes()
    assert ENCODERS["F16"](x).tobytes() == x.astype(np.float16).tobytes()


def test_numbers_too_near_zero_to_have_a_scale_become_zero() -> None:
    assert not q8_0(np.full(32, 1e-40, np.float32)).any()


def test_types_by_shape() -> None:
    assert stored_type("blk.0.attn_norm.weight", (64,), "Q8_0") == "F32"
    assert stored_type("position_embd.weight", (16, 64), "F16") == "F32"
    assert stored_type("token_embd.weight", (300, 64), "Q8_0") == "Q8_0"
    assert stored_type("token_embd.weight", (300, 48), "Q8_0") == "F16"
