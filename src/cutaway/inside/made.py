"""Values that follow from others which are kept: not stored beside them, but made when they are read.

Scores, scaled and masked are as large as the pattern, the stream between the halves of a block is a sum, and what a
feed-forward activates needs no weight. The same operation on the same numbers, by as many threads, gives them again bit
for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.config import CausalMaskConfig, MaskConfig, ModelConfig, WindowMaskConfig
from cutaway.inside.names import Index, Target
from cutaway.inside.values import Entry, select
from cutaway.network import Transformer
from cutaway.nn.block import Block
from cutaway.nn.feedforward import Activate, gated
from cutaway.nn.mask import build_mask
from cutaway.nn.reference import Reference

SOURCES = {
    "attn.scores": ("attn.q", "attn.k"),
    "attn.scaled": ("attn.scores",),
    "attn.masked": ("attn.scores",),
    "resid_mid": ("resid_pre", "attn.out"),
    "ff.post": ("ff.pre",),
}
GATED = SOURCES | {"ff.post": ("ff.pre", "ff.up")}
IN_ONE_PASS = ("attn.scores", "resid_mid", "ff.post")


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
        if name in IN_ONE_PASS:
            fits = in_one_pass and not target.picks and (name != "attn.scores" or block in shown)
        else:
            fits = bool(sources)
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
    if name == "resid_mid":
        return target.name not in edited
    if name == "ff.post":
        return edited.isdisjoint(f"{block}.{part}" for part in ("ff.pre", "ff.up", "ff.post"))
    causal = isinstance(config.masks[layer_of(target)], CausalMaskConfig | WindowMaskConfig)
    return causal and edited.isdisjoint((target.name, f"{block}.attn.scaled", f"{block}.attn.masked"))


def made(network: Transformer, target: Target, sources: Sequence[Entry]) -> Entry:
    """The value of `target`, made from its sources each time it is read."""
    if target.scope[1] == "resid_mid":
        return Entry(target=target, index=sources[0].index, held=functools.partial(total, *sources))
    layer = layer_of(target)
    block = cast(Block, network.blocks[layer])
    if target.scope[1] == "ff.post":
        ff = block.ff
        return Entry(target=target, index=sources[0].index, held=functools.partial(activated, ff.activation, *sources))
    index = (*sources[0].index[:3], sources[-1].index[-1 if len(sources) == 1 else 2])
    make = functools.partial(stage, target.scope[1], block.attn.reference, network.config.masks[layer], index, *sources)
    return Entry(target=target, index=index, held=make)


def total(x: Entry, y: Entry) -> Float[Tensor, "B T D"]:
    """The residual stream and what is added to it."""
    return x.value + y.value


def activated(act: Activate, *sources: Entry) -> Float[Tensor, "B T F"]:
    """What the second matrix of a feed-forward reads, from what the first gave."""
    pre, *ups = (source.value for source in sources)
    return gated(act, pre, *ups) if ups else act(pre)


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
