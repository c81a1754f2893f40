"""Claim 13: only attention grows with the square of the length."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab
from cutaway.config import CausalMaskConfig
from cutaway.figures import Lines, Series
from cutaway.nn.attention import Attention
from cutaway.nn.block import Block
from cutaway.nn.mask import Mask, build_mask
from cutaway.nn.tap import IDLE

LENGTHS = (32, 64, 128, 256)
FUSED_LENGTHS = (1024, 2048, 4096)
D_HEAD = 8  # narrow, so that a short text already has more scores than coordinates
WINDOW = 32  # keys that the control looks at
NEAR = 0.02  # of an exponent

Parts = Mapping[str, Callable[[], Tensor]]


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that is made; a view of what is there is none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given]
        self.numbers = max([self.numbers, *(t.numel() for t in made)])
        return out


def measure(lab: Lab, broken: bool) -> Evidence:
    """FLOPs, the largest tensor, and the time of the parts of layer 0, at growing lengths."""
    rows = {n: _parts(lab, n, windowed=broken) for n in LENGTHS}
    names = list(rows[LENGTHS[0]])
    flops = {name: [_flops(rows[n][name]) for n in LENGTHS] for name in names}
    numbers = {name: [_largest(rows[n][name]) for n in LENGTHS] for name in names}
    seconds = {name: [_seconds(rows[n][name]) for n in LENGTHS] for name in names}
    growth = {name: exponent(LENGTHS, counts) for name, counts in flops.items() if all(counts)}
    size = {name: exponent(LENGTHS, counts) for name, counts in numbers.items()}
    fused = exponent(FUSED_LENGTHS, [_largest(_kernel(lab, n, fused=True)) for n in FUSED_LENGTHS])
    squares = [name for name in names if name.startswith("scores")]
    others = [name for name in names if name not in squares]
    square = [abs(of[name] - 2) < NEAR for name in squares for of in (growth, size)]
    return Evidence(
        holds=met(broken, square)
        and all(abs(growth.get(name, 1) - 1) < NEAR and abs(size[name] - 1) < NEAR for name in others)
        and fused < 1 + NEAR,
        figures={f"exponent of the FLOPs: {name}": value for name, value in growth.items()}
        | {f"exponent of the largest tensor: {name}": value for name, value in size.items()}
        | {f"exponent of the time: {name}": exponent(LENGTHS, times) for name, times in seconds.items()}
        | {"exponent of the largest tensor: the fused kernel": fused},
        drawings=()
        if broken
        else (
            _lines("FLOPs of a layer's parts", "FLOPs", {n: f for n, f in flops.items() if all(f)}),
            _lines("the largest tensor of each", "numbers", numbers),
            _lines("time of each", "seconds", seconds),
        ),
    )


def exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """b of the best fit value = a · length^b."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def _parts(lab: Lab, n: int, *, windowed: bool) -> Parts:
    """What layer 0 does with n positions, part by part."""
    network = lab.model.network
    block = cast(Block, network.blocks[0])
    x = torch.randn(1, n, network.config.d_model, generator=torch.Generator().manual_seed(lab.seed))
    heads = x.new_ones(1, n, network.config.n_heads * network.config.d_head)
    ids = torch.zeros(1, n, dtype=torch.int64)
    return {
        "scores and mixing": _windows(lab, n) if windowed else _kernel(lab, n, fused=False),
        "projections": lambda: block.attn.out(heads) if block.attn.qkv(x) is not None else x,
        "feed-forward": lambda: block.ff(x, IDLE),
        "norm": lambda: network.final_norm(x),
        "lookup": lambda: network.embed(ids),
    }


def _kernel(lab: Lab, n: int, *, fused: bool) -> Callable[[], Tensor]:
    attention, (q, k, v), mask = _heads(lab, n)
    return lambda: (attention.kernel if fused else attention.reference)(q, k, v, mask, IDLE)


def _windows(lab: Lab, n: int) -> Callable[[], Tensor]:
    """Attention of each stretch of positions to itself alone."""
    attention, parts, _ = _heads(lab, n)
    _, _, mask = _heads(lab, WINDOW)
    stretches = zip(*(t.split(WINDOW, dim=2) for t in parts), strict=True)
    cut = [(q, k, v) for q, k, v in stretches]
    return lambda: torch.cat([attention.reference(q, k, v, mask, IDLE) for q, k, v in cut], dim=2)


def _heads(lab: Lab, n: int) -> tuple[Attention, tuple[Tensor, Tensor, Tensor], Mask]:
    attention = cast(Block, lab.model.network.blocks[0]).attn
    draws = torch.Generator().manual_seed(lab.seed)
    n_heads, n_kv = attention.n_heads, attention.n_kv_heads
    q, k, v = (torch.randn(1, h, n, D_HEAD, generator=draws) for h in (n_heads, n_kv, n_kv))
    return attention, (q, k, v), build_mask(CausalMaskConfig(), [0], n, [n], q.device)


@torch.no_grad()
def _flops(part: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        part()
    return int(counter.get_total_flops())


@torch.no_grad()
def _largest(part: Callable[[], Tensor]) -> int:
    with Largest() as largest:
        part()
    return largest.numbers


@torch.no_grad()
def _seconds(part: Callable[[], Tensor]) -> float:
    part()
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        part()
        times.append(time.perf_counter() - begun)
    return sorted(times)[1]


def _lines(title: str, y: str, rows: Mapping[str, Sequence[float]]) -> Lines:
    series = [Series(name=name, x=LENGTHS, y=row) for name, row in rows.items()]
    return Lines(title=title, series=series, x="positions T", y=y, log_x=True, log_y=True)


CLAIM = Claim(
    number=13,
    title="Only attention grows with the square",
    says="Twice the text is twice the work for lookup, norms, projections and feed-forward, and four times for scores "
    "and mixing: every query meets every key. The one thing with T × T numbers is that matrix of scores. It is an "
    "activation, computed for each text anew, and a fused kernel never even holds it.",
    criterion=f"fitted over {LENGTHS[0]} to {LENGTHS[-1]} positions, FLOPs and the largest tensor of scores and mixing "
    f"grow with an exponent of 2, within {NEAR}, those of all else with 1; and over {FUSED_LENGTHS[0]} to "
    f"{FUSED_LENGTHS[-1]} positions the fused kernel makes no tensor that grows faster than the text.",
    control=f"positions that look at {WINDOW} keys and no more: nothing is left to grow with the square.",
    conditions=(
        "At short lengths the linear parts cost more all the same: the square overtakes the feed-forward where T "
        "reaches about 4d (cutaway cost says where).",
        "A model with sliding windows squares up to its window only; here its heads are given the whole text.",
        "Time follows FLOPs loosely; its exponents depend on the machine and are shown, not judged.",
        "FLOPs are those of the written-out kernel, all of the square; the causal half is not taken off.",
        "A lookup and a norm have no matrix products, so only their tensors are fitted.",
    ),
    measure=measure,
    code="for n in (4, 8, 16):\n"
    "    pattern = model.trace(list(range(1, n + 1)), keep='blocks.0.attn.pattern')['blocks.0.attn.pattern']\n"
    "    print(n, pattern.numel())",
)
