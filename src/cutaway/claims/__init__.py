"""The lecture's fourteen claims, each put to the test on a live model. The room itself can be called."""

from __future__ import annotations

from cutaway.rooms import callable_room

callable_room(__name__, "cutaway.claims.run:claims")
