"""Claim 4: a dot product is two lengths times the cosine between them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, look
from cutaway.figures import Lines, Series

WIDTHS = (2, 3, 64, 4096)
ANGLES = 24  # from 0 to π
N_TOKENS = 32
SAME, SAME_FP32 = 1e-9, 1e-4  # of the product of the lengths
SHORT, LONG = 0.7, 3.0  # lengths of the two vectors

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # two lengths and the cosine between → what a product is said to be


def with_direction(a: Tensor, b: Tensor, cosine: Tensor) -> Tensor:
    return a * b * cosine


def lengths_alone(a: Tensor, b: Tensor, cosine: Tensor) -> Tensor:
    return (a * b).expand_as(cosine)


def measure(lab: Lab, broken: bool) -> Evidence:
    """Vectors made at known angles, at any width; and the model's own queries and keys."""
    rule = lengths_alone if broken else with_direction
    angles = torch.linspace(0, math.pi, ANGLES + 1, dtype=torch.float64)
    dots = {width: dots_at(angles, width, lab.seed) for width in WIDTHS}
    a, b = torch.tensor([SHORT, LONG], dtype=torch.float64)
    error = max(float((found - rule(a, b, angles.cos())).abs().max()) / (SHORT * LONG) for found in dots.values())
    widest = dots[WIDTHS[-1]]
    own, by_cosine, by_distance = queries_and_keys(lab, rule)
    curves = Lines(
        title="a dot product against the angle",
        note=f"two vectors of lengths {SHORT:g} and {LONG:g}; every width gives the same curve",
        series=[Series(name=f"d = {n}", x=angles.rad2deg().tolist(), y=row.tolist()) for n, row in dots.items()],
        x="angle [degrees]",
        y="dot product",
    )
    return Evidence(
        holds=met(broken, (error < SAME, own < SAME_FP32)),
        figures={
            "largest error of the rule, of ‖a‖‖b‖": error,
            "dot product at 0 degrees": float(widest[0]),
            "dot product at 90 degrees": float(widest[ANGLES // 2]),
            "dot product at 180 degrees": float(widest[-1]),
            "largest error on the model's queries and keys, of ‖q‖‖k‖": own,
            "share of queries whose best key is not the best by cosine": by_cosine,
            "share of queries whose best key is not the nearest": by_distance,
        },
        drawings=() if broken else (curves,),
    )


def dots_at(angles: Tensor, width: int, seed: int) -> Tensor:
    """Dot products of two vectors of known lengths at known angles, in a random plane [fp64]."""
    generator = torch.Generator().manual_seed(seed)
    plane, _ = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))
    turned = LONG * torch.stack((angles.cos(), angles.sin()), dim=-1) @ plane.T
    return turned @ (SHORT * plane[:, 0])


def queries_and_keys(lab: Lab, rule: Rule) -> tuple[float, float, float]:
    """How far the rule is from the scores of layer 0, and how often another key is best by cosine, and by distance.

    The cosine is found without a product, from the lengths and the distance (the law of cosines).
    """
    ids = lab.ids(min(N_TOKENS, lab.model.config.n_ctx))
    seen = look(lab.model, ids, [f"blocks.0.attn.{name}" for name in ("q", "k", "scores")])
    q, k, scores = (seen[f"blocks.0.attn.{name}"][0].double() for name in ("q", "k", "scores"))
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    a, b = q.norm(dim=-1)[:, :, None], k.norm(dim=-1)[:, None, :]
    distance = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
    cosine = (a**2 + b**2 - distance**2) / (2 * a * b)
    error = float(((scores - rule(a, b, cosine)).abs() / (a * b)).max())
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    best, aligned, near = (
        value.masked_fill(hidden, -math.inf).argmax(-1)[:, 1:] for value in (scores, cosine, -distance)
    )
    shares = [float((best != other).double().mean()) if best.numel() else 0.0 for other in (aligned, near)]
    return error, shares[0], shares[1]


CLAIM = Claim(
    number=4,
    title="A dot product is length, length and angle",
    says="The dot product of two vectors is the product of their lengths and the cosine of the angle between them, at "
    "any width: large where both are long and point the same way, zero at a right angle, negative beyond it. Attention "
    "takes it as the score of a key for a query. It is neither the angle, nor a distance, nor the lengths alone.",
    criterion=f"the rule holds within {SAME:g} of ‖a‖‖b‖ for vectors made at known angles at widths of "
    f"{', '.join(map(str, WIDTHS))}, and within {SAME_FP32:g} for the model's queries and keys in fp32.",
    control="the product of the lengths without the cosine.",
    conditions=(
        "A cosine alone, or a distance, would rank some keys differently: the last two figures say how often.",
        "In fp32 and wide vectors the sum itself is rounded: the model's figure is that rounding.",
    ),
    measure=measure,
    code="import torch\n"
    "a, b = torch.randn(2, 64)\n"
    "print(a @ b, a.norm() * b.norm() * torch.cosine_similarity(a, b, dim=0))",
)
