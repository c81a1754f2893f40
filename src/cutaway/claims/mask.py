"""Claim 8: the mask hides what comes later, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import torch

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import SMALL, Lab, look, scores
from cutaway.config import NoMaskConfig
from cutaway.figures import HeatMap, Lines, Series
from cutaway.inside.altered import altered
from cutaway.inside.labels import labels

N_TOKENS = 24
CHEAT = 0.5  # nats: a loss this low on letters is reached by reading the answer, not by predicting it


def measure(lab: Lab, broken: bool) -> Evidence:
    """Weights above the diagonal and on it, on the model; and the loss of a small one trained the same way."""
    model = altered(lab.model, "mask") if broken else lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    seen = look(model, ids, "blocks.*.attn.pattern")
    patterns = torch.stack([value[0].double() for value in seen.values() if value.ndim == 4])  # [L H T S]
    windows = [getattr(mask, "size", len(ids)) for mask in model.config.masks]
    whole = torch.tensor([size >= len(ids) for size in windows])
    changed = [*ids[:-1], (ids[-1] + 1) % model.config.d_vocab]
    leak = float((scores(model, ids)[:-1] - scores(model, changed)[:-1]).abs().max())
    small = lab.small(replace(SMALL, mask=NoMaskConfig()) if broken else SMALL)
    figures = {
        "largest weight above the diagonal": float(patterns.triu(1).max()),
        "smallest weight on the diagonal": float(patterns.diagonal(dim1=-2, dim2=-1).min()),
        "smallest share of the last query's keys that it weighs": _share_seen(patterns[whole]),
        "change of earlier scores when the last token changes": leak,
        "loss of a model trained so [nat/byte]": small.losses[-1],
    }
    return Evidence(
        holds=bool(
            patterns.triu(1).max() == 0
            and patterns.diagonal(dim1=-2, dim2=-1).min() > 0
            and leak == 0
            and small.losses[-1] > CHEAT
        ),
        figures=figures,
        drawings=_drawings(lab, ids, patterns[0, 0].float()) if not broken else (),
    )


def _share_seen(patterns: torch.Tensor) -> float:
    return float((patterns[..., -1, :] > 0).double().mean(-1).min()) if len(patterns) else 1.0


def _drawings(lab: Lab, ids: list[int], pattern: torch.Tensor) -> tuple[HeatMap, Lines]:
    names = labels(lab.model.tokenizer, ids)
    values = pattern.masked_fill(torch.ones_like(pattern, dtype=torch.bool).triu(1), torch.nan)
    losses = {"masked": lab.small(SMALL).losses, "not masked": lab.small(replace(SMALL, mask=NoMaskConfig())).losses}
    return (
        HeatMap(
            title="the pattern of layer 0, head 0",
            rows=names,
            columns=names,
            values=values.numpy(),
            row_axis="query",
            column_axis="key",
            says="query ‘{row}’ looks at key ‘{column}’: {value}",
        ),
        Lines(
            title="loss while training",
            note="the same small model on the same bytes; without the mask the answer stands in the input",
            series=[Series(name=name, x=list(range(len(y))), y=y) for name, y in losses.items()],
            x="step",
            y="loss [nat/byte]",
        ),
    )


CLAIM = Claim(
    number=8,
    title="The mask hides what comes later",
    says="A position reads itself and all that stands before it, and nothing that stands after it. This is what makes "
    "training in parallel honest: without the mask each position could read the very token it is to predict.",
    criterion="no weight above the diagonal, some on it, the scores of earlier positions bit for bit the same when "
    f"the last token changes, and a small model trained so keeps a loss above {CHEAT} nats a byte.",
    control="the same weights without the mask, and a small model trained without it, whose loss collapses.",
    conditions=(
        "A layer with a sliding window sees its window, not its whole prefix; full layers see all of it.",
        "The diagonal is not masked: a token attends to itself.",
    ),
    measure=measure,
    code="pattern = model.trace('Who comes there?', keep='blocks.0.attn.pattern')['blocks.0.attn.pattern']\n"
    "print(pattern.triu(1).max(), pattern.sum(-1))",
)
