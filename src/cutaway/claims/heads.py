"""Claim 9: heads are free, their output projection is not."""

from __future__ import annotations

import torch

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, look
from cutaway.config import ModelConfig
from cutaway.figures import Table
from cutaway.network import Transformer

D = 256
HEADS = (1, 2, 4, 8, 16, 32)
FIXED = 64  # the width of a head in the control
N_TOKENS = 16
MIXED = 0.1  # a share above this is more than a copy


def measure(lab: Lab, broken: bool) -> Evidence:
    """The weights of one block of the same width, built with 1 to 32 heads; and what W_O does in the model."""
    built = {h: weights_of(h, FIXED if broken else D // h) for h in HEADS}
    qkv, out, feed_forward = map(set, zip(*built.values(), strict=True))
    config = lab.model.config
    attention = lab.model.network.get_submodule("blocks.0.attn")
    own = sum(p.numel() for p in attention.parameters() if p.ndim == 2)
    predicted = config.d_model * config.d_head * 2 * (config.n_heads + config.n_kv_heads)
    mixing = least_mixed(lab)
    table = Table(
        title=f"a block of width {D} with 1 to 32 heads",
        columns=[">heads", ">width of each", ">W_Q, W_K, W_V", ">W_O", ">feed-forward", ">attention in all"],
        rows=[[h, D // h, *built[h], sum(built[h][:2])] for h in HEADS],
    )
    return Evidence(
        holds=met(broken, (qkv == {3 * D * D}, out == {D * D}))
        and feed_forward == {8 * D * D}
        and own == predicted
        and mixing > MIXED,
        figures={
            "least of W_Q, W_K and W_V, of 3d²": min(qkv) / (3 * D * D),
            "most of W_Q, W_K and W_V, of 3d²": max(qkv) / (3 * D * D),
            "most of W_O, of d²": max(out) / (D * D),
            "most of the feed-forward, of 8d²": max(feed_forward) / (8 * D * D),
            "the model's matrices of attention in a block": own,
            "the same by the formula 2·d·d_head·(heads + key heads)": predicted,
            "least share of what a head adds that no copy of its result explains": mixing,
        },
        drawings=() if broken else (table,),
    )


def weights_of(n_heads: int, d_head: int) -> tuple[int, int, int]:
    """The numbers in W_Q, W_K and W_V together, in W_O, and in the feed-forward of a built block."""
    config = ModelConfig(n_layers=1, n_ctx=8, d_model=D, d_vocab=8, n_heads=n_heads, d_head=d_head)
    with torch.device("meta"):
        block = Transformer(config).blocks[0]
    sizes = {name: p.numel() for name, p in block.named_parameters() if p.ndim == 2}
    feed_forward = sum(n for name, n in sizes.items() if name.startswith("ff."))
    return sizes["attn.qkv.weight"], sizes["attn.out.weight"], feed_forward


def least_mixed(lab: Lab) -> float:
    """Of what each head adds, the share of its square that is no multiple of the head's own result; the least of all.

    Were the heads' results just laid side by side, as without W_O, or dropped, it would be 0.
    """
    config = lab.model.config
    seen = look(lab.model, lab.ids(min(N_TOKENS, config.n_ctx)), ["blocks.*.attn.z", "blocks.*.attn.head_out"])
    shares = []
    for layer in range(config.n_layers):
        for head in range(config.n_heads):
            result = seen[f"blocks.{layer}.attn.z"][0, head].double()
            added = seen[f"blocks.{layer}.attn.head_out"][0, head].double()
            whole, laid = float(added.square().sum()), added[:, head * config.d_head :][:, : config.d_head]
            copied = float((laid * result[:, : laid.shape[1]]).sum() ** 2 / result.square().sum())
            shares.append(1 - copied / whole if whole > 0 else 0.0)
    return min(shares)


CLAIM = Claim(
    number=9,
    title="Heads are free, their output projection is not",
    says="However many heads share a width, their queries, keys and values take the same 3d² weights: more heads are "
    "narrower ones. What several heads need anew is W_O, d² more, which mixes their results back together. The "
    "feed-forward does not know how many heads there are.",
    criterion="blocks built with 1 to 32 heads of d/H each have 3d² in W_Q, W_K and W_V, d² in W_O and 8d² in the "
    "feed-forward; the model has as many as its widths say, and its W_O makes more of every head than a copy of its "
    "result.",
    control=f"heads of {FIXED} coordinates each, whatever their number: their weights grow with it.",
    conditions=(
        "Biases are left out: 4d more in attention where there are any.",
        "Grouped queries save keys and values: 2·d·d_head·(heads + key heads) in place of 4d².",
        "A config may give d_head freely; then the heads are as free as it is wide.",
    ),
    measure=measure,
    code="attention = model.network.blocks[0].attn\n"
    "print(attention.W_Q.shape, attention.W_K.shape, attention.W_V.shape, attention.W_O.shape)",
)
