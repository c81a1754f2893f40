"""The matrix-vector product, at the speed at which memory hands over the matrix.

Decoding one token reads every weight once and uses it once, so the memory sets the pace. torch's product reaches a
third of it for one row of x. Here a thread reads several distant rows of the weight side by side: each is a long
stream of its own, which the CPU recognises and fetches ahead, and x is loaded once for all of them.
"""

from __future__ import annotations

from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.nn import native
from cutaway.nn.native import Kernel

MAX_ROWS = 8  # beyond these torch's product, which computes more per byte, is as fast
STREAMS = 4  # rows of the weight side by side
PIECE = 4 * 1024 * 1024  # what a thread takes at a time [B]: long streams, yet a core that is busy takes fewer


def applies(x: Tensor, weight: Tensor) -> bool:
    """Whether `matvec` can stand in for F.linear here."""
    return (
        x.numel() <= MAX_ROWS * weight.shape[1]
        and native.can_read(x, weight)
        and x.is_contiguous()
        and weight.is_contiguous()
    )


def matvec(
    x: Float[Tensor, "*axes D_in"], weight: Float[Tensor, "D_out D_in"], bias: Float[Tensor, " D_out"] | None
) -> Float[Tensor, "*axes D_out"]:
    """x Wᵀ + b, summed in fp32 and rounded once. A row's numbers do not depend on the rows beside it."""
    d_out, d_in = weight.shape
    y = x.new_empty(*x.shape[:-1], d_out)
    n_rows = x.numel() // d_in
    n_threads = native.n_threads()
    n_pieces = n_threads * (1 + weight.nbytes // (n_threads * PIECE))
    product = _product(x.dtype, 1 if n_rows == 1 else 4, bias is not None)
    product(
        n_threads,
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        y.data_ptr(),
        n_rows,
        d_in,
        d_out,
        -(-d_out // n_pieces),
    )
    return y


@native.kernel
def _product(k: Kernel, dtype: torch.dtype, tile: int, has_bias: bool) -> None:
    """`tile` rows of x against STREAMS rows of the weight at a time; past an end, the last row once more."""
    kind = native.FLOATS[dtype]
    x, weight, bias, y, n_rows, d_in, d_out, piece = k.arguments(8)
    with k.tickets((d_out + piece - 1) // piece) as ticket:
        first = ticket * piece
        last = (first + piece).at_most(d_out) - 1
        distance = (last - first + STREAMS) // STREAMS
        with k.loop(first, first + distance) as o, k.loop(0, n_rows, tile) as m:
            outs = [(o + distance * stream).at_most(last) for stream in range(STREAMS)]
            rows = [(m + row).at_most(n_rows - 1) for row in range(tile)]
            streams = [k.address(weight, out * d_in, kind) for out in outs]
            sources = [k.address(x, row * d_in, kind) for row in rows]
            totals = [[k.cell(0.0) for _ in rows] for _ in outs]
            for lanes, span in k.spans(d_in):
                sums = [[k.cell(0.0, lanes) for _ in rows] for _ in outs]
                with span as i:
                    xs = [k.load(source, i, kind, lanes) for source in sources]
                    for stream, sums_of_out in zip(streams, sums, strict=True):
                        w = k.load(stream, i, kind, lanes)
                        for x_of_row, sum_ in zip(xs, sums_of_out, strict=True):
                            sum_.add(w * x_of_row)
                for total, sum_ in zip(chain(*totals), chain(*sums), strict=True):
                    total.add(sum_.value.sum())
            for out, totals_of_out in zip(outs, totals, strict=True):
                for row, total in zip(rows, totals_of_out, strict=True):
                    value = total.value + k.load(bias, out, kind) if has_bias else total.value
                    k.store(value, y, row * d_out + out, kind)
