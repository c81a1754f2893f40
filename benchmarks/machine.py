"""What this machine can do at best, and how to compare two programs on it while others use it too."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

N_THREADS = 2


def introduce() -> None:
    """Say what was measured on."""
    torch.set_num_threads(N_THREADS)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{N_THREADS} threads, memory reads at {read_bandwidth() / 1e9:.1f} GB/s\n")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call [s]."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_bandwidth(n_bytes: int = 512 << 20, n_runs: int = 5) -> float:
    """How fast all threads together read memory [B/s]: the median of several sums over a large tensor."""
    x = torch.ones(n_bytes // 4)
    return n_bytes / statistics.median(seconds(x.sum) for _ in range(n_runs))


def pairs(
    ours: Callable[[], object], theirs: Callable[[], object], n: int
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each, and the memory bandwidth [B/s] just then: n rounds in turns, after one warm-up."""
    ours(), theirs()
    rounds = [(seconds(ours), seconds(theirs), read_bandwidth()) for _ in range(n)]
    a, b, bandwidth = (list(column) for column in zip(*rounds, strict=True))
    return a, b, bandwidth


def median_ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios round by round: it holds when the machine's speed drifts."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def peak_memory(work: Callable[[], object]) -> int:
    """How far resident memory rises above its start during one call [B]; glibc on Linux only."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the process holds would be used unseen
    Path("/proc/self/clear_refs").write_text("5")  # forget the old peak
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Resident memory of this process [B]: VmRSS now, VmHWM at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
