"""Loops in Python, compiled by numba, run by the team of threads that torch already has.

torch's operations share one team of OpenMP threads; a second team would wait for the same cores. A loop is called by
every thread of that team with the same arguments, all whole numbers: addresses, sizes, strides [numbers]. Number 0
counts the pieces of work, which threads take as they come free. A loop is compiled when it is first called and kept on
disk, beside its file or in the user's cache.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numba import cfunc, types
from numba.extending import intrinsic

# A sum may be reordered, so that it is done in vectors; NaN and infinity stay what they are.
FAST = {"contract", "reassoc", "nsz"}

# What compilers make of "#pragma omp parallel", in whatever copy of OpenMP torch was linked with.
_openmp = ctypes.CDLL(torch._C.__file__)
if not hasattr(_openmp, "GOMP_parallel"):
    raise ImportError("this build of torch has another OpenMP")
_run_team = _openmp.GOMP_parallel
_run_team.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_run_team.restype = None

Call = Callable[[], None]
_noted = threading.local()
_compiling = threading.Lock()


class Loop:
    """A function of an array of whole numbers, as one that a team of threads runs."""

    def __init__(self, body: Callable[[Any], None], n_arguments: int) -> None:
        self.body = body
        self.pack = struct.Struct(f"{1 + n_arguments}q").pack
        self.slots = ctypes.c_int64 * (1 + n_arguments)
        self.address = 0
        self._compiled: Any = None  # owns the instructions

    def __call__(self, n_threads: int, *arguments: int) -> None:
        """Run on `n_threads`; only a loop that takes tickets divides its work."""
        if not self.address:
            self.compile()
        _run_team(self.address, self.pack(0, *arguments), n_threads, 0)  # bytes of this call alone
        calls = getattr(_noted, "calls", None)
        if calls is not None:
            calls.append(Again(self.address, self.slots(0, *arguments), n_threads))

    def compile(self) -> None:
        """Once, whichever thread comes first."""
        signature = types.void(types.CPointer(types.int64))
        with _compiling:
            if self.address:
                return
            try:
                self._compiled = cfunc(signature, cache=True, fastmath=FAST, error_model="numpy")(self.body)
            except Exception:  # no folder to keep it in, or a damaged file there: numba has no common error for these
                self._compiled = cfunc(signature, fastmath=FAST, error_model="numpy")(self.body)
            self.address = self._compiled.address


def loop(n_arguments: int) -> Callable[[Callable[[Any], None]], Loop]:
    """Turns a body into a Loop."""
    return lambda body: Loop(body, n_arguments)


class Again:
    """One call of a loop, ready to be made again."""

    __slots__ = ("address", "n_threads", "slots")

    def __init__(self, address: int, slots: Any, n_threads: int) -> None:
        self.address, self.slots, self.n_threads = address, slots, n_threads

    def __call__(self) -> None:
        self.slots[0] = 0  # no ticket taken yet
        _run_team(self.address, self.slots, self.n_threads, 0)


@contextmanager
def noting(calls: list[Call]) -> Iterator[None]:
    """Put every call of a loop that this thread makes inside into the list."""
    _noted.calls = calls
    try:
        yield
    finally:
        _noted.calls = None


@intrinsic
def ticket(typing_context: Any, arguments: Any) -> Any:
    """The next piece of work, given to one thread only."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", values[0], context.get_constant(types.int64, 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def pointer(typing_context: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to numbers of the type that `kind` has."""
    signature = types.CPointer(kind)(types.int64, kind)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return signature, generate
