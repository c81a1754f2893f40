"""olmo2: norms on what a sub-layer adds instead of what it reads, and one over all heads' q and k."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.config import AttentionConfig, ModelConfig


def read(f: Fields) -> ModelConfig:
    """An Olmo2Config."""
    bias = f.flag("attention_bias", False)
    attention = AttentionConfig(qkv_bias=bias, out_bias=bias, qk_norm="width")
    return read_like_llama(f, eps=1e-5, attention=attention, norm_placement="post")


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    return write_like_llama(config) | {"attention_bias": config.attention.qkv_bias}


FAMILY = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    read=read,
    write=write,
    layout=layout_like_llama,
    buffers=(r"\.rotary_emb\.inv_freq$",),
)
