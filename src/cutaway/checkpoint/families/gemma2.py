"""gemma2: sandwich norms around 0, soft caps, GeGLU, scaled embeddings, a window in every other layer."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import (
    Family,
    masks_by_layer,
    read_layer_types,
    read_window,
    window_of,
    write_activation,
    write_layer_types,
)
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.config import AttentionConfig, ModelConfig, QKNorm


def read_like_gemma(
    f: Fields,
    *,
    caps: tuple[float | None, float | None],
    windowed: list[bool],
    qk_norm: QKNorm | None,
    **parts: Any,
) -> ModelConfig:
    """What both text generations share; `caps` are the defaults of the attention and the final soft cap."""
    f.refuse("use_bidirectional_attention", False, False)
    bias = f.flag("attention_bias", False)
    attention = AttentionConfig(
        qkv_bias=bias,
        out_bias=bias,
        scale=f.number("query_pre_attn_scalar", 256.0) ** -0.5,
        soft_cap=f.optional_number("attn_logit_softcapping", caps[0]),
        qk_norm=qk_norm,
    )
    n_layers = f.n_layers()
    return read_like_llama(
        f,
        tied=True,
        d_head=256,
        attention=attention,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        norm_offset=1.0,
        norm_placement="sandwich",
        mask=masks_by_layer(read_layer_types(f, n_layers, windowed), read_window(f)),
        embed_scale=float(f.count("hidden_size")) ** 0.5,
        logit_soft_cap=f.optional_number("final_logit_softcapping", caps[1]),
        **parts,
    )


def write_like_gemma(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read_like_gemma`."""
    fields = write_like_llama(config)
    del fields["hidden_act"]
    return fields | {
        "hidden_activation": write_activation(config.feedforward.activation, "gelu_pytorch_tanh"),
        "attention_bias": config.attention.qkv_bias,
        "query_pre_attn_scalar": _whole(config.attention_scale**-2),
        "attn_logit_softcapping": config.attention.soft_cap,
        "final_logit_softcapping": config.logit_soft_cap,
        "sliding_window": window_of(config) or 4096,
        "layer_types": write_layer_types(config),
    }


def _whole(x: float) -> int | float:
    return round(x) if abs(x - round(x)) < 1e-6 * x else x


def read(f: Fields) -> ModelConfig:
    """A Gemma2Config."""
    windowed = [i % 2 == 0 for i in range(f.n_layers())]
    return read_like_gemma(f, caps=(50.0, 30.0), windowed=windowed, qk_norm=None, n_ctx=8192)


FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    read=read,
    write=write_like_gemma,
    layout=layout_like_llama,
)
