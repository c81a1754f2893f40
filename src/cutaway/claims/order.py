"""Claim 10: without positions, attention cannot tell an order."""

from __future__ import annotations

import torch

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, far, look, scores
from cutaway.figures import Table
from cutaway.inside.altered import altered
from cutaway.language_model import LanguageModel

N_TOKENS = 12
SAME = 1e-5
TOLD = 1e-2  # of the largest score: an order that changes less is not told


def measure(lab: Lab, broken: bool) -> Evidence:
    """Scores of a text and of its tokens in another order."""
    ids = lab.ids(min(N_TOKENS, lab.model.config.n_ctx))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(lab.seed)).tolist()
    lone = altered(lab.model, "mask" if broken else ["mask", "positions"])
    unmasked, placed = moved(lone, ids, order), moved(altered(lab.model, "mask"), ids, order)
    masked = altered(lab.model, "positions")
    last = [*order[:-1]] if order[-1] == len(ids) - 1 else [i for i in order if i != len(ids) - 1]
    first_layer, final = last_token(masked, ids, [*last, len(ids) - 1])
    orders = {
        "no positions, no mask": moved(altered(lab.model, ["mask", "positions"]), ids, order),
        "no positions, masked": moved(masked, ids, order),
        "with positions, no mask": placed,
        "with positions, masked": moved(lab.model, ids, order),
    }
    table = Table(
        title="how far the scores of the same tokens in another order are from the old ones, put in that order",
        note="0 means: an order is nothing to it. Of the largest score.",
        columns=["the network", ">change"],
        rows=[[name, value] for name, value in orders.items()],
    )
    return Evidence(
        holds=unmasked <= SAME and placed > TOLD,
        figures={
            "change without positions and mask": unmasked,
            "change with positions, without the mask": placed,
            "masked, no positions: what the last token gathers in layer 0": first_layer,
            "masked, no positions: its final scores": final,
        },
        drawings=() if broken else (table,),
    )


def moved(model: LanguageModel, ids: list[int], order: list[int]) -> float:
    """How far the scores of the reordered text are from the reordered scores."""
    return far(scores(model, [ids[i] for i in order]), scores(model, ids)[order])


def last_token(model: LanguageModel, ids: list[int], order: list[int]) -> tuple[float, float]:
    """What changes for the last token, which stays last, when those before it are reordered."""
    name = "blocks.0.attn.out[position -1]"
    plain, other = (look(model, text, name) for text in (ids, [ids[i] for i in order]))
    return far(other[name], plain[name]), far(other.logits[-1], plain.logits[-1])


CLAIM = Claim(
    number=10,
    title="Without positions there is no order",
    says="Attention sees a set. Take the positions away, and the mask, and the same tokens in another order give the "
    "same vectors in that order: a network that reads bags of words. A position table or a rotation is what tells "
    "'the cat sat on the mat' from 'the mat sat on the cat'.",
    criterion=f"without positions and mask, reordering the tokens reorders the scores, to {SAME:g}; with positions it "
    f"changes them by more than {TOLD:g} of the largest.",
    control="the same with the positions left in.",
    conditions=(
        "The mask tells an order too: each position sees another set. In the first layer the last token still gathers "
        "the same from those before it in any order; in deeper ones, where those have gathered different things, it "
        "does not. The last two figures show both.",
        "A residual carries what is there; it cannot bring back an order that was never put in.",
    ),
    measure=measure,
    code="from cutaway.inside.altered import altered\n"
    "bag = altered(model, ['mask', 'positions'])\n"
    "print((bag.logits([5, 9, 2])[[2, 0, 1]] - bag.logits([2, 5, 9])).abs().max())",
)
