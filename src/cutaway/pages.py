"""Fresh memory is dear, a fault a page: so large tensors get large pages, and what was freed is used again.

Both are settings of the whole process, made when `cutaway` is imported; the environment's own come first.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

HELD = 2 * 2**30  # freed memory that stays with the process [B], what a trace may take; glibc's own bound is 64 MiB
SHARE = 12  # … of a small machine no more than a twelfth of its memory
ROOM = 512 * 2**20  # what the heap grows by at once [B], where only pages in use count: the logits find room in it
MAPPED = 32 * 2**20  # from here on memory is mapped for itself, and goes back when freed [B]: the most glibc comes to

# Of glibc, malloc.h; other systems have other allocators, and no such function.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
ITS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def spare() -> None:
    """Ask for both."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch's own switch: 500 times fewer faults in large tensors
    if any(name in os.environ for name in ITS_OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED)
        share = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE
        mallopt(M_TRIM_THRESHOLD, min(HELD, share, 2**31 - 1))  # a C int
        if not counts_addresses():
            mallopt(M_TOP_PAD, min(ROOM, share))


def counts_addresses() -> bool:
    """Whether memory that is asked for and not used counts: against a limit of this process, or by the system's rule.

    A larger step could then be refused where a small one would do.
    """
    import resource  # not on every system; those that have mallopt have it

    try:
        lends = Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() != "2"
    except OSError:
        lends = True
    limits = (resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return not lends or any(limit != resource.RLIM_INFINITY for limit in limits)
