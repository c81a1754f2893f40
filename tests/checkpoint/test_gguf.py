"""GGUF files: what a good one gives, and that any other bytes give one named error and no large allocation."""

from __future__ import annotations

import os
import re
import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFEndian
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.checkpoint.gguf import GGUFFile
from cutaway.errors import CutawayError, DamagedFileError, UnsupportedError
from support.gguf_bytes import ARCHITECTURE, ARRAY, STRING, UINT32, array, entry, gguf_file, string, tensor

WEIGHTS = np.linspace(-1, 1, 2 * 64, dtype=np.float32).reshape(2, 64)


def write(path: Path, endianess: GGUFEndian = GGUFEndian.LITTLE) -> Path:
    """A small file by the library's writer: all value types, four tensor types."""
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float64("f64", 0.1)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "Ġthe", "👍", "a\x00b"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, -2.5, 4.0])
    writer.add_array("tokenizer.ggml.token_type", [3, 1, 1, 1])
    writer.add_tensor("f32", WEIGHTS)
    writer.add_tensor("f16", WEIGHTS.astype(np.float16))
    for name in ("BF16", "Q8_0"):
        kind = GGMLQuantizationType[name]
        writer.add_tensor(name.lower(), gguf.quants.quantize(WEIGHTS, kind).view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf")


# --- a good file ---


def test_metadata_has_every_value_with_its_type(small: Path):
    with GGUFFile(small) as file:
        assert file.architecture == "llama"
        assert file.metadata == {
            "general.architecture": "llama",
            "llama.block_count": 2,
            "llama.rope.freq_base": 10000.0,
            "u8": 255,
            "i8": -128,
            "u16": 65535,
            "i16": -32768,
            "u64": 2**64 - 1,
            "i64": -(2**63),
            "f64": 0.1,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.tokens": ["<s>", "Ġthe", "👍", "a\x00b"],
            "tokenizer.ggml.scores": [0.0, -1.0, -2.5, 4.0],
            "tokenizer.ggml.token_type": [3, 1, 1, 1],
        }
        assert file.metadata["tokenizer.ggml.add_bos_token"] is False


def test_x11_a_missing_pre_tokenizer_stays_missing(small: Path):
    """X11: the reader puts no default in its place, so the tokenizer can refuse."""
    with GGUFFile(small) as file:
        assert "tokenizer.ggml.pre" not in file.metadata


def test_tensors_are_listed_in_torch_s_order(small: Path):
    with GGUFFile(small) as file:
        found = [(i.name, i.shape, i.type_name, i.n_bytes) for i in file.tensors.values()]
        assert found == [
            ("f32", (2, 64), "F32", 512),
            ("f16", (2, 64), "F16", 256),
            ("bf16", (2, 64), "BF16", 256),
            ("q8_0", (2, 64), "Q8_0", 136),
        ]
        info = file.tensors["f32"]
        assert small.read_bytes()[info.offset : info.offset + info.n_bytes] == WEIGHTS.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("f32", torch.float32, 0),
        ("f16", torch.float16, 5e-4),
        ("bf16", torch.bfloat16, 4e-3),
        ("q8_0", torch.float32, 5e-3),
    ],
)
def test_read_keeps_the_stored_type_and_outlives_the_file(small: Path, name: str, dtype: torch.dtype, tolerance: float):
    with GGUFFile(small) as file:
        tensor = file.read(name)
    assert tensor.dtype == dtype
    torch.testing.assert_close(tensor.float(), torch.from_numpy(WEIGHTS), atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_read_converts_once_from_the_exact_values(small: Path, name: str, dtype: torch.dtype):
    with GGUFFile(small) as file:
        assert torch.equal(file.read(name, dtype), file.read(name).to(dtype))


def test_read_of_an_unknown_name_is_a_key_error(small: Path):
    with GGUFFile(small) as file, pytest.raises(KeyError, match="missing"):
        file.read("missing")


@pytest.mark.parametrize(("type_name", "shape"), [("F32", (7, 12000)), ("Q4_1", (7, 12000)), ("Q6_K", (3, 25600))])
def test_tensors_longer_than_a_chunk_equal_the_library_s(tmp_path: Path, type_name: str, shape: tuple[int, int]):
    kind = GGMLQuantizationType[type_name]
    n_elements, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    # Bytes below 0x70 make every half and float finite.
    stored = np.random.default_rng(0).integers(0, 0x70, (shape[0], shape[1] // n_elements * n_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "long.gguf", "llama")
    writer.add_tensor("w", stored.view(np.float32) if type_name == "F32" else stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "long.gguf") as file:
        np.testing.assert_array_equal(file.read("w").numpy(), gguf.quants.dequantize(stored, kind).reshape(shape))


@pytest.mark.skipif(sys.platform != "linux", reason="resident file pages are read from /proc")
def test_pages_of_the_file_do_not_stay_in_memory(tmp_path: Path):
    n_bytes = 16 << 20
    path = tmp_path / "large.gguf"
    path.write_bytes(gguf_file(tensors=[tensor("w", dims=(n_bytes // 4,))], data=b""))
    os.truncate(path, path.stat().st_size + n_bytes)

    def resident_file_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssFile:\s+(\d+) kB", status)[1]) * 1024

    with GGUFFile(path) as file:
        before = resident_file_bytes()
        weights = file.read("w")
        assert resident_file_bytes() - before < n_bytes // 8
        assert weights.shape == (n_bytes // 4,)


def test_arrays_nest_and_the_alignment_moves_the_data(tmp_path: Path):
    nested = array(ARRAY, 2, array(UINT32, 1, struct.pack("<I", 7)) + array(STRING, 1, string("x")))
    alignment = entry("general.alignment", UINT32, struct.pack("<I", 256))
    path = tmp_path / "nested.gguf"
    content = gguf_file(entries=[ARCHITECTURE, entry("k", ARRAY, nested), alignment], data=b"")
    path.write_bytes(content + bytes(-len(content) % 256) + bytes(32))
    with GGUFFile(path) as file:
        assert file.metadata["k"] == [[7], ["x"]]
        assert file.tensors["w"].offset == 256


def test_a_big_endian_file_by_the_library_is_named(tmp_path: Path):
    with pytest.raises(UnsupportedError, match="big-endian"):
        GGUFFile(write(tmp_path / "big.gguf", GGUFEndian.BIG))


# --- fuzzing: a named error or a file that can be read whole, and little memory either way ---

fuzz = settings(deadline=None)


def open_and_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with GGUFFile(path) as file:
            for name, info in file.tensors.items():
                assert file.read(name).shape == info.shape
    except CutawayError as error:
        assert isinstance(error, (DamagedFileError, UnsupportedError))
        assert "\n" not in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 21


@fuzz
@given(content=st.binary(max_size=300))
def test_random_bytes(tmp_path: Path, content: bytes):
    open_and_read(tmp_path / "fuzz.gguf", content)


@fuzz
@given(rest=st.binary(max_size=300), n_tensors=st.integers(0, 2), n_entries=st.integers(0, 4))
def test_random_bytes_after_a_good_start(tmp_path: Path, rest: bytes, n_tensors: int, n_entries: int):
    start = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_entries)
    open_and_read(tmp_path / "fuzz.gguf", start + rest)


@settings(fuzz, max_examples=200)
@given(data=st.data())
def test_flipped_and_truncated_bytes_of_a_good_file(small: Path, tmp_path: Path, data: st.DataObject):
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(0, 3), label="flips")):
        at = data.draw(st.integers(0, len(content) - 1), label="byte")
        content[at] = data.draw(st.sampled_from([0, 1, 9, 127, 128, 255]) | st.integers(0, 255), label="value")
    end = data.draw(st.just(len(content)) | st.integers(0, len(content)), label="end")
    open_and_read(tmp_path / "fuzz.gguf", bytes(content[:end]))


def test_every_truncation_of_the_header_is_an_error(small: Path, tmp_path: Path):
    content = small.read_bytes()
    with GGUFFile(small) as file:
        last = max(file.tensors.values(), key=lambda info: info.offset)
    path = tmp_path / "cut.gguf"
    for end in range(0, last.offset + last.n_bytes, 7):
        path.write_bytes(content[:end])
        with pytest.raises(DamagedFileError):
            GGUFFile(path)
