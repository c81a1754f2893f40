"""Claim 6: queries and keys decide who is heard, values what is said."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, look, replaced
from cutaway.figures import Table
from cutaway.language_model import LanguageModel
from cutaway.nn.attention import Attention

N_TOKENS = 16
SEEN = {"pattern": "who is heard", "k": "keys", "v": "values", "z": "what is gathered"}


def measure(lab: Lab, broken: bool) -> Evidence:
    """What other numbers in W_V change in a layer, and what other numbers in W_K do."""
    model = lab.model
    ids = lab.ids(min(N_TOKENS, model.config.n_ctx))
    weight = projections(model)
    keys, values = rows_of(model)
    if broken:  # one projection for both
        weight = weight.clone()
        weight[values] = weight[keys]
    plain = seen(model, ids, weight)
    changes = {}
    for name, rows in (("W_V", values), ("W_K", keys)):
        other = scrambled(weight, rows, lab.seed)
        if broken:
            other[values] = other[keys] = other[rows]
        found = seen(model, ids, other)
        changes[name] = {part: float((found[part] - plain[part]).abs().max()) for part in SEEN}
    by_value, by_key = changes["W_V"], changes["W_K"]
    table = Table(
        title="what changes in layer 0 when a projection gets other numbers",
        note="largest change of any number; 0 is bit for bit the same",
        columns=["", *(f">with another {name}" for name in changes)],
        rows=[[words, by_value[part], by_key[part]] for part, words in SEEN.items()],
    )
    return Evidence(
        holds=met(broken, (by_value["pattern"] == 0, by_key["v"] == 0)) and by_value["z"] > 0 and by_key["pattern"] > 0,
        figures={
            "change of the pattern by another W_V": by_value["pattern"],
            "change of what is gathered by another W_V": by_value["z"],
            "change of the values by another W_K": by_key["v"],
            "change of the pattern by another W_K": by_key["pattern"],
        },
        drawings=() if broken else (table,),
    )


def projections(model: LanguageModel) -> Tensor:
    """W_Q, W_K and W_V of layer 0, on top of each other."""
    return model.network.get_parameter("blocks.0.attn.qkv.weight").detach()


def rows_of(model: LanguageModel) -> tuple[slice, slice]:
    """Where W_K and W_V lie in it."""
    attention = cast(Attention, model.network.get_submodule("blocks.0.attn"))
    first, n = attention.n_heads * attention.d_head, attention.n_kv_heads * attention.d_head
    return slice(first, first + n), slice(first + n, first + 2 * n)


def scrambled(weight: Tensor, rows: slice, seed: int) -> Tensor:
    """The same numbers in other places, in these rows alone."""
    other = weight.clone()
    flat = other[rows].flatten()
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed))
    other[rows] = flat[order.to(flat.device)].view_as(other[rows])
    return other


def seen(model: LanguageModel, ids: list[int], weight: Tensor) -> dict[str, Tensor]:
    with replaced(model.network, "blocks.0.attn.qkv.weight", weight):
        found = look(model, ids, [f"blocks.0.attn.{part}" for part in SEEN])
    return {part: found[f"blocks.0.attn.{part}"] for part in SEEN}


CLAIM = Claim(
    number=6,
    title="Who is heard, and what is said",
    says="Queries and keys settle how much each position listens to each other; values are what it then hears. They "
    "come from different projections, so a token may be found for one reason and pass on another thing.",
    criterion="other numbers in W_V leave the pattern of the layer as it is, bit for bit, and change what is gathered; "
    "other numbers in W_K leave the values as they are and change the pattern.",
    control="keys and values from one projection: neither can be changed without the other.",
    conditions=(
        "Within one layer. What a layer gathers is read by the next, whose queries and keys then change too.",
        "Some models have a norm on queries and keys; there is none on values.",
        "With grouped queries several heads share one projection of keys and one of values; the two stay apart.",
    ),
    measure=measure,
    code="trace = model.trace([5, 9, 2, 9], keep='blocks.0.attn.*')\n"
    "z = trace['blocks.0.attn.pattern'][0, 0] @ trace['blocks.0.attn.v'][0, 0]\n"
    "print((z - trace['blocks.0.attn.z'][0, 0]).abs().max())",
)
