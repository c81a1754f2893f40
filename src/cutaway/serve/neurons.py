"""One feed-forward at one position: which neurons answer, and how strongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cutaway.errors import InsideError
from cutaway.figures import Bars, Figure, Numbers, Prose, Result, plain
from cutaway.inside.labels import labels
from cutaway.inside.targets import position_of
from cutaway.inside.trace import LAST, trace
from cutaway.language_model import LanguageModel

N_SHOWN = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Neurons(Result):
    """What every neuron of a layer hands on at a position, behind the non-linearity (and the gate, where one is)."""

    layer: int
    position: int
    word: str
    values: Numbers  # [neuron]

    @property
    def heading(self) -> str:
        return f"Feed-forward {self.layer} at {self.word} ({self.position})"

    def figures(self) -> list[Figure]:
        size = np.abs(self.values)
        order = np.argsort(-size)[:N_SHOWN]
        n_half = int(np.searchsorted(np.cumsum(np.sort(size**2)[::-1]), (size**2).sum() / 2)) + 1
        return [
            Bars(
                title="The neurons that answer most",
                labels=[str(i) for i in order],
                values=[float(self.values[i]) for i in order],
                unit="activation",
            ),
            Prose(
                title="How many answer",
                lines=[
                    f"{n_half:,} of {len(size):,} neurons make half of the length of what is handed to W_2; "
                    f"{int((size > size.max() / 10).sum()):,} answer with more than a tenth of the largest."
                ],
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "neurons"} | {name: plain(value, 6) for name, value in vars(self).items()}


@torch.no_grad()
def neurons(model: LanguageModel, ids: list[int], layer: int, position: int) -> Neurons:
    """The neurons of a layer at a position.

    Raises:
        InsideError: no such layer or position.
    """
    if not 0 <= layer < model.config.n_layers:
        raise InsideError(f"layer = {layer}: the model has 0 to {model.config.n_layers - 1}")
    at = position_of(position, len(ids))
    name = f"blocks.{layer}.ff.post[position {at}]"
    (found,) = trace(model, [ids], keep=[name, LAST])
    values = found[name].flatten().float().cpu().numpy()
    return Neurons(layer=layer, position=at, word=labels(model.tokenizer, ids)[at], values=values)
