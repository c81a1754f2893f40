"""How a user points at one token or one position: by its text, such as " Mary", or by its number."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.labels import label, labels
from cutaway.inside.trace import Model
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

Token = str | int  # the text of exactly one token, or an id
Counts = np.ndarray[Any, np.dtype[np.int64]]


class Reader(Model, Protocol):
    """What a question needs of a language model: a pass to look into, and words for its tokens."""

    tokenizer: Tokenizer | IdTokenizer


def token_of(model: Reader, token: Any, role: str) -> int:
    """The id that a user means; `role` is what the argument is called.

    A text means the token that writes exactly this, its spaces included.

    Raises:
        InsideError: an id outside the vocabulary; a text that is several tokens, or that several tokens write.
        TokenizerError: a text that the vocabulary cannot express.
    """
    d_vocab = model.network.config.d_vocab
    if isinstance(token, str):
        token = _written(model.tokenizer, token, role)
    token = whole_number(token, role, "the text of one token, or its id")
    if not 0 <= token < d_vocab:
        raise InsideError(f"{role} = {token} is outside the vocabulary: 0 to {d_vocab - 1}")
    return token


def position_of(position: Any, n_tokens: int) -> int:
    """A position counted from the start; a negative one counts back from the end.

    Raises:
        InsideError: the prompt has no such position.
    """
    position = whole_number(position, "position", "a whole number")
    if not -n_tokens <= position < n_tokens:
        raise InsideError(f"position = {position}: the prompt has positions {-n_tokens} to {n_tokens - 1}")
    return position % n_tokens


def count_of(n: Any, most: int, role: str) -> int:
    """How many of something to show.

    Raises:
        InsideError: fewer than 1, or more than there are.
    """
    n = whole_number(n, role, "a whole number")
    if not 1 <= n <= most:
        raise InsideError(f"{role} = {n}: it must be from 1 to {most}")
    return n


def whole_number(value: Any, role: str, wanted: str) -> int:
    """A plain number, which may come as a tensor or an array of one.

    Raises:
        InsideError: it is none.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise InsideError(f"{role} = {value!r:.40}: give {wanted}") from error


def wide(value: Tensor) -> Tensor:
    """In fp32 at least, so that short types lose nothing more."""
    return value if value.dtype == torch.float64 else value.float()


def _written(tokenizer: Tokenizer | IdTokenizer, text: str, role: str) -> int:
    ids = tokenizer.encode(text, bos=False)
    if isinstance(tokenizer, IdTokenizer):
        if len(ids) == 1:
            return ids[0]
        raise InsideError(f"{role} = {text!r:.40} is {len(ids)} ids: give one")
    if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode():
        return ids[0]
    found = _writers(tokenizer, text)
    if len(found) == 1:
        return found[0]
    if found:
        raise InsideError(f"{role} = {text!r:.40} is what tokens {', '.join(map(str, found))} write: give one as an id")
    if not ids:
        raise InsideError(f"{role} = {text!r:.40} has no token: give the text of one token, or its id")
    shown = [f"{word} ({i})" for word, i in zip(labels(tokenizer, ids), ids, strict=True)]
    pieces = " ".join(shown[:8]) + " …" * (len(shown) > 8)
    other = text[1:] if text.startswith(" ") else f" {text}"
    near = next(iter(_writers(tokenizer, other)), None) if other else None
    hint = "" if near is None else f"; {label(tokenizer, near)} ({near}) is one token"
    raise InsideError(f"{role} = {text!r:.40} is no token, it is written {pieces}: give one token or its id{hint}")


def _writers(tokenizer: Tokenizer, text: str) -> list[int]:
    """All tokens that write this text alone."""
    wanted = text.encode("utf-8", "replace")
    return [i for i in range(tokenizer.d_vocab) if tokenizer.token_bytes(i) == wanted] if wanted else []
