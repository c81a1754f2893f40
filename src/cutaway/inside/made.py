"""Values that follow from others which are kept: not stored beside them, but made when they are read.

The same operation on the same numbers gives them again bit for bit, and to store them takes as long as to compute them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from cutaway.config import CausalMaskConfig, MaskConfig, ModelConfig, WindowMaskConfig
from cutaway.inside.names import Index, Target
from cutaway.inside.values import Entry, select
from cutaway.network import Transformer
from cutaway.nn.block import Block
from cutaway.nn.mask import build_mask
from cutaway.nn.reference import Reference, soft_cap

STAGES = ("attn.scores", "attn.scaled", "attn.masked")  # before the pattern
SOURCES = {
    "attn.norm": ("resid_pre",),
    "attn.scores": ("attn.q", "attn.k"),
    "attn.scaled": ("attn.scores",),
    "attn.masked": ("attn.scores",),
    "resid_mid": ("resid_pre", "attn.out"),
    "ff.norm": ("resid_mid",),
}
PARALLEL = SOURCES | {"ff.norm": ("resid_pre",)}


@functools.lru_cache(maxsize=32)  # hundreds of names, often the same for many texts
def follows(
    config: ModelConfig, wanted: tuple[Target, ...], edited: frozenset[str], *, in_one_pass: bool
) -> Mapping[Target, tuple[Target, ...]]:
    """Which of the wanted values need not be stored, and those that each is made from.

    What is edited is stored as it comes, and so are stages of attention without a causal mask, where what a step may
    see depends on when it was taken. In other shapes an operation may round otherwise: where all of a single text is
    not read `in_one_pass`, only scaled and masked scores are made. Scores are made in a block that shows its pattern.
    """
    known = {(target.name, target.picks): target for target in wanted}
    shown = {target.scope[0] for target in wanted if target.scope[1] == "attn.pattern"}
    found: dict[Target, tuple[Target, ...]] = {}
    for target in wanted:
        block, name = target.scope
        paths = (PARALLEL if config.parallel else SOURCES).get(name, ())
        sources = tuple(known[key] for path in paths if (key := (f"{block}.{path}", target.picks)) in known)
        if not sources or len(sources) < len(paths):
            continue
        fits = in_one_pass and not target.picks
        changed = {target.name}
        if name in STAGES:
            changed |= {f"{block}.{stage}" for stage in STAGES[1:]}
            fits = (fits and block in shown) if name == "attn.scores" else True
            fits &= isinstance(config.masks[layer_of(target)], CausalMaskConfig | WindowMaskConfig)
        if fits and edited.isdisjoint(changed):
            found[target] = sources
    return found


def made(network: Transformer, target: Target, sources: Sequence[Entry]) -> Entry:
    """The value of `target`, made from its sources each time it is read, with the weights as they are now."""
    layer, (_, name) = layer_of(target), target.scope
    block, index = cast(Block, network.blocks[layer]), sources[0].index
    make: Callable[[], Tensor]
    if name in STAGES:
        if name == "attn.scores":
            index = (*index[:3], sources[1].index[2])
        make = functools.partial(stage, name, block.attn.reference, network.config.masks[layer], index, *sources)
    elif name == "resid_mid":
        make = functools.partial(total, *sources)
    else:
        norm = block.attn_norm if name == "attn.norm" else block.ff_norm
        weights = weights_of(norm)
        make = functools.partial(normed, norm, weights, *sources)
    return Entry(target=target, index=index, held=make)


def stage(
    name: str, reference: Reference, config: MaskConfig, index: Sequence[Index], *sources: Entry
) -> Float[Tensor, "B H T S"]:
    """A stage of attention, from queries and keys or from the scores."""
    first, *others = (source.value for source in sources)
    n = max(index[2][-1], index[3][-1]) + 1
    mask = build_mask(config, [0], n, [n], first.device)
    if name == "attn.scores":
        return reference.scores(first, others[0], mask)
    scaled = scale(reference, first)
    visible = None if name == "attn.scaled" else mask.visible(slice(0, n), slice(0, n))
    if visible is None:
        return scaled
    return scaled.masked_fill_(~select(visible, [range(1), range(1), *index[2:]]), -math.inf)


def total(x: Entry, y: Entry) -> Float[Tensor, "B T D"]:
    """The residual stream and what is added to it."""
    return x.value + y.value


def normed(norm: Callable[[Tensor], Tensor], weights: Mapping[str, Tensor], x: Entry) -> Float[Tensor, "B T D"]:
    """What a sub-layer reads; as it is where the config has no norm there."""
    return functional_call(norm, dict(weights), (x.value,)) if isinstance(norm, nn.Module) else norm(x.value)


def weights_of(norm: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The weights of a norm as they are now; those of a run in training change."""
    parts = norm.named_parameters() if isinstance(norm, nn.Module) else ()
    return {name: weight.detach().clone() for name, weight in parts}


def scale(reference: Reference, scores: Tensor) -> Tensor:
    """Scores as the softmax reads them, before the mask."""
    return soft_cap(scores * reference.scale, reference.cap)


def layer_of(target: Target) -> int:
    """The block that a value belongs to."""
    return int(target.name.split(".")[1])
