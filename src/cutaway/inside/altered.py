"""The same weights in another architecture: without the mask, without the scale of the scores, without positions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

import torch

from cutaway.config import ModelConfig, NoMaskConfig, NoPositionConfig
from cutaway.errors import InsideError
from cutaway.network import Transformer

WITHOUT: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "mask": lambda config: replace(config, mask=NoMaskConfig()),
    "scale": lambda config: replace(config, attention=replace(config.attention, scale=1.0)),
    "positions": lambda config: replace(config, position=NoPositionConfig()),
}


class HasNetwork(Protocol):
    """Whatever holds a network, such as a language model."""

    network: Transformer


M = TypeVar("M", bound=HasNetwork)


def altered(model: M, without: str | Iterable[str]) -> M:
    """The model without some of its parts: every weight is the same number, in the same memory.

    Args:
        without: "mask": every position sees every other, so nothing can be cached. "scale": scores are not divided
            by √d_head. "positions": neither a learned table nor a rotation.
    Raises:
        InsideError: a part that cannot be left out.
    """
    config = model.network.config
    for part in [without] if isinstance(without, str) else without:
        if part not in WITHOUT:
            raise InsideError(f"{part!r} cannot be left out: one of {', '.join(WITHOUT)} can")
        config = WITHOUT[part](config)
    with torch.device("meta"):
        network = Transformer(config)
    wanted = network.state_dict().keys()
    tensors = {name: value for name, value in model.network.state_dict().items() if name in wanted}
    network.load_state_dict(tensors, assign=True)
    network.tie()
    other = copy.copy(model)
    other.network = network.eval()
    return other
