"""What a pass over a whole text computes better in a loop than in several operations: for softmax.py and gelu.py.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from cutaway.nn.numbers import BF16, FP32, exp, number, numbers, put, real
from cutaway.nn.past_cache import BYTES, arrive, blank, carry
from cutaway.nn.team import FAST, Loop, loop, ticket

# --- softmax(scale · scores), of many queries ---------------------------------------------------------------


@njit
def in_order(bits):
    """The bits of an fp32 as a whole number that is larger where the fp32 is, and back. NaN comes first or last."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@njit(fastmath=FAST, error_model="numpy")
def largest(x):
    """The largest number, found among whole ones: the largest of fp32 is sought one by one, because of NaN.

    A NaN may be passed over here; it makes the sum one.
    """
    least = np.int32(-0x80000000)
    peak = least
    for i in range(len(x)):  # their bits as they are, which is quick, and in order where one is positive
        peak = max(peak, np.float32(x[i]).view(np.int32))
    if peak >= 0:
        return np.int32(peak).view(np.float32)
    peak = least
    for i in range(len(x)):
        peak = max(peak, in_order(np.float32(x[i]).view(np.int32)))
    return np.int32(in_order(peak)).view(np.float32)


@njit
def has_nan(x):
    return np.isnan(x).any()


@njit
def multiply(x, factor):
    for i in range(len(x)):
        x[i] *= factor


@njit(fastmath={"reassoc"}, error_model="numpy")
def soften_row(x, scale):
    """A query that sees nothing, or only −∞, gathers nothing."""
    multiply(x, scale)  # rounded, as where it was done beforehand
    peak = largest(x)
    if peak == -np.inf and not has_nan(x):
        x[:] = np.float32(0)
        return
    total = np.float32(0)
    for i in range(len(x)):
        depth = x[i] - peak
        x[i] = np.float32(0) if depth < np.float32(-87.0) else exp(depth)
        total += x[i]
    multiply(x, np.float32(1) / total)


@njit(fastmath=FAST, error_model="numpy")
def soften(arguments):
    """Scores of some queries with some keys become weights; a piece of work is some rows.

    `ranges` are the first key that each query sees and one past its last; other keys get 0, whatever their scores are.
    The same rows of a pattern of all queries and keys are written past the cache, which has better use for the room.
    """
    _, scores_at, pattern_at, ranges_at, scale, n_texts, n_heads, n_queries, n_keys = carray(arguments, 9)
    first_query, n_some, first_key, n_near, piece = carray(arguments, 14)[9:]
    n_rows = n_texts * n_heads * n_some
    scores = numbers(scores_at, (n_rows, n_near), FP32)
    ranges = numbers(ranges_at, (n_texts * n_queries, 2), np.int64(0))
    begin = ticket(arguments) * piece
    while begin < n_rows:
        for row in range(begin, min(begin + piece, n_rows)):
            query = first_query + row % n_some
            seen = row // (n_heads * n_some) * n_queries + query
            first, stop = ranges[seen, 0] - first_key, ranges[seen, 1] - first_key
            weights = scores[row]
            soften_row(weights[first:stop], real(scale))
            weights[:first] = np.float32(0)
            weights[stop:] = np.float32(0)
            at = pattern_at + BYTES * n_keys * (row // n_some * n_queries + query)
            blank(at, first_key)
            carry(at + BYTES * first_key, scores_at + BYTES * n_near * row, n_near)
            blank(at + BYTES * (first_key + n_near), n_keys - first_key - n_near)
        begin = ticket(arguments) * piece
    arrive()


# --- GELU and its slope -------------------------------------------------------------------------------------

ROOT = np.float32(0.7978845608028654)  # √(2/π)
CUBE = np.float32(0.044715)


@njit(inline="always")
def tanh(x):
    """tanh x, and 1 − tanh² x with all its digits: both from e^(−2|x|), which never overflows."""
    small = exp(np.float32(-2) * abs(x))
    share = np.float32(1) / (np.float32(1) + small)
    positive = (np.float32(1) - small) * share
    return (positive if x >= 0 else -positive), np.float32(4) * small * share * share


@njit(fastmath=FAST, error_model="numpy")
def gelu(arguments, kind):
    """y = x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2."""
    _, x_at, y_at, n, piece = carray(arguments, 5)
    all_x, all_y = numbers(x_at, n, kind), numbers(y_at, n, kind)
    first = ticket(arguments) * piece
    while first < n:
        x, y = all_x[first : first + piece], all_y[first : first + piece]
        for i in range(len(x)):
            xi = number(x[i])
            t, _ = tanh(ROOT * xi * (np.float32(1) + CUBE * xi * xi))
            put(y, i, np.float32(0.5) * xi * (np.float32(1) + t))
        first = ticket(arguments) * piece


@njit(fastmath=FAST, error_model="numpy")
def gelu_slope(arguments, kind):
    """The gradient by y, times dy/dx, which is (1 + t + x · (1 − t²) · √(2/π) · (1 + 3 · 0.044715 x²)) / 2."""
    _, x_at, behind_at, slope_at, n, piece = carray(arguments, 6)
    all_x, all_behind = numbers(x_at, n, kind), numbers(behind_at, n, kind)
    all_slopes = numbers(slope_at, n, kind)
    first = ticket(arguments) * piece
    while first < n:
        last = first + piece
        x, behind, slope = all_x[first:last], all_behind[first:last], all_slopes[first:last]
        for i in range(len(x)):
            xi = number(x[i])
            square = CUBE * xi * xi
            t, rest = tanh(ROOT * xi * (np.float32(1) + square))
            inner = xi * rest * ROOT * (np.float32(1) + np.float32(3) * square)
            put(slope, i, np.float32(0.5) * (np.float32(1) + t + inner) * number(behind[i]))
        first = ticket(arguments) * piece


# --- each for both kinds ------------------------------------------------------------------------------------
# One line a loop and kind, because what is kept on disk is found by the place where it is written.


@loop(13)
def soften_fp32(arguments):
    soften(arguments)


@loop(4)
def gelu_fp32(arguments):
    gelu(arguments, FP32)


@loop(4)
def gelu_bf16(arguments):
    gelu(arguments, BF16)


@loop(5)
def gelu_slope_fp32(arguments):
    gelu_slope(arguments, FP32)


@loop(5)
def gelu_slope_bf16(arguments):
    gelu_slope(arguments, BF16)


SOFTEN: dict[torch.dtype, Loop] = {torch.float32: soften_fp32}
GELU: dict[torch.dtype, Loop] = {torch.float32: gelu_fp32, torch.bfloat16: gelu_bf16}
GELU_SLOPE: dict[torch.dtype, Loop] = {torch.float32: gelu_slope_fp32, torch.bfloat16: gelu_slope_bf16}
