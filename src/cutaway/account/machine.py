"""What this machine can do at most, measured: the speed of its matrix products, and of its memory."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from cutaway.account.hardware import Hardware

SIZES = (512, 1024, 2048, 4096, 8192)
LONGEST = 0.26  # a size whose product would take longer is not tried [s]
WATCHED = 0.1  # how long a size is repeated for, because a shared machine is slow at times [s]
COLUMNS = 1 << 13
READ = 1 << 28  # what is read to measure the memory: far more than caches hold [B]


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


@functools.cache
def memory_bandwidth(device: torch.device) -> float:
    """The best speed at which memory is read, by a sum or by a matrix times a vector, measured once [B/s]."""
    matrix = torch.ones(READ // 4 // COLUMNS, COLUMNS, dtype=torch.float32, device=device)
    vector = torch.ones(COLUMNS, dtype=torch.float32, device=device)
    works = (matrix.sum, lambda: torch.mv(matrix, vector))
    return READ / min(_shortest(work, device, 3 * WATCHED) for work in works)


def this_machine(dtype: torch.dtype, device: torch.device) -> Hardware:
    """The machine as hardware, all of it measured but its memory's size.

    Some CPUs have no products in bfloat16, and torch's are then slower than those in float32. The loops of a pass over
    few rows multiply in float32 all the same, so that its peak is one for both.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type.upper()}, this machine's"
    n_threads = torch.get_num_threads()
    peak = matrix_peak(dtype, device)
    if device.type == "cpu" and dtype == torch.bfloat16:
        peak = max(peak, matrix_peak(torch.float32, device))
    threads = f", {n_threads} thread{'s' * (n_threads > 1)}" if device.type == "cpu" else ""
    return Hardware(
        name=name,
        rates={str(dtype).removeprefix("torch."): peak},
        bandwidth=memory_bandwidth(device),
        memory=_memory(device),
        source=f"measured here{threads}",
    )


def _memory(device: torch.device) -> int | None:
    """All the memory there is [B]."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no such system
        return None


@torch.inference_mode()
def _product(n: int, dtype: torch.dtype, device: torch.device) -> float:
    """The shortest time of an n×n product [s]."""
    generator = torch.Generator(device).manual_seed(0)  # its own: the caller's random numbers stay as they were
    a, b = (torch.randn(n, n, generator=generator, device=device).to(dtype) for _ in range(2))
    c = torch.mm(a, b)
    return _shortest(lambda: torch.mm(a, b, out=c), device)


def _shortest(work: Callable[[], Tensor], device: torch.device, watched: float = WATCHED) -> float:
    """The shortest time that some work takes [s]."""
    work()  # wakes the threads and fills the caches
    best, spent, n_runs = math.inf, 0.0, 0
    while n_runs < 2 or spent < watched:
        wait(device)
        begin = time.perf_counter()
        work()
        wait(device)
        seconds = time.perf_counter() - begin
        best, spent, n_runs = min(best, seconds), spent + seconds, n_runs + 1
    return best


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
