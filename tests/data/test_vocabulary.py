"""The tokenizer of a corpus."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.data.vocabulary import END, Sample, bpe_size, take_tokenizer, train_tokenizer
from cutaway.errors import DamagedFileError, DataError, TokenizerError
from cutaway.text.gguf_tokenizer import tokenizer_from_gguf
from cutaway.text.tokenizer import Tokenizer
from support.vocabularies import gpt2

VERSE = "Shall I compare thee to a summer's day?\nThou art more lovely, and more temperate.\n\n" * 20


def trained(kind: str, *texts: str, vocab_size: int | None = None) -> Tokenizer:
    sample = Sample()
    for text in texts:
        sample.add(text)
    return train_tokenizer(kind, sample, vocab_size)[0]


BPE = trained("bpe", VERSE, vocab_size=400)
BYTES = trained("bytes")


@settings(max_examples=200)
@given(st.text())
def test_any_text_comes_back(text: str):
    """X1, X9: NUL, U+FE30 and combining marks included; U+FEFF inside a text is text (T6)."""
    for tokenizer in (BPE, BYTES):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    if text:
        characters = trained("chars", text)
        assert characters.decode(characters.encode(text)) == text
        assert len(characters.encode(text)) == len(text)


@pytest.mark.parametrize("text", ["ab\0cd", "︰e\u0301é", "a\ufeffb", "\r\n \u2028"])
def test_nothing_is_normalized(text: str):
    """X1, X9, by name."""
    for kind in ("bpe", "chars", "bytes"):
        tokenizer = trained(kind, text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["bpe", "chars", "bytes"])
def test_the_end_token_is_text_until_it_is_asked_for(kind: str):
    """K1; T9 (a): it is the begin token too, so that there is a start when there is no prompt."""
    text = "say <|endoftext|> now"
    tokenizer = trained(kind, text * 50)
    assert tokenizer.eos_ids == {tokenizer.bos_id} == {tokenizer.d_vocab - 1}
    assert not tokenizer.add_bos
    assert tokenizer.eos_id not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text, special=True).count(tokenizer.d_vocab - 1) == 1
    assert tokenizer.token_text(tokenizer.d_vocab - 1) == END


@pytest.mark.parametrize("kind", ["bpe", "chars", "bytes"])
def test_transformers_reads_the_same(tmp_path: Path, kind: str):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = trained(kind, VERSE + "日本語 12345 \ttab\r\n")
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert (again.bos_id, again.eos_ids, again.add_bos) == (tokenizer.bos_id, tokenizer.eos_ids, False)
    for text in (VERSE, "日本語", "12345", "a  b\n\n\n c\r\n", ""):
        known = "".join(c for c in text if kind != "chars" or c in VERSE + "日本語 12345 \ttab\r\n")
        ids = tokenizer.encode(known)
        assert again.encode(known) == ids
        for theirs in (AutoTokenizer.from_pretrained(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)):
            assert theirs.encode(known) == ids
            assert theirs.decode(ids) == known
            assert theirs.eos_token_id == tokenizer.eos_id


def test_a_blank_line_is_learnt():
    """X26: from own text, with the pattern that files name `llama-bpe`; GPT-2's cannot."""
    tokenizer = trained("bpe", "one\n\ntwo\n\nthree\n\n" * 10, vocab_size=300)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("one\n\ntwo")] == ["one", "\n\n", "two"]


def test_digits_in_groups_of_three():
    """X11."""
    tokenizer = trained("bpe", "1234567 " * 100, vocab_size=300)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("1234567")] == ["123", "456", "7"]


def test_a_gguf_file_can_hold_it():
    """X11: named `llama-bpe`, it gives the same ids; that rule takes whole words first."""
    model = BPE.backend_state()["model"]
    assert model["ignore_merges"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": [*sorted(model["vocab"], key=model["vocab"].get), END],
        "tokenizer.ggml.token_type": [1] * (BPE.d_vocab - 1) + [3],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": BPE.d_vocab - 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    again = tokenizer_from_gguf(metadata)
    assert again is not None
    for text in (VERSE, "3333+777", "aaaaaaaa", "  two\n\n\nlines\t", "naïve 日本"):
        assert again.encode(text) == BPE.encode(text)


def test_what_is_possible_is_learnt_and_reported():
    """X3: 256 bytes, two merges (aa, aaaa), and the end token."""
    sample = Sample()
    sample.add("aaaa")
    tokenizer, notes = train_tokenizer("bpe", sample, 1000)
    assert tokenizer.d_vocab == 256 + 2 + 1
    assert tokenizer.encode("aaaa") == [257]
    assert notes == ["the text has merges for 259 tokens, not 1000"]
    assert train_tokenizer("bpe", sample, 258)[1] == []


def test_a_size_below_the_bytes_is_refused():
    assert trained("bpe", "aaaa", vocab_size=257).d_vocab == 257
    with pytest.raises(DataError, match="vocab_size 256 is too small: 256 bytes and the end token make 257"):
        trained("bpe", "aaaa", vocab_size=256)


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [(0, 512), (40, 512), (100_000, 512), (132_000, 1024), (1_115_394, 2048), (5_000_000, 4096), (10**12, 32768)],
)
def test_the_size_follows_the_text(n_bytes: int, size: int):
    """2·√100000 = 632 is nearer to 512, 2·√132000 = 727 to 1024."""
    assert bpe_size(n_bytes) == size


def test_ids_of_bytes_are_bytes():
    assert BYTES.encode("aé\0") == [97, 0xC3, 0xA9, 0]
    assert BYTES.d_vocab == 257


def test_ids_of_characters_are_in_their_order():
    tokenizer = trained("chars", "cab", "b\n😀")
    assert tokenizer.encode("\nabc😀") == [0, 1, 2, 3, 4]
    assert tokenizer.d_vocab == 6


def test_unknown_characters_are_listed():
    """T9 (b)."""
    tokenizer = trained("chars", "0123456789\n" * 100)
    assert tokenizer.d_vocab == 12
    with pytest.raises(TokenizerError, match=r"cannot encode 'a\?1a': the vocabulary has no 'a' at 0, '\?' at 1;"):
        tokenizer.encode("a?1a")
    with pytest.raises(TokenizerError, match=r"'j' at 9 and 2 more; leave"):
        tokenizer.encode("abcdefghijkl")
    with pytest.raises(TokenizerError, match=r"no 'a' at 1;"):
        tokenizer.encode_many(["01", "1a"])
    assert tokenizer.encode("1<|endoftext|>2", special=True) == [2, 11, 3], "a control token's name is not text"
    with pytest.raises(TokenizerError, match=r"no '<' at 1, '\|' at 2"):
        tokenizer.encode("1<|endoftext|>2")


def test_many_are_encoded_as_one_by_one():
    texts = ["", "one two", VERSE, "say <|endoftext|>", "\ud83d!"]
    for tokenizer in (BPE, Tokenizer(gpt2(), bos_id=50256, eos_ids=frozenset({50256}), add_bos=True)):
        assert tokenizer.encode_many(texts) == [tokenizer.encode(text, bos=False) for text in texts]


@pytest.mark.parametrize("text", ["a", "^", " ", "\n", "ab9 "], ids=repr)
def test_no_run_costs_its_square(text: str):
    """T8: four times the text in less than sixteen times the time, with learning."""

    def seconds(n: int) -> float:
        start = time.perf_counter()
        tokenizer = trained("bpe", text * (n // len(text)), vocab_size=270)
        assert len(tokenizer.encode(text * (n // len(text)))) < n
        return time.perf_counter() - start

    assert min(seconds(200_000) for _ in range(2)) < 16 * max(seconds(50_000) for _ in range(2))


def test_a_sample_is_spread_evenly_and_bounded():
    sample = Sample(limit=100)
    for i in range(1000):
        sample.add(f"{i:05}")
    kept = [int(text) for text in sample.texts()]
    assert sample.n_bytes == 5000
    assert 10 <= len(kept) <= 20
    assert {b - a for a, b in pairwise(kept)} == {64}
    assert sample.characters() == list("0123456789")


def test_taken_from_a_folder_or_a_file(tmp_path: Path):
    BPE.save(tmp_path / "model")
    (tmp_path / "mine.json").write_bytes((tmp_path / "model" / "tokenizer.json").read_bytes())
    for path in (tmp_path / "model", tmp_path / "model" / "tokenizer.json", tmp_path / "mine.json"):
        tokenizer = take_tokenizer(path)
        assert tokenizer.encode(VERSE) == BPE.encode(VERSE)
        assert tokenizer.eos_id == BPE.eos_id, "also where only the token's name says that it ends a text"


def test_taken_from_a_gguf_file(tmp_path: Path):
    from gguf import GGUFWriter

    model = BPE.backend_state()["model"]
    writer = GGUFWriter(tmp_path / "a.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*sorted(model["vocab"], key=model["vocab"].get), END])
    writer.add_token_types([1] * (BPE.d_vocab - 1) + [3])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(BPE.d_vocab - 1)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = take_tokenizer(tmp_path / "a.gguf")
    assert tokenizer.encode(VERSE) == BPE.encode(VERSE)
    assert tokenizer.eos_id == BPE.eos_id


@pytest.mark.parametrize(
    ("content", "kind"), [("", DamagedFileError), ("{}", DamagedFileError), ("[]", DamagedFileError)]
)
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: str, kind: type[Exception]):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(kind):
        take_tokenizer(tmp_path / "a.json")


def test_a_folder_without_a_tokenizer(tmp_path: Path):
    with pytest.raises(
        DataError, match=r"has no tokenizer: give a folder with a tokenizer\.json, or one of bpe, chars"
    ):
        take_tokenizer(tmp_path)


def test_a_character_vocabulary_is_plain_json(tmp_path: Path):
    """X1: NUL does not make it unloadable."""
    trained("chars", "a\0b").save(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_bytes())["model"]["vocab"] == {"\0": 0, "a": 1, "b": 2}
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert again.encode("a\0b") == [1, 0, 2]
