"""Softmax of masked scores in one loop, while the cache has them, where single operations go over them four times."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cutaway.nn import few_rows

SMALL = 1 << 14  # numbers that one thread takes alone


def soften(
    scores: Float[Tensor, "B H t s"],
    pattern: Float[Tensor, "B H T S"],
    scale: float,
    ranges: Int[Tensor, "B T 2"],
    first_query: int,
    first_key: int,
) -> None:
    """Turn scores of t queries into softmax(scale · scores), over the keys of its range each, 0 elsewhere.

    They are written over, and must lie in one piece, as the pattern must; the same goes into its rows of these queries.
    """
    n_some, n_near = scores.shape[2:]
    few_rows.text_loops().SOFTEN[scores.dtype](
        torch.get_num_threads() if scores.numel() > SMALL else 1,
        *(scores.data_ptr(), pattern.data_ptr(), ranges.data_ptr(), few_rows.bits_of(scale)),
        *(*pattern.shape, first_query, n_some, first_key, n_near, 1 + SMALL // (2 * n_near)),
    )
