"""Claim 9: heads are free, their output projection is not."""

from __future__ import annotations

import torch

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, look
from cutaway.config import ModelConfig
from cutaway.figures import Table
from cutaway.network import Transformer

D = 256
HEADS = (1, 2, 4, 8, 16, 32)
FIXED = 64  # the width of a head in the control
N_TOKENS = 16


def measure(lab: Lab, broken: bool) -> Evidence:
    """The weights of one block of the same width, built with 1 to 32 heads; and what W_O does in the model."""
    built = {h: weights_of(h, FIXED if broken else D // h) for h in HEADS}
    qkv, out, feed_forward = map(set, zip(*built.values(), strict=True))
    config = lab.model.config
    attention = lab.model.network.get_submodule("blocks.0.attn")
    own = sum(p.numel() for p in attention.parameters() if p.ndim == 2)
    predicted = config.d_model * config.d_head * 2 * (config.n_heads + config.n_kv_heads)
    mixing = share_mixed(lab)
    table = Table(
        title=f"a block of width {D} with 1 to 32 heads",
        columns=[">heads", ">width of each", ">W_Q, W_K, W_V", ">W_O", ">feed-forward", ">attention in all"],
        rows=[[h, D // h, *built[h], sum(built[h][:2])] for h in HEADS],
    )
    return Evidence(
        holds=qkv == {3 * D * D} and out == {D * D} and feed_forward == {8 * D * D} and mixing > 0,
        figures={
            "least of W_Q, W_K and W_V, of 3d²": min(qkv) / (3 * D * D),
            "most of W_Q, W_K and W_V, of 3d²": max(qkv) / (3 * D * D),
            "most of W_O, of d²": max(out) / (D * D),
            "most of the feed-forward, of 8d²": max(feed_forward) / (8 * D * D),
            "the model's matrices of attention in a block": own,
            "the same by the formula 2·d·d_head·(heads + key heads)": predicted,
            "share of what W_O adds that it takes from one head to others' coordinates": mixing,
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


def share_mixed(lab: Lab) -> float:
    """Of what head 0 of layer 0 adds, the share of its square that lies outside the coordinates it came from.

    Were the heads' results just laid side by side, as without W_O, it would be 0.
    """
    d_head, d_model = lab.model.config.d_head, lab.model.config.d_model
    seen = look(lab.model, lab.ids(min(N_TOKENS, lab.model.config.n_ctx)), "blocks.0.attn.head_out[head 0]")
    added = seen["blocks.0.attn.head_out[head 0]"].double().square().sum(dim=(0, 1, 2))
    return float(added[d_head:].sum() / added.sum()) if d_head < d_model and added.sum() > 0 else 0.0


CLAIM = Claim(
    number=9,
    title="Heads are free, their output projection is not",
    says="However many heads share a width, their queries, keys and values take the same 3d² weights: more heads are "
    "narrower ones. What several heads need anew is W_O, d² more, which mixes their results back together. The "
    "feed-forward does not know how many heads there are.",
    criterion="blocks built with 1 to 32 heads of d/H each have 3d² in W_Q, W_K and W_V, d² in W_O and 8d² in the "
    "feed-forward; and the model's W_O takes a head's result beyond the coordinates that it came from.",
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
