"""Small kernels in this machine's own instructions, for the places where stock operations leave the memory idle.

A kernel is a Python function, run once on symbolic values: each operator on them writes one LLVM instruction. LLVM
comes as a wheel, so nobody needs a compiler; it translates a kernel in tens of milliseconds when it is first called,
and nothing is kept on disk. Numbers are fp32 inside a kernel, whatever the tensors hold.

Threads are torch's own: a parallel kernel runs on the OpenMP team that torch's operations run on. A team belongs to
the Python thread that calls, so any number of them may call at once.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

P = ParamSpec("P")

FLOATS = {torch.float32: "float", torch.bfloat16: "bfloat", torch.float16: "half"}
PLAIN = (Tensor, nn.Parameter)


def vector(kind: str, lanes: int) -> str:
    """The LLVM type of so many numbers side by side."""
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


@dataclass(frozen=True, slots=True)
class Value:
    """A number or a vector of numbers inside a kernel; operators write the instruction that computes the result."""

    kernel: Kernel
    name: str
    kind: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector(self.kind, self.lanes)

    def as_like(self, other: Value | float) -> Value:
        """`other` as a value of this type: a constant, or one number repeated in all lanes."""
        if not isinstance(other, Value):
            other = self.kernel.constant(other, self.kind)
        return other if other.lanes == self.lanes else self.kernel.repeat(other, self.lanes)

    def _apply(self, integer: str, real: str, other: Value | float) -> Value:
        instruction = f"{real} contract" if self.kind == "float" else integer
        return self.kernel.write(f"{instruction} {self.type} {self.name}, {self.as_like(other).name}", self.kind, self.lanes)

    def __add__(self, other: Value | float) -> Value:
        return self._apply("add", "fadd", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._apply("sub", "fsub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._apply("mul", "fmul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._apply("sdiv", "fdiv", other)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._apply("sdiv", "", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._apply("srem", "", other)

    def __and__(self, other: Value | int) -> Value:
        return self._apply("and", "", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._apply("shl", "", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._apply("lshr", "", other)

    def is_less(self, other: Value | float) -> Value:
        """False where a number is NaN."""
        compare = "fcmp olt" if self.kind == "float" else "icmp slt"
        return self.kernel.write(f"{compare} {self.type} {self.name}, {self.as_like(other).name}", "i1", self.lanes)

    def where(self, yes: Value | float, no: Value) -> Value:
        """Lane by lane, `yes` where this is true."""
        yes = no.as_like(yes)
        return self.kernel.write(
            f"select {self.type} {self.name}, {yes.type} {yes.name}, {no.type} {no.name}", no.kind, no.lanes
        )

    def at_most(self, limit: Value | float) -> Value:
        """NaN stays NaN."""
        limit = self.as_like(limit)
        return limit.is_less(self).where(limit, self)

    def at_least(self, limit: Value | float) -> Value:
        """NaN stays NaN."""
        return self.is_less(limit).where(limit, self)

    def cast(self, how: str, kind: str) -> Value:
        """Another type with as many lanes: `how` is LLVM's instruction."""
        return self.kernel.write(f"{how} {self.type} {self.name} to {vector(kind, self.lanes)}", kind, self.lanes)

    def reduce(self, how: str, start: str = "") -> Value:
        """All lanes as one number: `how` is "fadd" or "fmax"."""
        if self.lanes == 1:
            return self
        function = f"@llvm.vector.reduce.{how}.v{self.lanes}f32"
        self.kernel.declarations.add(f"declare float {function}({'float, ' if start else ''}{self.type})")
        return self.kernel.write(f"call reassoc float {function}({start}{self.type} {self.name})", "float")

    def sum(self) -> Value:
        return self.reduce("fadd", "float -0.0, ")

    def max(self) -> Value:
        return self.reduce("fmax")

    def sqrt(self) -> Value:
        """Of one number."""
        self.kernel.declarations.add("declare float @llvm.sqrt.f32(float)")
        return self.kernel.write(f"call float @llvm.sqrt.f32(float {self.name})", "float")

    def exp(self) -> Value:
        """e to this, within 2 units in the last place; below −87 it stays at 10⁻³⁸."""
        x = self.at_least(-87.0).at_most(88.0)
        shifted = x * 1.4426950408889634 + 12582912.0  # past 1.5 · 2²³ an fp32 has no fraction: this rounds
        whole = shifted - 12582912.0
        rest = x - whole * 0.693359375 + whole * 2.12194440e-4  # ln 2 in two parts, the first exact
        series = rest.as_like(1 / 5040)
        for factorial in (720, 120, 24, 6, 2, 1, 1):
            series = series * rest + 1 / factorial
        power = (shifted.cast("bitcast", "i32") << 23) + (127 << 23)
        return series * power.cast("bitcast", "float")


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable of a kernel: what a loop changes."""

    kernel: Kernel
    name: str
    kind: str
    lanes: int

    @property
    def value(self) -> Value:
        return self.kernel.write(f"load {vector(self.kind, self.lanes)}, ptr {self.name}", self.kind, self.lanes)

    def set(self, value: Value) -> None:
        self.kernel.lines.append(f"store {value.type} {value.name}, ptr {self.name}")

    def add(self, value: Value) -> None:
        self.set(self.value + value)


class Kernel:
    """One function under construction. It is called with 64-bit slots; slot 0 counts the tickets taken."""

    def __init__(self) -> None:
        self.lanes = 16 if _target().features.get("avx512f") else 8
        self.declarations: set[str] = set()
        self.variables: list[str] = []
        self.lines: list[str] = []
        self.n_arguments = 0
        self._n_names = 0

    def _name(self, prefix: str) -> str:
        self._n_names += 1
        return f"{prefix}{self._n_names}"

    def write(self, instruction: str, kind: str, lanes: int = 1) -> Value:
        """One instruction and the value it makes."""
        name = self._name("%v")
        self.lines.append(f"{name} = {instruction}")
        return Value(self, name, kind, lanes)

    def constant(self, number: float, kind: str = "i64") -> Value:
        if kind != "float":
            return Value(self, str(int(number)), kind)
        fp32 = struct.unpack("<f", struct.pack("<f", number))[0]
        return Value(self, "0x" + struct.pack(">d", fp32).hex(), kind)

    def repeat(self, number: Value, lanes: int) -> Value:
        """One number in all lanes."""
        if lanes == 1:
            return number
        one = vector(number.kind, lanes)
        single = self.write(f"insertelement {one} poison, {number.type} {number.name}, i32 0", number.kind, lanes)
        return self.write(
            f"shufflevector {one} {single.name}, {one} poison, <{lanes} x i32> zeroinitializer", number.kind, lanes
        )

    def arguments(self, n: int) -> list[Value]:
        """What the kernel is called with: n addresses, counts and strides."""
        self.n_arguments = n
        slots = [self.write(f"getelementptr i64, ptr %arguments, i64 {1 + i}", "ptr") for i in range(n)]
        return [self.write(f"load i64, ptr {slot.name}", "i64") for slot in slots]

    def integer(self, base: Value, index: Value) -> Value:
        """One number of an int64 tensor."""
        place = (base + index * 8).cast("inttoptr", "ptr")
        return self.write(f"load i64, ptr {place.name}", "i64")

    def cell(self, value: Value | float, lanes: int = 1) -> Cell:
        """A variable with its first value; a plain number makes an fp32 one."""
        value = value if isinstance(value, Value) else self.repeat(self.constant(value, "float"), lanes)
        cell = Cell(self, self._name("%c"), value.kind, value.lanes)
        self.variables.append(f"{cell.name} = alloca {value.type}")
        cell.set(value)
        return cell

    def scratch(self, n: int) -> Value:
        """The address of room for n fp32 numbers."""
        name = self._name("%s")
        self.variables.append(f"{name} = alloca [{n} x float], align 64")
        return Value(self, name, "ptr").cast("ptrtoint", "i64")

    def address(self, base: Value, index: Value | int, kind: str) -> Value:
        """Of the number at `index` of a tensor."""
        return base + base.as_like(index) * (4 if kind == "float" else 2)

    def load(self, base: Value, index: Value | int, kind: str, lanes: int = 1) -> Value:
        """`lanes` numbers of a tensor from `index` on, as fp32."""
        place = self.address(base, index, kind).cast("inttoptr", "ptr").name
        stored = "i16" if kind == "bfloat" else kind
        value = self.write(f"load {vector(stored, lanes)}, ptr {place}, align {4 if kind == 'float' else 2}", stored, lanes)
        if kind == "half":
            return value.cast("fpext", "float")
        if kind == "bfloat":  # the upper half of an fp32
            return (value.cast("zext", "i32") << 16).cast("bitcast", "float")
        return value

    def store(self, value: Value, base: Value, index: Value | int, kind: str) -> None:
        """Round to the tensor's type, to nearest even, and write."""
        place = self.address(base, index, kind).cast("inttoptr", "ptr").name
        if kind == "half":
            value = value.cast("fptrunc", "half")
        if kind == "bfloat":
            bits = value.cast("bitcast", "i32")
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            is_nan = self.write(f"fcmp uno {value.type} {value.name}, {value.name}", "i1", value.lanes)
            value = is_nan.where(0x7FC0, rounded).cast("trunc", "i16")
        self.lines.append(f"store {value.type} {value.name}, ptr {place}, align {4 if kind == 'float' else 2}")

    @contextmanager
    def loop(self, start: Value | int, stop: Value, step: int = 1) -> Iterator[Value]:
        """for i in range(start, stop, step)."""
        counter = self.cell(stop.as_like(start))
        head, body, after = self._name("head"), self._name("body"), self._name("after")
        self.lines += [f"br label %{head}", f"{head}:"]
        i = counter.value
        self.lines += [f"br i1 {i.is_less(stop).name}, label %{body}, label %{after}", f"{body}:"]
        yield i
        counter.set(i + step)
        self.lines += [f"br label %{head}", f"{after}:"]

    def spans(self, n: Value) -> Iterator[tuple[int, Any]]:
        """Two loops that together cover 0 … n−1: whole vectors first, then what is left, one by one."""
        whole = n - n % self.lanes
        yield self.lanes, self.loop(0, whole, self.lanes)
        yield 1, self.loop(whole, n)

    @contextmanager
    def tickets(self, n: Value) -> Iterator[Value]:
        """Pieces of work 0 … n−1, each taken by the first thread of the team that is free."""
        head, body, after = self._name("head"), self._name("body"), self._name("after")
        self.lines += [f"br label %{head}", f"{head}:"]
        ticket = self.write("atomicrmw add ptr %arguments, i64 1 monotonic", "i64")
        self.lines += [f"br i1 {ticket.is_less(n).name}, label %{body}, label %{after}", f"{body}:"]
        yield ticket
        self.lines += [f"br label %{head}", f"{after}:"]

    def text(self) -> str:
        """The whole function, as LLVM reads it."""
        head = 'define void @kernel(ptr %arguments) nounwind "prefer-vector-width"="512" {'
        return "\n".join([*self.declarations, head, *self.variables, *self.lines, "ret void", "}"])


class Launcher:
    """A translated kernel, ready to be called."""

    def __init__(self, kernel: Kernel) -> None:
        import llvmlite.binding as llvm

        target = _target()
        module = llvm.parse_assembly(kernel.text())
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        passes = llvm.create_pass_builder(target.machine, options)
        passes.getModulePassManager().run(module, passes)
        self._engine = llvm.create_mcjit_compiler(module, target.machine)  # owns the instructions
        self._engine.finalize_object()
        self._address = self._engine.get_function_address("kernel")
        self._call = _FUNCTION(self._address)
        self._pack = struct.Struct(f"{1 + kernel.n_arguments}q").pack

    def __call__(self, n_threads: int, *arguments: int) -> None:
        """Run on a team of `n_threads`; only kernels that take tickets divide their work."""
        slots = self._pack(0, *arguments)  # bytes that nobody else holds yet: the kernel may count in them
        if n_threads == 1:
            self._call(slots)
        else:
            _run_team(self._address, slots, n_threads, 0)


def kernel(write: Callable[Concatenate[Kernel, P], None]) -> Callable[P, Launcher]:
    """Turn a function that writes a kernel into one that gives it ready to call, once for all its parameters."""

    @functools.cache
    def build(*parameters: P.args, **named: P.kwargs) -> Launcher:
        k = Kernel()
        write(k, *parameters, **named)
        return Launcher(k)

    return build


def n_threads() -> int:
    """What torch uses, where its team can be used: not in a forked child, whose team stayed behind in the parent."""
    return torch.get_num_threads() if _has_team else 1


def can_read(*tensors: Tensor) -> bool:
    """Whether kernels may take these: plain CPU tensors of one float type, outside a gradient or a torch compiler."""
    kind = tensors[0].dtype
    if kind not in FLOATS or torch.compiler.is_compiling() or not is_available():
        return False
    keeps_gradient = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor.dtype is not kind or not tensor.is_cpu or type(tensor) not in PLAIN:
            return False
        if keeps_gradient and tensor.requires_grad:
            return False
    return True


@functools.cache
def is_available() -> bool:
    """Whether LLVM is there."""
    try:
        _target()
    except (ImportError, OSError):
        return False
    return True


@dataclass(frozen=True)
class _Target:
    machine: Any
    features: Any


@functools.cache
def _target() -> _Target:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    return _Target(machine, features)


def _leave_team() -> None:
    global _has_team
    _has_team = False


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_has_team = True
try:
    # What the compiler makes of "#pragma omp parallel", found through torch so that it is torch's copy.
    _run_team = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    _run_team.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    _run_team.restype = None
except AttributeError:  # Windows
    _leave_team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_team)
