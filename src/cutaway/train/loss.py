"""The loss of a batch, without the scores of all its positions at once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cutaway.network import Transformer
from cutaway.nn.reference import soft_cap

IGNORE = -100  # a target that does not count, as in torch's cross_entropy
CHUNK = 1 << 22  # scores at a time: 16 MiB in fp32


class Objective(nn.Module):
    """A network and its loss in one forward, so that whoever spreads it over processes sees one module."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """The sum of all targets' losses [nat]. What is divided by is the caller's: parts of a batch then add up."""
        x = self.network.final_norm(self.network.residual(tokens))
        cap = self.network.config.logit_soft_cap
        loss: Tensor = CrossEntropy.apply(  # type: ignore[no-untyped-call]
            x.flatten(0, 1), self.network.head.weight, targets.flatten(), cap
        )
        return loss


class CrossEntropy(torch.autograd.Function):
    """Σ −log softmax(x Wᵀ)[target], and its gradients, a few rows of scores at a time.

    The scores are needed once for the loss and once for the gradient, which is known as soon as they are: so both
    are computed together and T·V numbers are never held. Scores are summed in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " N"], cap: float | None
    ) -> Float[Tensor, ""]:
        total, *gradients = _in_chunks(x, weight, targets, cap, any(ctx.needs_input_grad[:2]))
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_x, grad_w = ctx.saved_tensors
        return grad_x * gradients[0], grad_w * gradients[0], None, None


def _in_chunks(x: Tensor, weight: Tensor, targets: Tensor, cap: float | None, wanted: bool) -> tuple[Tensor, ...]:
    """The loss; and, if wanted, its gradients along x and the weight."""
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    w = weight.to(dtype)
    total = torch.zeros((), dtype=torch.float32, device=x.device)
    grad_x, grad_w = (torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)) if wanted else (x, weight)
    n_rows = max(1, CHUNK // weight.shape[0])
    with torch.autocast(device, enabled=False):
        for first in range(0, len(x), n_rows):
            rows = slice(first, first + n_rows)
            here = x[rows].to(dtype)
            loss, slope = _rows(here, w, targets[rows], cap, wanted)
            total += loss
            if wanted:
                grad_x[rows] = slope @ w
                grad_w += slope.T @ here
    return (total, grad_x, grad_w.to(weight.dtype)) if wanted else (total,)


def _rows(
    x: Float[Tensor, "n D"], w: Float[Tensor, "V D"], targets: Int[Tensor, " n"], cap: float | None, wanted: bool
) -> tuple[Tensor, Tensor]:
    """The loss of some rows, and its slope along their scores [n V]."""
    scores = soft_cap((x @ w.T).float(), cap)
    counted = targets != IGNORE
    target = targets.where(counted, 0)[:, None]
    log_total = scores.logsumexp(dim=-1, keepdim=True)
    loss = ((log_total - scores.gather(1, target)) * counted[:, None]).sum()
    if not wanted:
        return loss, scores
    slope = scores.sub(log_total).exp_()
    slope.scatter_add_(1, target, torch.full_like(log_total, -1.0))
    if cap is not None:
        slope *= 1 - (scores / cap) ** 2
    slope *= counted[:, None]
    return loss, slope.to(x.dtype)
