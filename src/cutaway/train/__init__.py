"""Training: texts in, a model out. The room itself can be called: `cutaway.train("texts/", out="runs/mine")`."""

from __future__ import annotations

import sys
import types
from typing import Any


class _Room(types.ModuleType):
    """A package that is also the function it exists for, since both bear the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See cutaway.train.run.train."""
        from cutaway.train.run import train

        return train(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
