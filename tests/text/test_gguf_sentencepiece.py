"""SentencePiece out of a GGUF file: the ids of the library, and of its rule said plainly."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.text.tokenizer import Tokenizer
from support.gguf_tokenizers import (
    BYTE,
    CONTROL,
    CORPUS,
    HAND_MADE,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    loaded,
    pieces_of,
    sentencepiece,
    texts,
)


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
