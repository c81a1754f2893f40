"""Tensors as arrays of numbers, and e^x: what loops are made of.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.extending import overload

from cutaway.nn.team import pointer

ANY = 1 << 40  # the length of an array that is addressed by strides

# bf16 is a type numba does not know: each number is kept in 16 bits, the upper half of an fp32.

FP32, BF16 = np.float32(0), np.uint16(0)  # the kinds, as values whose type says which


@njit
def numbers(address, shape, kind):
    """A tensor's memory as an array of one kind."""
    return carray(pointer(address, kind), shape)


@njit
def real(bits):
    """A real number that came as a whole one."""
    return np.float32(np.int64(bits).view(np.float64))


def number(x):
    """What an array holds, as an fp32."""


@overload(number, inline="always")
def _number(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


def put(array, i, x):
    """Round to the array's kind, to nearest even, and write."""


@overload(put)
def _put(array, i, x):
    if array.dtype == types.uint16:

        def rounded(array, i, x):
            bits = np.float32(x).view(np.uint32)
            short = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            array[i] = np.uint16(short) if x == x else np.uint16(0x7FC0)  # NaN stays NaN

        return rounded

    def plain(array, i, x):
        array[i] = x

    return plain


@njit
def exp(x):
    """e^x for x ≤ 0, within 2 units in the last place: 2^whole · a polynomial. The library's own is not vectorised."""
    x = max(x, np.float32(-87.0))
    whole = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    rest = (x - whole * np.float32(0.693359375)) + whole * np.float32(2.12194440e-4)  # ln 2 in two parts, one exact
    series = np.float32(1 / 5040)
    for factorial in (720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        series = series * rest + np.float32(1.0 / factorial)
    return series * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
