"""A tokenizer as GGUF metadata: read back it gives the same ids, or it is refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from cutaway.errors import TokenizerError, UnsupportedError
from cutaway.text.gguf_tokenizer import WORD_RULES, tokenizer_from_gguf
from cutaway.text.gguf_vocabulary import tokenizer_fields, tokenizer_fields_of_file, unsaid
from cutaway.text.tokenizer import Tokenizer
from support import vocabularies

NORMAL, _, CONTROL, USER_DEFINED, UNUSED, _ = range(1, 7)
CORPUS = Path(__file__).read_text(encoding="utf-8")
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ALONE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from(["the", " the", "don't", "3333", "\n\n", "  ", "é", "😀", "def ", "+", " ½", "東"]))
    .map("".join),
)  # fmt: skip


def split(pattern: str, behavior: str = "isolated", *, invert: bool = False) -> pre_tokenizers.Sequence:
    cut = pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)
    return pre_tokenizers.Sequence([cut, BYTES_ALONE])


def tokenizer_of(cut: Any = BYTE_LEVEL, *, added: tuple[AddedToken, ...] = (), **options: Any) -> Tokenizer:
    """Byte-level BPE learnt from this file, ending texts at <|end|>."""
    whole = options.pop("ignore_merges", False)
    backend = Backend(models.BPE(ignore_merges=whole))
    backend.pre_tokenizer, backend.decoder = cut, decoders.ByteLevel()
    backend.normalizer = options.pop("normalizer", None)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        [CORPUS], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_tokens([*added, AddedToken("<|end|>", special=True)])
    ends = options.pop("ends", ("<|end|>",))
    ids = [backend.token_to_id(name) for name in ends]
    return Tokenizer(
        backend,
        **{"bos_id": None, "eos_id": ids[0] if ids else None, "eos_ids": frozenset(ids), "add_bos": False, **options},
    )


def read(fields: dict[str, Any]) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(fields)
    assert tokenizer is not None
    return tokenizer


def pre_of(*arguments: Any, **options: Any) -> str:
    return tokenizer_fields(tokenizer_of(*arguments, **options), 500)["tokenizer.ggml.pre"]


# --- the word rule -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=WORD_RULES)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer with each known rule, and what is read back of it."""
    rule = WORD_RULES[request.param]
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    tokenizer = tokenizer_of(pre_tokenizers.Sequence([*cuts, BYTES_ALONE]), ignore_merges=rule.whole_words)
    fields = tokenizer_fields(tokenizer, 500)
    named = WORD_RULES[fields["tokenizer.ggml.pre"]]
    assert (named.patterns, named.whole_words) == (rule.patterns, rule.whole_words)
    return tokenizer, read(fields)


@given(text=texts)
def test_ids_are_the_same_before_and_after(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    """X11: for every rule that has a name."""
    before, after = pair
    assert after.encode(text) == before.encode(text)
    assert after.decode(after.encode(text)) == before.decode(before.encode(text))


def test_the_forms_that_tokenizer_json_gives_a_rule() -> None:
    """X11: the step's own pattern, digits apart, and a pattern that keeps its matches."""
    cl100k = WORD_RULES["dbrx"].patterns[0]
    digits = pre_tokenizers.Digits(individual_digits=True)
    assert pre_of() == "gpt-2"
    assert pre_of(pre_tokenizers.Sequence([digits, BYTE_LEVEL])) == "smollm"
    assert pre_of(split(cl100k)) == "dbrx"
    assert pre_of(split(cl100k, "removed", invert=True)) == "dbrx"
    assert pre_of(split(cl100k), ignore_merges=True) == "llama-bpe"
    assert pre_of(split(WORD_RULES["qwen2"].patterns[0])) == "qwen2"


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (split(r"\w+"), r"it cuts text by .*w\+.* a rule without a name; Cutaway knows default, gpt-2"),
        (BYTES_ALONE, "a rule without a name"),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTE_LEVEL]), "a rule without a name"),
        (split(WORD_RULES["gpt-2"].patterns[0], "merged_with_next"), "has no name"),
        (split(r"\p{N}", "removed", invert=True), "has no name"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), "has no name"),
        (pre_tokenizers.Whitespace(), "does not end in the step"),
        (pre_tokenizers.Sequence([BYTE_LEVEL, pre_tokenizers.Digits()]), "does not end in the step"),
        (pre_tokenizers.Sequence([BYTE_LEVEL, BYTES_ALONE]), "has no name"),
    ],
)
def test_a_rule_without_a_name_is_refused(cut: Any, message: str) -> None:
    """X11: refused in one line rather than written under the nearest name."""
    with pytest.raises(UnsupportedError, match=message) as caught:
        pre_of(cut)
    assert "\n" not in str(caught.value)


def test_where_nothing_is_joined_every_rule_is_the_same() -> None:
    """A token for each byte, cut nowhere."""
    backend = Backend(models.BPE(vocab=dict(vocabularies.BYTES), merges=[]))
    backend.pre_tokenizer, backend.decoder = BYTES_ALONE, decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>")])
    before = Tokenizer(backend, bos_id=256, eos_ids=frozenset({256}), add_bos=False)
    after = read(tokenizer_fields(before, 257))
    text = "don't 3333\n\n  é😀"
    assert after.encode(text) == before.encode(text)
    assert len(after.encode(text)) == len(text.encode())


def test_whole_words_are_a_part_of_the_rule() -> None:
    with pytest.raises(UnsupportedError, match="whole words being taken without merges"):
        pre_of(ignore_merges=True)


# --- tokens --------------------------------------------------------------------------------------------------------


def test_types_and_named_ids() -> None:
    """K1: control tokens by request alone, added text tokens wherever they stand; ends beside the first are kept."""
    added = (AddedToken("<think>"), AddedToken("<|im_end|>", special=True), AddedToken("<|stop|>", special=True))
    before = tokenizer_of(added=added, ends=("<|end|>", "<|im_end|>", "<|stop|>"), chat_template="{{ messages }}")
    fields = tokenizer_fields(before, 410)
    types = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
    assert (types["<think>"], types["<|stop|>"], types["Ġ"], types["[PAD409]"]) == (4, 3, 1, 5)
    assert fields["tokenizer.ggml.eot_token_id"] == before.backend.token_to_id("<|stop|>")
    assert "tokenizer.ggml.eom_token_id" not in fields
    after = read(fields)
    assert (after.eos_id, after.eos_ids, after.chat_template) == (before.eos_id, before.eos_ids, "{{ messages }}")
    for text in ("a<think>b", "<|end|>", "<|im_end|>"):
        assert after.encode(text) == before.encode(text)
        assert after.encode(text, special=True) == before.encode(text, special=True)


def test_rows_without_a_token_get_an_unused_one() -> None:
    """Also in the middle: Llama 3's excerpt has ids up to 128009."""
    backend = vocabularies.llama3()
    end = backend.token_to_id("<|eot_id|>")
    tokenizer = Tokenizer(backend, bos_id=128000, eos_ids=frozenset({end}), add_bos=True)
    fields = tokenizer_fields(tokenizer, 128256)
    assert len(fields["tokenizer.ggml.tokens"]) == len(fields["tokenizer.ggml.token_type"]) == 128256
    assert fields["tokenizer.ggml.tokens"][5000] == "[PAD5000]"
    assert fields["tokenizer.ggml.token_type"][5000] == UNUSED
    assert read(fields).encode("hello !") == tokenizer.encode("hello !") == [128000, 15339, 758]


def test_a_token_that_looks_like_an_empty_row_is_refused() -> None:
    """llama.cpp ends the whole process where two tokens have one name."""
    taken = tokenizer_of(added=(AddedToken("[PAD450]"),))
    with pytest.raises(UnsupportedError, match=r"names must differ"):
        tokenizer_fields(taken, 500)
    assert read(tokenizer_fields(taken, 440)).encode("[PAD450]") == taken.encode("[PAD450]")


def test_more_tokens_than_rows_are_refused() -> None:
    with pytest.raises(TokenizerError, match="401 tokens, the model 400 rows"):
        tokenizer_fields(tokenizer_of(), 400)


def test_no_tokenizer() -> None:
    assert tokenizer_fields(None, 7) == {"tokenizer.ggml.model": "no_vocab"}


# --- what a file cannot say ----------------------------------------------------------------------------------------


def test_composing_characters_is_told() -> None:
    """X9: llama.cpp composes nothing; text that is composed already keeps its ids."""
    before = tokenizer_of(normalizer=normalizers.NFC())
    after = read(tokenizer_fields(before, 401))
    (note,) = unsaid(before)
    assert "NFC" in note
    assert not unsaid(after)
    assert after.encode("é") == before.encode("é") == before.encode("e\u0301")
    assert after.encode("e\u0301") != before.encode("e\u0301")


def test_no_end_token_is_told() -> None:
    tokenizer = tokenizer_of(ends=())
    assert "tokenizer.ggml.eos_token_id" not in tokenizer_fields(tokenizer, 401)
    (note,) = unsaid(tokenizer)
    assert "llama.cpp ends texts at id 11" in note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalizer": normalizers.Lowercase()}, "normalizes text by 'Lowercase'"),
        ({"added": (AddedToken("<mask>", lstrip=True),)}, "token '<mask>' minds the text beside it"),
        ({"added": (AddedToken("word", single_word=True),)}, "token 'word' minds the text beside it"),
        ({"ends": ("<|end|>", "a", "b", "c")}, "ends texts at 4 tokens without a known name"),
    ],
)
def test_other_things_without_a_field_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        tokenizer_fields(tokenizer_of(**options), 500)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dropout", 0.5, "dropout is 0.5"),
        ("end_of_word_suffix", "</w>", "end_of_word_suffix is '</w>'"),
        ("type", "WordLevel", "of the kind WordLevel"),
        ("merges", [["a b", "c"]], "'a b' and 'c', of which one holds a space"),
    ],
)
def test_other_models_are_refused(field: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of()
    state = copy.deepcopy(tokenizer.backend_state())
    state["model"][field] = value
    monkeypatch.setattr(tokenizer, "backend_state", lambda: state)
    with pytest.raises(UnsupportedError, match=message):
        tokenizer_fields(tokenizer, 500)


def test_sentencepiece_is_refused_by_name() -> None:
    tokenizer = Tokenizer(vocabularies.sentencepiece(), bos_id=1, eos_ids=frozenset({2}), add_bos=True)
    with pytest.raises(UnsupportedError, match="of the kind SentencePiece, and from a folder only byte-level BPE"):
        tokenizer_fields(tokenizer, 500)


def test_characters_are_refused_by_name() -> None:
    backend = Backend(models.BPE(vocab={"a": 0, "é": 1}, merges=[]))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset(), add_bos=False)
    with pytest.raises(UnsupportedError, match="of the kind one token a character"):
        tokenizer_fields(tokenizer, 500)


# --- from file to file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unknown_token_id", 2**40),
        ("unknown_token_id", -1),
        ("scores", "x"),
        ("scores", [[1.0]]),
        ("add_eos_token", [[1]]),
        ("remove_extra_whitespaces", 2**40),
        ("merges", [1]),
    ],
)
def test_a_field_that_cannot_be_is_not_copied(field: str, value: Any) -> None:
    """Also those that reading the tokenizer leaves out."""
    metadata = tokenizer_fields(tokenizer_of(), 1000) | {f"tokenizer.ggml.{field}": value}
    with pytest.raises(TokenizerError, match=field):
        tokenizer_fields_of_file(metadata, 1000)


def test_fields_of_another_file_stay_as_they_are() -> None:
    """Of either kind: names, types, scores and ids; −1 is no id, and what only that file means is left."""
    theirs = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"],
        "tokenizer.ggml.scores": [0.0] * 258 + [-1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3] + [6] * 256 + [1, 1],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2**32 - 1,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.huggingface.json": "{}",
        "tokenizer.chat_template": "{{ messages }}",
        "general.name": "theirs",
    }
    fields = tokenizer_fields_of_file(theirs, 261)
    assert fields.keys() == theirs.keys() - {
        "tokenizer.ggml.padding_token_id",
        "tokenizer.huggingface.json",
        "general.name",
    }
    assert fields["tokenizer.ggml.tokens"][-2:] == ["a", "[PAD260]"]
    assert fields["tokenizer.ggml.scores"][-2:] == [-2.0, -1000.0]
    assert fields["tokenizer.ggml.token_type"][-2:] == [NORMAL, UNUSED]
    assert read(fields).encode("a a") == read(theirs).encode("a a")
    assert json.dumps(theirs).count("PAD") == 0  # the source's own lists are not touched
