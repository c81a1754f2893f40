"""Writing fp32 numbers past the processor's cache, for what is not read soon.

Memory that is written the usual way is read first, and takes the place of what the cache still needs. These stores do
neither, three times as fast. They come in whole vectors, to addresses that are multiples of one; the rest is written as
usual.

Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cutaway.nn.numbers import FP32, numbers

LANES = 16  # numbers of a vector, as many as a line of the cache holds
BYTES = 4  # of a number
LINE = LANES * BYTES


@njit
def carry(target, source, n):
    """Copy n numbers from one address to another."""
    to, x = numbers(target, n, FP32), numbers(source, n, FP32)
    i = min(-target % LINE // BYTES, n)
    to[:i] = x[:i]
    while i + LANES <= n:
        carry_line(target + BYTES * i, source + BYTES * i)
        i += LANES
    to[i:] = x[i:]


@njit
def blank(target, n):
    """Write n zeros."""
    to = numbers(target, n, FP32)
    i = min(-target % LINE // BYTES, n)
    to[:i] = np.float32(0)
    while i + LANES <= n:
        blank_line(target + BYTES * i)
        i += LANES
    to[i:] = np.float32(0)


LLVM_LINE = ir.VectorType(ir.FloatType(), LANES)


@intrinsic
def carry_line(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy the vector at one address to another, where it is aligned."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _write(context, builder, values[0], builder.load(_at(builder, values[1]), align=BYTES))

    return types.void(types.int64, types.int64), generate


@intrinsic
def blank_line(typing_context: Any, target: Any) -> Any:
    """Write a vector of zeros to an address where it is aligned."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _write(context, builder, values[0], ir.Constant(LLVM_LINE, [0.0] * LANES))

    return types.void(types.int64), generate


@intrinsic
def arrive(typing_context: Any) -> Any:
    """Wait until all that this thread wrote can be read by others: such stores may arrive in any order."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _at(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, LLVM_LINE.as_pointer())


def _write(context: Any, builder: Any, address: Any, vector: Any) -> Any:
    store = builder.store(vector, _at(builder, address), align=LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
    return context.get_dummy_value()
