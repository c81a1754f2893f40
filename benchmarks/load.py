"""From a warm file to a ready model, in a process of its own: time, and peak memory against the weights' size."""

from __future__ import annotations

import statistics
import subprocess
import sys

CODE = """
import sys, time
start = time.perf_counter()
import torch, cutaway.language_model
imported = time.perf_counter() - start
from benchmarks.machine import resident
base = resident("VmRSS")
start = time.perf_counter()
model = cutaway.load("smollm2", dtype=sys.argv[1])
loaded = time.perf_counter() - start
peak, after = resident("VmHWM") - base, resident("VmRSS") - base
size = sum(p.nbytes for p in model.network.parameters())
print(imported, loaded, peak / size, peak / after)
"""


def main() -> None:
    """Print the median of five loads in each type."""
    print("load: SmolLM2-135M from its Q4_1 file, a new process each time")
    for dtype in ("float32", "bfloat16"):
        runs = [_run(dtype) for _ in range(5)]
        imported, loaded, share, final = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"  {dtype:9} ready in {imported + loaded:4.2f} s (imports {imported:4.2f}, load {loaded:4.2f})   "
            f"peak memory {share:4.2f} × the weights, {final:4.2f} × what stays (the tokenizer included)"
        )
    print()


def _run(dtype: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", CODE, dtype], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]
