"""Values that follow from others which are kept: not stored beside them, but made when they are read.

Between the products with weights nothing is lost: queries and keys are turned, scores, scaled and masked lead to the
pattern, the pattern and the values to z, a feed-forward activates, the stream is a sum. The same operation on the same
numbers, by as many threads, gives each of these again bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.config import (
    CausalMaskConfig,
    MaskConfig,
    ModelConfig,
    PositionConfig,
    RotaryConfig,
    WindowMaskConfig,
)
from cutaway.inside.names import Index, Target
from cutaway.inside.values import Entry, select
from cutaway.network import Transformer
from cutaway.nn.block import Block
from cutaway.nn.feedforward import Activate, gated
from cutaway.nn.mask import build_mask
from cutaway.nn.position import build_position
from cutaway.nn.reference import STAGES, Reference

SOURCES = {
    "attn.q": ("attn.q_raw", "attn.k_raw", "attn.v"),  # which lie in one product, and are seen where they lie
    "attn.k": ("attn.k_raw", "attn.q_raw", "attn.v"),
    "attn.scores": ("attn.q", "attn.k"),
    "attn.scaled": ("attn.scores",),
    "attn.masked": ("attn.scores",),
    "attn.z": ("attn.pattern", "attn.v"),
    "resid_mid": ("resid_pre", "attn.out"),
    "ff.post": ("ff.pre",),
}
GATED = SOURCES | {"ff.post": ("ff.pre", "ff.up")}
UNEDITED = {  # besides itself
    "attn.q": SOURCES["attn.q"],
    "attn.k": SOURCES["attn.k"],
    **dict.fromkeys(STAGES[:3], ("attn.scaled", "attn.masked")),
    "attn.z": STAGES,
    "ff.post": ("ff.pre", "ff.up"),
}
BY_STEPS_TOO = ("attn.scaled", "attn.masked")


@functools.lru_cache(maxsize=32)  # hundreds of names, often the same for many texts
def follows(
    config: ModelConfig, wanted: tuple[Target, ...], edited: frozenset[str], *, in_one_pass: bool
) -> Mapping[Target, tuple[Target, ...]]:
    """Which of the wanted values need not be stored, and those that each is made from.

    Where all of a single text is not read `in_one_pass`, operations have other shapes and may round otherwise: then
    only scaled and masked scores are made. Scores are made in a block that shows its pattern.
    """
    sources_of = GATED if config.feedforward.gated else SOURCES
    known = {(target.name, target.picks): target for target in wanted}
    shown = {target.scope[0] for target in wanted if target.scope[1] == "attn.pattern"}
    found: dict[Target, tuple[Target, ...]] = {}
    for target in wanted:
        block, name = target.scope
        sources = [known.get((f"{block}.{source}", target.picks)) for source in sources_of.get(name, ())]
        fits = bool(sources) and (name in BY_STEPS_TOO or (in_one_pass and not target.picks))
        if name == "attn.scores":
            fits = fits and block in shown
        if fits and all(sources) and is_plain(config, target, edited):
            found[target] = cast(tuple[Target, ...], tuple(sources))
    return MappingProxyType(found)


def is_plain(config: ModelConfig, target: Target, edited: frozenset[str]) -> bool:
    """Whether a value is what the model makes of its sources.

    An edit is stored as it comes; so are stages of attention without a causal mask, where what a step may see depends
    on when it was taken, and what is made of an edited half of a product: it lies elsewhere then, and where vectors end
    elsewhere, what is left over rounds otherwise.
    """
    block, name = target.scope
    layer = layer_of(target)
    if name in ("attn.q", "attn.k") and not isinstance(config.positions[layer], RotaryConfig):
        return False  # the same tensor
    causal = isinstance(config.masks[layer], CausalMaskConfig | WindowMaskConfig)
    if not causal and name in (*STAGES, "attn.z"):
        return False
    return edited.isdisjoint((target.name, *(f"{block}.{other}" for other in UNEDITED.get(name, ()))))


def made(network: Transformer, target: Target, sources: Sequence[Entry]) -> Entry:
    """The value of `target`, made from its sources each time it is read."""
    config, layer, name = network.config, layer_of(target), target.scope[1]
    block, index = cast(Block, network.blocks[layer]), sources[0].index
    make: Callable[..., Tensor]
    match name:
        case "resid_mid":
            make = functools.partial(total, *sources)
        case "ff.post":
            make = functools.partial(activated, block.ff.activation, *sources)
        case "attn.q" | "attn.k":
            make = functools.partial(turned, config.positions[layer], config, sources[0])
        case "attn.z":
            index = (*index[:3], sources[1].index[3])
            make = functools.partial(gathered, block.attn.reference, config.masks[layer], *sources)
        case _:
            index = (*index[:3], sources[-1].index[-1 if len(sources) == 1 else 2])
            make = functools.partial(stage, name, block.attn.reference, config.masks[layer], index, *sources)
    return Entry(target=target, index=index, held=make)


def total(x: Entry, y: Entry) -> Float[Tensor, "B T D"]:
    """The residual stream and what is added to it."""
    return x.value + y.value


def activated(act: Activate, *sources: Entry) -> Float[Tensor, "B T F"]:
    """What the second matrix of a feed-forward reads, from what the first gave."""
    pre, *ups = (source.value for source in sources)
    return gated(act, pre, *ups) if ups else act(pre)


def turned(position: PositionConfig, config: ModelConfig, source: Entry) -> Float[Tensor, "B H T Dh"]:
    """Queries or keys at their positions."""
    x = source.value
    n = x.shape[2]
    return build_position(position, config).at(torch.arange(n, device=x.device)[None], [n]).turn(x)


def gathered(reference: Reference, config: MaskConfig, *sources: Entry) -> Float[Tensor, "B H T Dh"]:
    """What each head gathers, from its pattern and the values."""
    pattern, v = (source.value for source in sources)
    n = v.shape[2]
    with torch.autocast(v.device.type, enabled=False):  # whatever the reader's is
        return reference.gathered(pattern, v, build_mask(config, [0], n, [n], v.device))


def stage(
    name: str, reference: Reference, config: MaskConfig, index: Sequence[Index], *sources: Entry
) -> Float[Tensor, "B H T S"]:
    """A stage of attention, from queries and keys or from the scores."""
    first, *others = (source.value for source in sources)
    n = max(index[2][-1], index[3][-1]) + 1
    mask = build_mask(config, [0], n, [n], first.device)
    if name == "attn.scores":
        with torch.autocast(first.device.type, enabled=False):  # whatever the reader's is
            return reference.scores(first, others[0], mask)
    scaled = reference.scaled(first)
    visible = None if name == "attn.scaled" else mask.visible(slice(0, n), slice(0, n))
    if visible is None:
        return scaled
    return scaled.masked_fill_(~select(visible, [range(1), range(1), *index[2:]]), -math.inf)


def layer_of(target: Target) -> int:
    """The block that a value belongs to."""
    return int(target.name.split(".")[1])
