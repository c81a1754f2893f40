"""What a decoding step computes, as plain loops: for few_rows.py, run by team.py.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from cutaway.nn.numbers import ANY, BF16, FP32, exp, number, numbers, put, real
from cutaway.nn.team import FAST, Loop, loop, ticket

# --- y = x Wᵀ + b -------------------------------------------------------------------------------------------


@njit(fastmath=FAST, error_model="numpy")
def product(arguments, kind):
    """y[row, o] = Σᵢ x[row, i] · w[o, i] + bias[o]: four rows of w at a time, each a stream memory delivers ahead."""
    _, x_at, w_at, bias_at, has_bias, y_at, n_rows, d_in, d_out, piece = carray(arguments, 10)
    x, w = numbers(x_at, (n_rows, d_in), kind), numbers(w_at, (d_out, d_in), kind)
    bias, y = numbers(bias_at, d_out, kind), numbers(y_at, n_rows * d_out, kind)
    first = ticket(arguments) * piece
    while first < d_out:
        last = min(first + piece, d_out) - 1
        step = (last - first + 4) // 4
        for o in range(first, first + step):
            o1, o2, o3 = min(o + step, last), min(o + 2 * step, last), min(o + 3 * step, last)
            for row in range(n_rows):
                y0 = y1 = y2 = y3 = np.float32(0)
                for i in range(d_in):
                    xi = number(x[row, i])
                    y0 += number(w[o, i]) * xi
                    y1 += number(w[o1, i]) * xi
                    y2 += number(w[o2, i]) * xi
                    y3 += number(w[o3, i]) * xi
                if has_bias:
                    y0, y1 = y0 + number(bias[o]), y1 + number(bias[o1])
                    y2, y3 = y2 + number(bias[o2]), y3 + number(bias[o3])
                at = row * d_out
                put(y, at + o, y0)
                put(y, at + o1, y1)
                put(y, at + o2, y2)
                put(y, at + o3, y3)
        first = ticket(arguments) * piece


# --- x / √(mean(x²) + eps) · (offset + weight) --------------------------------------------------------------


@njit(fastmath=FAST, error_model="numpy")
def rms_norm(arguments, kind):
    _, x_at, weight_at, y_at, n_rows, d, eps, offset = carray(arguments, 8)
    x, y = numbers(x_at, n_rows * d, kind), numbers(y_at, n_rows * d, kind)
    weight = numbers(weight_at, d, kind)
    for at in range(0, n_rows * d, d):
        squares = np.float32(0)
        for i in range(d):
            squares += number(x[at + i]) ** 2
        scale = np.float32(1) / np.sqrt(squares / np.float32(d) + real(eps))
        for i in range(d):
            put(y, at + i, number(x[at + i]) * scale * (number(weight[i]) + real(offset)))


# --- x · cos + (x, its halves exchanged) · sin --------------------------------------------------------------


@njit(fastmath=FAST, error_model="numpy")
def rotate(arguments, kind):
    (_, x_at, y_at, cos_at, sin_at, n_rows, n_heads, d, d_rotary, x_row, x_head, table_row) = carray(arguments, 12)
    x, y = numbers(x_at, ANY, kind), numbers(y_at, ANY, kind)
    cos, sin = numbers(cos_at, ANY, FP32), numbers(sin_at, ANY, FP32)
    half = d_rotary // 2
    for row in range(n_rows):
        c, s = cos[row * table_row :], sin[row * table_row :]
        for head in range(n_heads):
            source, at = x[row * x_row + head * x_head :], (row * n_heads + head) * d
            for i in range(half):
                low, high = number(source[i]), number(source[i + half])
                put(y, at + i, low * c[i] + high * s[i])
                put(y, at + half + i, high * c[half + i] + low * s[half + i])
            for i in range(d_rotary, d):
                y[at + i] = source[i]


# --- x + y and silu(gate) · up ------------------------------------------------------------------------------


@njit(fastmath=FAST, error_model="numpy")
def add(arguments, kind):
    _, x_at, y_at, z_at, n = carray(arguments, 5)
    x, y, z = numbers(x_at, n, kind), numbers(y_at, n, kind), numbers(z_at, n, kind)
    for i in range(n):
        put(z, i, number(x[i]) + number(y[i]))


@njit(fastmath=FAST, error_model="numpy")
def silu_gate(arguments, kind):
    _, gate_at, up_at, z_at, n_rows, d, gate_row, up_row = carray(arguments, 8)
    gate, up, z = numbers(gate_at, ANY, kind), numbers(up_at, ANY, kind), numbers(z_at, ANY, kind)
    for row in range(n_rows):
        gates, ups = gate[row * gate_row :], up[row * up_row :]
        for i in range(d):
            x = number(gates[i])
            small = exp(-abs(x)) if abs(x) < np.float32(87.0) else np.float32(0)  # exp takes no positive number
            share = np.float32(1) / (np.float32(1) + small)
            put(z, row * d + i, x * (share if x >= 0 else small * share) * number(ups[i]))


# --- new keys and values behind the old ---------------------------------------------------------------------


@njit
def append(arguments, kind):
    (_, k_at, v_at, old_k_at, old_v_at, slots_at, n_rows, n_heads, d) = carray(arguments, 9)
    k_row, k_head, v_row, v_head, old_row, old_head = carray(arguments, 15)[9:]
    k, v = numbers(k_at, ANY, kind), numbers(v_at, ANY, kind)
    old_k, old_v = numbers(old_k_at, ANY, kind), numbers(old_v_at, ANY, kind)
    slots = numbers(slots_at, n_rows, np.int64(0))
    for row in range(n_rows):
        for head in range(n_heads):
            at = row * old_row + head * old_head + slots[row] * d
            for i in range(d):
                old_k[at + i] = k[row * k_row + head * k_head + i]
                old_v[at + i] = v[row * v_row + head * v_head + i]


# --- softmax(scale · q kᵀ) v, for one query a row -----------------------------------------------------------


@njit(fastmath=FAST, error_model="numpy")
def attend(arguments, kind):
    """A piece of work is one query head of one row; `ranges` are the first key a row sees and one past its last."""
    _, q_at, k_at, v_at, z_at, room_at, ranges_at, scale, n_rows, n_heads, n_kv, d, n_slots = carray(arguments, 13)
    q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key = carray(arguments, 21)[13:]
    q, k, v, z = (
        numbers(q_at, ANY, kind),
        numbers(k_at, ANY, kind),
        numbers(v_at, ANY, kind),
        numbers(z_at, ANY, kind),
    )
    room, ranges = numbers(room_at, ANY, FP32), numbers(ranges_at, 2 * n_rows, np.int64(0))
    piece = ticket(arguments)
    while piece < n_rows * n_heads:
        row, head = piece // n_heads, piece % n_heads
        kv = head // (n_heads // n_kv)
        first, stop = ranges[2 * row], ranges[2 * row + 1]
        query = q[row * q_row + head * q_head :]
        pattern = room[piece * (n_slots + d) :]
        gathered = pattern[n_slots:]
        peak = np.float32(-np.inf)
        for s in range(first, stop):
            key = k[row * k_row + kv * k_head + s * k_key :]
            score = np.float32(0)
            for i in range(d):
                score += number(query[i]) * number(key[i])
            pattern[s] = score * real(scale)
            peak = max(peak, pattern[s])
        total = np.float32(0)
        for s in range(first, stop):
            pattern[s] = exp(pattern[s] - peak)
            total += pattern[s]
        for i in range(d):
            gathered[i] = np.float32(0)
        for s in range(first, stop):
            weight = pattern[s] / total
            value = v[row * v_row + kv * v_head + s * v_key :]
            for i in range(d):
                gathered[i] += weight * number(value[i])
        for i in range(d):
            put(z, piece * d + i, gathered[i])
        piece = ticket(arguments)


# --- each for both kinds ------------------------------------------------------------------------------------
# One line a loop and kind, because what is kept on disk is found by the place where it is written.


@loop(9)
def product_fp32(arguments):
    product(arguments, FP32)


@loop(9)
def product_bf16(arguments):
    product(arguments, BF16)


@loop(7)
def rms_norm_fp32(arguments):
    rms_norm(arguments, FP32)


@loop(7)
def rms_norm_bf16(arguments):
    rms_norm(arguments, BF16)


@loop(11)
def rotate_fp32(arguments):
    rotate(arguments, FP32)


@loop(11)
def rotate_bf16(arguments):
    rotate(arguments, BF16)


@loop(4)
def add_fp32(arguments):
    add(arguments, FP32)


@loop(4)
def add_bf16(arguments):
    add(arguments, BF16)


@loop(7)
def silu_gate_fp32(arguments):
    silu_gate(arguments, FP32)


@loop(7)
def silu_gate_bf16(arguments):
    silu_gate(arguments, BF16)


@loop(14)
def append_fp32(arguments):
    append(arguments, FP32)


@loop(14)
def append_bf16(arguments):
    append(arguments, BF16)


@loop(20)
def attend_fp32(arguments):
    attend(arguments, FP32)


@loop(20)
def attend_bf16(arguments):
    attend(arguments, BF16)


PRODUCT: dict[torch.dtype, Loop] = {torch.float32: product_fp32, torch.bfloat16: product_bf16}
RMS_NORM: dict[torch.dtype, Loop] = {torch.float32: rms_norm_fp32, torch.bfloat16: rms_norm_bf16}
ROTATE: dict[torch.dtype, Loop] = {torch.float32: rotate_fp32, torch.bfloat16: rotate_bf16}
ADD: dict[torch.dtype, Loop] = {torch.float32: add_fp32, torch.bfloat16: add_bf16}
SILU_GATE: dict[torch.dtype, Loop] = {torch.float32: silu_gate_fp32, torch.bfloat16: silu_gate_bf16}
APPEND: dict[torch.dtype, Loop] = {torch.float32: append_fp32, torch.bfloat16: append_bf16}
ATTEND: dict[torch.dtype, Loop] = {torch.float32: attend_fp32, torch.bfloat16: attend_bf16}


def compile_all(dtype: torch.dtype) -> None:
    """All loops of a decoding step for one type of number."""
    for table in (PRODUCT, RMS_NORM, ROTATE, ADD, SILU_GATE, APPEND, ATTEND):
        table[dtype].compile()
