"""Claim 8: the mask hides what comes later, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import torch

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import SMALL, START, Lab, look, scores
from cutaway.config import NoMaskConfig
from cutaway.figures import Figure, HeatMap, Lines, Series, Table
from cutaway.inside.altered import altered
from cutaway.inside.labels import labels

N_TOKENS = 24
CHEAT = 1.0  # nats: a loss this low on bytes is reached by reading the answer, not by predicting it
SAME = 1e-3  # nats: what a training loss may differ from the loss in use
UNMASKED = replace(SMALL, mask=NoMaskConfig())


def measure(lab: Lab, broken: bool) -> Evidence:
    """Weights above the diagonal and on it, on the model; and what a small one trained the same way is worth."""
    model = altered(lab.model, "mask") if broken else lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    seen = look(model, ids, "blocks.*.attn.pattern")
    patterns = torch.stack([value[0].double() for value in seen.values() if value.ndim == 4])  # [L H T S]
    above, on = float(patterns.triu(1).max()), float(patterns.diagonal(dim1=-2, dim2=-1).min())
    changed = [*ids[:-1], (ids[-1] + 1) % model.config.d_vocab]
    leak = float((scores(model, ids)[:-1] - scores(model, changed)[:-1]).abs().max())
    share = share_seen(patterns, [getattr(mask, "size", len(ids)) for mask in lab.model.config.masks])
    small = lab.small(UNMASKED if broken else SMALL)
    honest = [
        above == 0,
        leak == 0,
        small.all_at_once > CHEAT,
        small.from_before - small.all_at_once < SAME,
    ]
    return Evidence(
        holds=met(broken, honest) and on > 0 and share == 1,
        figures={
            "largest weight above the diagonal": above,
            "smallest weight on the diagonal": on,
            "smallest share of the keys up to its own that a query weighs": share,
            "change of earlier scores when the last token changes": leak,
            "loss of a model trained so, as in training [nat/byte]": small.all_at_once,
            "its loss when each byte is told from those before it [nat/byte]": small.from_before,
        },
        drawings=() if broken else _drawings(lab, ids, patterns[0, 0].float()),
    )


def share_seen(patterns: torch.Tensor, sizes: list[int]) -> float:
    """Of the keys that a query may see, itself and all before it or as many as its window has, the share it weighs."""
    shares = []
    for pattern, size in zip(patterns, sizes, strict=True):
        visible = torch.ones_like(pattern, dtype=torch.bool).tril().triu(1 - size)
        shares.append(float((pattern[visible] > 0).double().mean()))
    return min(shares)


def _drawings(lab: Lab, ids: list[int], pattern: torch.Tensor) -> tuple[Figure, ...]:
    names = labels(lab.model.tokenizer, ids)
    hidden = torch.ones_like(pattern, dtype=torch.bool).triu(1)
    trained = {"masked": lab.small(SMALL), "not masked": lab.small(UNMASKED)}
    return (
        HeatMap(
            title="the pattern of layer 0, head 0",
            rows=names,
            columns=names,
            values=pattern.masked_fill(hidden & (pattern == 0), torch.nan).numpy(),
            row_axis="query",
            column_axis="key",
            says="query ‘{row}’ looks at key ‘{column}’: {value}",
        ),
        Lines(
            title="loss while training",
            note="the same small model on the same bytes; without the mask the answer stands in the input",
            series=[Series(name=name, x=list(range(len(one.losses))), y=one.losses) for name, one in trained.items()],
            x="step",
            y="loss [nat/byte]",
        ),
        Table(
            title=f"what they write after {START!r}",
            columns=["trained", "text", ">loss as in training", ">loss in use"],
            rows=[[name, repr(one.text), one.all_at_once, one.from_before] for name, one in trained.items()],
        ),
    )


CLAIM = Claim(
    number=8,
    title="The mask hides what comes later",
    says="A position reads itself and all that stands before it, and nothing that stands after it. This is what makes "
    "training in parallel honest: without the mask each position could read the very token it is to predict.",
    criterion="no weight above the diagonal, some on every key from there back (as far as a window goes), the scores "
    "of earlier positions bit for bit the same when the last token changes; and a small model trained so, on text it "
    f"has not seen, keeps a loss above {CHEAT:g} nats a byte, the same when each byte is told from those before it.",
    control="the same weights without the mask, and a small model trained without it: its loss collapses, and is worth "
    "nothing where there is no later byte to read.",
    conditions=(
        "A layer with a sliding window sees its window, not its whole prefix; full layers see all of it.",
        "The diagonal is not masked: a token attends to itself.",
        "A weight on every key may be a small one; what it sees is all of its prefix, not the last few tokens.",
        "Learning to look one ahead takes some steps too; until then both losses fall alike, as the plot shows.",
    ),
    measure=measure,
    code="pattern = model.trace([5, 9, 2], keep='blocks.0.attn.pattern')['blocks.0.attn.pattern']\n"
    "print(pattern.triu(1).max(), pattern.sum(-1))",
)
