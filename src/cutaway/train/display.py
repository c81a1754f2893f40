"""Whom a run tells how it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutaway.train.plan import Plan


class Display:
    """Shows a run while it goes on; this one shows nothing.

    `closed`: nobody reads any more, as behind `| head`; the run then ends as on Ctrl-C.
    """

    closed = False

    def reading(self, done: int, total: int) -> None:
        """So many bytes of text read."""

    def planned(self, plan: Plan, notes: Sequence[str]) -> None:
        """What the run will cost, before its first step."""

    def step(self, record: dict[str, Any]) -> None:
        """A step was made."""

    def evaluation(self, record: dict[str, Any]) -> None:
        """The validation loss was taken."""

    def sample(self, text: str) -> None:
        """What the model writes by now."""

    def note(self, text: str) -> None:
        """Something to know."""
