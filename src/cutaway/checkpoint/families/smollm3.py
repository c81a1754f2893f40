"""smollm3: a llama that leaves every fourth layer without positions."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import (
    Family,
    masks_by_layer,
    read_layer_types,
    window_of,
    write_layer_types,
)
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.rope import read_rotary
from cutaway.config import AttentionConfig, ModelConfig, NoPositionConfig, PositionConfig, RotaryConfig

THETA = 2_000_000.0


def read(f: Fields) -> ModelConfig:
    """A SmolLM3Config."""
    n_layers, n_ctx = f.n_layers(), f.count("max_position_embeddings", 32768)
    interval = f.count("no_rope_layer_interval", 4)
    turns = [(i + 1) % interval != 0 for i in range(n_layers)]
    if "no_rope_layers" in f:
        turns = [bool(entry) for entry in f.items("no_rope_layers", int, n_layers)]
    d_head = f.count("head_dim", max(f.count("hidden_size") // f.count("num_attention_heads"), 1))
    rotary = read_rotary(f, d_head=d_head, n_ctx=n_ctx, theta=THETA)
    position: tuple[PositionConfig, ...] = tuple(rotary if turn else NoPositionConfig() for turn in turns)
    # Explicit layer types hold, whatever the flag says: only their default depends on it.
    windows = f.flag("use_sliding_window", False) or "layer_types" in f
    window = f.optional_count("sliding_window") if windows else None
    bias = f.flag("attention_bias", False)
    return read_like_llama(
        f,
        n_ctx=n_ctx,
        tied=True,
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias),
        mlp_bias=f.flag("mlp_bias", False),
        position=position,
        mask=masks_by_layer(read_layer_types(f, n_layers, [not turn for turn in turns]), window),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    window = window_of(config)
    return write_like_llama(config) | {
        "attention_bias": config.attention.qkv_bias,
        "mlp_bias": config.feedforward.bias,
        "no_rope_layers": [int(isinstance(p, RotaryConfig)) for p in config.positions],
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": write_layer_types(config),
    }


FAMILY = Family(
    model_type="smollm3", architecture="SmolLM3ForCausalLM", read=read, write=write, layout=layout_like_llama
)
