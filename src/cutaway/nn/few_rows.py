"""What a decoding step does, at the speed at which memory hands over the weights.

A pass over one new token reads every weight once and uses it once. There torch's product of one row reaches a third
of the memory's speed, and an operation on a few numbers costs its fixed price of ten microseconds. These functions do
the same in plain loops (loops.py); each `…_applies` says where: a few rows of a common float type on the CPU, with no
gradient to keep. Everywhere else torch's own operations run.
"""

from __future__ import annotations

import functools
import importlib
import os
import struct
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import forward_ad

from cutaway.nn.devices import multiplies_bf16

MAX_ROWS = 32  # beyond these torch's product, which computes more per byte, catches up
MAX_PROMPT = 6 if multiplies_bf16() else MAX_ROWS  # the same for a text in bf16, where the processor multiplies that
DTYPES = (torch.float32, torch.bfloat16)
PLAIN = (Tensor, nn.Parameter)
FEW = 1 << 16  # numbers up to which a norm, a sum … is worth more in one call than in several threads
PIECE = 4 << 20  # what a thread takes of a matrix at a time [B]: long streams, yet a slower core can take fewer
SECOND_THREAD = 1 << 16  # products of numbers from which a second thread pays


def readable(a: Tensor, b: Tensor) -> bool:
    """Whether the loops may stand in for torch here. Cheap, because a token asks two hundred times."""
    return not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and computable(a, b)


def computable(a: Tensor, b: Tensor) -> bool:
    """Whether the loops may read these, whoever keeps their gradient."""
    return (
        a.dtype is b.dtype
        and a.dtype in DTYPES
        and a.is_cpu
        and b.is_cpu
        and type(a) in PLAIN
        and type(b) in PLAIN
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0  # a tangent beside each number
        and not _watched()
        and loops() is not None
    )


def _watched() -> bool:
    """Whether somebody follows torch's operations, who would not see the loops."""
    depth = torch._C._len_torch_dispatch_stack()
    return depth > 0 and not (depth == 1 and hasattr(torch._C._get_dispatch_stack_at(0), "takes_loops"))


def linear_applies(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Few rows, whose width is the weight's; of a text fewer, but a batch of steps gives what each gives alone."""
    is_text = x.dtype is torch.bfloat16 and x.dim() > 1 and x.shape[-2] > 1
    return (
        0 < x.numel() <= (MAX_PROMPT if is_text else MAX_ROWS) * x.shape[-1]
        and readable(x, weight)
        and x.shape[-1] == weight.shape[1]
        and weight.is_contiguous()
        and (bias is None or (bias.dtype is weight.dtype and bias.is_cpu and bias.is_contiguous()))
    )


def linear(
    x: Float[Tensor, "*axes D_in"], weight: Float[Tensor, "D_out D_in"], bias: Float[Tensor, " D_out"] | None
) -> Float[Tensor, "*axes D_out"]:
    """x Wᵀ + b, summed in fp32. A row's numbers do not depend on the rows beside it."""
    d_out, d_in = weight.shape
    dtype = weight.dtype
    rows = x.contiguous()
    y = torch.empty((*x.shape[:-1], d_out), dtype=dtype, device="cpu")
    n_threads = torch.get_num_threads()
    n_pieces = n_threads * (1 + d_out * d_in * dtype.itemsize // (n_threads * PIECE))
    piece = -(-d_out // n_pieces)
    product = loops().PRODUCT[dtype]
    has_bias = bias is not None
    bias_at = bias.data_ptr() if bias is not None else 0
    product(
        n_threads,
        *(rows.data_ptr(), weight.data_ptr(), bias_at, has_bias, y.data_ptr()),
        *(rows.numel() // d_in, d_in, d_out, piece),
    )
    return y


def rms_norm_applies(x: Tensor, weight: Tensor) -> bool:
    """Few rows, in one piece of memory."""
    return (
        x.numel() <= FEW
        and readable(x, weight)
        and x.shape[-1] == weight.numel()
        and weight.is_contiguous()
        and x.is_contiguous()
    )


def rms_norm(
    x: Float[Tensor, "*axes D"], weight: Float[Tensor, " D"], eps: float, offset: float
) -> Float[Tensor, "*axes D"]:
    """x / √(mean(x²) + eps) · (offset + weight), in fp32, rounded once."""
    y = torch.empty_like(x)
    d = weight.numel()
    loops().RMS_NORM[x.dtype](
        1, x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // d, d, bits_of(eps), bits_of(offset)
    )
    return y


def rotate_applies(x: Tensor, cos: Tensor) -> bool:
    """One position a row, fp32 tables."""
    return x.shape[2] == 1 and x.stride(3) == 1 and cos.dtype is torch.float32 and readable(x, x)


def rotate(
    x: Float[Tensor, "B H 1 Dh"], cos: Float[Tensor, "b 1 1 R"], sin: Float[Tensor, "b 1 1 R"]
) -> Float[Tensor, "B H 1 Dh"]:
    """x · cos + (x, its halves exchanged) · sin over the first R coordinates; the others stay."""
    n_rows, n_heads, _, d_head = x.shape
    y = torch.empty(n_rows, n_heads, 1, d_head, dtype=x.dtype, device="cpu")
    d_rotary = cos.shape[-1]
    loops().ROTATE[x.dtype](
        1,
        *(x.data_ptr(), y.data_ptr(), cos.data_ptr(), sin.data_ptr(), n_rows, n_heads, d_head, d_rotary),
        *(x.stride(0), x.stride(1), d_rotary if cos.shape[0] > 1 else 0),
    )
    return y


def add(x: Float[Tensor, "*axes D"], y: Float[Tensor, "*axes D"]) -> Float[Tensor, "*axes D"]:
    """x + y."""
    few = x.numel() <= FEW and x.shape == y.shape and readable(x, y)
    if not (few and x.is_contiguous() and y.is_contiguous()):
        return x + y
    z = torch.empty_like(x)
    loops().ADD[x.dtype](1, x.data_ptr(), y.data_ptr(), z.data_ptr(), x.numel())
    return z


def silu_gate_applies(gate: Tensor, up: Tensor) -> bool:
    """One position a row."""
    return gate.shape[1] == 1 and gate.shape == up.shape and gate.stride(2) == up.stride(2) == 1 and readable(gate, up)


def silu_gate(gate: Float[Tensor, "B 1 F"], up: Float[Tensor, "B 1 F"]) -> Float[Tensor, "B 1 F"]:
    """silu(gate) · up, where silu(x) = x / (1 + e⁻ˣ); rounded once."""
    n_rows, _, d = gate.shape
    z = torch.empty((n_rows, 1, d), dtype=gate.dtype, device="cpu")
    loops().SILU_GATE[gate.dtype](
        1, gate.data_ptr(), up.data_ptr(), z.data_ptr(), n_rows, d, gate.stride(0), up.stride(0)
    )
    return z


def append_applies(new: Tensor, old: Tensor) -> bool:
    """One position a row."""
    return new.shape[2] == 1 and new.shape[:2] == old.shape[:2] and new.stride(3) == 1 and readable(new, old)


def append(
    k: Float[Tensor, "B K 1 Dh"],
    v: Float[Tensor, "B K 1 Dh"],
    old_k: Float[Tensor, "B K N Dh"],
    old_v: Float[Tensor, "B K N Dh"],
    slots: Int[Tensor, " B"],
) -> None:
    """Write each row's new key and value into its slot of the buffers."""
    loops().APPEND[k.dtype](
        1,
        *(k.data_ptr(), v.data_ptr(), old_k.data_ptr(), old_v.data_ptr(), slots.data_ptr()),
        *(k.shape[0], k.shape[1], k.shape[3], *k.stride()[:2], *v.stride()[:2], *old_k.stride()[:2]),
    )


def attend_applies(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """One query a row."""
    return (
        q.shape[2] == 1
        and readable(q, k)
        and readable(q, v)
        and k.shape == v.shape
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
        and k.stride(2) > 0
    )


def attend(
    q: Float[Tensor, "B H 1 Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dh"],
    scale: float,
    ranges: Int[Tensor, "B 1 2"],
) -> Float[Tensor, "B H 1 Dh"]:
    """softmax(scale · q·kᵀ) · v of one query a row, over the keys of its range (first, one past the last)."""
    n_rows, n_heads, _, d_head = q.shape
    n_slots = max(k.shape[2], k.stride(1) // k.stride(2))  # of the whole buffer, so that it stays when S grows
    z = torch.empty(n_rows, n_heads, 1, d_head, dtype=q.dtype, device="cpu")
    room = torch.empty(n_rows * n_heads * (n_slots + d_head), dtype=torch.float32, device="cpu")  # for the softmax
    work = n_rows * n_heads * n_slots * d_head
    loops().ATTEND[q.dtype](
        torch.get_num_threads() if work > SECOND_THREAD else 1,
        *(q.data_ptr(), k.data_ptr(), v.data_ptr(), z.data_ptr(), room.data_ptr(), ranges.data_ptr()),
        *(bits_of(scale), n_rows, n_heads, k.shape[1], d_head, n_slots),
        *(*q.stride()[:2], *k.stride()[:3], *v.stride()[:3]),
    )
    return z


def prepare(dtype: torch.dtype) -> None:
    """Compile the loops now, or fetch them from where they are kept, rather than at the first token."""
    if dtype in DTYPES and (compiled := loops()) is not None:
        compiled.compile_all(dtype)


@functools.cache
def loops() -> Any:
    """The compiled loops, imported when first needed; None where torch has no team of threads to run them."""
    try:
        return importlib.import_module("cutaway.nn.loops")
    except (ImportError, OSError):
        return None


@functools.cache
def text_loops() -> Any:
    """Those of a whole text, imported when first needed; they can be had where `loops` can."""
    return importlib.import_module("cutaway.nn.text_loops")


@functools.lru_cache(maxsize=64)
def bits_of(x: float) -> int:
    """A real number as a whole one with the same bits."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


def _forget_loops() -> None:
    """A team's threads stay behind in the parent: a forked child must not wait for them."""
    global loops
    loops = functools.cache(lambda: None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loops)
