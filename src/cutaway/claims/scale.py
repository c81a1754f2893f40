"""Claim 7: the division by √d keeps the softmax awake."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, look
from cutaway.figures import Lines, Series
from cutaway.inside.altered import altered

WIDTHS = (4, 16, 64, 256, 1024, 4096)
N_KEYS, N_QUERIES = 32, 512
NEAR = 0.15  # relative: the sampling error of a variance of 16,384 numbers is 0.011, of correlated ones more
AWAKE = 0.5  # of ln 32: an even choice has all of it, a single winner none
N_TOKENS = 32


def measure(lab: Lab, broken: bool) -> Evidence:
    """Softmaxes over scores of random queries and keys, at growing widths, divided by √d or not."""
    found = {d: softmax_at(d, 1.0 if broken else d**-0.5, lab.seed) for d in WIDTHS}
    model = altered(lab.model, "scale") if broken else lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    seen = look(model, ids, ["blocks.*.attn.pattern", "blocks.*.attn.scaled"])
    own = torch.stack([value for name, value in seen.items() if name.endswith("pattern")]).double()
    scaled = torch.stack([value for name, value in seen.items() if name.endswith("scaled")]).double()
    first, last = found[WIDTHS[0]], found[WIDTHS[-1]]
    raw = {d: softmax_at(d, 1.0, lab.seed) for d in WIDTHS}
    return Evidence(
        holds=abs(last["variance before"] / WIDTHS[-1] - 1) < NEAR
        and last["entropy"] > AWAKE
        and last["gradient"] > AWAKE * first["gradient"]
        and max(one["row sum error"] for one in found.values()) < 1e-9,
        figures={
            f"variance of the scores at d = {d}, before the division": found[d]["variance before"]
            for d in (4, 64, 4096)
        }
        | {
            f"entropy of the softmax at d = {WIDTHS[0]}, of an even choice": first["entropy"],
            f"entropy of the softmax at d = {WIDTHS[-1]}, of an even choice": last["entropy"],
            f"gradient through it at d = {WIDTHS[-1]}, of that at d = {WIDTHS[0]}": last["gradient"]
            / first["gradient"],
            "largest score that goes into the softmax": max(one["largest"] for one in found.values()),
            "error of the rows' sums": max(one["row sum error"] for one in found.values()),
            "entropy of the model's own patterns [nats]": _entropy(own),
            "largest scaled score of the model": float(scaled.abs().max()),
        },
        drawings=()
        if broken
        else (
            _lines("entropy of the softmax", "share of an even choice", "entropy", found, raw),
            _lines("gradient through the softmax", "norm", "gradient", found, raw),
        ),
    )


def softmax_at(d: int, scale: float, seed: int) -> dict[str, float]:
    """What becomes of scores of queries and keys whose coordinates have variance 1 [fp64]."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(n, d, generator=generator, dtype=torch.float64) for n in (N_QUERIES, N_KEYS))
    scores = q @ k.T
    pattern = (scores * scale).softmax(-1)
    slope = pattern * (1 - pattern)  # of each weight by its own score
    return {
        "variance before": float(scores.var()),
        "entropy": _entropy(pattern) / math.log(N_KEYS),
        "gradient": float(slope.norm(dim=-1).mean()),
        "largest": float((scores * scale).abs().max()),
        "row sum error": float((pattern.sum(-1) - 1).abs().max()),
    }


def _entropy(pattern: Tensor) -> float:
    return float(torch.special.entr(pattern).sum(-1).mean())


def _lines(title: str, unit: str, what: str, *found: dict[int, dict[str, float]]) -> Lines:
    names = ("divided by √d", "not divided")
    return Lines(
        title=title,
        note=f"random queries and keys of variance 1, {N_KEYS} keys a query",
        series=[
            Series(name=name, x=list(rows), y=[row[what] for row in rows.values()])
            for name, rows in zip(names, found, strict=True)
        ],
        x="d",
        y=unit,
        log_x=True,
    )


CLAIM = Claim(
    number=7,
    title="√d keeps the softmax awake",
    says="A score is a sum of d products, so with d its spread grows like √d. Undivided, wide heads give a softmax one "
    "winner and no gradient to anyone else; divided by √d it stays as undecided as in a narrow head.",
    criterion=f"the variance of raw scores is d, within {NEAR:.0%}; divided, the softmax keeps {AWAKE:.0%} of the "
    f"entropy of an even choice at d = {WIDTHS[-1]}, and more than {AWAKE:.0%} of the gradient at d = {WIDTHS[0]}.",
    control="the same scores, and the model's, without the division.",
    conditions=(
        "It does not bound anything: scores above 1 go into the softmax all the time, as the figures say.",
        "It does not make rows sum to one either: the softmax does, divided or not.",
        "Variance d is for coordinates of variance 1 that do not depend on each other. Trained queries and keys are "
        "neither: a model's own entropy may even be larger or smaller than both curves.",
        "Adding the mask before the division or after makes no difference: −∞ divided by √d is −∞.",
        "Models with a norm on queries and keys, or another scale in their config, have their own constant here.",
    ),
    measure=measure,
    code="q, k = torch.randn(2, 4096, 1024)\nscores = (q * k).sum(-1)\nprint(scores.var(), (scores / 1024**0.5).var())",
)
