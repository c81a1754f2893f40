"""Which optimizer moves which parameter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from cutaway.train.config import TrainConfig
from cutaway.train.muon import Muon

BETAS = (0.9, 0.95)

# What each keeps of the past for a parameter. `step` counts, the others have the parameter's shape.
SLOTS: dict[type[Optimizer], tuple[str, ...]] = {
    AdamW: ("exp_avg", "exp_avg_sq", "step"),
    Muon: ("momentum_buffer",),
}


def build_optimizers(network: nn.Module, config: TrainConfig) -> list[Optimizer]:
    """AdamW for everything; or Muon for the matrices inside the blocks and AdamW for the rest.

    Weight decay acts on matrices only. Muon's update is scaled to the size of AdamW's, so one rate serves both.

    Source: arXiv:1711.05101 (AdamW), arXiv:2502.16982 (Muon and its scale).
    """
    parameters = dict(network.named_parameters())
    hidden = {n for n, p in parameters.items() if "blocks." in n and p.ndim == 2 and config.optimizer == "muon"}
    matrices = [p for n, p in parameters.items() if p.ndim >= 2 and n not in hidden]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizers: list[Optimizer] = [AdamW(groups, lr=config.top_rate, betas=BETAS, fused=True)]
    if hidden:
        optimizers.append(
            Muon(
                [p for n, p in parameters.items() if n in hidden],
                lr=config.top_rate,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",  # what a sharded step is scaled by, as ours is
            )
        )
    return optimizers


def set_rate(optimizers: list[Optimizer], lr: float) -> None:
    """The rate of the next step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


@torch.no_grad()
def clip(network: nn.Module, limit: float) -> float:
    """Scale all gradients so that their common norm is `limit` at most; the norm before.

    A norm that is not finite leaves the gradients as they are.
    """
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    total = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if limit < total < float("inf"):
        torch._foreach_mul_(gradients, limit / total)
    return total


def past(network: nn.Module, optimizers: list[Optimizer]) -> dict[str, Tensor]:
    """What the optimizers keep, by parameter and slot; what a fresh one does not have yet is made, as zeros."""
    names = {id(p): name for name, p in network.named_parameters()}
    kept = {}
    for optimizer, parameter in _each(optimizers):
        state = optimizer.state[parameter]
        for slot in SLOTS[type(optimizer)]:
            if slot not in state:
                # The fused step reads its count where the parameter is.
                count = torch.zeros((), device=parameter.device)
                state[slot] = count if slot == "step" else torch.zeros_like(parameter)
            kept[f"{names[id(parameter)]}.{slot}"] = state[slot]
    return kept


def _each(optimizers: list[Optimizer]) -> Iterator[tuple[Optimizer, Tensor]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield optimizer, parameter
