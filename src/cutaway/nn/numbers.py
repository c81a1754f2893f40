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


ROUND = np.float32(1.5 * 2**23)  # added to a small number, it leaves the nearest whole one in the lowest bits


@njit(fastmath={"contract"})
def exp(x):
    """e^x for x ≤ 0, within 1 unit in the last place: 2^whole · a polynomial. The library's own is not vectorised.

    The coefficients are fitted to the largest relative error over ±ln 2 / 2, which is 3e-9.
    """
    x = max(x, np.float32(-87.0))
    shifted = x * np.float32(1.4426950408889634) + ROUND
    whole = shifted - ROUND
    rest = (x - whole * np.float32(0.693359375)) + whole * np.float32(2.12194440e-4)  # ln 2 in two parts, one exact
    series = np.float32(0.00138145983654034)
    for factor in (0.008368716898080076, 0.0416683880511287, 0.1666652063151179, 0.4999999344776758, 1.0, 1.0):
        series = series * rest + np.float32(factor)
    power = np.int32((np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23))
    return series * power.view(np.float32)  # a product: whatever bits a NaN has, it stays one
