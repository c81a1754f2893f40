"""What the machine can do at most: the speed of its matrix products, measured."""

from __future__ import annotations

import functools
import math
import time

import torch

SIZES = (512, 1024, 2048, 4096, 8192)
LONGEST = 0.26  # a size whose product would take longer is not tried [s]
WATCHED = 0.1  # how long a size is repeated for, because a shared machine is slow at times [s]


@functools.cache
def matrix_peak(dtype: torch.dtype, device: torch.device) -> float:
    """The best speed of a square matrix product, measured once for each type and device [FLOP/s].

    Sizes grow for as long as the product is quick, so that an accelerator is measured at sizes that fill it and a
    slow machine is not kept waiting. A multiply-add is 2.
    """
    best = 0.0
    for n in SIZES:
        seconds = _product(n, dtype, device)
        best = max(best, 2 * n**3 / seconds)
        if 8 * seconds > LONGEST:  # twice the size is eight times the work
            break
    return best


@torch.inference_mode()
def _product(n: int, dtype: torch.dtype, device: torch.device) -> float:
    """The shortest time of an n×n product [s]."""
    generator = torch.Generator(device).manual_seed(0)  # its own: the run's random numbers stay as they were
    a, b = (torch.randn(n, n, generator=generator, device=device).to(dtype) for _ in range(2))
    c = torch.mm(a, b)  # wakes the threads and fills the caches
    best, spent, n_runs = math.inf, 0.0, 0
    while n_runs < 2 or spent < WATCHED:
        _wait(device)
        begin = time.perf_counter()
        torch.mm(a, b, out=c)
        _wait(device)
        seconds = time.perf_counter() - begin
        best, spent, n_runs = min(best, seconds), spent + seconds, n_runs + 1
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
