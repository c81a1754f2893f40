"""What one token adds to the text: its bytes, by the rule that the tokenizer's decoder states."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer as Backend

from cutaway.checked import short
from cutaway.errors import TokenizerError, UnsupportedError

__all__ = ["BYTE_OF_CHARACTER", "PieceRule", "require_text", "token_id", "token_ids"]


def _byte_alphabet() -> dict[str, int]:
    """The 256 characters that byte-level BPE writes bytes with: printable ones stand for themselves.

    The order is the order of the first 256 ids of GPT-2. Source: openai/gpt-2, encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_id(token: Any) -> int:
    """A token's id as a plain number; it may come as a tensor of one, which no set or table would find.

    Raises:
        TokenizerError: what is no whole number.
    """
    try:
        return operator.index(token)
    except TypeError as error:
        raise TokenizerError(f"{short(token)} is no token id; give whole numbers") from error


def token_ids(tokens: Any) -> Iterator[int]:
    """The ids in a list of any kind, each as `token_id` has it.

    Raises:
        TokenizerError: it is no list, or what it holds is no whole number.
    """
    try:
        return map(token_id, tokens)
    except TypeError as error:  # a number, None
        raise TokenizerError(
            f"{short(tokens)} is no list of token ids; give whole numbers, such as [12, 7, 3]"
        ) from error


def require_text(text: Any) -> str:
    """A text to encode.

    Raises:
        TokenizerError: it is none.
    """
    if not isinstance(text, str):
        raise TokenizerError(f"{short(text)} is no text to encode; give a string")
    return text


@dataclass(frozen=True, kw_only=True)
class PieceRule:
    """How tokens become text: every token has its own bytes, and the text is their concatenation.

    byte_level: a token is written in the byte alphabet.
    replacements: (from, to) in a token's text, such as ("▁", " ").
    byte_fallback: a token named <0x0A> is that byte.
    strip: spaces dropped from the start of the whole text (SentencePiece's dummy prefix).
    separator: between two tokens (only where a tokenizer states no decoder).
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: int = 0
    separator: bytes = b""

    @classmethod
    def of(cls, backend: Backend) -> PieceRule:
        """Read the rule from the backend's decoder.

        Raises:
            UnsupportedError: a decoder whose text is not a concatenation of tokens.
        """
        if backend.decoder is None:
            return cls(separator=b" ")
        state = json.loads(backend.decoder.__getstate__())
        rule = cls()
        for step in state["decoders"] if state["type"] == "Sequence" else [state]:
            rule = rule._with(step)
        return rule

    def _with(self, step: dict[str, Any]) -> PieceRule:
        match step:
            case {"type": "ByteLevel"}:
                return replace(self, byte_level=True)
            case {"type": "ByteFallback"}:
                return replace(self, byte_fallback=True)
            case {"type": "Fuse"}:
                return self
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                return replace(self, replacements=(*self.replacements, (old, new)))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                return replace(self, strip=start)
            case {"type": "Metaspace", "replacement": str(old), "prepend_scheme": str(scheme)}:
                spaces = (*self.replacements, (old, " "))
                return replace(self, replacements=spaces, strip=0 if scheme == "never" else 1)
        raise UnsupportedError(
            f"tokenizer decoder {step.get('type')!r} is not implemented; use a byte-level or SentencePiece tokenizer"
        )

    def piece(self, token: str) -> bytes:
        """The bytes of one vocabulary entry."""
        if self.byte_level and all(character in BYTE_OF_CHARACTER for character in token):
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")

    def join(self, pieces: Iterable[bytes]) -> str:
        """The text of these pieces; bytes that are no character become U+FFFD."""
        return self.separator.join(filter(None, pieces)).decode("utf-8", "replace")

    def strip_start(self, text: str) -> str:
        """Drop the spaces that an encoder put before the text's first word."""
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self.strip) :]
