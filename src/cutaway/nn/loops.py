"""Plain loops, compiled by numba, run by the threads that torch already has.

torch's operations share one team of OpenMP threads; a second team would wait for the same cores. A loop is called by
every thread of that team with the same arguments, all whole numbers: addresses, sizes, strides [numbers]. Number 0
counts the pieces of work, which threads take as they come free. Importing this module imports numba; compiled loops
are kept on disk, beside this file or in the user's cache.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic, overload

# A sum may be reordered, so that it is done in vectors; NaN and infinity stay what they are.
FAST = {"contract", "reassoc", "nsz"}
ANY = 1 << 40  # the length of an array that is addressed by strides

# What compilers make of "#pragma omp parallel", in whatever copy of OpenMP torch was linked with.
_run_team = ctypes.CDLL(torch._C.__file__).GOMP_parallel
_run_team.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint]
_run_team.restype = None

Loop = Callable[..., None]


def loop(n_arguments: int) -> Callable[[Loop], Loop]:
    """Turns a function of an array of whole numbers into one that a team of threads runs."""
    return functools.partial(_loop, n_arguments=n_arguments)


def _loop(body: Loop, n_arguments: int) -> Loop:
    signature = types.void(types.CPointer(types.int64))
    try:
        compiled = cfunc(signature, cache=True, fastmath=FAST)(body)
    except Exception:  # no folder to keep it in, or a damaged file there: numba names no common error for these
        compiled = cfunc(signature, fastmath=FAST)(body)
    address = compiled.address
    call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)
    pack = struct.Struct(f"{1 + n_arguments}q").pack

    def run(n_threads: int, *arguments: int) -> None:
        slots = pack(0, *arguments)  # bytes of this call alone
        if n_threads == 1:
            call(slots)
        else:
            _run_team(address, slots, n_threads, 0)

    run.compiled = compiled  # type: ignore[attr-defined]  # it owns the instructions
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

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return signature, generate


# --- numbers ------------------------------------------------------------------------------------------------


@njit
def fp32(address, shape):
    """A tensor's memory as an array."""
    return carray(_pointer(address, types.float32), shape)


@njit
def bf16(address, shape):
    """The same for a type numba does not know: each number is the upper half of an fp32."""
    return carray(_pointer(address, types.uint16), shape)


@njit
def real(bits):
    """A real number that came as whole one."""
    return np.float32(np.int64(bits).view(np.float64))


def number(x):
    """What an array holds, as an fp32."""


@overload(number, inline="always")
def _number(x):
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


def put(array, i, x):
    """Round to the array's type, to nearest even, and write."""


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


# --- y = x Wᵀ -----------------------------------------------------------------------------------------------


@njit(fastmath=FAST)
def product(arguments, x, w, y, piece):
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
                put(y, row * d_out + o, y0)
                put(y, row * d_out + o1, y1)
                put(y, row * d_out + o2, y2)
                put(y, row * d_out + o3, y3)
        first = ticket(arguments) * piece


@loop(7)
def product_fp32(arguments):
    _, x, w, y, n_rows, d_in, d_out, piece = carray(arguments, 8)
    product(arguments, fp32(x, (n_rows, d_in)), fp32(w, (d_out, d_in)), fp32(y, n_rows * d_out), piece)


@loop(7)
def product_bf16(arguments):
    _, x, w, y, n_rows, d_in, d_out, piece = carray(arguments, 8)
    product(arguments, bf16(x, (n_rows, d_in)), bf16(w, (d_out, d_in)), bf16(y, n_rows * d_out), piece)


# --- x / √(mean(x²) + eps) · (offset + weight) --------------------------------------------------------------


@njit(fastmath=FAST)
def rms_norm(x, weight, y, n_rows, d, eps, offset):
    for at in range(0, n_rows * d, d):
        squares = np.float32(0)
        for i in range(d):
            squares += number(x[at + i]) ** 2
        scale = np.float32(1) / np.sqrt(squares / np.float32(d) + eps)
        for i in range(d):
            put(y, at + i, number(x[at + i]) * scale * (number(weight[i]) + offset))


@loop(7)
def rms_norm_fp32(arguments):
    _, x, weight, y, n_rows, d, eps, offset = carray(arguments, 8)
    rms_norm(fp32(x, n_rows * d), fp32(weight, d), fp32(y, n_rows * d), n_rows, d, real(eps), real(offset))


@loop(7)
def rms_norm_bf16(arguments):
    _, x, weight, y, n_rows, d, eps, offset = carray(arguments, 8)
    rms_norm(bf16(x, n_rows * d), bf16(weight, d), bf16(y, n_rows * d), n_rows, d, real(eps), real(offset))


# --- x · cos + (x, its halves exchanged) · sin -----------------------------------------------------------------


@njit(fastmath=FAST)
def rotate(x, y, cos, sin, sizes):
    n_rows, n_heads, d, d_rotary, row_stride, head_stride, table_stride = sizes
    half = d_rotary // 2
    for row in range(n_rows):
        c, s = cos[row * table_stride :], sin[row * table_stride :]
        for head in range(n_heads):
            source, at = x[row * row_stride + head * head_stride :], (row * n_heads + head) * d
            for i in range(half):
                low, high = number(source[i]), number(source[i + half])
                put(y, at + i, low * c[i] + high * s[i])
                put(y, at + half + i, high * c[half + i] + low * s[half + i])
            for i in range(d_rotary, d):
                y[at + i] = source[i]


@loop(11)
def rotate_fp32(arguments):
    a = carray(arguments, 12)
    sizes = (a[5], a[6], a[7], a[8], a[9], a[10], a[11])
    rotate(fp32(a[1], ANY), fp32(a[2], ANY), fp32(a[3], ANY), fp32(a[4], ANY), sizes)


@loop(11)
def rotate_bf16(arguments):
    a = carray(arguments, 12)
    sizes = (a[5], a[6], a[7], a[8], a[9], a[10], a[11])
    rotate(bf16(a[1], ANY), bf16(a[2], ANY), fp32(a[3], ANY), fp32(a[4], ANY), sizes)


# --- new keys and values behind the old ------------------------------------------------------------------------


@njit
def append(k, v, old_k, old_v, slots, sizes):
    n_rows, n_heads, d, k_row, k_head, v_row, v_head, old_row, old_head = sizes
    for row in range(n_rows):
        for head in range(n_heads):
            at = row * old_row + head * old_head + slots[row] * d
            for i in range(d):
                old_k[at + i] = k[row * k_row + head * k_head + i]
                old_v[at + i] = v[row * v_row + head * v_head + i]


@loop(14)
def append_fp32(arguments):
    a = carray(arguments, 15)
    sizes = (a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14])
    slots = carray(_pointer(a[5], types.int64), a[6])
    append(fp32(a[1], ANY), fp32(a[2], ANY), fp32(a[3], ANY), fp32(a[4], ANY), slots, sizes)


@loop(14)
def append_bf16(arguments):
    a = carray(arguments, 15)
    sizes = (a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14])
    slots = carray(_pointer(a[5], types.int64), a[6])
    append(bf16(a[1], ANY), bf16(a[2], ANY), bf16(a[3], ANY), bf16(a[4], ANY), slots, sizes)


# --- softmax(scale · q kᵀ) v, for one query a row -------------------------------------------------------------


@njit(fastmath=FAST)
def attend(arguments, q, k, v, z, scores, sizes, ranges, scale):
    """A piece of work is one query head of one row; `ranges` are the first key each row sees and one past its last."""
    n_rows, n_heads, n_kv, d, q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key, n_slots = sizes
    piece = ticket(arguments)
    while piece < n_rows * n_heads:
        row, head = piece // n_heads, piece % n_heads
        kv = head // (n_heads // n_kv)
        first, stop = ranges[2 * row], ranges[2 * row + 1]
        query = q[row * q_row + head * q_head :]
        pattern = scores[piece * n_slots :]
        peak = np.float32(-np.inf)
        for s in range(first, stop):
            key = k[row * k_row + kv * k_head + s * k_key :]
            score = np.float32(0)
            for i in range(d):
                score += number(query[i]) * number(key[i])
            pattern[s] = score * scale
            peak = max(peak, pattern[s])
        total = np.float32(0)
        for s in range(first, stop):
            pattern[s] = exp(pattern[s] - peak)
            total += pattern[s]
        gathered = z[piece * d :]
        for i in range(d):
            gathered[i] = np.float32(0)
        for s in range(first, stop):
            weight = pattern[s] / total
            value = v[row * v_row + kv * v_head + s * v_key :]
            for i in range(d):
                gathered[i] += weight * number(value[i])
        piece = ticket(arguments)


@loop(20)
def attend_fp32(arguments):
    a = carray(arguments, 21)
    ranges = carray(_pointer(a[6], types.int64), 2 * a[8])
    sizes = (a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20])
    attend(
        arguments,
        fp32(a[1], ANY),
        fp32(a[2], ANY),
        fp32(a[3], ANY),
        fp32(a[4], ANY),
        fp32(a[5], ANY),
        sizes,
        ranges,
        real(a[7]),
    )


@loop(20)
def attend_bf16(arguments):
    a = carray(arguments, 21)
    ranges = carray(_pointer(a[6], types.int64), 2 * a[8])
    sizes = (a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20])
    attend(
        arguments,
        bf16(a[1], ANY),
        bf16(a[2], ANY),
        bf16(a[3], ANY),
        fp32(a[4], ANY),
        fp32(a[5], ANY),
        sizes,
        ranges,
        real(a[7]),
    )


PRODUCT: dict[torch.dtype, Loop] = {torch.float32: product_fp32, torch.bfloat16: product_bf16}
RMS_NORM: dict[torch.dtype, Loop] = {torch.float32: rms_norm_fp32, torch.bfloat16: rms_norm_bf16}
ROTATE: dict[torch.dtype, Loop] = {torch.float32: rotate_fp32, torch.bfloat16: rotate_bf16}
APPEND: dict[torch.dtype, Loop] = {torch.float32: append_fp32, torch.bfloat16: append_bf16}
ATTEND: dict[torch.dtype, Loop] = {torch.float32: attend_fp32, torch.bfloat16: attend_bf16}
