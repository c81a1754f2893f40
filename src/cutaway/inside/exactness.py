"""The exactness panel: what must hold inside every pass, each with the error it holds within."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from cutaway.figures import Figure, Result, Table, plain
from cutaway.inside.edits import Patch
from cutaway.inside.targets import wide
from cutaway.inside.trace import LIMIT, Model, trace
from cutaway.network import Transformer
from cutaway.nn.cache import Cache
from cutaway.nn.linear import Linear
from cutaway.nn.tap import Tap

# max|Δ| over max(1, max|expected|): the contract's in fp32, and in fp64 because softmax is in fp32 in every type
LIMITS = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
N_CHECKS = 7
N_STEPS = 16  # single tokens read from the cache, after a prefix in one pass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise, the largest error found, and what it must not pass."""

    name: str
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.error <= self.limit  # not so for NaN


@dataclass(frozen=True, kw_only=True)
class Exactness(Result):
    """Every promise checked on one prompt; errors are max|Δ| / max(1, max|expected|)."""

    tokens: tuple[int, ...]
    dtype: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def heading(self) -> str:
        n, n_broken = len(self.checks), sum(not check.holds for check in self.checks)
        held = "every promise holds" if n == N_CHECKS else f"{n} of {N_CHECKS} promises checked, all hold"
        said = f"{n_broken} of {n} promises broken" if n_broken else held
        return f"Exactness on {len(self.tokens)} tokens in {self.dtype}: {said}"

    def figures(self) -> list[Figure]:
        rows = [[check.name, check.error, check.limit, "yes" if check.holds else "NO"] for check in self.checks]
        return [
            Table(
                title="What must hold inside every pass",
                note="An error is max|Δ| / max(1, max|expected|); a limit of 0 is equality bit for bit.",
                columns=["promise", ">error", ">limit", "holds"],
                rows=rows,
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        checks = [plain(asdict(check), 6) | {"holds": check.holds} for check in self.checks]
        return {
            "kind": "exactness",
            "tokens": list(self.tokens),
            "dtype": self.dtype,
            "holds": self.holds,
            "checks": checks,
        }


class Sums(Tap):
    """Adds up on the way all that the pass adds, and measures every pattern, without holding them."""

    def __init__(self, network: Transformer) -> None:
        self.network = network
        self.by_head = network.config.norm_placement == "pre"  # else a norm stands between the heads and what is added
        self.parts = network.embed.weight.new_zeros((), dtype=torch.float64)
        self.last: Tensor = self.parts
        self.rows_error = self.upper = self.parts
        self.bias: Tensor | None = None

    def inside(self, scope: str) -> Tap:
        self.bias = cast(Linear, self.network.get_submodule(f"{scope}.attn.out")).bias
        return self

    def wants(self, *names: str) -> bool:
        return True

    def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]  # all values are tensors
        match name:
            case "embed" | "pos_embed" | "ff.out":
                self.parts = self.parts + value.double()
            case "attn.head_out" if self.by_head:
                self.parts = self.parts + value.double().sum(1) + (0 if self.bias is None else self.bias.double())
            case "attn.out" if not self.by_head:
                self.parts = self.parts + value.double()
            case "attn.pattern":
                rows, later = (value.double().sum(-1) - 1).abs().max(), value.triu(1).abs().max().double()
                self.rows_error = torch.maximum(self.rows_error, rows)  # stays NaN once it is: no number is no promise
                self.upper = torch.maximum(self.upper, later)
            case "resid_post":
                self.last = value
        return value


@torch.no_grad()
def exact(
    model: Model,
    prompt: Any,
    *,
    limit: int = LIMIT,
    progress: Callable[[int, int, Exactness], None] = lambda done, total, so_far: None,
) -> Exactness:
    """Check on a prompt what every look inside relies on.

    The parts are the embedding, the positions, every head, the output biases and every feed-forward; where a norm
    stands behind attention, what it adds counts as one part.

    Args:
        limit: what may be held for the patch with itself, as in `trace` [B].
        progress: called with how many promises are checked, how many there are, and those so far.
    Raises:
        InsideError: it would be more.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    ids, dtype = model.ids(prompt), model.network.embed.weight.dtype
    found = Exactness(tokens=tuple(ids), dtype=str(dtype).removeprefix("torch."), checks=())
    for name, error, most in checks(model, ids, LIMITS[dtype], limit):
        found = replace(found, checks=(*found.checks, Check(name=name, error=error, limit=most)))
        progress(len(found.checks), N_CHECKS, found)
    return found


def checks(model: Model, ids: list[int], near: float, limit: int) -> Iterator[tuple[str, float, float]]:
    """Each promise as it is checked: what it is called, the largest error, and what that must not pass."""
    network, sums = model.network, Sums(model.network)
    tokens = torch.tensor([ids], device=network.embed.weight.device)
    looked = network(tokens, tap=sums)
    yield "parts sum to the whole", distance(sums.parts, sums.last), near
    yield "rows of every pattern sum to 1", float(sums.rows_error), near
    yield "nothing above the diagonal", float(sums.upper), 0.0
    yield "lens of the last layer = logits", distance(network.unembed(sums.last), looked), near
    plain = network(tokens)
    yield "looked at = not looked at", distance(looked, plain), near
    yield "patched with itself = untouched", self_patch(model, ids, limit), 0.0
    yield "cached = full", distance(cached(network, tokens), plain), near


def distance(found: Tensor, expected: Tensor) -> float:
    """max|Δ| over max(1, max|expected|)."""
    found, expected = wide(found), wide(expected)
    return float((found - expected).abs_().max().double() / expected.abs().max().double().clamp(min=1))


def self_patch(model: Model, ids: list[int], limit: int) -> float:
    """How far the logits move when every head and every block's result is patched with its own value: 0."""
    names = ("blocks.*.attn.z", "blocks.*.resid_post")
    (before,) = trace(model, [ids], keep=names, limit=limit)
    (after,) = trace(model, [ids], keep=(), edits=[Patch(name, before) for name in names])
    return distance(after.logits, before.logits)


def cached(network: Transformer, tokens: Tensor) -> Tensor:
    """The logits of a text read from the cache: a prefix at once, the last tokens one by one."""
    n_tokens = tokens.shape[1]
    cache: Cache | None = None
    rows: list[Tensor] = []
    for n in range(max(n_tokens - N_STEPS, 1), n_tokens + 1):
        if cache is None or network.rotation_changes(cache.lengths[0], n):  # its keys were turned for a shorter text
            cache, rows = Cache(network.config, 1, network.embed.weight), []
        rows.append(network(tokens[:, cache.lengths[0] : n], cache))
    return torch.cat(rows, dim=1)
