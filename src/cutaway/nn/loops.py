"""Plain loops, compiled by numba, run by the threads that torch already has.

torch's operations share one OpenMP team; a second team would wait for the same cores. A loop is called by every thread
of that team with the same arguments, all whole numbers: addresses, sizes, strides. Each thread does its own share.
Importing this module imports numba.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic, overload

# A sum may be reordered, so that it is done in vectors; NaN and infinity stay what they are.
FAST = {"contract", "reassoc", "nsz"}

# What compilers make of "#pragma omp parallel", in whatever copy of OpenMP torch was linked with.
_run_team = ctypes.CDLL(torch._C.__file__).GOMP_parallel
_run_team.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint]
_run_team.restype = None


def loop(body: Callable[..., None]) -> Callable[..., None]:
    """A function of an array of whole numbers, as one that a team of threads runs; number 0 counts tickets."""
    signature = types.void(types.CPointer(types.int64))
    try:
        compiled = cfunc(signature, cache=True, fastmath=FAST)(body)
    except RuntimeError:  # no folder that a compiled loop could be kept in
        compiled = cfunc(signature, fastmath=FAST)(body)
    address = compiled.address

    def run(team: int, *arguments: int) -> None:
        slots = struct.pack(f"{1 + len(arguments)}q", 0, *arguments)  # bytes of this call alone
        _run_team(address, slots, team, 0)

    return run


@intrinsic
def ticket(typing_context: Any, arguments: Any) -> Any:
    """The next piece of work, given to one thread only."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", values[0], context.get_constant(types.int64, 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def _pointer(typing_context: Any, address: Any, number: Any) -> Any:
    """An address as a pointer to numbers of one type."""
    signature = types.CPointer(number.dtype)(types.int64, number)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@njit
def fp32(address, shape):  # type: ignore[no-untyped-def]
    """A tensor's memory as an array."""
    return carray(_pointer(address, types.float32), shape)


@njit
def bf16(address, shape):  # type: ignore[no-untyped-def]
    """The same for a type numba does not know: each number is the upper half of an fp32."""
    return carray(_pointer(address, types.uint16), shape)


def number(x):  # type: ignore[no-untyped-def]
    """What is stored, as an fp32."""


@overload(number, inline="always")
def _number(x):  # type: ignore[no-untyped-def]
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


@njit(fastmath=FAST)
def product(arguments, x, w, y, piece):  # type: ignore[no-untyped-def]
    """y[row, o] = Σᵢ x[row, i] · w[o, i]: four rows of w side by side, each a stream that memory delivers ahead."""
    d_out, d_in = w.shape
    first = ticket(arguments) * piece
    while first < d_out:
        last = min(first + piece, d_out) - 1
        step = (last - first + 4) // 4
        for o in range(first, first + step):
            o1, o2, o3 = min(o + step, last), min(o + 2 * step, last), min(o + 3 * step, last)
            for row in range(x.shape[0]):
                y0 = y1 = y2 = y3 = np.float32(0)
                for i in range(d_in):
                    xi = number(x[row, i])
                    y0 += number(w[o, i]) * xi
                    y1 += number(w[o1, i]) * xi
                    y2 += number(w[o2, i]) * xi
                    y3 += number(w[o3, i]) * xi
                y[row, o], y[row, o1], y[row, o2], y[row, o3] = y0, y1, y2, y3
        first = ticket(arguments) * piece


@loop
def product_fp32(arguments):  # type: ignore[no-untyped-def]
    _, x, w, y, n_rows, d_in, d_out, piece = carray(arguments, 8)
    product(arguments, fp32(x, (n_rows, d_in)), fp32(w, (d_out, d_in)), fp32(y, (n_rows, d_out)), piece)


@loop
def product_bf16(arguments):  # type: ignore[no-untyped-def]
    _, x, w, y, n_rows, d_in, d_out, piece = carray(arguments, 8)
    product(arguments, bf16(x, (n_rows, d_in)), bf16(w, (d_out, d_in)), fp32(y, (n_rows, d_out)), piece)


PRODUCT = {torch.float32: product_fp32, torch.bfloat16: product_bf16}
