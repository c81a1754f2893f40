"""The seam through which the inside of a pass is seen and edited.

Every named value of the forward pass goes through `x = tap(name, x)`. The idle tap hands it on untouched, so a pass
that nobody watches costs nothing; a trace passes a tap of its own that keeps values, or returns others.
"""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


class Tap:
    """The idle tap: every value passes through as it is."""

    def __call__(self, name: str, value: Value) -> Value:
        """The value to go on with; `name` is relative to the scope."""
        return value

    def inside(self, scope: str) -> Tap:
        """The same tap for names below `scope`, such as "blocks.3"."""
        return self

    def wants(self, *names: str) -> bool:
        """Whether any of these values must be computed although the pass itself could do without.

        What a tap is given and does not want may be written over later: a value to keep is a value to want.
        """
        return False


IDLE = Tap()
