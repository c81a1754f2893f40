"""Many passes that differ in one part each, at the price of what differs.

An edit in block i leaves the residual stream before it as it was, so a pass with it begins there; and passes with
edits in one block share a batch, a row each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.inside.metrics import Measure
from cutaway.inside.tap import copied
from cutaway.network import Transformer
from cutaway.nn.cache import NoCache
from cutaway.nn.tap import IDLE, Tap

Where = tuple[
    int | slice | list[int], ...
]  # which of a value of one text: positions [T D], head and positions [H T Dh]

TOKENS_AT_ONCE = 512  # of a batch on a CPU, from where a product of more rows is no faster


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """The edits of one block: each takes some of `new` instead of what the pass has there."""

    layer: int
    name: str  # of the value, relative to the block
    new: Tensor  # as the value of one text: [T D], or [H T Dh]
    parts: Sequence[Where]


class RowEdits(Tap):
    """Edits one part in every row of a batch, another in each."""

    def __init__(self, cut: Cut, parts: Sequence[Where]) -> None:
        self.cut = cut
        self.parts = parts

    def inside(self, scope: str) -> Tap:
        return self if scope == f"blocks.{self.cut.layer}" else IDLE

    def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]  # all values are tensors
        if name != self.cut.name:
            return value
        value = copied(value)
        for row, where in enumerate(self.parts):
            value[row][where] = self.cut.new[where]
        return value


@torch.no_grad()
def sweep(
    network: Transformer,
    tokens: Tensor,
    before: Sequence[Tensor],
    cuts: Sequence[Cut],
    measure: Measure,
    *,
    batch: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """The number of every pass that has one part of one cut edited, in the order of cuts and parts.

    Args:
        tokens: one text [1 T].
        before: the residual stream entering each block, without edits [1 T D].
        batch: passes at once; None takes what a CPU runs fastest, and more on an accelerator.
        progress: called with how many passes are done, and how many there are.
    """
    n_tokens, n_all, n_done = tokens.shape[1], sum(len(cut.parts) for cut in cuts), 0
    at_once = TOKENS_AT_ONCE if tokens.device.type == "cpu" else 16 * TOKENS_AT_ONCE
    n_rows = batch or max(1, at_once // n_tokens)
    numbers: list[Tensor] = []
    waiting: list[Tensor] = []  # ends of passes that are measured together
    for cut in cuts:
        for first in range(0, len(cut.parts), n_rows):
            parts = cut.parts[first : first + n_rows]
            memory = NoCache(len(parts))
            _, shared = network.enter(tokens.expand(len(parts), -1), memory, [n_tokens] * len(parts))
            x = before[cut.layer].repeat(len(parts), 1, 1)
            x = network.pass_blocks(x, shared, memory, RowEdits(cut, parts), first=cut.layer)
            waiting.append(measure.reads(x))
            n_done += len(parts)
            if n_done == n_all or sum(map(len, waiting)) >= measure.rows_at_once:
                numbers.append(measure(network, torch.cat(waiting)))
                waiting.clear()
            progress(n_done, n_all)
    return torch.cat(numbers)
