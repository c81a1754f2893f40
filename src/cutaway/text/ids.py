"""The stand-in of a model without a tokenizer: its text is its ids, such as "12 7 3"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cutaway.errors import TokenizerError
from cutaway.text.pieces import require_text, token_id, token_ids


class IdTokenizer:
    """Reads and writes token ids as whole numbers with a space behind each."""

    def __init__(
        self,
        d_vocab: int,
        eos_ids: frozenset[int] = frozenset(),
        *,
        bos_id: int | None = None,
        pad_id: int | None = None,
    ) -> None:
        self.d_vocab = d_vocab
        self.eos_ids = eos_ids
        self.bos_id = bos_id
        self.pad_id = pad_id

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The ids in the text.

        Raises:
            TokenizerError: what is no text, or a word in it that is no whole number.
        """
        text = require_text(text)
        try:
            return [int(word) for word in text.split()]
        except ValueError as error:
            raise TokenizerError(
                f"this model has no tokenizer, so {text[:40]!r} cannot be read: give token ids such as '12 7 3', "
                "or put a tokenizer.json into its folder"
            ) from error

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The ids as text.

        Raises:
            TokenizerError: what is no list of ids.
        """
        return "".join(f"{i} " for i in token_ids(ids))

    def stream(self, *, skip_special: bool = True, continues: bool = False) -> IdStream:
        """Ids to text, one at a time."""
        return IdStream()

    def chat(self, messages: Sequence[Any], **variables: Any) -> list[int]:
        """Refuse: a chat needs words."""
        raise TokenizerError("this model has no tokenizer and no chat template: `generate` from token ids instead")

    def save(self, folder: Path) -> None:
        """Nothing to save."""


class IdStream:
    """One id, one piece of text."""

    def push(self, token: int) -> str:
        return f"{token_id(token)} "

    def finish(self) -> str:
        return ""
