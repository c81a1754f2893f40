"""gpt2: the classic, with its linear weights stored input × output."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family, read_activation, write_activation
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import Layout, transposed, whole
from cutaway.config import AttentionConfig, FeedForwardConfig, LayerNormConfig, ModelConfig


def read(f: Fields) -> ModelConfig:
    """A GPT2Config."""
    f.refuse("scale_attn_weights", True, True)
    f.refuse("scale_attn_by_inverse_layer_idx", False, False)
    f.refuse("add_cross_attention", False, False)
    d_model = f.count("n_embd", 768)
    return ModelConfig(
        n_layers=f.count("n_layer", 12),
        n_ctx=f.count("n_positions", 1024),
        d_model=d_model,
        d_vocab=f.count("vocab_size", 50257),
        n_heads=f.count("n_head", 12),
        d_ff=f.count("n_inner", 4 * d_model),
        norm=LayerNormConfig(eps=f.number("layer_norm_epsilon", 1e-5)),
        attention=AttentionConfig(qkv_bias=True, out_bias=True),
        feedforward=FeedForwardConfig(activation=read_activation(f, "activation_function", "gelu_new")),
        tied=f.flag("tie_word_embeddings", True),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    return {
        "n_layer": config.n_layers,
        "n_positions": config.n_ctx,
        "n_ctx": config.n_ctx,
        "n_embd": config.d_model,
        "vocab_size": config.d_vocab,
        "n_head": config.n_heads,
        "n_inner": None if config.d_ff == 4 * config.d_model else config.d_ff,
        "layer_norm_epsilon": config.norm.eps,
        "activation_function": write_activation(config.feedforward.activation, "gelu_new"),
        "tie_word_embeddings": config.tied,
    }


def layout(config: ModelConfig) -> Layout:
    """Four linear maps a block, all transposed; c_attn is q, k, v side by side."""
    table: Layout = {
        "embed.weight": whole("transformer.wte.weight"),
        "positions.0.weight": whole("transformer.wpe.weight"),
        "final_norm.weight": whole("transformer.ln_f.weight"),
        "final_norm.bias": whole("transformer.ln_f.bias"),
        "head.weight": whole("lm_head.weight"),
    }
    maps = {
        "attn.qkv": "attn.c_attn",
        "attn.out": "attn.c_proj",
        "ff.up": "mlp.c_fc",
        "ff.down": "mlp.c_proj",
    }
    for i in range(config.n_layers):
        for ours, theirs in maps.items():
            table[f"blocks.{i}.{ours}.weight"] = whole(f"transformer.h.{i}.{theirs}.weight", transposed)
            table[f"blocks.{i}.{ours}.bias"] = whole(f"transformer.h.{i}.{theirs}.bias")
        for ours, theirs in {"attn_norm": "ln_1", "ff_norm": "ln_2"}.items():
            for kind in ("weight", "bias"):
                table[f"blocks.{i}.{ours}.{kind}"] = whole(f"transformer.h.{i}.{theirs}.{kind}")
    return table


FAMILY = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    read=read,
    write=write,
    layout=layout,
    buffers=(r"\.attn\.bias$", r"\.attn\.masked_bias$"),
)
