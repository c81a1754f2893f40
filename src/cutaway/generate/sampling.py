"""From one row of logits to one token: small pure functions, always in this order.

known ids → repetition penalty → temperature → top-k → top-p → min-p → draw. It is the order of transformers:
each filter sees the distribution that the one before it left. `sample_steps` is that order, written once:
`choose` draws from its last row, `removed_by_filters` compares its neighbours.

A row is sampled on the CPU in fp32 with its request's own generator, one uniform number per token. So a
token depends on the row, the settings and the seed: not on the batch, the device or the global generator.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.errors import GenerationError, NumericsError

__all__ = [
    "Choice",
    "Removed",
    "SamplingConfig",
    "choose",
    "draw",
    "keep_known",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "new_generator",
    "penalise",
    "plain",
    "rank_logprobs",
    "removed_by_filters",
    "sample_steps",
    "scale",
]

FILTERS = ("known", "top_k", "top_p", "min_p")
LARGEST = sys.float_info.max
SMALLEST = math.ulp(0.0)


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How the next token is picked. None, or the neutral value in brackets, leaves a filter off.

    Args:
        temperature: 0 takes the highest logit (the lowest id among equals) and draws nothing.
        top_k: keep the k best ids [0]; more than the vocabulary keeps all.
        top_p: keep the fewest best ids whose mass reaches p [1].
        min_p: keep the ids at least this likely relative to the best one [0].
        repetition_penalty: above 1 makes ids already in the text less likely [1].
    Raises:
        GenerationError: a value outside its range.
    """

    temperature: float | int = 0.8
    top_k: int | None = None
    top_p: float | int | None = None
    min_p: float | int | None = None
    repetition_penalty: float | int = 1.0

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, Real, 0, LARGEST, "0 (greedy) or a finite number above")
        _require("top_k", 0 if self.top_k is None else self.top_k, int, 0, LARGEST, "a whole number from 0 (off)")
        _require("top_p", 1 if self.top_p is None else self.top_p, Real, SMALLEST, 1, "above 0 up to 1 (off)")
        _require("min_p", 0 if self.min_p is None else self.min_p, Real, 0, 1, "0 (off) up to 1")
        _require("repetition_penalty", self.repetition_penalty, Real, 1e-9, 1e9, "from 1e-9 to 1e9")


def plain(value: Any) -> Any:
    """A number or truth value of another library's type as Python's own; anything else as it is."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return operator.index(value)
    if isinstance(value, Real):
        with contextlib.suppress(OverflowError):  # of a fraction that no float holds
            return float(value)
    return value


def _require(field: str, value: Any, kind: type, low: float | int, high: float | int, allowed: str) -> None:
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not (is_number and low <= value <= high):
        raise GenerationError(f"{field} = {value!r}: use {allowed}")


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What one filter took away: how many ids, and their mass in the distribution it was given."""

    filter: str
    n_ids: int
    mass: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One picked token, and what was asked about it.

    Log-probabilities [nats] are the model's own: of the raw logits, before penalty, temperature and filters.
    """

    token: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    removed: tuple[Removed, ...] = ()


def choose(
    logits: Float[Tensor, " V"],
    config: SamplingConfig,
    seen: Sequence[int],
    generator: torch.Generator,
    *,
    n_known: int | None = None,
    step: int = 0,
    n_logprobs: int | None = None,
    explain: bool = False,
) -> Choice:
    """Pick the next token.

    Args:
        seen: prompt and generated ids so far; read only when there is a repetition penalty.
        generator: this request's own; advanced by one number, or not at all at temperature 0.
        n_known: largest id the tokenizer knows, plus 1; the padding of the vocabulary above is never picked.
        step: index of the new token, for the error.
        n_logprobs: report the token's log-probability and the n best; None computes neither.
        explain: report what each filter removed.
    Raises:
        NumericsError: the logits hold NaN or +inf, or leave nothing to pick.
    """
    rows = list(sample_steps(logits, config, seen, n_known=n_known, step=step))
    raw, last = rows[0][1], rows[-1][1]
    token = int(last.argmax()) if config.temperature == 0 else draw(last, generator)
    removed = tuple(removed_by_filters(rows)) if explain else ()
    if n_logprobs is None:
        return Choice(token=token, removed=removed)
    logprob, best = rank_logprobs(raw, token, n_logprobs)
    return Choice(token=token, logprob=logprob, top_logprobs=best, removed=removed)


def sample_steps(
    logits: Float[Tensor, " V"],
    config: SamplingConfig,
    seen: Sequence[int],
    *,
    n_known: int | None = None,
    step: int = 0,
) -> Iterator[tuple[str, Tensor]]:
    """The raw row, then the row after each step that is on, by name; the token is drawn from the last.

    Raises:
        NumericsError: as `choose`.
    """
    row = logits.detach().to("cpu", torch.float32)
    _require_numbers(row, step, "the model's logits")
    yield "raw", row
    if n_known is not None and n_known < len(row):
        row = keep_known(row, n_known)
        _require_numbers(row, step, f"the logits of the {n_known} known ids")
        yield "known", row
    if config.repetition_penalty != 1:
        row = penalise(row, seen, config.repetition_penalty)
        _require_numbers(row, step, f"the logits under repetition_penalty = {config.repetition_penalty!r}")
        yield "repetition_penalty", row
    if config.temperature == 0:
        return  # no filter removes the highest logit
    yield "temperature", (row := scale(row, config.temperature))
    if config.top_k:
        yield "top_k", (row := keep_top_k(row, config.top_k))
    if config.top_p is not None and config.top_p < 1:
        yield "top_p", (row := keep_top_p(row, config.top_p))
    if config.min_p:
        yield "min_p", (row := keep_min_p(row, config.min_p))


def removed_by_filters(rows: Iterable[tuple[str, Tensor]]) -> Iterator[Removed]:
    """What each filter among `sample_steps` took away."""
    for (_, before), (name, after) in pairwise(rows):
        if name in FILTERS:
            gone = before.isfinite() & ~after.isfinite()
            mass = before.double().softmax(0)[gone].sum()
            yield Removed(filter=name, n_ids=int(gone.sum()), mass=float(mass))


def keep_known(logits: Float[Tensor, " V"], n_known: int) -> Float[Tensor, " V"]:
    """The ids below `n_known`; the rest of the vocabulary is padding."""
    kept = logits.clone()
    kept[n_known:] = -math.inf
    return kept


def penalise(logits: Float[Tensor, " V"], seen: Sequence[int], penalty: float | int) -> Float[Tensor, " V"]:
    """Make the ids in `seen` less likely, each once however often it occurs.

    A positive logit is divided and a negative one multiplied, so that both go down.

    Source: CTRL, arXiv:1909.05858, section 4.1; the split by sign is that of transformers.
    """
    ids = torch.tensor(seen, dtype=torch.long)
    old = logits[ids]
    return logits.index_put((ids,), torch.where(old > 0, old / penalty, old * penalty))


def scale(logits: Float[Tensor, " V"], temperature: float | int) -> Float[Tensor, " V"]:
    """Divide by the temperature, after moving the highest logit to 0 so that nothing overflows upward."""
    # fp32 rounds a divisor outside these to 0 or inf, giving 0/0 or inf/inf; inside, the limit is reached
    fp32 = torch.finfo(torch.float32)
    return (logits - logits.max()) / min(max(temperature, fp32.tiny), fp32.max)


def keep_top_k(logits: Float[Tensor, " V"], k: int) -> Float[Tensor, " V"]:
    """The k best (k ≥ 1); among equals at the border the lowest ids stay."""
    if k >= len(logits):
        return logits
    border = logits.topk(k).values[-1]
    kept = logits >= border
    n_over = int(kept.sum()) - k
    if n_over:
        kept[(logits == border).nonzero()[-n_over:, 0]] = False
    return logits.where(kept, -math.inf)


def keep_top_p(logits: Float[Tensor, " V"], p: float | int) -> Float[Tensor, " V"]:
    """The nucleus: the fewest best ids whose mass reaches p, the one that crosses it included.

    Source: The curious case of neural text degeneration, arXiv:1904.09751.
    """
    probs = logits.softmax(0)
    # a nucleus is nearly always short: the full sort is for those past a thousand ids
    mass = probs.topk(min(1024, len(probs))).values.cumsum(0, dtype=torch.float64)
    if mass[-1] < p:
        mass = probs.sort(descending=True).values.cumsum(0, dtype=torch.float64)
    return keep_top_k(logits, int((mass[:-1] < p).sum()) + 1)


def keep_min_p(logits: Float[Tensor, " V"], min_p: float | int) -> Float[Tensor, " V"]:
    """The ids at least `min_p` (> 0) times as likely as the best one.

    Source: Turning up the heat, arXiv:2407.01082.
    """
    return logits.where(logits >= logits.max() + math.log(min_p), -math.inf)


def draw(logits: Float[Tensor, " V"], generator: torch.Generator) -> int:
    """One id from softmax(logits): where one uniform number falls on the cumulated probabilities."""
    cumulated = logits.softmax(0).cumsum(0, dtype=torch.float64)
    u = torch.rand((), dtype=torch.float64, generator=generator)
    # u < 1 keeps u · total below the total even when rounded; the first entry strictly above it has p > 0
    return int(torch.searchsorted(cumulated, u * cumulated[-1], right=True))


def rank_logprobs(logits: Float[Tensor, " V"], token: int, n: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The token's log-probability and the n best (id, log-probability), best first, equals by id [nats].

    `choose` gives it the raw row; given the last of `sample_steps` it ranks what was drawn from.
    """
    logprobs = logits.double().log_softmax(0)
    ids = keep_top_k(logits, max(n, 1)).isfinite().nonzero()[:, 0]
    best = ids[logits[ids].argsort(descending=True, stable=True)][:n]
    return float(logprobs[token]), tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))


def new_generator(seed: int | None) -> torch.Generator:
    """A request's own generator; None seeds it from the system, never from the global generator.

    Raises:
        GenerationError: a seed outside 64 bits.
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        _require("seed", seed, int, -(2**63), 2**64 - 1, "a whole number from -2^63 to 2^64 - 1, or None")
        generator.manual_seed(seed)
    return generator


def _require_numbers(row: Float[Tensor, " V"], step: int, what: str) -> None:
    if math.isfinite(row.max()):
        return
    n_nan, n_inf = int(row.isnan().sum()), int(row.isposinf().sum())
    found = f"{n_nan} NaN and {n_inf} +inf in" if n_nan + n_inf else "nothing but -inf in"
    raise NumericsError(
        f"step {step}: {found} {what} (V = {len(row)}), so no token can be picked; "
        "run `cutaway verify` on the model, or load it with dtype float32"
    )
