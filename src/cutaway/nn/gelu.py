"""GELU where a gradient is to come through it: torch's tanh is slow on the CPU, a tenth of a training step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cutaway.nn import few_rows

MANY = 1 << 16  # numbers from which the loops pay
PIECE = 1 << 14  # numbers that a thread takes at a time


def gelu_tanh(x: Float[Tensor, "*axes F"]) -> Float[Tensor, "*axes F"]:
    """x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2. Source: arXiv:1606.08415, section 2."""
    if torch.is_grad_enabled() and x.requires_grad and x.numel() >= MANY and few_rows.computable(x, x):
        looped: Tensor = Looped.apply(x.contiguous())  # type: ignore[no-untyped-call]
        return looped
    return F.gelu(x, approximate="tanh")


class Looped(torch.autograd.Function):
    """The same, and its slope times the gradient behind it.

    x comes contiguous: a copy made in here would have no part in the graph, and the gradient's own would miss it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        few_rows.text_loops().GELU[x.dtype](torch.get_num_threads(), x.data_ptr(), y.data_ptr(), x.numel(), PIECE)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,), behind = ctx.saved_tensors, gradients[0].contiguous()
        # the gradient's own gradient is wanted, or many gradients at once are
        is_many = torch._C._functorch.is_legacy_batchedtensor(behind)
        if torch.is_grad_enabled() or is_many or not few_rows.computable(x, behind):
            return torch.ops.aten.gelu_backward(behind, x, approximate="tanh")
        slope = torch.empty_like(x)
        few_rows.text_loops().GELU_SLOPE[x.dtype](
            torch.get_num_threads(), x.data_ptr(), behind.data_ptr(), slope.data_ptr(), x.numel(), PIECE
        )
        return slope
