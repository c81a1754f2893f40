"""The memory that a process could still take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def available_memory(device: torch.device) -> int:
    """Memory a process could still take on this device [B]; on the CPU what Linux and its control groups allow."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    return host_memory(Path("/"))


def host_memory(root: Path) -> int:
    """What the kernel calls available, or the least that a control group of this process leaves [B].

    Where neither is told, nothing limits.
    """
    meminfo = _fields(root / "proc/meminfo")
    limits = [meminfo["MemAvailable"] * 1024] if "MemAvailable" in meminfo else []
    return max(0, min([*limits, *_left_in_groups(root)], default=sys.maxsize))


def _left_in_groups(root: Path) -> Iterator[int]:
    """Limit less use of every memory group around this process, versions 1 and 2; cached files do not count as use."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        limit, usage, cached = names
        own = Path(path.lstrip("/"))
        for group in (base / part for part in (own, *own.parents)):
            try:
                most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
            except OSError:  # the root has no limit, and a container does not see its own path
                continue
            if most != "max":
                yield int(most) - used + _fields(group / "memory.stat").get(cached, 0)


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `name: 12 kB` or `name 12` by their name; nothing where there is no such file."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {first.rstrip(":"): int(second) for first, second, *_ in words}
