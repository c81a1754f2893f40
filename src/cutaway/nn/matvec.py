"""The product of a few rows with a matrix, at the speed at which memory hands over the matrix.

Decoding one token reads every weight once and uses it once, so memory sets the pace; torch's product of one row
reaches a third of it. The loop is in loops.py.
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn

MAX_ROWS = 8  # beyond these torch's product, which computes more per byte, is as fast
DTYPES = (torch.float32, torch.bfloat16)
PLAIN = (Tensor, nn.Parameter)
PIECE = 512 * 1024  # what a thread takes at a time [B]: long streams, yet a slower core can take fewer


def applies(x: Tensor, weight: Tensor) -> bool:
    """Whether `matvec` can stand in for F.linear: a few rows on the CPU, no gradient, no compiler at work."""
    return (
        x.numel() <= MAX_ROWS * weight.shape[1]
        and weight.dtype in DTYPES
        and x.dtype is weight.dtype
        and weight.is_cpu
        and type(weight) in PLAIN
        and weight.is_contiguous()
        and not (torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad))
        and not torch.compiler.is_compiling()
        and loops() is not None
    )


def matvec(
    x: Float[Tensor, "*axes D_in"], weight: Float[Tensor, "D_out D_in"], bias: Float[Tensor, " D_out"] | None
) -> Float[Tensor, "*axes D_out"]:
    """x Wᵀ + b, summed in fp32. A row's numbers do not depend on the rows beside it."""
    d_out, d_in = weight.shape
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], d_out)
    n_threads = torch.get_num_threads()
    n_pieces = n_threads * (1 + weight.nbytes // (n_threads * PIECE))
    compiled = loops()
    assert compiled is not None
    compiled.PRODUCT[weight.dtype](
        n_threads,
        *(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // d_in, d_in, d_out, -(-d_out // n_pieces)),
    )
    if bias is not None:
        y += bias
    return y if x.dtype is torch.float32 else y.to(x.dtype)


@functools.cache
def loops() -> ModuleType | None:
    """The compiled loops, imported when first needed; None where torch has no OpenMP team to run them."""
    try:
        return importlib.import_module("cutaway.nn.loops")
    except (ImportError, OSError, AttributeError):
        return None


if hasattr(os, "register_at_fork"):
    # A team's threads stay behind in the parent: a forked child must not wait for them.
    os.register_at_fork(after_in_child=lambda: _forget_loops())


def _forget_loops() -> None:
    global loops
    loops = functools.cache(lambda: None)
