from __future__ import annotations

import io
import itertools
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

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CORPUS = Path(__file__).read_text(encoding="utf-8")  # words, code, digits, runs of spaces
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]

words = st.sampled_from(
    ["the", " the", "don't", "DON'T", "x1", "3333", "\n\n", "  ", "\t", "é", "😀", "def ", "+", " ½"]
)
texts = st.one_of(st.text(), st.lists(words, max_size=8).map("".join), st.text(alphabet="abt \n'12", max_size=20))


def loaded(metadata: dict[str, Any]) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer is not None
    return tokenizer


def byte_level(tokens: list[str], merges: list[str], pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """A byte-level file: the 256 bytes have ids 0 to 255, `tokens` the ids from 256."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ALPHABET + tokens,
        "tokenizer.ggml.merges": merges,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def sentencepiece(pieces: dict[str, float], extra: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """A SentencePiece file: <unk> <s> </s>, 256 byte tokens, `pieces` from id 259, then `extra` with their types."""
    extra = extra or {}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *pieces, *extra],
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()) + [0.0] * len(extra),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(pieces)
        + [*extra.values()],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, bos=False)
    return [tokenizer.backend.id_to_token(i) for i in ids]


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


# --- SentencePiece -------------------------------------------------------------------------------------------------

HAND_MADE = {
    "▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0,
    "▁a": -2.0, "ab": -1.0, "bc": -3.0, "abc": -4.0, "▁ab": -5.0, "▁▁": -6.0,
    "<": -9.0, "s": -9.0, ">": -9.0, "<s": -7.0,
}  # fmt: skip


def best_pair_first(metadata: dict[str, Any], text: str) -> list[int]:
    """SentencePiece's BPE said plainly: join the best-scored neighbours, the leftmost of equals, while any fit."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    symbols = list(f" {text}".replace(" ", "▁")) if text else []
    while True:
        joined = [ids.get(a + b) for a, b in itertools.pairwise(symbols)]
        scores = [-math.inf if i is None else metadata["tokenizer.ggml.scores"][i] for i in joined]
        if not scores or max(scores) == -math.inf:
            break
        at = scores.index(max(scores))
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    spelled = [[symbol] if symbol in ids else [f"<0x{b:02X}>" for b in symbol.encode()] for symbol in symbols]
    return [tokens.index(piece) for pieces in spelled for piece in pieces]


def test_best_score_joins_first() -> None:
    """By eye: in ▁abc, `ab` (−1) beats `▁a` (−2) and `bc` (−3); then `abc` (−4) beats `▁ab` (−5)."""
    tokenizer = loaded(sentencepiece(HAND_MADE))
    assert pieces_of(tokenizer, "abc") == ["▁", "abc"]
    assert pieces_of(tokenizer, "a") == ["▁a"]
    assert pieces_of(tokenizer, "  ab") == ["▁▁", "▁ab"]
    assert pieces_of(tokenizer, "é") == ["▁", "<0xC3>", "<0xA9>"]
    assert pieces_of(tokenizer, "") == []


@settings(deadline=None)
@given(text=st.text(alphabet="abc <s>é😀", max_size=30))
def test_sentencepiece_by_hand(text: str) -> None:
    metadata = sentencepiece(HAND_MADE)
    tokenizer = loaded(metadata)
    assert tokenizer.encode(text, bos=False) == best_pair_first(metadata, text)
    assert tokenizer.decode(tokenizer.encode(text), skip_special=True) == text


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no prefix"])
def sentencepiece_peer(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    library = pytest.importorskip("sentencepiece", reason="the sentencepiece package, the reference, is not installed")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=800,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        add_dummy_prefix=request.param,
        user_defined_symbols=["\n"] if not request.param else [],
        minloglevel=2,
        num_threads=1,
    )
    peer = library.SentencePieceProcessor(model_proto=model.getvalue())
    n = peer.vocab_size()
    kinds = {UNKNOWN: peer.is_unknown, CONTROL: peer.is_control, BYTE: peer.is_byte}
    types = [next((kind for kind, holds in kinds.items() if holds(i)), NORMAL) for i in range(n)]
    tokens = [peer.id_to_piece(i) for i in range(n)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [peer.get_score(i) for i in range(n)],
        "tokenizer.ggml.token_type": [
            USER_DEFINED if token == "\n" else kind for token, kind in zip(tokens, types, strict=True)
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": request.param,
    }
    return peer, loaded(metadata)


@settings(deadline=None)
@given(text=texts)
def test_sentencepiece_equals_the_library(sentencepiece_peer: tuple[Any, Tokenizer], text: str) -> None:
    """NUL ends a text for the library and U+2581 is its own space: both are left out."""
    peer, tokenizer = sentencepiece_peer
    text = text.replace("\0", "").replace("▁", "")
    ids = tokenizer.encode(text, bos=False)
    assert ids == peer.encode(text)
    assert tokenizer.decode(ids) == text


def test_typed_text_becomes_neither_control_nor_byte_token() -> None:
    """K1: `<s` and `>` are pieces, and `<s>` has the best score of all; typed, it stays text. So does `<0x41>`."""
    metadata = sentencepiece(HAND_MADE | {"0": -9.0, "x": -9.0, "4": -9.0, "1": -9.0, "<0x41": -1.0})
    tokenizer = loaded(metadata)
    assert pieces_of(tokenizer, "<s>") == ["▁", "<s", ">"]
    assert pieces_of(tokenizer, "<0x41>")[-1] == ">"
    assert tokenizer.encode("<s>a", special=True, bos=False)[0] == 1


def test_a_declared_end_is_a_control_token_whatever_its_type() -> None:
    """K1: some converters leave the end of turn a plain token; text must not reach it, a template must."""
    tokenizer = loaded(sentencepiece(HAND_MADE | {"ca": -1.0}, eos_token_id=273))
    assert tokenizer.backend.id_to_token(273) == "ca"
    assert pieces_of(tokenizer, "ca") == ["▁", "c", "a"]
    assert tokenizer.encode("ca", special=True, bos=False) == [273]


def test_unused_tokens_are_not_reached() -> None:
    """Type 5 pads a vocabulary: no text makes such a token, whatever its score."""
    assert pieces_of(loaded(sentencepiece(HAND_MADE, {"ca": UNUSED})), "ca") == ["▁", "c", "a"]


def test_equal_scores_rank_by_id() -> None:
    """Files converted without scores have one value for all (−1000); ids follow the order of learning."""
    tokenizer = loaded(sentencepiece(dict.fromkeys(["▁", "a", "b", "c", "bc", "ab"], -1000.0)))
    assert pieces_of(tokenizer, "abc") == ["▁", "a", "bc"]


def test_space_prefix() -> None:
    """`add_space_prefix` is true unless the file says otherwise (Gemma: false)."""
    with_prefix, without = loaded(sentencepiece(HAND_MADE)), loaded(sentencepiece(HAND_MADE, add_space_prefix=False))
    assert (pieces_of(with_prefix, "b"), pieces_of(without, "b")) == (["▁", "b"], ["b"])
    for text in ("b", " b", "  b "):
        assert with_prefix.decode(with_prefix.encode(text), skip_special=True) == text
        assert without.decode(without.encode(text), skip_special=True) == text


def test_without_byte_tokens_a_run_of_unknown_characters_is_one_unknown_token() -> None:
    """As SentencePiece does where it was trained without byte fallback."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "▁", "a"],
        "tokenizer.ggml.scores": [0.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [UNKNOWN, NORMAL, NORMAL],
    }
    assert loaded(metadata).encode("aéßa") == [1, 2, 0, 2]


def test_spaces_as_user_defined_tokens() -> None:
    """Gemma stores its runs of spaces as user-defined tokens, spelled with real spaces."""
    tokenizer = loaded(sentencepiece(HAND_MADE, {"   ": USER_DEFINED}, add_space_prefix=False))
    assert pieces_of(tokenizer, "a    b") == ["a", "   ", "▁", "b"]
    assert tokenizer.decode(tokenizer.encode("a    b"), skip_special=True) == "a    b"


def test_phi3_markers_swallow_white_space() -> None:
    """By eye: after Phi-3's <|user|> the newline and the space are gone, after its <s> and elsewhere they stay."""
    metadata = sentencepiece(HAND_MADE, {"<|user|>": CONTROL})
    user = metadata["tokenizer.ggml.tokens"].index("<|user|>")

    def pieces_after(token: int, text: str, architecture: str) -> list[str]:
        tokenizer = loaded(metadata | {"general.architecture": architecture})
        first, *rest = tokenizer.encode(text, special=True, bos=False)
        assert first == token
        return [metadata["tokenizer.ggml.tokens"][i] for i in rest]

    assert pieces_after(user, "<|user|>\n a", "phi3") == ["▁a"]
    assert pieces_after(user, "<|user|>\n a", "llama") == ["▁", "<0x0A>", "▁a"]
    assert pieces_after(1, "<s> a", "phi3") == ["▁", "▁a"]


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
