"""What the process asks of the system's memory, once, when it starts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.pages import ROOM, SHARE

FREED = """
import sys
if "with" in sys.argv: import cutaway
import torch
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
held = [torch.ones(1 << 20) for _ in range(40)]  # 160 MiB, each below what is mapped for itself
del held
if "with" in sys.argv: cutaway.pages.make_room(1 << 40)  # more than it may hold: nothing goes back for it
print(resident() - before)
"""
GROWN = """
import resource, sys
for name in sys.argv[1:]:
    limit = getattr(resource, name)
    resource.setrlimit(limit, (2**40, resource.getrlimit(limit)[1]))
import cutaway
import torch
kept = []
def heap():
    lines = open("/proc/self/maps").read().splitlines()
    return sum(int(b, 16) - int(a, 16) for a, b in (x.split()[0].split("-") for x in lines if x.endswith("[heap]")))
before = heap()
while heap() == before: kept.append(torch.ones(1 << 18))
print(heap() - before)
"""
FOUND = """
import sys
import cutaway
import torch
if "room" in sys.argv: cutaway.pages.make_room(400 * 2**20)
kept = [torch.ones(1 << 20) for _ in range(40)]
large = torch.empty(50 << 20)
lines = (line.split() for line in open("/proc/self/maps"))
parts = [[int(end, 16) for end in line[0].split("-")] for line in lines if line[-1] == "[heap]"]
print(int(any(begin <= large.data_ptr() < end for begin, end in parts)))
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_the_heap_grows_in_large_steps_unless_they_count() -> None:
    """Where addresses are limited, a step of 512 MiB might be refused though 1 MiB is needed."""
    rule = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip()
    assert run(GROWN, "RLIMIT_AS") < ROOM // 4
    assert run(GROWN, "RLIMIT_DATA") < ROOM // 4
    share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE
    assert (run(GROWN) >= min(ROOM, share)) == (rule != "2")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_a_large_tensor_finds_the_room_that_was_made() -> None:
    """With what is kept before it; where addresses count nothing is asked for."""
    rule = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip()
    many = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE >= 400 * 2**20 + ROOM
    assert run(FOUND, "room") == (rule != "2" and many)
    assert run(FOUND, "room", MALLOC_TOP_PAD_="131072") == 0


def stays(*arguments: str, **environment: str) -> int:
    """What stays resident of 160 MiB that a process has freed [B]."""
    return run(FREED, *arguments, **environment)


def run(program: str, *arguments: str, **environment: str) -> int:
    """The number that a program prints."""
    plain = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=plain | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)
