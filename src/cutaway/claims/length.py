"""Claim 12: no weight knows the length."""

from __future__ import annotations

from dataclasses import replace

import torch

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, scores
from cutaway.config import LearnedPositionConfig, ModelConfig
from cutaway.figures import Table
from cutaway.network import Transformer

LENGTHS = (1, 2, 3, 17, 64, 200)  # tokens
CONTEXTS = (64, 4096)


def measure(lab: Lab, broken: bool) -> Evidence:
    """The same weights at many lengths; and the shapes of a network built for a short and for a long context."""
    model, config = lab.model, lab.model.config
    lengths = [n for n in LENGTHS if n <= config.n_ctx]
    before = checksum(model.network)
    answered = [tuple(scores(model, lab.ids(n)).shape) == (n, config.d_vocab) for n in lengths]
    if broken:
        config = replace(config, position=LearnedPositionConfig())
    shapes = [shapes_of(replace(config, n_ctx=n)) for n in CONTEXTS]
    grown = {name for name in shapes[0] if shapes[0][name] != shapes[1][name]}
    table_names = set() if broken else {name for name in grown if name.startswith("positions.")}
    rows = [[name, str(list(shapes[0][name])), str(list(shapes[1][name]))] for name in shapes[0] if _shown(name)]
    table = Table(
        title=f"tensors built for {CONTEXTS[0]} and for {CONTEXTS[1]} tokens",
        note="of the first block, and those that come once",
        columns=["tensor", *(f"n_ctx = {n}" for n in CONTEXTS)],
        rows=rows,
    )
    return Evidence(
        holds=all(answered) and checksum(model.network) == before and not grown - table_names,
        figures={
            "lengths that the same weights answered": sum(answered),
            "longest of them [tokens]": lengths[-1],
            "tensors whose shape depends on the context": len(grown - table_names),
            "of these excepted, because they are a table of positions": len(table_names),
            "tensors in all": len(shapes[0]),
        },
        drawings=() if broken else (table,),
    )


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        network = Transformer(config)
    return {name: tuple(p.shape) for name, p in network.named_parameters()}


def checksum(network: Transformer) -> tuple[float, int]:
    """The sum of all weights, and how often they were written to."""
    return sum(float(p.detach().double().sum()) for p in network.parameters()), sum(
        p._version for p in network.parameters()
    )


def _shown(name: str) -> bool:
    return not name.startswith("blocks.") or name.startswith("blocks.0.")


CLAIM = Claim(
    number=12,
    title="No weight knows the length",
    says="The same weights read one token or a thousand. Every matrix is d by something, V by d, d by d_ff; the length "
    "is nowhere among their sizes. It lives in what a pass computes, and that is made anew each time.",
    criterion="texts of many lengths go through weights that stay as they are, number by number; and a network built "
    f"for {CONTEXTS[1]} tokens has the tensors of one built for {CONTEXTS[0]}, shape by shape, but for a table of "
    "positions.",
    control="a table of learned positions, counted like any other weight.",
    conditions=(
        "The exception is that table: n_ctx by d, one row for each position there may be. Rotary positions have no "
        "weights at all.",
        "That a network can read a length does not mean it was trained for it: past the lengths of its training the "
        "loss may rise.",
    ),
    measure=measure,
    code="print([tuple(model.logits(list(range(1, n + 1))).shape) for n in (1, 2, 17)])\n"
    "print({tuple(p.shape) for p in model.network.blocks[0].parameters()})",
)
