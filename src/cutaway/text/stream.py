"""Ids to text, one at a time, never a part of a character."""

from __future__ import annotations

import codecs
from typing import Protocol, runtime_checkable

from cutaway.text.pieces import PieceRule, token_id

__all__ = ["TextStream"]


@runtime_checkable
class Pieces(Protocol):
    """What a stream needs of a tokenizer."""

    rule: PieceRule
    special_ids: frozenset[int]

    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Collects the bytes of tokens and hands out text as soon as it is complete.

    All pushes and the finish, joined, are `tokenizer.decode` of the same ids. A token costs the same however
    long the text before it is.

    Args:
        skip_special: leave special tokens out of the text.
        continues: the text goes on from an earlier one, so a leading space is meant.
    """

    def __init__(self, tokenizer: Pieces, *, skip_special: bool = False, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special else frozenset[int]()
        self._strip = 0 if continues else tokenizer.rule.strip
        self._separator = b""
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished.

        Raises:
            TokenizerError: an id that is no id.
        """
        token = token_id(token)
        piece = self._tokenizer.token_bytes(token)
        if not piece or token in self._skip:
            return ""
        text = self._characters.decode(self._separator + piece)
        self._separator = self._tokenizer.rule.separator
        return self._without_prefix(text)

    def finish(self) -> str:
        """What is left: a character cut short is one U+FFFD."""
        return self._without_prefix(self._characters.decode(b"", final=True))

    def _without_prefix(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text
