"""Muon with the matrices of one shape orthogonalised together: the same numbers in a third of the calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

EPS = 1e-7  # a gradient of zeros stays zeros


class Muon(torch.optim.Muon):
    """torch's Muon, whose rate is scaled to the size of AdamW's updates; sharded matrices take torch's own step.

    Source: arXiv:2502.16982; the iteration and its coefficients as in torch.optim.Muon.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        assert closure is None, "the loop computes gradients itself"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if any(isinstance(p, DTensor) for p in parameters):
                super().step()  # type: ignore[no-untyped-call]
                return
            updates = [self._momentum(p, group["momentum"]) for p in parameters]
            for p, update in zip(
                parameters, together(updates, group["ns_coefficients"], group["ns_steps"]), strict=True
            ):
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        """The gradient, drawn to those before it (Nesterov)."""
        assert p.grad is not None
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p.grad)
        past: Tensor = state["momentum_buffer"]
        past.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(past, momentum)


def together(matrices: Sequence[Tensor], coefficients: tuple[float, float, float], n_steps: int) -> list[Tensor]:
    """Each matrix with its singular values moved to about 1, in bf16; those of one shape, turned or not, at once."""
    wide = [m if m.shape[0] <= m.shape[1] else m.T for m in matrices]
    alike: dict[torch.Size, list[int]] = {}
    for i, m in enumerate(wide):
        alike.setdefault(m.shape, []).append(i)
    found = list(wide)
    for places in alike.values():
        for i, m in zip(places, orthogonal(torch.stack([wide[i] for i in places]), coefficients, n_steps), strict=True):
            found[i] = m if matrices[i].shape == m.shape else m.T
    return found


def orthogonal(x: Tensor, coefficients: tuple[float, float, float], n_steps: int) -> Tensor:
    """The Newton-Schulz iteration on a stack of wide matrices [N R C]."""
    a, b, c = coefficients
    x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
