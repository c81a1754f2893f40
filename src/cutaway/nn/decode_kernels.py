"""What a decoding step does between its matrix-vector products, each thing in one call.

On a few rows a stock operation costs its fixed price of some microseconds, many times what it computes. These are the
places where one kernel replaces several operations, or a slow one. All compute in fp32 and round once. Each has a
test of its own for when it may be called; elsewhere torch's operations do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cutaway.nn import native
from cutaway.nn.native import Kernel

MAX_ROWS = 8
PARALLEL = 32 * 1024  # numbers of the keys from which a second thread pays


def rms_norm_applies(x: Tensor, weight: Tensor) -> bool:
    return x.numel() <= MAX_ROWS * weight.numel() and native.can_read(x, weight) and x.is_contiguous()


def rms_norm(x: Float[Tensor, "*axes D"], weight: Float[Tensor, " D"], eps: float, offset: float) -> Float[Tensor, "*axes D"]:
    """x / √(mean(x²) + eps) · (offset + weight)."""
    y = torch.empty_like(x)
    d = weight.numel()
    _rms_norm(x.dtype, eps, offset)(1, x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() // d, d)
    return y


@native.kernel
def _rms_norm(k: Kernel, dtype: torch.dtype, eps: float, offset: float) -> None:
    kind = native.FLOATS[dtype]
    x, weight, y, n_rows, d = k.arguments(5)
    with k.loop(0, n_rows) as row:
        source, target = k.address(x, row * d, kind), k.address(y, row * d, kind)
        squares = k.cell(0.0)
        for lanes, span in k.spans(d):
            part = k.cell(0.0, lanes)
            with span as i:
                number = k.load(source, i, kind, lanes)
                part.add(number * number)
            squares.add(part.value.sum())
        root = (squares.value / d.cast("sitofp", "float") + eps).sqrt()
        scale = root.as_like(1.0) / root
        for lanes, span in k.spans(d):
            with span as i:
                normal = k.load(source, i, kind, lanes) * scale
                k.store(normal * (k.load(weight, i, kind, lanes) + offset), target, i, kind)


def rotate_applies(q: Tensor, k: Tensor) -> bool:
    return q.shape[2] == 1 and q.shape[0] <= MAX_ROWS and native.can_read(q, k) and q.stride(3) == k.stride(3) == 1


def rotate(
    q: Float[Tensor, "B H 1 Dh"], k: Float[Tensor, "B K 1 Dh"], cos: Float[Tensor, "b 1 1 R"], sin: Float[Tensor, "b 1 1 R"]
) -> tuple[Float[Tensor, "B H 1 Dh"], Float[Tensor, "B K 1 Dh"]]:
    """x · cos + (x, its halves exchanged) · sin over the first R coordinates; the others stay. cos and sin are fp32."""
    n_rows, n_heads, _, d_head = q.shape
    n_kv_heads, d_rotary = k.shape[1], cos.shape[3]
    turned_q, turned_k = q.new_empty(n_rows, n_heads, 1, d_head), k.new_empty(n_rows, n_kv_heads, 1, d_head)
    _rotate(q.dtype)(
        1,
        *(q.data_ptr(), turned_q.data_ptr(), n_heads, *q.stride()[:2]),
        *(k.data_ptr(), turned_k.data_ptr(), n_kv_heads, *k.stride()[:2]),
        *(cos.data_ptr(), sin.data_ptr(), n_rows, d_head, d_rotary, d_rotary if cos.shape[0] > 1 else 0),
    )
    return turned_q, turned_k


@native.kernel
def _rotate(k: Kernel, dtype: torch.dtype) -> None:
    kind = native.FLOATS[dtype]
    *tensors, cos, sin, n_rows, d_head, d_rotary, step = k.arguments(16)
    half = d_rotary // 2
    for x, y, n_heads, row_stride, head_stride in (tensors[:5], tensors[5:]):
        with k.loop(0, n_rows) as row, k.loop(0, n_heads) as head:
            source = k.address(x, row * row_stride + head * head_stride, kind)
            target = k.address(y, (row * n_heads + head) * d_head, kind)
            for lanes, span in k.spans(half):
                with span as i:
                    low, high = (k.load(source, j, kind, lanes) for j in (i, i + half))
                    for j, here, there in ((i, low, high), (i + half, high, low)):
                        c, s = (k.load(table, row * step + j, "float", lanes) for table in (cos, sin))
                        k.store(here * c + there * s, target, j, kind)
            with k.loop(d_rotary, d_head) as i:
                k.store(k.load(source, i, kind), target, i, kind)


def attend_applies(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.shape[2] == 1 and q.shape[3] % 16 == 0 and native.can_read(q, k, v) and q.stride(3) == k.stride(3) == v.stride(3) == 1


def attend(
    q: Float[Tensor, "B H 1 Dh"],
    k: Float[Tensor, "B K S Dh"],
    v: Float[Tensor, "B K S Dh"],
    scale: float,
    visible: Sequence[tuple[int, int]],
) -> Float[Tensor, "B H 1 Dh"]:
    """softmax(scale · q·kᵀ) · v of one query a row, over the keys from visible[row][0] up to, not with, visible[row][1]."""
    n_rows, n_heads, _, d_head = q.shape
    z = q.new_empty(n_rows, n_heads, 1, d_head)
    n_kv_heads = k.shape[1]
    ranges = _int64(visible)
    n_threads = native.n_threads() if k.shape[2] * n_rows * n_kv_heads * d_head > PARALLEL else 1
    _attend(q.dtype, n_heads // n_kv_heads, d_head, scale)(
        n_threads, q.data_ptr(), k.data_ptr(), v.data_ptr(), z.data_ptr(), ranges.data_ptr(), n_rows, n_kv_heads,
        q.stride(0), q.stride(1), *k.stride()[:3], *v.stride()[:3],
    )
    return z


@functools.lru_cache(maxsize=16)  # the layers of a pass ask for the same ones
def _int64(ranges: tuple[tuple[int, int], ...]) -> Int[Tensor, "B 2"]:
    return torch.tensor(ranges)


@native.kernel
def _attend(k: Kernel, dtype: torch.dtype, group: int, d_head: int, scale: float) -> None:
    """A ticket is one key head of one row, with the `group` query heads that share it; the softmax is a running one."""
    kind, n = native.FLOATS[dtype], k.lanes
    q, keys, values, z, ranges, n_rows, n_kv_heads, q_row, q_head, k_row, k_head, k_key, v_row, v_head, v_key = k.arguments(15)
    parts, heads = range(0, d_head, n), range(group)
    pattern = k.scratch(group * n)
    with k.tickets(n_rows * n_kv_heads) as ticket:
        row, kv_head = ticket // n_kv_heads, ticket % n_kv_heads
        first, stop = k.integer(ranges, row * 2), k.integer(ranges, row * 2 + 1)
        key, value = k.address(keys, row * k_row + kv_head * k_head, kind), k.address(values, row * v_row + kv_head * v_head, kind)
        q_at = [k.address(q, row * q_row + (kv_head * group + head) * q_head, kind) for head in heads]
        queries = [[k.load(at, i, kind, n) * scale for i in parts] for at in q_at]
        peaks = [k.cell(-3.0e38) for _ in heads]
        totals = [k.cell(0.0) for _ in heads]
        gathered = [[k.cell(0.0, n) for _ in parts] for _ in heads]
        with k.loop(first, stop, n) as start:
            count = (stop - start).at_most(n)
            for head in heads:
                k.store(k.repeat(k.constant(-3.0e38, "float"), n), pattern, head * n, "float")
            with k.loop(0, count) as j:
                at = k.address(key, (start + j) * k_key, kind)
                numbers = [k.load(at, i, kind, n) for i in parts]
                for head in heads:
                    score = k.constant(0.0, "float")
                    score = k.repeat(score, n)
                    for a, b in zip(queries[head], numbers):
                        score = score + a * b
                    k.store(score.sum(), pattern, j + head * n, "float")
            for head in heads:
                scores = k.load(pattern, head * n, "float", n)
                peak = scores.max().at_least(peaks[head].value)
                weights = (scores - peak).exp()
                shrink = (peaks[head].value - peak).exp()
                peaks[head].set(peak)
                totals[head].set(totals[head].value * shrink + weights.sum())
                for part in gathered[head]:
                    part.set(part.value * shrink)
                k.store(weights, pattern, head * n, "float")
            with k.loop(0, count) as j:
                at = k.address(value, (start + j) * v_key, kind)
                numbers = [k.load(at, i, kind, n) for i in parts]
                for head in heads:
                    weight = k.load(pattern, j + head * n, "float")
                    for part, number in zip(gathered[head], numbers):
                        part.add(number * weight)
        for head in heads:
            target = k.address(z, ((row * n_kv_heads + kv_head) * group + head) * d_head, kind)
            total = totals[head].value.at_least(1e-30)
            for i, part in zip(parts, gathered[head]):
                k.store(part.value / total, target, i, kind)
