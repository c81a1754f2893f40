"""Fresh memory is dear, a fault a page: so large tensors get large pages, and what was freed is used again.

Both are settings of the whole process, made when `cutaway` is imported; the environment's own come first.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

HELD = 2 * 2**30  # freed memory that stays with the process [B], what a trace may take; glibc's own bound is 64 MiB
SHARE = 12  # … of a small machine no more than a twelfth of its memory
ROOM = 512 * 2**20  # what the heap grows by at once [B], where only pages in use count: the logits find room in it
MAPPED = 32 * 2**20  # from here on memory is mapped for itself, and goes back when freed [B]: the most glibc comes to

# Of glibc, malloc.h; other systems have other allocators, and no such function.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
ITS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


_heap: ctypes.CDLL | None = None  # whose steps are set here


def spare() -> None:
    """Ask for both."""
    global _heap
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch's own switch: 500 times fewer faults in large tensors
    if any(name in os.environ for name in ITS_OWN):
        return
    library = ctypes.CDLL(None) if os.name == "posix" else None
    mallopt = getattr(library, "mallopt", None)
    if library is None or mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, MAPPED)
    mallopt(M_TRIM_THRESHOLD, min(HELD, share(), 2**31 - 1))  # a C int
    if not counts_addresses():
        mallopt(M_TOP_PAD, min(ROOM, share()))
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
        _heap = library


def share() -> int:
    """What may be held of this machine's memory [B]."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE


def make_room(n: int) -> None:
    """Let the heap have n bytes free, where its steps are set here and that is no more than it holds when it is freed.

    A tensor from MAPPED on that finds no room in it is mapped for itself, and its pages are new each time: of a trace
    of 512 tokens of SmolLM2 the logits alone took a fifth of a pass. Nothing is written, so no memory is taken yet.
    """
    if _heap is None or threading.current_thread() is not threading.main_thread():  # others have heaps of their own
        return
    if n + ROOM > min(HELD, share()):  # it would go back at once, and what was held with it
        return
    piece = MAPPED // 2
    for address in [_heap.malloc(piece) for _ in range(n // piece)]:
        _heap.free(address)


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
