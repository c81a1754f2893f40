"""Which tensors of a GGUF file fill which parameters, and what llama.cpp's converter did to them on the way in.

GPT-2's matrices are already turned to output × input, and GPT-NeoX's q, k and v are already sorted by kind: the file
holds them as the network does. Two changes are left to undo: the order of q's and k's rows where llama.cpp rotates
neighbours instead of halves, and the offset of Gemma's norms.

Source: llama.cpp's converter; gguf-py, tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from cutaway.checkpoint.layout import Change, Layout, Part, stacked, whole
from cutaway.config import ModelConfig, RMSNormConfig

MODEL_NAMES = {
    "embed": "token_embd",
    "positions.0": "position_embd",
    "final_norm": "output_norm",
    "head": "output",
}
BLOCK_NAMES = {
    "attn_norm": "attn_norm",
    "attn_post_norm": "post_attention_norm",
    "attn.q_norm": "attn_q_norm",
    "attn.q_norm.norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn.k_norm.norm": "attn_k_norm",
    "attn.qkv": "attn_qkv",
    "attn.out": "attn_output",
    "ff_norm": "ffn_norm",
    "ff_post_norm": "post_ffw_norm",
    "ff.gate_up": "ffn_up",
    "ff.up": "ffn_up",
    "ff.down": "ffn_down",
}


def gguf_layout(parameters: Iterable[str], config: ModelConfig, stored: Container[str], *, rope_pairs: bool) -> Layout:
    """The place of every parameter in a file whose tensors are `stored`.

    q, k, v and gate, up may each lie in one tensor or in several: the file decides.
    """
    layout: Layout = {}
    for ours in parameters:
        stem, kind = ours.rsplit(".", 1)
        if stem in MODEL_NAMES:
            block, theirs = "", f"{MODEL_NAMES[stem]}.{kind}"
        else:
            _, layer, stem = stem.split(".", 2)
            block, theirs = f"blk.{layer}.", f"blk.{layer}.{BLOCK_NAMES[stem]}.{kind}"
        if stem == "attn.qkv":
            layout[ours] = _qkv(block, kind, config, fused=theirs in stored, rope_pairs=rope_pairs)
        elif stem == "ff.gate_up" and f"{block}ffn_gate.{kind}" in stored:
            layout[ours] = stacked([f"{block}ffn_{x}.{kind}" for x in ("gate", "up")], (config.d_ff, config.d_ff))
        elif "norm" in stem and isinstance(config.norm, RMSNormConfig) and config.norm.offset:
            layout[ours] = whole(theirs, partial(_plus, -config.norm.offset), partial(_plus, config.norm.offset))
        else:
            layout[ours] = whole(theirs)
    return layout


def _qkv(block: str, kind: str, config: ModelConfig, *, fused: bool, rope_pairs: bool) -> tuple[Part, ...]:
    n_q, n_kv = config.n_heads, config.n_kv_heads
    if fused and rope_pairs:
        n_rows = (n_q + n_kv) * config.d_head
        to_ours, to_theirs = (partial(_on_top, partial(change, n_q + n_kv), n_rows) for change in (halves, pairs))
        return whole(f"{block}attn_qkv.{kind}", to_ours, to_theirs)
    if fused:
        return whole(f"{block}attn_qkv.{kind}")
    q, k, v = stacked([f"{block}attn_{x}.{kind}" for x in "qkv"], [n * config.d_head for n in (n_q, n_kv, n_kv)])
    if not rope_pairs:
        return q, k, v
    # Each by its own number of heads: k has n_kv_heads of them.
    return (
        replace(q, to_ours=partial(halves, n_q), to_theirs=partial(pairs, n_q)),
        replace(k, to_ours=partial(halves, n_kv), to_theirs=partial(pairs, n_kv)),
        v,
    )


def pairs(n_heads: int, x: Float[Tensor, "rows ..."]) -> Float[Tensor, "rows ..."]:
    """Within each head, rows i and i + d_head/2, which turn together, side by side: 0 4 1 5 2 6 3 7."""
    return x.reshape(n_heads, 2, -1, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def halves(n_heads: int, x: Float[Tensor, "rows ..."]) -> Float[Tensor, "rows ..."]:
    """The inverse of `pairs`: 0 2 4 6 1 3 5 7."""
    return x.reshape(n_heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def _on_top(change: Change, n_rows: int, x: Float[Tensor, "rows ..."]) -> Float[Tensor, "rows ..."]:
    """`change` on the first rows, the others as they are."""
    return torch.cat((change(x[:n_rows]), x[n_rows:]))


def _plus(offset: float, x: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
    return x + offset
