"""A few-row pass, recorded once and run again.

What a small model's decoding step costs beside its arithmetic is Python finding out, three hundred times, what to call
on which memory; and every step finds out the same. So the first step is recorded while it runs: which loops, on which
addresses. The record is made by the one forward there is, and only holds if that pass did nothing but loops: a torch
operation that computes makes the tape incomplete, and it is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from cutaway.nn.team import Call

aten = torch.ops.aten
ALLOCATIONS = (aten.empty.memory_format, aten.empty_like.default)


class Tape(TorchDispatchMode):
    """The loops of one pass. What the pass allocated stays allocated, so that they may write there again."""

    takes_loops = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.complete = True
        self._kept: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No compiler runs here; asked to keep one away, torch would first import it, which takes a second."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if not op.is_view and op not in ALLOCATIONS:
            self.complete = False
        self._kept.append(result)
        return result

    @classmethod
    @contextmanager
    def recording(cls) -> Iterator[Tape]:
        """Record what runs inside, in this thread."""
        from cutaway.nn.team import noting  # imports numba, which a pass without loops never needs

        tape = cls()
        with noting(tape.calls), tape:
            yield tape
        if not tape.complete or not tape.calls:
            tape.complete = False
            tape.calls, tape._kept = [], []

    def run(self) -> None:
        """The same loops on the same memory, which the caller has filled anew."""
        for call in self.calls:
            call()
