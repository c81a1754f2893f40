"""Muon with the matrices of one shape orthogonalised together: the same numbers in a third of the calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

EPS = 1e-7  # a gradient of zeros stays zeros
SCRATCH = 1 << 22  # numbers of a stack: all matrices of a large model at once would be a second model in memory


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
            for some in stacks(parameters):
                updates = [self._momentum(p, group["momentum"]) for p in some]
                updates = together(updates, group["ns_coefficients"], group["ns_steps"])
                for p, update in zip(some, updates, strict=True):
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


def stacks(matrices: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The matrices of one shape, turned or not, as many at once as there is scratch for."""
    alike: dict[tuple[int, ...], list[Tensor]] = {}
    for m in matrices:
        alike.setdefault(tuple(sorted(m.shape)), []).append(m)
    for same in alike.values():
        n = max(1, SCRATCH // same[0].numel())
        for first in range(0, len(same), n):
            yield same[first : first + n]


def together(matrices: Sequence[Tensor], coefficients: tuple[float, float, float], n_steps: int) -> list[Tensor]:
    """Matrices of one shape, turned or not, with their singular values moved to about 1, in bf16."""
    wide = [(m if m.shape[0] <= m.shape[1] else m.T).bfloat16() for m in matrices]
    found = orthogonal(torch.stack(wide), coefficients, n_steps)
    return [one if one.shape == m.shape else one.T for one, m in zip(found, matrices, strict=True)]


def orthogonal(x: Tensor, coefficients: tuple[float, float, float], n_steps: int) -> Tensor:
    """The Newton-Schulz iteration on a stack of wide matrices [N R C]."""
    a, b, c = coefficients
    x = x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
