"""What the process asks of the system's memory, once, when it starts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FREED = """
import sys
if "with" in sys.argv: import cutaway
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def used():
    before = resident()
    held = [torch.ones(1 << 20) for _ in range(40)]  # 160 MiB, each below what is mapped for itself
    del held
    return resident() - before
used()
print(used(), resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_used_again() -> None:
    """Without it the process gives 160 MiB back and faults them in once more."""
    assert run("with") - run("without") > 100 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_the_environments_own_settings_stay() -> None:
    ours = run("with", MALLOC_TRIM_THRESHOLD_="131072")
    assert abs(ours - run("without", MALLOC_TRIM_THRESHOLD_="131072")) < 100 * 2**20


def run(*arguments: str, **environment: str) -> int:
    """Resident memory of a process that has freed 160 MiB [B]."""
    plain = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", FREED, *arguments],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[1])
