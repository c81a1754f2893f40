"""gpt_neox: rotary on a part of each head, parallel residual, q, k and v interleaved head by head in the file."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from cutaway.checkpoint.families.family import Family, read_activation, write_activation
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import Layout, whole
from cutaway.checkpoint.rope import read_rotary, write_scaling
from cutaway.config import AttentionConfig, FeedForwardConfig, LayerNormConfig, ModelConfig, RotaryConfig


def read(f: Fields) -> ModelConfig:
    """A GPTNeoXConfig."""
    d_model, n_heads = f.count("hidden_size"), f.count("num_attention_heads")
    n_ctx = f.count("max_position_embeddings", 2048)
    bias = f.flag("attention_bias", True)
    return ModelConfig(
        n_layers=f.n_layers(),
        n_ctx=n_ctx,
        d_model=d_model,
        d_vocab=f.count("vocab_size"),
        n_heads=n_heads,
        d_ff=f.count("intermediate_size"),
        norm=LayerNormConfig(eps=f.number("layer_norm_eps", 1e-5)),
        parallel=f.flag("use_parallel_residual", True),
        position=read_rotary(
            f,
            d_head=max(d_model // n_heads, 1),
            n_ctx=n_ctx,
            theta=10_000.0,
            theta_field="rotary_emb_base",
            share_field="rotary_pct",
            share=0.25,
            partial=True,
        ),
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias),
        feedforward=FeedForwardConfig(activation=read_activation(f, "hidden_act", "gelu")),
        tied=f.flag("tie_word_embeddings", False),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    rotary = config.positions[0] if isinstance(config.positions[0], RotaryConfig) else RotaryConfig()
    fields = {
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "intermediate_size": config.d_ff,
        "vocab_size": config.d_vocab,
        "max_position_embeddings": config.n_ctx,
        "layer_norm_eps": config.norm.eps,
        "hidden_act": write_activation(config.feedforward.activation, "gelu_new"),
        "use_parallel_residual": config.parallel,
        "attention_bias": config.attention.qkv_bias,
        "rotary_emb_base": rotary.theta,
        "rotary_pct": (rotary.d_rotary or config.d_head) / config.d_head,
        "tie_word_embeddings": config.tied,
    }
    scaling = write_scaling(rotary)
    return fields if scaling is None else fields | {"rope_scaling": scaling}


def by_kind(x: Tensor, n_heads: int) -> Tensor:
    """Rows (head, q|k|v, coordinate) to rows (q|k|v, head, coordinate)."""
    return x.unflatten(0, (n_heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def by_head(x: Tensor, n_heads: int) -> Tensor:
    """The inverse of `by_kind`."""
    return x.unflatten(0, (3, n_heads, -1)).transpose(0, 1).flatten(0, 2)


def layout(config: ModelConfig) -> Layout:
    """The fused q, k, v matrix is reordered; the rest is copied."""
    table: Layout = {
        "embed.weight": whole("gpt_neox.embed_in.weight"),
        "final_norm.weight": whole("gpt_neox.final_layer_norm.weight"),
        "final_norm.bias": whole("gpt_neox.final_layer_norm.bias"),
        "head.weight": whole("embed_out.weight"),
    }
    to_ours, to_theirs = partial(by_kind, n_heads=config.n_heads), partial(by_head, n_heads=config.n_heads)
    names = {
        "attn_norm": "input_layernorm",
        "ff_norm": "post_attention_layernorm",
        "ff.up": "mlp.dense_h_to_4h",
        "ff.down": "mlp.dense_4h_to_h",
    }
    for i in range(config.n_layers):
        theirs = f"gpt_neox.layers.{i}"
        for kind in ("weight", "bias"):
            for ours, name in names.items():
                table[f"blocks.{i}.{ours}.{kind}"] = whole(f"{theirs}.{name}.{kind}")
            if kind == "weight" or config.attention.qkv_bias:
                fused = f"{theirs}.attention.query_key_value.{kind}"
                table[f"blocks.{i}.attn.qkv.{kind}"] = whole(fused, to_ours, to_theirs)
                table[f"blocks.{i}.attn.out.{kind}"] = whole(f"{theirs}.attention.dense.{kind}")
    return table


FAMILY = Family(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    read=read,
    write=write,
    layout=layout,
    buffers=(r"\.attention\.(bias|masked_bias)$", r"\.rotary_emb\.inv_freq$"),
)
