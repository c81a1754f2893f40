"""The number of many passes that differ in one part each, to first order: from one pass and one gradient.

Source: Nanda, Attribution Patching: Activation Patching at Industrial Scale, 2023; Syed, Rager and Conmy,
arXiv:2310.10348.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cutaway.inside.metrics import Measure
from cutaway.inside.targets import wide
from cutaway.inside.trace import Headless
from cutaway.network import Transformer


def estimated(
    network: Transformer, base: Headless, measure: Measure, new: Mapping[str, Tensor], sets: Sequence[Sequence[int]]
) -> Tensor:
    """The number plus gradient · (new − old), summed over each set of positions C: [L H C], or [L C] without heads.

    Args:
        base: the pass, read for gradients, with all that is replaced kept.
        new: what each kept value becomes in one text, by name in the order of the layers: [T D], or [H T Dh].
    Raises:
        InsideError: a metric without a gradient.
    """
    with torch.inference_mode(False), torch.enable_grad():
        number = measure.differentiable(network, base.x)
        gradient = base.gradient(number)
    slopes = [
        (wide(gradient[name][0]) * (wide(value) - wide(base.kept[name][0]))).sum(-1) for name, value in new.items()
    ]
    changes = torch.stack(slopes).double().cpu()  # of every position
    together = changes.new_zeros(changes.shape[-1], len(sets))
    for column, positions in enumerate(sets):
        together[positions, column] = 1
    return number.detach().double().cpu() + changes @ together
