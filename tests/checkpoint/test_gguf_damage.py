"""Bad GGUF files: one named error each, before any large allocation."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cutaway.checkpoint.gguf import GGUFFile, TensorInfo
from cutaway.errors import DamagedFileError, SourceError, UnsupportedError
from support.gguf_bytes import ARCHITECTURE, ARRAY, STRING, UINT32, array, entry, gguf_file, string, tensor

HUGE = 2**63 - 1
NESTED = array(ARRAY, 1) * 4 + array(UINT32, 0)

DAMAGED = {
    "empty": (b"", "the file is empty"),
    "shorter than the magic": (b"GG", "needs 8 B at byte 0, the header may reach byte 2"),
    "shorter than the counts": (
        gguf_file()[:23],
        "the pair of counts needs 16 B at byte 8, the header may reach byte 23",
    ),
    "magic": (gguf_file(magic=b"PK\x03\x04"), r"starts with b'PK\\x03\\x04', a GGUF file with b'GGUF'"),
    "tensor count": (gguf_file(n_tensors=HUGE), f"{HUGE} tensors and 1 metadata entries, at most 65536 of each"),
    "entry count": (gguf_file(n_entries=2**64 - 1), f"1 tensors and {2**64 - 1} metadata entries, at most 65536"),
    "one tensor too many": (gguf_file(n_tensors=2, tensors=[tensor("w")] + [b""] * 9), "tensor ''"),
    "key length": (
        gguf_file(entries=[struct.pack("<Q", HUGE), ARCHITECTURE], n_entries=1),
        f"key of metadata entry 0 needs {HUGE} B at byte 32",
    ),
    "key encoding": (
        gguf_file(entries=[entry(b"a\xff", UINT32, bytes(4))]),
        "entry 0 is not UTF-8 at byte 33",
    ),
    "key twice": (gguf_file(entries=[ARCHITECTURE] * 2), "metadata 'general.architecture' appears twice"),
    "value type": (gguf_file(entries=[entry("k", 13, bytes(4))]), "metadata 'k' has the value type 13"),
    "value type of an array": (gguf_file(entries=[entry("k", ARRAY, array(99, 0))]), "value type 99"),
    "string length": (
        gguf_file(entries=[entry("k", STRING, struct.pack("<Q", HUGE))]),
        f"metadata 'k' needs {HUGE} B",
    ),
    "string encoding": (
        gguf_file(entries=[entry("k", STRING, string(b"\xc3\x28"))]),
        "'k' is not UTF-8 at byte",
    ),
    "array length": (
        gguf_file(entries=[entry("k", ARRAY, array(UINT32, HUGE))]),
        f"'k' has {HUGE} values, 8388608",
    ),
    "array past the end": (
        gguf_file(entries=[entry("k", ARRAY, array(UINT32, 999))]),
        "'k' needs 3996 B at byte",
    ),
    "strings past the end": (
        gguf_file(entries=[entry("k", ARRAY, array(STRING, 999))]),
        "metadata 'k' needs",
    ),
    "array depth": (gguf_file(entries=[entry("k", ARRAY, NESTED)]), "'k' nests arrays deeper than 4"),
    "no architecture": (gguf_file(entries=[]), "general.architecture is None, not a name"),
    "architecture type": (
        gguf_file(entries=[entry("general.architecture", UINT32, bytes(4))]),
        "general.architecture is 0, not a name",
    ),
    "alignment 0": (
        gguf_file(entries=[ARCHITECTURE, entry("general.alignment", UINT32, bytes(4))]),
        "general.alignment is 0, not a power of two",
    ),
    "alignment 48": (
        gguf_file(entries=[ARCHITECTURE, entry("general.alignment", UINT32, struct.pack("<I", 48))]),
        "general.alignment is 48, not a power of two",
    ),
    "alignment type": (
        gguf_file(entries=[ARCHITECTURE, entry("general.alignment", STRING, string("32"))]),
        "general.alignment is '32', not a power of two",
    ),
    "alignment past the end": (
        gguf_file(entries=[ARCHITECTURE, entry("general.alignment", UINT32, struct.pack("<I", 2**31))]),
        f"tensor 'w' ends at byte {2**31 + 32}, the file has",
    ),
    "tensor name encoding": (
        gguf_file(tensors=[string(b"\xff") + tensor("")[8:]]),
        "name of tensor 0 is not UTF-8",
    ),
    "tensor twice": (gguf_file(tensors=[tensor("w")] * 2), "tensor 'w' appears twice"),
    "0 dimensions": (gguf_file(tensors=[tensor("w", ()), bytes(8)], n_tensors=1), "'w' has 0 dimensions"),
    "5 dimensions": (
        gguf_file(tensors=[tensor("w", (1, 1, 1, 1, 8))]),
        "'w' has 5 dimensions, the format allows 1 to 4",
    ),
    "number of dimensions": (
        gguf_file(tensors=[string("w") + struct.pack("<I", 2**32 - 1) + bytes(20)]),
        f"'w' has {2**32 - 1} dimensions",
    ),
    "dimension of 0": (
        gguf_file(tensors=[tensor("w", (8, 0))]),
        r"'w' has dimensions \[8, 0\], all must be at least 1",
    ),
    "dimension": (gguf_file(tensors=[tensor("w", (HUGE,))]), f"tensor 'w' ends at byte {128 + HUGE * 4}, "),
    "product that wraps to 0": (gguf_file(tensors=[tensor("w", (2**32, 2**32))]), "tensor 'w' ends at byte"),
    "row that is no whole block": (
        gguf_file(tensors=[tensor("w", (33, 32), kind=8)]),
        r"'w' has dimensions \[33, 32\], all must be at least 1 and the first a multiple of 32 \(Q8_0\)",
    ),
    "offset past the end": (
        gguf_file(tensors=[tensor("w", offset=2**62)]),
        f"tensor 'w' ends at byte {2**62 + 160}",
    ),
    "offset near 2^64": (gguf_file(tensors=[tensor("w", offset=2**64 - 32)]), "tensor 'w' ends at byte"),
    "offset off its alignment": (
        gguf_file(tensors=[tensor("w", offset=4)]),
        "'w' has offset 4, not a multiple of 32",
    ),
    "overlap": (
        gguf_file(tensors=[tensor("a", (16,)), tensor("b", offset=32)], data=bytes(64)),
        "tensors 'a' and 'b' overlap at byte",
    ),
    "same place": (gguf_file(tensors=[tensor("a"), tensor("b")]), "tensors 'a' and 'b' overlap at byte"),
    "cut by one byte": (gguf_file()[:-1], "tensor 'w' ends at byte 160, the file has 159 B"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_x15_damage_is_named_before_anything_large_is_allocated(tmp_path: Path, case: str):
    """X15: cut files, offsets past the end, counts and lengths near 2^63."""
    content, message = DAMAGED[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        GGUFFile(path)
        error = None
    except Exception as raised:
        error = raised
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert type(error) is DamagedFileError
    assert re.search(message, str(error))
    assert str(error).startswith(str(path))
    assert "\n" not in str(error)
    assert str(error).endswith("fetch it again")
    assert peak < 1 << 20


def test_the_file_written_by_hand_is_good(tmp_path: Path):
    """Or the cases above would fail for another reason than the one they name."""
    path = tmp_path / "good.gguf"
    for version in (2, 3):
        path.write_bytes(gguf_file(data=np.arange(8, dtype=np.float32).tobytes(), version=version))
        with GGUFFile(path) as file:
            assert file.tensors == {"w": TensorInfo(name="w", shape=(8,), type_name="F32", offset=128, n_bytes=32)}
            assert file.read("w").tolist() == list(range(8))


def test_a_header_may_not_fill_memory(tmp_path: Path):
    """The string lies within the file, which is large but holds nothing."""
    path = tmp_path / "padded.gguf"
    path.write_bytes(gguf_file(entries=[entry("k", STRING, struct.pack("<Q", 2**27))], tensors=[], data=b""))
    os.truncate(path, 2**28)
    with pytest.raises(
        DamagedFileError, match=r"'k' needs 134217728 B at byte 45, the header may reach byte 134217728"
    ):
        GGUFFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gguf_file(version=1), "this GGUF file is version 1"),
        (gguf_file(version=4), "GGUF version 4; versions 2 and 3 can be read"),
        (gguf_file(version=3 << 24), "this GGUF file is big-endian"),
        (
            gguf_file(tensors=[tensor("w", (256,), kind=10)]),
            "tensor 'w' has the type Q2_K; types that can be read: F32",
        ),
        (gguf_file(tensors=[tensor("w", kind=26)]), "tensor 'w' has the type I32"),
        (gguf_file(tensors=[tensor("w", kind=99)]), "tensor 'w' has the type number 99"),
        (
            gguf_file(entries=[ARCHITECTURE, entry("split.count", 2, struct.pack("<H", 3))]),
            "one of 3 parts .* merge them with llama-gguf-split --merge",
        ),
    ],
)
def test_what_is_not_implemented_is_named(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=message):
        GGUFFile(path)


@pytest.mark.parametrize("name", ["absent.gguf", "."])
def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path, name: str):
    with pytest.raises(SourceError, match=r"(No such file|Is a directory).*; give the path of a readable \.gguf file"):
        GGUFFile(tmp_path / name)
