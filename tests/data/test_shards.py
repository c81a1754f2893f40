"""Tokens on disk."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.data import shards
from cutaway.data.preparing import prepare
from cutaway.data.shards import ShardWriter, TokenStream, integer_type, open_prepared
from cutaway.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    return prepare(tmp_path / "a.txt", tokenizer="chars", folder=tmp_path / "tokens").folder


@pytest.mark.parametrize(("d_vocab", "name"), [(2, "|u1"), (256, "|u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_the_smallest_integer_that_fits(d_vocab: int, name: str):
    assert integer_type(d_vocab).str == name


def test_a_stream_is_written_in_files_of_bounded_length(tmp_path: Path):
    with patch.object(shards, "SHARD_TOKENS", 4):
        writer = ShardWriter(tmp_path, "train", np.dtype("<u2"))
        for part in ([258], [1, 2, 3, 4, 5], [], [6, 7, 8]):
            writer.append(np.array(part, dtype=np.int64))
        writer.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"train-0000{i}.bin" for i in range(3)]
    assert (tmp_path / "train-00000.bin").read_bytes() == bytes([2, 1, 1, 0, 2, 0, 3, 0])
    assert [entry["n_tokens"] for entry in writer.files] == [4, 4, 1]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_reading_does_not_see_the_files(lengths: list[int], data: st.DataObject):
    n = sum(lengths)
    whole = np.arange(n, dtype="u1")
    stream = TokenStream(np.split(whole, np.cumsum(lengths)[:-1]), n_bytes=7)
    start = data.draw(st.integers(0, n))
    length = data.draw(st.integers(0, n - start))
    ids = stream.read(start, length)
    assert ids.tolist() == whole[start : start + length].tolist()
    assert ids.dtype == np.int64
    for bad in ((start, n - start + 1), (-1, 1), (0, -1)):
        with pytest.raises(DataError, match="the text has"):
            stream.read(*bad)


def test_what_was_written_opens(folder: Path):
    prepared = open_prepared(folder)
    assert (len(prepared.train), prepared.train.n_bytes) == (91, 90)
    assert prepared.val is not None
    assert (len(prepared.val), prepared.val.n_bytes) == (11, 10)
    assert prepared.tokenizer.decode(prepared.train.read(0, 5)) == "abcde"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("train-00000.bin", b"\0" * 90),
        ("train-00000.bin", b"\0" * 92),
        ("val-00000.bin", b""),
        ("val-00000.bin", None),
        ("meta.json", b'{"version": 1'),
        ("meta.json", b"[]"),
        ("meta.json", b"{}"),
        ("meta.json", b'{"version": 99}'),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", None),
    ],
)
def test_damage_is_seen_and_made_good(folder: Path, name: str, data: bytes | None):
    """T3: no raw memory-map error surfaces."""
    ids = open_prepared(folder).train.read(0, 91).tolist()
    if data is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(data)
    with pytest.raises(DataError, match="prepare the texts again") as error:
        open_prepared(folder)
    assert "\n" not in str(error.value)
    again = prepare(folder.parent / "a.txt", tokenizer="chars", folder=folder)
    assert again.train.read(0, 91).tolist() == ids


def test_a_tokenizer_of_another_size_is_refused(folder: Path):
    """T9: tokens and tokenizer come from one run."""
    meta = json.loads((folder / "meta.json").read_bytes())
    (folder / "meta.json").write_text(json.dumps(meta | {"d_vocab": 12}))
    with pytest.raises(DataError, match="a tokenizer of 11 ids, and tokens of 12"):
        open_prepared(folder)


def test_a_folder_with_nothing(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r"holds no prepared texts \(meta.json is absent\)"):
            open_prepared(path)
