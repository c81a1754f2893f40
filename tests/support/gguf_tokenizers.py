"""Tokenizers as the metadata of a GGUF file: byte-level and SentencePiece, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from cutaway.text.gguf_tokenizer import tokenizer_from_gguf
from cutaway.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TESTS = sorted((Path(__file__).parents[1] / "text").glob("test_gguf_*.py"))
CORPUS = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)  # words, code, digits, runs of spaces
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


HAND_MADE = {
    "▁": -9.0, "a": -9.0, "b": -9.0, "c": -9.0,
    "▁a": -2.0, "ab": -1.0, "bc": -3.0, "abc": -4.0, "▁ab": -5.0, "▁▁": -6.0,
    "<": -9.0, "s": -9.0, ">": -9.0, "<s": -7.0,
}  # fmt: skip
