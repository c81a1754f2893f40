"""Claim 7: the division by √d keeps the softmax awake."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, look
from cutaway.figures import Lines, Series
from cutaway.inside.altered import altered

WIDTHS = (4, 16, 64, 256, 1024, 4096)
N_KEYS = N_QUERIES = 256
NEAR = 0.15  # relative: at d = 4, where few numbers make all scores, their variance errs by 0.06
AWAKE = 0.5  # of an even choice: a single winner has none of its entropy
N_TOKENS = 32
WITHIN = 2.0  # a model's own constant may be so many times 1/√d, or so small a part of it


def measure(lab: Lab, broken: bool) -> Evidence:
    """Softmaxes over scores of random queries and keys, at growing widths, divided by √d or not; and the model's."""
    found = {d: softmax_at(d, 1.0 if broken else d**-0.5, lab.seed) for d in WIDTHS}
    model = altered(lab.model, "scale") if broken else lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    seen = look(model, ids, ["blocks.*.attn.pattern", "blocks.*.attn.scaled", "blocks.*.attn.scores"])
    own, scaled, scores = (
        torch.stack([value for name, value in seen.items() if name.endswith(part)]).double()
        for part in ("pattern", "scaled", "scores")
    )
    divided = scale_of(scores, scaled, model.config.attention.soft_cap) * math.sqrt(model.config.d_head)
    first, last = found[WIDTHS[0]], found[WIDTHS[-1]]
    awake = [
        last["entropy"] > AWAKE,
        last["gradient"] > AWAKE * first["gradient"],
        1 / WITHIN < divided < WITHIN,
    ]
    return Evidence(
        holds=met(broken, awake)
        and all(abs(one["variance before"] / d - 1) < NEAR for d, one in found.items())
        and max(one["row sum error"] for one in found.values()) < 1e-9,
        figures={
            f"variance of the scores at d = {d}, before the division": found[d]["variance before"]
            for d in (4, 64, 4096)
        }
        | {
            f"entropy of the softmax at d = {WIDTHS[-1]}, of an even choice": last["entropy"],
            f"entropy of the softmax at d = {WIDTHS[0]}, of an even choice": first["entropy"],
            f"gradient through it at d = {WIDTHS[-1]}, of that at d = {WIDTHS[0]}": last["gradient"]
            / first["gradient"],
            "largest score that goes into the softmax": max(one["largest"] for one in found.values()),
            "error of the rows' sums": max(one["row sum error"] for one in found.values()),
            "largest difference if the mask is added before the division": mask_first(lab.seed),
            "what the model multiplies its scores by, of 1/√d": divided,
            "entropy of the model's own patterns [nats]": _entropy(own),
            "largest scaled score of the model": float(scaled.abs().max()),
            "variance of the model's scores, of d": float(scores.var()) / model.config.d_head,
        },
        drawings=() if broken else _drawings(found, {d: softmax_at(d, 1.0, lab.seed) for d in WIDTHS}),
    )


def scale_of(scores: Tensor, scaled: Tensor, cap: float | None) -> float:
    """The factor between two tensors, found from their numbers alone, where a soft cap has left them nearly straight.

    Zero where there is none.
    """
    if cap is not None:
        straight = scaled.abs() < cap / 2
        scores, scaled = scores[straight], cap * torch.atanh(scaled[straight] / cap)
    return float((scores * scaled).sum() / scores.square().sum()) if scores.any() else 0.0


def mask_first(seed: int) -> float:
    """The largest difference between softmax((S + M) / √d) and softmax(S / √d + M)."""
    scores = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 8
    mask = torch.full_like(scores, -math.inf).triu(1)
    return float((((scores + mask) / 8).softmax(-1) - (scores / 8 + mask).softmax(-1)).abs().max())


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


def _drawings(divided: dict[int, dict[str, float]], raw: dict[int, dict[str, float]]) -> tuple[Lines, ...]:
    return tuple(
        Lines(
            title=title,
            note=f"random queries and keys of variance 1, {N_KEYS} keys a query",
            series=[
                Series(name=name, x=list(rows), y=[row[what] for row in rows.values()])
                for name, rows in (("divided by √d", divided), ("not divided", raw))
            ],
            x="d",
            y=unit,
            log_x=True,
        )
        for title, unit, what in (
            ("entropy of the softmax", "share of an even choice", "entropy"),
            ("gradient through the softmax", "norm", "gradient"),
        )
    )


CLAIM = Claim(
    number=7,
    title="√d keeps the softmax awake",
    says="A score is a sum of d products, so with d its spread grows like √d. Undivided, wide heads give a softmax one "
    "winner and no gradient to anyone else; divided by √d it stays as undecided as in a narrow head.",
    criterion=f"the variance of raw scores is d, within {NEAR:.0%}; divided, the softmax keeps {AWAKE:.0%} of the "
    f"entropy of an even choice at d = {WIDTHS[-1]}, and more than {AWAKE:.0%} of the gradient at d = {WIDTHS[0]}; and "
    f"the model's scores are multiplied by 1/√d, or a constant within a factor of {WITHIN:g} of it.",
    control="the same scores, and the model's, without the division.",
    conditions=(
        "It does not bound anything: scores above 1 go into the softmax all the time, as the figures say.",
        "It does not make rows sum to one either: the softmax does, divided or not.",
        "Variance d is for coordinates of variance 1 that do not depend on each other. Trained queries and keys are "
        "neither, as the model's own variance says.",
        "Adding the mask before the division or after makes no difference: −∞ divided by √d is −∞.",
        "Some models have a constant of their own here (Gemma's is not its head's width); the figures say which.",
    ),
    measure=measure,
    code="import torch\n"
    "q, k = torch.randn(2, 4096, 1024)\n"
    "scores = (q * k).sum(-1)\n"
    "print(scores.var(), (scores / 1024**0.5).var())",
)
