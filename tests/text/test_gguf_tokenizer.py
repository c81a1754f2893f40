"""A tokenizer out of a GGUF file: its words, byte-level BPE, named ids, and what is refused."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from cutaway.errors import CutawayError, TokenizerError, UnsupportedError
from cutaway.text.gguf_tokenizer import WORD_RULES, build_backend, tokenizer_from_gguf
from cutaway.text.tokenizer import Tokenizer
from support.gguf_tokenizers import (
    ALPHABET,
    CONTROL,
    CORPUS,
    HAND_MADE,
    NORMAL,
    UNUSED,
    byte_level,
    loaded,
    pieces_of,
    sentencepiece,
    texts,
)

# --- The real vocabulary -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> tuple[Tokenizer, dict[str, list[int]]]:
    extract = json.loads(Path(__file__).with_name("smollm2_extract.json").read_text(encoding="utf-8"))
    tokens = [extract["tokens"].get(str(i), f"[absent {i}]") for i in range(extract["n_tokens"])]
    types = [NORMAL if str(i) in extract["tokens"] else UNUSED for i in range(len(tokens))]
    for i in extract["control"]:
        types[i] = CONTROL
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": extract["merges"],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return loaded(metadata), extract["cases"]


def test_smollm2_gives_the_ids_of_its_own_tokenizer(smollm2: tuple[Tokenizer, dict[str, list[int]]]) -> None:
    """X11: ids equal those of the model's tokenizer.json. transformers 5.24 reads the same GGUF with GPT-2's word
    rule, which keeps "\\n\\n" before a digit apart (ids 198 216 198 ...): the model's own file is followed."""
    tokenizer, cases = smollm2
    for text, ids in cases.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text


def test_smollm2_named_ids(smollm2: tuple[Tokenizer, dict[str, list[int]]]) -> None:
    """X12: the declared end <|im_end|> and the known <|endoftext|>. K1: neither is reached from text."""
    tokenizer, _ = smollm2
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    assert tokenizer.eos_ids == {0, 2}
    assert not tokenizer.add_bos
    assert tokenizer.encode("<|im_end|>", special=True) == [2]
    assert 0 not in tokenizer.encode("<|endoftext|>")


def test_cached_smollm2_equals_the_pipeline_of_its_tokenizer_json() -> None:
    from cutaway.checkpoint.gguf import GGUFFile
    from cutaway.checkpoint.sources import known_models

    path = next((entry.path for entry in known_models() if entry.name == "smollm2"), None)
    if path is None or path.suffix != ".gguf":
        pytest.skip("smollm2's GGUF is not in the user's cache; `cutaway run -m smollm2` puts it there")
    with GGUFFile(path) as file:
        metadata = file.metadata
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    peer = Backend(models.BPE(vocab=ids, merges=[tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]))
    peer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = loaded(metadata)
    assert tokenizer.encode(CORPUS) == peer.encode(CORPUS).ids
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS


# --- Words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "digits", "others"),
    [
        ("gpt-2", "3333|+|777", "DON|'|T| can|'t|\n\n| camelCase"),
        ("olmo", "3333|+|777", "DON|'|T| can|'t|\n\n| camelCase"),
        ("smollm", "3|3|3|3|+|7|7|7", "DON|'|T| can|'t|\n\n| camelCase"),
        ("llama-bpe", "333|3|+|777", "DON|'T| can|'t|\n\n| camelCase"),
        ("smaug-bpe", "333|3|+|777", "DON|'T| can|'t|\n\n| camelCase"),
        ("dbrx", "333|3|+|777", "DON|'T| can|'t|\n\n| camelCase"),
        ("qwen2", "3|3|3|3|+|7|7|7", "DON|'T| can|'t|\n\n| camelCase"),
        ("tekken", "3|3|3|3|+|7|7|7", "DON|'T| can|'t|\n\n| camel|Case"),
        ("gpt-4o", "333|3|+|777", "DON'T| can't|\n\n| camel|Case"),
        ("default", "333|3|+|777", "DON|'|T| can|'|t|\n\n| camelCase"),
    ],
)
def test_words(pre: str, digits: str, others: str) -> None:
    """X11: `3333+777` is cut as the named rule demands, in groups of at most 3 digits for Llama 3."""
    cut = build_backend(byte_level([], [], pre)).pre_tokenizer
    assert cut is not None

    def cut_text(text: str) -> str:
        return "|".join(text[start:end] for _, (start, end) in cut.pre_tokenize_str(text))

    assert cut_text("3333+777") == digits
    assert cut_text("DON'T can't\n\n camelCase") == others


def test_a_word_that_is_a_token_needs_no_merges() -> None:
    """Llama 3 and Mistral Nemo take whole words from the vocabulary; GPT-2's rule and OLMo's merge."""
    for pre, pieces in {"llama-bpe": ["abc"], "tekken": ["abc"], "smaug-bpe": ["abc"], "dbrx": ["a", "b", "c"]}.items():
        assert pieces_of(loaded(byte_level(["abc"], [], pre)), "abc") == pieces


def test_missing_word_rule_warns() -> None:
    """X11: a file without `tokenizer.ggml.pre` is read by the default rule, loudly, and once."""
    metadata = byte_level([], [])
    del metadata["tokenizer.ggml.pre"]
    with pytest.warns(UserWarning, match=r"no tokenizer\.ggml\.pre.*convert the file again") as caught:
        tokenizer = loaded(metadata)
    assert len(caught) == 1
    assert tokenizer.decode(tokenizer.encode("3333+777")) == "3333+777"


def test_unknown_word_rule_is_refused() -> None:
    """X11: refused rather than guessed; the message names the value and the known ones."""
    with pytest.raises(UnsupportedError, match=r"'klingon'.*default, gpt-2, .*llama-bpe.*qwen2"):
        tokenizer_from_gguf(byte_level([], [], "klingon"))


# --- Byte-level BPE ------------------------------------------------------------------------------------------------

PEER_WORDS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


@pytest.fixture(scope="module", params=["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "default"])
def trained(request: pytest.FixtureRequest) -> tuple[Backend, Tokenizer]:
    """A BPE trained here, and its twin rebuilt from what a GGUF would hold of it."""
    pre = request.param
    peer = Backend(models.BPE(ignore_merges=WORD_RULES[pre].whole_words))
    peer.pre_tokenizer = (
        PEER_WORDS[pre]() if pre in PEER_WORDS else build_backend(byte_level([], [], pre)).pre_tokenizer
    )
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=ALPHABET, show_progress=False)
    peer.train_from_iterator([CORPUS], trainer)
    state = json.loads(peer.to_str())["model"]
    ids = sorted(state["vocab"], key=state["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in state["merges"]]
    metadata = byte_level([], merges, pre) | {"tokenizer.ggml.tokens": ids}
    return peer, loaded(metadata)


@settings(deadline=None)
@given(text=texts)
def test_byte_level_equals_the_tokenizer_it_came_from(trained: tuple[Backend, Tokenizer], text: str) -> None:
    peer, tokenizer = trained
    assert tokenizer.encode(text) == peer.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_is_not_normalized() -> None:
    """X9: `e` + U+0301 stays two characters, also under the rule of Qwen, whose tokenizer.json has NFC."""
    tokenizer = loaded(byte_level([], [], "qwen2"))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"


def test_user_defined_tokens_match_in_text_and_control_tokens_do_not() -> None:
    """K1: type 4 is matched wherever it stands, longest first; type 3 only on request."""
    metadata = byte_level(["<think>", "<think>!", "<|end|>"], [], token_type=[NORMAL] * 256 + [4, 4, 3])
    tokenizer = loaded(metadata)
    assert pieces_of(tokenizer, "a<think>!") == ["a", "<think>!"]
    assert pieces_of(tokenizer, "<|end|>") == list("<|end|>")
    assert tokenizer.encode("a<|end|>", special=True) == [ALPHABET.index("a"), 258]
    assert tokenizer.decode([256, 258], skip_special=True) == "<think>"


# --- BOS and ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "add_bos"),
    [
        (byte_level([], [], "llama-bpe", bos_token_id=7), True),
        (byte_level([], [], "tekken", bos_token_id=7), True),
        (byte_level([], [], "gpt-2", bos_token_id=7), False),
        (byte_level([], [], "gpt-2", bos_token_id=7, add_bos_token=True), True),
        (byte_level([], [], "llama-bpe", bos_token_id=7, add_bos_token=False), False),
        (byte_level([], [], "llama-bpe"), False),
        (sentencepiece(HAND_MADE), True),
        (sentencepiece(HAND_MADE, add_bos_token=False), False),
    ],
)
def test_bos_as_the_file_says_or_its_kind_implies(metadata: dict[str, Any], add_bos: bool) -> None:
    tokenizer = loaded(metadata)
    assert tokenizer.add_bos is add_bos
    if add_bos:
        assert tokenizer.encode("a").count(tokenizer.bos_id or 0) == 1


def test_end_ids_are_the_union_of_all_sources() -> None:
    """X12: declared end of text, of turn, of message, and control tokens known by name; a look-alike that is
    no control token does not end anything."""
    names = ["<eos>", "<eot>", "<eom>", "<|im_end|>", "<end_of_turn>"]
    types = [NORMAL] * 256 + [CONTROL, CONTROL, CONTROL, CONTROL, NORMAL]
    declared = {"eos_token_id": 256, "eot_token_id": 257, "eom_token_id": 258}
    tokenizer = loaded(byte_level(names, [], token_type=types, **declared))
    assert tokenizer.eos_ids == {256, 257, 258, 259}
    assert tokenizer.eos_id == 256


def test_minus_one_is_no_id() -> None:
    assert loaded(sentencepiece(HAND_MADE, padding_token_id=2**32 - 1)).pad_id is None


def test_chat_template_is_handed_on() -> None:
    metadata = byte_level([], []) | {"tokenizer.chat_template": "{{ messages[0]['content'] }}"}
    tokenizer = loaded(metadata)
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}])) == "hi"


# --- Bad files -----------------------------------------------------------------------------------------------------


def test_no_tokenizer() -> None:
    assert tokenizer_from_gguf({"general.architecture": "llama"}) is None
    assert tokenizer_from_gguf({"general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"}) is None


@pytest.mark.parametrize("model", ["bert", "t5", "gemma4", "", 7, None, ["gpt2"]])
def test_other_kinds_are_refused_by_name(model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.model is "):
        tokenizer_from_gguf(byte_level([], []) | {"tokenizer.ggml.model": model})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (byte_level([], []) | {"tokenizer.ggml.tokens": []}, "tokens is empty"),
        (byte_level([], []) | {"tokenizer.ggml.tokens": "abc"}, "must be a list of str"),
        (byte_level([], []) | {"tokenizer.ggml.tokens": [1, 2]}, "must be a list of str"),
        (byte_level(["a"], []), "'a' twice, as ids 64 and 256"),
        (byte_level(["\ud800"], []), "makes no tokenizer"),
        (byte_level([], [], token_type=[1]), "1 values for 256 tokens"),
        (byte_level([], [], token_type=[9] * 256), "token_type has 9"),
        (byte_level([], [], token_type=[True] * 256), "must be a list of int"),
        (byte_level(["ab"], ["a b", "ab c"]), r"merges\[1\] is 'ab c'"),
        (byte_level([], ["ab"]), r"merges\[0\]"),
        (byte_level(["ab"], ["a b "]), r"merges\[0\]"),
        (byte_level([], []) | {"tokenizer.ggml.merges": 3}, "merges is 3"),
        (byte_level([], [], bos_token_id=2**63), "9223372036854775808; the file has 256 tokens"),
        (byte_level([], [], eos_token_id=-1), "eos_token_id is -1"),
        (byte_level([], [], eot_token_id=True), "must be of type int"),
        (byte_level([], [], add_bos_token=True), "without tokenizer.ggml.bos_token_id"),
        (byte_level([], [], add_bos_token="yes", bos_token_id=1), "must be of type bool"),
        (byte_level([], []) | {"tokenizer.ggml.pre": ["gpt-2"]}, "must be of type str"),
        (byte_level([], []) | {"tokenizer.chat_template": 5}, "must be of type str"),
        (sentencepiece(HAND_MADE, scores=[0.0]), "1 values for 273 tokens"),
        (sentencepiece(HAND_MADE | {"ab": math.nan}), "not a finite number"),
        (sentencepiece(HAND_MADE | {"a" * 10_000: 0.0}), "10000 characters; the limit is 512"),
        (sentencepiece(HAND_MADE, add_space_prefix=1), "must be of type bool"),
        (sentencepiece(HAND_MADE, unknown_token_id=2**63), "unknown_token_id"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.scores": [0.0]},
            "no <0x00> and no unknown token",
        ),
    ],
)
def test_bad_fields_are_one_named_error(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        tokenizer_from_gguf(metadata)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


FIELDS = [f"tokenizer.ggml.{name}" for name in ("model", "pre", "tokens", "token_type", "merges", "scores")]
FIELDS += [f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "unknown", "padding")]
FIELDS += ["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template"]
strange = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 300, 2**31, 2**63, 2**64]),
    st.floats(),
    st.text(alphabet=string.printable + "▁Ġ\ud800\0", max_size=8),
)


@pytest.mark.filterwarnings("ignore:this file has no tokenizer.ggml.pre")
@settings(deadline=None, max_examples=300)
@given(
    start=st.sampled_from([{}, byte_level(["ab"], ["a b"]), sentencepiece(HAND_MADE)]),
    changes=st.dictionaries(
        st.sampled_from(FIELDS),
        st.one_of(strange, st.lists(strange, max_size=4), st.lists(st.text(max_size=3), max_size=6)),
        max_size=5,
    ),
)
def test_no_metadata_escapes_the_error_tree(start: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        tokenizer = tokenizer_from_gguf(start | changes)
    except CutawayError as error:
        assert isinstance(error, TokenizerError | UnsupportedError)
        assert "\n" not in str(error)
    else:
        assert tokenizer is None or tokenizer.encode("a", bos=False) is not None
