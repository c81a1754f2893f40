"""Bytes on disk to documents."""

from __future__ import annotations

import codecs
import gzip
import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cutaway.data import documents
from cutaway.data.documents import Reader
from cutaway.data.files import find_sources
from cutaway.errors import DataError


def reader(path: Path, *, lenient: bool = False, text_field: str = "text") -> Reader:
    return Reader(find_sources(path)[0], lenient=lenient, text_field=text_field)


def texts(path: Path, **options: object) -> list[str]:
    return ["".join(document) for document in reader(path, **options).documents()]  # type: ignore[arg-type]


def written(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def packed(name: str, data: bytes) -> bytes:
    if name.endswith(".gz"):
        return gzip.compress(data)
    return zstandard.ZstdCompressor().compress(data) if name.endswith(".zst") else data


def test_newlines_stay_as_they_are(tmp_path: Path):
    assert texts(written(tmp_path, "a.txt", b"a\r\nb\rc\n\n")) == ["a\r\nb\rc\n\n"]


def test_utf8_whatever_the_system_says(tmp_path: Path):
    """X2."""
    assert texts(written(tmp_path, "a.txt", b"\xe2\x80\x9d")) == ["\u201d"]


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_a_mark_says_the_encoding_and_is_no_text(tmp_path: Path, mark: bytes, encoding: str):
    """T6: the mark goes at a file's start only, and each file has its own."""
    text = "abc\ufeff 😀"
    written(tmp_path, "a.txt", mark + text.encode(encoding))
    written(tmp_path, "b.txt", mark + b"")
    written(tmp_path, "c.txt", codecs.BOM_UTF8 + b"abc")
    assert texts(tmp_path) == [text, "abc"]


@settings(max_examples=60)
@given(
    st.lists(st.text(max_size=12), max_size=4),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]),
    st.sampled_from(["", ".gz", ".zst"]),
    st.integers(1, 9),
)
def test_what_was_written_is_read(parts: list[str], encoding: str, packing: str, chunk: int):
    """X1, X9: NUL, U+FE30, combining marks and line ends of any kind, in pieces of any size."""
    # UTF-16's mark before a NUL is UTF-32's mark: no reader can tell the two apart.
    assume(encoding != "utf-16" or not any(text.startswith("\0") for text in parts))
    with tempfile.TemporaryDirectory() as folder, patch.object(documents, "CHUNK", chunk):
        for i, text in enumerate(parts):
            written(Path(folder), f"{i}.txt{packing}", packed(packing, text.encode(encoding)))
        if parts:
            expected = [text.removeprefix("\ufeff" * (encoding == "utf-8")) for text in parts]
            assert texts(Path(folder)) == [text for text in expected if text]


@pytest.mark.parametrize("chunk", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("packing", ["", ".gz"])
def test_a_bad_byte_is_an_error_or_is_counted(tmp_path: Path, chunk: int, packing: str):
    """T5: the bytes after it are not lost."""
    good = b"good line\n" * 1000
    path = written(tmp_path, f"a.txt{packing}", packed(packing, good + b"\xd0" + good))
    with patch.object(documents, "CHUNK", chunk):
        with pytest.raises(DataError, match=r"a\.txt.*: byte 0xD0 at offset 10000.* is no UTF-8 .*\(lenient\)"):
            texts(path)
        lenient = reader(path, lenient=True)
        (text,) = ["".join(document) for document in lenient.documents()]
    assert text == good.decode() + "\ufffd" + good.decode()
    assert lenient.notes() == [f"{path}: bytes that are no text, now U+FFFD: 1"]
    assert lenient.n_bytes_read == path.stat().st_size


@settings(max_examples=60)
@given(st.binary(max_size=40), st.integers(1, 9))
def test_any_bytes_can_be_read_leniently(data: bytes, chunk: int):
    """T5: as one decoding of the whole would have it, U+FFFD that was there before not counted."""
    with tempfile.TemporaryDirectory() as folder, patch.object(documents, "CHUNK", chunk):
        path = written(Path(folder), "a.txt", b"ab\xef\xbf\xbd" + data)
        lenient = reader(path, lenient=True)
        (text,) = ["".join(document) for document in lenient.documents()]
        assert text == (b"ab\xef\xbf\xbd" + data).decode("utf-8", "replace")
        assert lenient.replaced.total() == len(data.decode("utf-8", "replace")) - len(data.decode("utf-8", "ignore"))


def test_a_bad_byte_in_utf16(tmp_path: Path):
    path = written(tmp_path, "a.txt", codecs.BOM_UTF16_LE + "ab".encode("utf-16-le") + b"\x00\xd8" + b"c\x00")
    with pytest.raises(DataError, match="byte 0x00 at offset 6 is no UTF-16-LE"):
        texts(path)
    assert texts(path, lenient=True) == ["ab\ufffdc"]


def test_empty_documents_are_left_out_and_counted(tmp_path: Path):
    """T3 (b)."""
    written(tmp_path, "a.txt", b"")
    written(tmp_path, "b.txt", b"b" * 2000)
    written(tmp_path, "c.jsonl", b'{"text": ""}\n\n{"text": "c"}\n')
    read = reader(tmp_path)
    assert ["".join(document) for document in read.documents()] == ["b" * 2000, "c"]
    assert read.notes() == ["empty documents left out: 2"]


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
def test_a_line_of_json_is_a_document(tmp_path: Path, packing: str):
    lines = [{"text": "a\nb", "n": 1}, {"text": "caf\u00e9\u2028"}, {"text": None}, {"text": "\ud83d!"}]
    data = "\r\n".join(json.dumps(line, ensure_ascii=i != 1) for i, line in enumerate(lines))
    with patch.object(documents, "CHUNK", 5):
        path = written(tmp_path, f"a.jsonl{packing}", packed(packing, data.encode()))
        assert texts(path) == ["a\nb", "caf\u00e9\u2028", "\ufffd!"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 1', r"a\.jsonl line 2 is no JSON"),
        ("[" * 100_000, r"line 2 is no JSON"),
        ('{"body": "x", "id": 3}', r"line 2 has no field 'text' \(it has 'body', 'id'\): name the one"),
        ('["text"]', r"line 2 has no field 'text' \(it is no object\)"),
        ('{"text": 3}', r"line 2: 'text' is a int, not text"),
    ],
)
def test_a_line_that_is_no_document(tmp_path: Path, line: str, message: str):
    path = written(tmp_path, "a.jsonl", b'{"text": "a"}\n' + line.encode())
    with pytest.raises(DataError, match=message):
        texts(path)


def test_another_field(tmp_path: Path):
    assert texts(written(tmp_path, "a.jsonl", b'{"body": "x"}'), text_field="body") == ["x"]


def test_a_line_of_json_without_end_is_refused(tmp_path: Path):
    path = written(tmp_path, "a.jsonl", b'{"text": "' + b"a" * 1000)
    with patch.object(documents, "LINE_LIMIT", 500), pytest.raises(DataError, match="a line of more than 500"):
        texts(path)


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
def test_a_row_of_parquet_is_a_document(tmp_path: Path, packing: str):
    table = pyarrow.table({"id": [1, 2, 3], "text": ["one\n", None, "thrée"]})
    pyarrow.parquet.write_table(table, tmp_path / "plain.parquet")
    path = tmp_path / f"a.parquet{packing}"
    path.write_bytes(packed(packing, (tmp_path / "plain.parquet").read_bytes()))
    read = reader(path)
    assert ["".join(document) for document in read.documents()] == ["one\n", "thrée"]
    assert read.n_empty == 1
    with pytest.raises(DataError, match="no column 'body' \\(it has 'id', 'text'\\)"):
        texts(path, text_field="body")
    with pytest.raises(DataError, match="row 1: 'id' is a int, not text"):
        texts(path, text_field="id")


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.parquet", "a.parquet.gz"])
@pytest.mark.parametrize("how", ["cut", "other"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, how: str):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 100}), tmp_path / "plain")
    whole = b'{"text": "abc"}\n' * 10_000 if "parquet" not in name else (tmp_path / "plain").read_bytes()
    data = packed(name, whole)
    path = written(tmp_path, name, data[: len(data) // 2] if how == "cut" else b"no such file at all")
    with pytest.raises(DataError, match=rf"{name} .*: get it again") as error:
        texts(path)
    assert "\n" not in str(error.value)


def test_two_frames_are_one_file(tmp_path: Path):
    for suffix in (".gz", ".zst"):
        path = written(tmp_path, f"a.txt{suffix}", packed(suffix, b"one ") + packed(suffix, b"two"))
        assert texts(path) == ["one two"]


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.txt.zst"), ("pyarrow.parquet", "a.parquet")])
def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"{name} needs the package \w+: pip install 'cutaway\[train\]'"):
        texts(written(tmp_path, name, b"x"))


def test_a_document_is_read_in_pieces(tmp_path: Path):
    """A line of any length is never held whole."""
    path = written(tmp_path, "a.txt", b"x" * 5000)
    with patch.object(documents, "CHUNK", 1000):
        read = reader(path)
        document = next(read.documents())
        assert next(document) == "x" * 1000
        assert read.n_bytes_read <= 2000


def test_a_document_that_is_not_asked_for_is_not_read(tmp_path: Path):
    written(tmp_path, "a.txt", b"a" * 4000 + b"\xff")
    written(tmp_path, "b.txt", b"b")
    with patch.object(documents, "CHUNK", 1000):
        read = reader(tmp_path)
        assert ["".join(document) for i, document in enumerate(read.documents()) if i == 1] == ["b"]
    assert read.n_bytes_read == 4002


def test_a_folder_that_vanishes_is_an_error(tmp_path: Path):
    read = reader(written(tmp_path, "a.txt", b"a"))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read \(No such file"):
        list(read.documents())
