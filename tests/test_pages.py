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
before = resident()
held = [torch.ones(1 << 20) for _ in range(40)]  # 160 MiB, each below what is mapped for itself
del held
print(resident() - before)
"""
STAYS = 100 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_stays_to_be_used_again() -> None:
    assert stays("with") > STAYS


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_the_environments_own_settings_stay() -> None:
    """As without us: then it goes back, but for a run in which something small happens to lie behind it."""
    assert min(stays("with", MALLOC_TRIM_THRESHOLD_="131072") for _ in range(3)) < STAYS
    assert min(stays("without") for _ in range(3)) < STAYS


def stays(*arguments: str, **environment: str) -> int:
    """What stays resident of 160 MiB that a process has freed [B]."""
    plain = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", FREED, *arguments],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)
