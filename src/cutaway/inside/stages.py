"""The stages of attention that follow from the scores alone: not stored beside them, but made when they are read.

`attn.scaled` and `attn.masked` are as large as the scores and, unedited, the same operations on the same numbers give
them again bit for bit. So a trace that keeps all three holds one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from cutaway.config import CausalMaskConfig, ModelConfig, WindowMaskConfig
from cutaway.inside.edits import Edit
from cutaway.inside.names import Target
from cutaway.inside.values import Entry, select
from cutaway.network import Transformer
from cutaway.nn.attention import Attention
from cutaway.nn.kernel import Reference, soft_cap
from cutaway.nn.mask import build_mask

SCORES, SCALED, MASKED = ".attn.scores", ".attn.scaled", ".attn.masked"


def follows(
    config: ModelConfig, wanted: Sequence[Target], aimed: Sequence[tuple[Edit, Target]]
) -> dict[Target, Target]:
    """Which of the wanted values need not be stored, and the scores that each is made from.

    Those of which an edit changes a stage after the scores are stored as they come; so are those without a causal
    mask, where what a step may see depends on when it was taken.
    """
    scores = {
        (target.name.removesuffix(SCORES), target.picks): target for target in wanted if target.name.endswith(SCORES)
    }
    edited = {target.name for _, target in aimed}
    found = {}
    for target in wanted:
        block, _, stage = target.name.rpartition(".attn.")
        source = scores.get((block, target.picks)) if stage in ("scaled", "masked") else None
        if source is None or not edited.isdisjoint((block + SCALED, block + MASKED)):
            continue
        if isinstance(config.masks[layer_of(target)], CausalMaskConfig | WindowMaskConfig):
            found[target] = source
    return found


def made(network: Transformer, target: Target, scores: Entry) -> Entry:
    """The value of `target`, made from the scores each time it is read."""
    reference = cast(Attention, network.blocks[layer_of(target)].attn).reference
    mask = network.config.masks[layer_of(target)]

    def make(held: Tensor) -> Tensor:
        scaled = scale(reference, held)
        if target.name.endswith(SCALED):
            return scaled
        queries, keys = scores.index[2:]
        n = max(queries[-1], keys[-1]) + 1
        visible = build_mask(mask, [0], n, [n], held.device).visible(slice(0, n), slice(0, n))
        return (
            scaled
            if visible is None
            else scaled.masked_fill_(~select(visible, [range(1), range(1), queries, keys]), -math.inf)
        )

    return Entry(target=target, index=scores.index, held=scores.held, make=make)


def scale(reference: Reference, scores: Tensor) -> Tensor:
    """Scores as the softmax reads them, before the mask."""
    return soft_cap(scores * reference.scale, reference.cap)


def layer_of(target: Target) -> int:
    """The block that a value belongs to."""
    return int(target.name.split(".")[1])
