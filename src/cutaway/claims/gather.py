"""Claim 5: attention gathers, the feed-forward processes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, look
from cutaway.figures import Figure, HeatMap
from cutaway.inside.edits import Add, Edit, Mean, Zero
from cutaway.inside.labels import labels
from cutaway.language_model import LanguageModel

N_TOKENS = 10
PUSH = 0.5  # of the length of what is read: far enough to be felt


def measure(lab: Lab, broken: bool) -> Evidence:
    """What one token's vector does to every position's result, through attention and through the feed-forward."""
    model = lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    layers = sorted({0, model.config.n_layers // 2, model.config.n_layers - 1})
    mixing: list[Edit] = [Mean("blocks.*.ff.norm")] if broken else []
    attention = {layer: influence(model, ids, layer, "attn", []) for layer in (layers[:1] if broken else layers)}
    feed_forward = {layer: influence(model, ids, layer, "ff", mixing) for layer in layers}
    lone = whole_model(model, ids, [Zero("blocks.*.attn.out"), *mixing])
    crossing = torch.stack([off_diagonal(one) for one in attention.values()])
    across = torch.stack([off_diagonal(one) for one in feed_forward.values()])
    own = min(float(one.diagonal().min()) for one in feed_forward.values())
    figures = {
        "largest influence on another position through attention": float(crossing.max()),
        "largest influence on another position through the feed-forward": float(across.max()),
        "smallest influence on its own position through the feed-forward": own,
        "influence on other positions without attention": float(lone.max()),
    }
    return Evidence(
        holds=bool(
            (crossing.amax(dim=(1, 2)) > 0).all()
            and crossing.triu(1).max() == 0
            and own > 0
            and met(broken, (float(across.max()) == 0, float(lone.max()) == 0))
        ),
        figures=figures,
        drawings=() if broken else _drawings(lab, ids, attention[0], feed_forward[0]),
    )


def influence(model: LanguageModel, ids: list[int], layer: int, part: str, edits: list[Edit]) -> Tensor:
    """How far a push at position j, on what the sub-layer reads, moves its result at i: ‖Δ‖ / ‖result‖ [i j]."""
    read, out = f"blocks.{layer}.{part}.norm", f"blocks.{layer}.{part}.out"
    plain = look(model, ids, [read, out], edits)
    columns = []
    for j in range(len(ids)):
        pushed = look(model, ids, out, [push(f"{read}[position {j}]", plain[read][0, j]), *edits])
        columns.append((pushed[out][0] - plain[out][0]).norm(dim=-1) / plain[out][0].norm(dim=-1))
    return torch.stack(columns, dim=1).double()


def whole_model(model: LanguageModel, ids: list[int], edits: list[Edit]) -> Tensor:
    """How far a push on one token's row moves the final stream of the others, with these edits."""
    last = f"blocks.{model.config.n_layers - 1}.resid_post"
    plain = look(model, ids, ["embed", last], edits)
    pushed = look(model, ids, last, [push("embed[position 0]", plain["embed"][0, 0]), *edits])
    return (pushed[last][0, 1:] - plain[last][0, 1:]).norm(dim=-1)


def push(at: str, value: Tensor) -> Add:
    """A fixed direction across a vector, half as long as it."""
    direction = torch.cos(torch.arange(len(value), dtype=torch.float64) * 12.9898).to(value)
    return Add(at, direction / direction.norm() * value.norm() * PUSH)


def off_diagonal(influences: Tensor) -> Tensor:
    return influences - influences.diagonal().diag()


def _drawings(lab: Lab, ids: list[int], attention: Tensor, feed_forward: Tensor) -> list[Figure]:
    names = labels(lab.model.tokenizer, ids)
    hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    return [
        HeatMap(
            title=f"influence through {title} of layer 0",
            note="a token is pushed, and every position's result is watched",
            rows=names,
            columns=names,
            values=np.asarray(values.masked_fill(hidden, torch.nan)),
            row_axis="result at",
            column_axis="pushed",
            says="pushing ‘{column}’ moves the result at ‘{row}’ by {value}",
            scale="size",
            unit="of its length",
        )
        for title, values in (("attention", attention), ("the feed-forward", feed_forward))
    ]


CLAIM = Claim(
    number=5,
    title="Attention gathers, the feed-forward processes",
    says="Attention is the one place where a position takes something from another. The feed-forward works on every "
    "position by itself, with the same weights. Without attention a stack of blocks would be as many networks side by "
    "side that never hear of each other.",
    criterion="a push on what one position reads moves other positions' results through attention, in every layer "
    "looked at, and never earlier ones; through the feed-forward it moves its own and no other, bit for bit; and "
    "without attention nothing crosses at all.",
    control="a feed-forward that reads the mean of all positions: then the push crosses.",
    conditions=(
        "Norms and residuals keep to their own position too; they carry, and do not mix.",
        "A sliding window bounds how far one layer gathers; layer by layer the reach adds up.",
    ),
    measure=measure,
    code="from cutaway.inside import Zero\n"
    "name = f'blocks.{model.config.n_layers - 1}.resid_post[position -1]'\n"
    "one, other = (model.trace(ids, keep=name, edits=[Zero('blocks.*.attn.out')]) for ids in ([3, 9], [5, 9]))\n"
    "print(float((one[name] - other[name]).abs().max()))",
)
