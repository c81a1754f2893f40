"""What looking inside costs: against a pass that nobody looks into, and against TransformerLens.

Four questions, each a ratio to a plain pass of the same network: the idle seam (against a twin whose source has no
tap in it), one head's pattern, everything that a plain pass computes or could, and every head's share of the residual
stream besides, which is n_heads times as wide as the stream. TransformerLens keeps no such shares by default, so it
is held against the third. Then a sweep that ablates every head, against as many passes. TransformerLens is found where
`transformer_lens` can be imported, here or by the Python that TRANSFORMER_LENS_PYTHON names.
"""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

import cutaway
from benchmarks import machine
from cutaway import LanguageModel
from cutaway.checkpoint.load import LoadReport
from cutaway.inside.effects import effects
from cutaway.inside.names import names
from cutaway.network import Transformer
from cutaway.presets import PRESETS
from cutaway.text.ids import IdTokenizer
from cutaway.train.initialise import initialise

LENGTHS = (64, 256, 512)
N_TRACES = 200
N_SWEPT = 32
TAPPED = ("network", "nn.block", "nn.attention", "nn.feedforward", "nn.kernel", "nn.reference", "nn.position")
Seconds = Callable[[], float]


def main() -> None:
    """Print the ratios for a random GPT-2 small and for SmolLM2, in fp32."""
    print("inside: one text, logits of every position; × a plain pass, medians of pairs")
    for title, model in (("GPT-2 small, random", gpt2()), ("SmolLM2-135M", cutaway.load("smollm2", dtype="float32"))):
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder)
            with transformer_lens(folder) as peer:
                for length in LENGTHS:
                    compare(title, model, length, peer)
                if title.startswith("SmolLM2"):
                    sweep(model, peer)
        flat(model)
    print()


def gpt2() -> LanguageModel:
    """The published shape with random weights."""
    network = Transformer(PRESETS["gpt2"])
    initialise(network, 0)
    report = LoadReport(family="gpt2", source="random", stored="float32")
    return LanguageModel(network, IdTokenizer(network.config.d_vocab), report, frozenset())


def compare(title: str, model: LanguageModel, length: int, peer: Callable[[str], Seconds] | None) -> None:
    """One line of the table."""
    network, ids = model.network, list(range(1000, 1000 + length))
    tokens, twin = torch.tensor([ids]), without_taps(network)
    every = [name for name in names(model.config) if not name.endswith("attn.head_out")]
    n = 31 if length < 256 else 11

    @torch.inference_mode()
    def plain() -> None:
        network(tokens)

    @torch.inference_mode()
    def untapped() -> None:
        twin(tokens)

    with torch.inference_mode():
        assert torch.equal(network(tokens), twin(tokens))
    idle = ratio(timed(plain), timed(untapped), 2 * n)
    one = ratio(timed(lambda: model.trace(ids, keep="blocks.1.attn.pattern[head 3]")), timed(plain), n)
    all_but = ratio(timed(lambda: model.trace(ids, keep=every)), timed(plain), n)
    shares = ratio(timed(lambda: model.trace(ids, keep="*", limit=2**34)), timed(plain), max(n // 2, 3))
    print(
        f"  {title}, T = {length:3}: idle {idle:.3f}   one head's pattern {one:.3f}   everything {all_but:.2f}   "
        f"and every head's share {shares:.2f}"
    )
    if peer is not None:
        theirs = ratio(peer(f"cache {length}"), peer(f"forward {length}"), n)
        beside = ratio(peer(f"cache {length}"), timed(lambda: model.trace(ids, keep=every)), n)
        print(f"    TransformerLens' cache: {theirs:.2f} × its own pass, {beside:.2f} × our everything")


def sweep(model: LanguageModel, peer: Callable[[str], Seconds] | None) -> None:
    """Every head ablated, against one pass for each: in fp32, as estimated, and in bf16."""
    ids, n_heads = list(range(1000, 1000 + N_SWEPT)), model.config.n_layers * model.config.n_heads

    def passes(one: Seconds) -> Seconds:
        return lambda: n_heads * median(one() for _ in range(9))

    def plain(network: Transformer) -> Seconds:
        return timed(torch.inference_mode()(lambda: network(torch.tensor([ids]))))

    swept = timed(lambda: effects(model, ids))
    said = f"{ratio(passes(plain(model.network)), swept, 3):.2f} × the sweep"
    if peer is not None:
        said += f", TransformerLens' {ratio(passes(peer(f'ablate {N_SWEPT}')), swept, 3):.2f} ×"
    estimate = ratio(swept, timed(lambda: effects(model, ids, estimate=True)), 3)
    short = cutaway.load("smollm2", dtype="bfloat16")
    in_bf16 = ratio(passes(plain(short.network)), timed(lambda: effects(short, ids)), 3)
    print(f"  all {n_heads} heads ablated, {N_SWEPT} tokens: one pass for each takes {said}; in bf16 {in_bf16:.2f} ×")
    print(f"    the estimate takes 1/{estimate:.0f} of the sweep")


def ratio(above: Seconds, below: Seconds, n: int) -> float:
    """The median of n rounds in turns, after one warm-up."""
    above(), below()
    rounds = [(above(), below()) for _ in range(n)]
    return median(a / b for a, b in rounds)


def timed(work: Callable[[], object]) -> Seconds:
    """The seconds of each call."""
    return lambda: machine.seconds(work)


def flat(model: LanguageModel) -> None:
    """How resident memory moves over many traces, each of which is thrown away."""
    ids = list(range(1000, 1064))

    def some(n: int) -> int:
        for _ in range(n):
            model.trace(ids)
        gc.collect()
        return machine.resident("VmRSS")

    before = some(20)
    moved, one = some(N_TRACES) - before, model.trace(ids).n_bytes
    print(f"    resident memory over {N_TRACES} traces of {one / 1e6:.0f} MB: {moved / 1e6:+.1f} MB")


# --- the twin without taps ----------------------------------------------------------------------------------


class Untapped(ast.NodeTransformer):
    """Source code without the seam: `tap(name, x)` is x, and nothing is ever wanted."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node.func:
            case ast.Name(id="tap"):
                return node.args[1]
            case ast.Attribute(value=ast.Name(id="tap"), attr="inside"):
                return node.func.value
            case ast.Attribute(value=ast.Name(id="tap"), attr="wants"):
                return ast.Constant(False)
        return node


def without_taps(network: Transformer) -> Transformer:
    """The same weights under classes whose source has no call of the tap."""
    classes: dict[type, type] = {}
    for room in TAPPED:
        module = importlib.import_module(f"cutaway.{room}")
        tree = ast.fix_missing_locations(Untapped().visit(ast.parse(inspect.getsource(module))))
        space: dict[str, object] = {"__name__": module.__name__}
        exec(compile(tree, module.__file__ or room, "exec"), space)
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                other = space[name]
                assert isinstance(other, type)
                classes[kind] = other
    twin = copy.deepcopy(network, {id(p): p for p in network.parameters()})
    for module in twin.modules():
        for part in (module, *vars(module).values()):
            if type(part) in classes:
                part.__class__ = classes[type(part)]  # type: ignore[assignment]
    return twin


# --- the peer ------------------------------------------------------------------------------------------------


@contextmanager
def transformer_lens(folder: str) -> Iterator[Callable[[str], Seconds] | None]:
    """Makes a job of a process with the same weights; None, with the reason printed, where it is not installed."""
    python = os.environ.get("TRANSFORMER_LENS_PYTHON") or sys.executable
    if python == sys.executable and importlib.util.find_spec("transformer_lens") is None:
        print("  transformer_lens is not installed here, and TRANSFORMER_LENS_PYTHON names no Python: not compared")
        yield None
        return
    command = [python, str(Path(__file__).with_name("lens_peer.py")), folder]
    quiet = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def answer() -> str:
            line = stdout.readline()
            if not line:
                raise RuntimeError(f"TransformerLens ended: run {' '.join(command)} to see why")
            return line.strip()

        def run(job: str) -> float:
            print(job, file=stdin, flush=True)
            return float(answer())

        while answer() != "ready":
            pass
        yield lambda job: lambda: run(job)
        stdin.close()
