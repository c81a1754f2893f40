"""Training: texts in, a model out. The room itself can be called: `cutaway.train("texts/", out="runs/mine")`."""

from __future__ import annotations

from cutaway.rooms import callable_room

callable_room(__name__, "cutaway.train.run:train")
