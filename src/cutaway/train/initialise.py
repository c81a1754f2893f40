"""The numbers a network starts from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cutaway.network import Transformer

STD = 0.02


@torch.no_grad()
def initialise(network: Transformer, seed: int) -> None:
    """Fill every parameter, one after another, each from a generator of its own.

    Matrices and tables: normal with deviation 0.02; the two that write to the residual stream: 0.02/√(2L), so that
    the stream's variance does not grow with the depth; biases 0; norms 1. A sharded parameter gets its shard of the
    same numbers.

    Source: GPT-2 (Radford et al. 2019, section 2.3, and the deviation in its released code, model.py).
    """
    depth = math.sqrt(2 * network.config.n_layers)
    for number, (name, parameter) in enumerate(network.named_parameters()):
        if parameter.ndim < 2:
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.constant_(parameter, 1.0 - getattr(network.config.norm, "offset", 0.0))
            continue
        writes = name.endswith(("attn.out.weight", "ff.down.weight"))
        generator = torch.Generator().manual_seed(seed * 100_003 + number)
        _put(parameter, torch.randn(parameter.shape, generator=generator) * (STD / depth if writes else STD))


@torch.no_grad()
def fill(network: Transformer, stored: Transformer) -> None:
    """Fill every parameter from a network held whole."""
    whole = dict(stored.named_parameters())
    for name, parameter in network.named_parameters():
        _put(parameter, whole[name])


def _put(parameter: Tensor, full: Tensor) -> None:
    """The whole tensor's numbers into a parameter, or this process' share of them."""
    if isinstance(parameter, DTensor):
        share = distribute_tensor(full.to(parameter.device), parameter.device_mesh, parameter.placements)
        parameter.to_local().copy_(share.to_local())
    else:
        parameter.copy_(full)
