"""What a user may give as a prompt: text or token ids, one or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from torch import Tensor

from cutaway.checked import short
from cutaway.errors import TokenizerError

Prompt = str | Sequence[int] | Tensor


def as_list(prompt: Any) -> tuple[list[Prompt], bool]:
    """Prompts as a list, and whether it was a single one, text or ids. An empty list is no prompts.

    Raises:
        TokenizerError: neither text nor a list of any kind.
    """
    if isinstance(prompt, str) or getattr(prompt, "ndim", 0) == 1:  # a tensor or an array of ids, perhaps of none
        return [prompt], True
    items = items_of(prompt)
    several = not items or isinstance(items[0], str | Sequence) or getattr(items[0], "ndim", 0) > 0
    return (items, False) if several else ([items], True)


def items_of(prompt: Any) -> list[Any]:
    """What a list of any kind holds: a tensor and an array are lists too.

    Raises:
        TokenizerError: it is no list.
    """
    problem = f"prompt = {short(prompt)}: give text, token ids, or a list of such prompts"
    # They can be listed too, but as something else: a tokenizer's result as its keys, a set in no order, bytes as ids.
    if isinstance(prompt, Mapping | Set | bytes | bytearray):
        raise TokenizerError(problem)
    try:
        return list(prompt)
    except TypeError as error:  # a number, None
        raise TokenizerError(problem) from error
