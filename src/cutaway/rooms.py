"""Rooms that bear the name of what they do, and can be called like it: `cutaway.train(...)`, `cutaway.claims(...)`."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class Room(types.ModuleType):
    """A package that is also the function it exists for. Nothing of it is imported before it is called."""

    door: str  # "module:function"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, _, function = self.door.partition(":")
        return getattr(importlib.import_module(module), function)(*args, **kwargs)


def callable_room(name: str, door: str) -> None:
    """Let the package `name` be called as the function at `door`, such as "cutaway.train.run:train"."""
    room = sys.modules[name]
    room.__class__ = Room
    room.door = door  # type: ignore[attr-defined]
