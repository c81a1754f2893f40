"""Claim 3: an embedding row knows no context."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, look
from cutaway.figures import Lines, Series
from cutaway.inside.edits import Zero

N_BEFORE = 12
APART = 1e-3  # 1 − cosine: less than this is no difference that a later layer could use


def measure(lab: Lab, broken: bool) -> Evidence:
    """One token at one position behind two different texts: its row, and its stream after every block."""
    ids = lab.ids(min(2 * N_BEFORE + 1, lab.model.config.n_ctx))
    n = len(ids) // 2
    one, other, word = ids[:n], ids[n : 2 * n], ids[-1]
    edits = [Zero("blocks.*.attn.out")] if broken else []
    here = f"[position {n}]"
    keep = [f"embed{here}", *(f"blocks.{i}.resid_post{here}" for i in range(lab.model.config.n_layers))]
    seen = [look(lab.model, [*before, word], keep, edits) for before in (one, other)]
    rows, *streams = [[s[name].flatten().double() for s in seen] for name in keep]
    apart = [max(0.0, 1 - _cosine(*pair)) for pair in streams]  # rounding may take a cosine past 1
    figures = {
        "difference of the two rows": float((rows[0] - rows[1]).abs().max()),
        "1 − cosine after the first block": apart[0],
        "1 − cosine after the last block": apart[-1],
    }
    lines = Lines(
        title="the same token in two texts",
        note="cosine of its two streams; 0 is the embedding, where they are one",
        series=[Series(name="cosine", x=list(range(len(apart) + 1)), y=[1.0, *(1 - x for x in apart)])],
        x="blocks passed",
        y="cosine",
    )
    return Evidence(
        holds=torch.equal(*rows) and max(apart) > APART, figures=figures, drawings=() if broken else (lines,)
    )


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


CLAIM = Claim(
    number=3,
    title="A row knows no context",
    says="A word enters with the same row wherever it stands: the river's bank and the bank with the money are one "
    "row. What tells them apart is built by the layers, and by attention in them, which brings in what stands before.",
    criterion=f"the two rows are equal bit for bit, and after some block the streams are {APART:g} or more apart "
    "(1 − cosine).",
    control="the same pass with everything that attention adds set to zero: the two streams never part.",
    conditions=(
        "The token stands at the same position in both texts; at another one a learned table would add another row.",
        "If the tokenizer cuts a word differently in the two texts, it is not one id to begin with.",
    ),
    measure=measure,
    code="keep = ['embed[position -1]', 'blocks.1.resid_post[position -1]']\n"
    "one, other = (model.trace(ids, keep=keep) for ids in ([3, 4, 9], [5, 6, 9]))\n"
    "print([float((one[name] - other[name]).abs().max()) for name in keep])",
)
