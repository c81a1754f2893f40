"""The last answers of the page: its maps are fetched one at a time, and any of them can be saved as a file."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cutaway.figures import Figure, Result
from cutaway.serve.reply import Refusal

N_KEPT = 48
N_BYTES = 512 * 2**20


def new_name() -> str:
    """One that nobody can guess."""
    return secrets.token_urlsafe(12)


@dataclass(eq=False)
class Answer:
    """A result under a name, and its figures, made once."""

    result: Result
    id: str = field(default_factory=new_name)

    @cached_property
    def figures(self) -> list[Figure]:
        return self.result.figures()

    @cached_property
    def n_bytes(self) -> int:
        """About what its numbers take [B]."""
        arrays: dict[int, int] = {}
        for value in (*vars(self.result).values(), *(v for figure in self.figures for v in vars(figure).values())):
            if isinstance(value, np.ndarray):
                whole: Any = value if value.base is None else value.base
                arrays[id(whole)] = int(getattr(whole, "nbytes", value.nbytes))
        return sum(arrays.values())


class Kept:
    """Bounded in number and bytes; what has not been asked for longest goes first. Owned by the event loop."""

    def __init__(self, n_kept: int = N_KEPT, n_bytes: int = N_BYTES) -> None:
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._limits = n_kept, n_bytes

    @property
    def n_bytes(self) -> int:
        """What all of them take [B]."""
        return sum(answer.n_bytes for answer in self._answers.values())

    def add(self, answer: Answer) -> None:
        """Keep one more, or instead of one under its name; the newest stays, however large it is."""
        self._answers[answer.id] = answer
        self._answers.move_to_end(answer.id)  # a name that was here kept its old place
        n_kept, n_bytes = self._limits
        while len(self._answers) > 1 and (len(self._answers) > n_kept or self.n_bytes > n_bytes):
            self._answers.popitem(last=False)

    def get(self, name: str) -> Answer:
        """One of them.

        Raises:
            Refusal: it is no longer here.
        """
        answer = self._answers.get(name)
        if answer is None:
            raise Refusal(404, "this answer is no longer kept: ask again")
        self._answers.move_to_end(name)
        return answer
