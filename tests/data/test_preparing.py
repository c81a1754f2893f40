"""Texts in, token shards out."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.data import Windows, encoding, open_prepared, prepare, preparing
from cutaway.data.shards import Prepared, ShardWriter, TokenStream
from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.errors import DataError, TokenizerError
from cutaway.text.tokenizer import Tokenizer
from support.vocabularies import gpt2, llama3, sentencepiece

BYTES = train_tokenizer("bytes", Sample())[0]
END = BYTES.d_vocab - 1


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CUTAWAY_CACHE", str(folder))
    return folder


def ids(stream: TokenStream | None) -> list[int]:
    return [] if stream is None else stream.read(0, len(stream)).tolist()


def texts(prepared: Prepared, part: str = "train") -> list[str]:
    """The documents of a part."""
    found: list[list[int]] = [[]]
    for i in ids(getattr(prepared, part)):
        if i == prepared.tokenizer.eos_id:
            found.append([])
        else:
            found[-1].append(i)
    assert not found.pop(), "every document ends with the end token"
    return [prepared.tokenizer.decode(document) for document in found]


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    return folder


def test_documents_end_with_the_end_token(tmp_path: Path):
    """X6: ids in the order of the text."""
    prepared = prepare(written(tmp_path / "in", a="ab", b="c"), tokenizer="bytes", val_fraction=0)
    assert ids(prepared.train) == [97, 98, END, 99, END]
    assert prepared.train.n_bytes == 3
    assert (prepared.n_documents, prepared.n_val_documents, prepared.val, prepared.notes) == (2, 0, None, [])


def test_the_last_part_of_one_text_is_held_out(tmp_path: Path):
    text = "".join(chr(0x400 + i % 50) for i in range(101))
    prepared = prepare(written(tmp_path / "in", a=text), tokenizer="chars", val_fraction=0.1)
    assert texts(prepared) == [text[: int(101 * 0.9)]]
    assert texts(prepared, "val") == [text[int(101 * 0.9) :]]
    assert prepared.train.n_bytes == 180
    assert prepared.val is not None
    assert prepared.val.n_bytes == 22
    assert (prepared.n_documents, prepared.n_val_documents) == (1, 1)
    assert prepared.notes == ["the last 0.1 of each document is held out for validation (fewer than 20 documents)"]


def test_of_many_documents_whole_ones_are_held_out(tmp_path: Path):
    lines = [f"document {i}" for i in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(f'{{"text": "{line}"}}' for line in lines))
    prepared = prepare(tmp_path / "a.jsonl", tokenizer="bytes", val_fraction=0.2, seed=1)
    assert sorted(texts(prepared) + texts(prepared, "val")) == sorted(lines)
    assert len(texts(prepared, "val")) == prepared.n_val_documents
    assert 20 < prepared.n_val_documents < 60
    again = prepare(tmp_path / "a.jsonl", tokenizer="bytes", val_fraction=0.2, seed=2)
    assert texts(again, "val") != texts(prepared, "val")
    assert prepared.notes[-1].startswith(f"{prepared.n_val_documents} whole documents are held out for validation")


def test_a_validation_part_may_be_smaller_than_a_window(tmp_path: Path):
    """T2: seen before the first step: 10 characters and the end token make 11."""
    prepared = prepare(written(tmp_path / "in", a="abcdefghij" * 10), tokenizer="chars")
    assert prepared.val is not None
    with pytest.raises(DataError, match="has 11 tokens, and a context of 16 needs 17"):
        Windows(len(prepared.val), 16, seed=0)


def test_a_short_file_is_counted_in_tokens(tmp_path: Path):
    """T1, T3 (c): a document's end token counts, so seven characters make the eight tokens, and one makes two."""
    for text, n in (("abcdefg", 8), ("\n", 2)):
        prepared = prepare(written(tmp_path / "in", a=text), tokenizer="chars", val_fraction=0)
        with pytest.raises(DataError, match=f"has {n} tokens, and a context of 8 needs 9"):
            Windows(len(prepared.train), 8, seed=0)
    assert "no text is held out" in prepare(tmp_path / "in", tokenizer="chars").notes[-1]


def test_nothing_to_read_names_the_path(tmp_path: Path):
    """T3 (a), (b)."""
    written(tmp_path / "in", a="")
    with pytest.raises(DataError, match=r"in/a\.txt: no text in it"):
        prepare(tmp_path / "in" / "a.txt")
    written(tmp_path / "in", b="b" * 2000)
    prepared = prepare(tmp_path / "in", tokenizer="bytes", val_fraction=0)
    assert texts(prepared) == ["b" * 2000]
    assert prepared.notes == ["empty documents left out: 1"]


def test_a_mark_is_no_character(tmp_path: Path):
    """T6: the vocabulary is a, b, c and the end."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    prepared = prepare(tmp_path / "a.txt", tokenizer="chars", val_fraction=0)
    assert ids(prepared.train) == [0, 1, 2, 3]


def test_a_bad_byte_stops_or_is_counted(tmp_path: Path):
    """T5."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\n" * 1000 + b"\xd0" + b"good line\n" * 1000)
    with pytest.raises(DataError, match="byte 0xD0 at offset 10000"):
        prepare(path)
    prepared = prepare(path, lenient=True, val_fraction=0, tokenizer="chars")
    assert texts(prepared) == ["good line\n" * 1000 + "\ufffd" + "good line\n" * 1000]
    assert prepared.notes == [f"{path}: bytes that are no text, now U+FFFD: 1"]


def test_control_names_in_a_text_are_text(tmp_path: Path):
    """K1."""
    for kind in ("bpe", "chars", "bytes"):
        prepared = prepare(written(tmp_path / "in", a="say <|endoftext|> now"), tokenizer=kind, val_fraction=0)
        assert texts(prepared) == ["say <|endoftext|> now"]


VERSES = "".join(
    f"Line {i}, with a comma; and so on.\n{'' if i % 7 else chr(10)}  Indented {i * i}.\n" for i in range(60)
)


@pytest.mark.parametrize("size", [40, 100, 1000])
def test_pieces_do_not_show(tmp_path: Path, size: int):
    """The ids are those of the whole text, wherever it has lines."""
    with patch.object(encoding, "PIECE", size), patch.object(encoding, "BATCH", 300):
        prepared = prepare(written(tmp_path / "in", a=VERSES), vocab_size=400, val_fraction=0)
    assert ids(prepared.train) == [*prepared.tokenizer.encode(VERSES), prepared.tokenizer.eos_id]


@pytest.mark.parametrize("prefix", ["legacy", "first", "none"])
def test_pieces_add_no_space(tmp_path: Path, prefix: str):
    """SentencePiece puts a space before every text; a text in pieces has one."""
    tokenizer = Tokenizer(sentencepiece(prefix), bos_id=1, eos_ids=frozenset({2}), add_bos=True)
    text = "he hello he  he\nhello " * 20
    with patch.object(encoding, "PIECE", 30):
        prepared = prepare(written(tmp_path / "in", a=text), tokenizer=tokenizer, val_fraction=0)
    assert ids(prepared.train) == [*tokenizer.encode(text), 2]


def test_an_other_tokenizer_frames_documents_as_it_does(tmp_path: Path):
    """Llama 3's begins each one; its ids need four bytes."""
    tokenizer = Tokenizer(llama3(), bos_id=128000, eos_ids=frozenset({128009}), add_bos=True)
    prepared = prepare(written(tmp_path / "in", a="hello !", b="hello"), tokenizer=tokenizer, val_fraction=0)
    assert ids(prepared.train) == [128000, 15339, 758, 128009, 128000, 15339, 128009]
    tokenizer.save(tmp_path / "model")
    again = prepare(tmp_path / "in", tokenizer=tmp_path / "model", val_fraction=0)
    assert ids(again.train) == ids(prepared.train)


def test_a_tokenizer_without_an_end(tmp_path: Path):
    tokenizer = Tokenizer(gpt2(), bos_id=None, eos_ids=frozenset(), add_bos=False)
    prepared = prepare(written(tmp_path / "in", a="a", b="b"), tokenizer=tokenizer, val_fraction=0)
    assert len(prepared.train) == 2
    assert prepared.notes == ["the tokenizer has no end token: documents follow each other without one"]


def test_a_tokenizer_that_cannot_write_the_text(tmp_path: Path, cache: Path):
    """T9 (b)."""
    digits = prepare(written(tmp_path / "digits", a="0123456789\n" * 100), tokenizer="chars").tokenizer
    with pytest.raises(TokenizerError, match=r"no 'a' at 1, '\?' at 2"):
        prepare(written(tmp_path / "in", a="1a?"), tokenizer=digits, val_fraction=0)
    assert len([path for path in (cache / "tokens").iterdir() if path.is_dir()]) == 1, "nothing half-made is left"


def test_what_is_made_is_found_again(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc", b="def")
    first = prepare(folder, tokenizer="bytes")
    with patch.object(preparing, "encode_documents", side_effect=AssertionError("made again")):
        assert prepare(folder, tokenizer="bytes").key == first.key
        moved = folder.rename(tmp_path / "elsewhere")
        assert prepare(moved, tokenizer="bytes").folder == first.folder, "the place does not matter"


def test_whatever_changes_the_tokens_changes_the_key(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc", b="def")
    keys = {prepare(folder, tokenizer="bytes").key}
    for options in (
        {"tokenizer": "chars"},
        {"tokenizer": "bpe"},
        {"tokenizer": "bpe", "vocab_size": 300},
        {"tokenizer": BYTES},
        {"seed": 1},
        {"val_fraction": 0.2},
        {"lenient": True},
        {"text_field": "body"},
    ):
        keys.add(prepare(folder, **({"tokenizer": "bytes"} | options)).key)  # type: ignore[arg-type]
    keys.add(prepare(written(folder, a="abd"), tokenizer="bytes").key)
    (folder / "a.txt").rename(folder / "c.txt")
    keys.add(prepare(folder, tokenizer="bytes").key)
    assert len(keys) == 11


def test_the_named_folder_is_kept_up_to_date(tmp_path: Path):
    """A stale cache can't be used."""
    texts_ = written(tmp_path / "in", a="abc")
    first = prepare(texts_, tokenizer="bytes", folder=tmp_path / "tokens", val_fraction=0)
    second = prepare(written(texts_, a="xyz!"), tokenizer="bytes", folder=tmp_path / "tokens", val_fraction=0)
    assert texts(second) == ["xyz!"]
    assert texts(first) == ["abc"], "who reads the old ones goes on reading them"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens.lock", "in", "tokens"]


def test_other_files_are_not_touched(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc")
    for name in ("mine", "tokens"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.doc").write_text("x")
    with pytest.raises(DataError, match="mine holds other files: give a new or empty folder"):
        prepare(folder, tokenizer="bytes", folder=tmp_path / "mine")
    (tmp_path / "tokens" / "thesis.doc").unlink()
    prepare(folder, tokenizer="bytes", folder=tmp_path / "tokens")
    (tmp_path / "tokens" / "thesis.doc").write_text("x")
    with pytest.raises(DataError, match="tokens holds other files"):
        prepare(written(folder, a="abcd"), tokenizer="bytes", folder=tmp_path / "tokens")
    assert (tmp_path / "tokens" / "thesis.doc").exists()


def test_two_at_once_make_it_once(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc" * 1000)
    made, make = [], preparing._make
    with patch.object(preparing, "_make", side_effect=lambda *a: made.append(1) or make(*a)):  # type: ignore[func-returns-value]
        threads = [threading.Thread(target=prepare, args=(folder,), kwargs={"tokenizer": "bytes"}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [1]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(ShardWriter, "append", side_effect=full),
        pytest.raises(DataError, match=r"tokens cannot be written \(No space left on device\): make room"),
    ):
        prepare(folder, tokenizer="bytes", folder=tmp_path / "tokens")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens.lock", "in"]


def test_what_a_killed_process_left_is_cleared(tmp_path: Path):
    folder = written(tmp_path / "in", a="abc")
    (tmp_path / ".tokens.99.part").mkdir()
    (tmp_path / ".tokens.99.part" / "train-00000.bin").write_bytes(b"x")
    prepare(folder, tokenizer="bytes", folder=tmp_path / "tokens")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tokens.lock", "in", "tokens"]


@pytest.mark.parametrize("later", ["abcd", "abd"])
def test_a_text_that_changes_meanwhile_is_refused(tmp_path: Path, later: str):
    """Else its tokens would be found again where the text is the one of before."""
    folder = written(tmp_path / "in", a="abc")
    of = preparing.Survey.of

    def then_it_changes(*arguments: object) -> object:
        written(folder, a=later)
        return of(*arguments)  # type: ignore[arg-type]

    with (
        patch.object(preparing.Survey, "of", side_effect=then_it_changes),
        pytest.raises(DataError, match="the texts changed while they were read"),
    ):
        prepare(folder, tokenizer="bytes")


def test_progress_reaches_the_end(tmp_path: Path):
    seen: list[tuple[int, int]] = []
    with patch.object(encoding, "PIECE", 10), patch.object(encoding, "BATCH", 10):
        prepare(written(tmp_path / "in", a="a" * 50, b="b" * 30), tokenizer="bytes", progress=lambda *n: seen.append(n))
    assert seen == sorted(seen)
    assert {n_all for _, n_all in seen} == {80}
    assert seen[-1] == (80, 80)
    assert len(seen) > 5


@settings(max_examples=15)
@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=40), st.integers(1, 5))
def test_parts_made_apart_are_the_whole(tmp_path_factory: pytest.TempPathFactory, lines: list[str], n: int):
    """Every n-th document from number i on; the same ones are held out."""
    folder = tmp_path_factory.mktemp("parts")
    inputs = written(folder / "in", **{f"{i:02}": line for i, line in enumerate(lines)})
    whole = prepare(inputs, tokenizer=BYTES, folder=folder / "whole", seed=5)
    for i in range(n):
        part = prepare(inputs, tokenizer=BYTES, folder=folder / "parts", seed=5, shard=(i, n))
        assert part.folder == folder / "parts" / f"shard-{i}-of-{n}"
        assert part.n_documents == len(lines[i::n])
    joined = open_prepared(folder / "parts")
    for name in ("train", "val"):
        assert sorted(texts(joined, name)) == sorted(texts(whole, name))
    assert joined.train.n_bytes == whole.train.n_bytes
    assert (joined.n_documents, joined.n_val_documents) == (whole.n_documents, whole.n_val_documents)


def test_parts_are_read_in_order(tmp_path: Path):
    inputs = written(tmp_path / "in", **{chr(97 + i): chr(97 + i) for i in range(13)})
    for i in range(12):
        prepare(inputs, tokenizer=BYTES, folder=tmp_path / "t", val_fraction=0, shard=(i, 12))
    assert texts(open_prepared(tmp_path / "t")) == list("ambcdefghijkl"), "2 comes before 10"


def test_parts_that_do_not_belong_together(tmp_path: Path):
    inputs = written(tmp_path / "in", a="a", b="b", c="c")
    folder = tmp_path / "t"
    prepare(inputs, tokenizer=BYTES, folder=folder, shard=(0, 3))
    prepare(inputs, tokenizer=BYTES, folder=folder, shard=(2, 3))
    with pytest.raises(DataError, match="lacks 1 of 3 parts: prepare number 1 first"):
        open_prepared(folder)
    other = prepare(inputs, tokenizer="chars").tokenizer
    prepare(inputs, tokenizer=other, folder=folder, shard=(1, 3))
    with pytest.raises(DataError, match=r"shard-1-of-3 was made with another tokenizer than .*shard-0-of-3"):
        open_prepared(folder)
    prepare(inputs, tokenizer=BYTES, folder=folder, seed=9, shard=(1, 3))
    with pytest.raises(DataError, match="was made with other texts or options"):
        open_prepared(folder)
    prepare(inputs, tokenizer=BYTES, folder=folder, shard=(0, 2))
    with pytest.raises(DataError, match="has parts of 2 and of 3"):
        open_prepared(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 1.0}, r"val_fraction is 1\.0; it is at least 0 and below 1"),
        ({"val_fraction": -0.1}, r"val_fraction is -0\.1"),
        ({"shard": (2, 2), "tokenizer": BYTES}, r"shard 2 of 2: parts are numbered from 0 to 1"),
        ({"shard": (0, 2)}, r"a part of the texts cannot choose 'bpe' for all"),
        ({"tokenizer": "chars", "vocab_size": 9}, r"vocab_size 9 is for bpe"),
        ({"tokenizer": "chrs"}, r"the tokenizer is none of bpe, chars, bytes, and no model named 'chrs'"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path: Path, options: dict[str, object], message: str):
    with pytest.raises(DataError, match=message):
        prepare(written(tmp_path / "in", a="abc"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a" * 100_000, "^" * 300_000, '{"k":[1,2.5,"x"]},' * 20_000], ids=["a", "^", "json"])
def test_one_line_without_words(tmp_path: Path, text: str):
    """T8: it finishes, and comes back."""
    prepared = prepare(written(tmp_path / "in", a=text), val_fraction=0)
    assert texts(prepared) == [text]
