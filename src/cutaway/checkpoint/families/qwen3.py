"""qwen3: a llama with a norm on each head's q and k."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.families.qwen2 import read_masks, write_masks
from cutaway.checkpoint.fields import Fields
from cutaway.config import AttentionConfig, ModelConfig


def read(f: Fields) -> ModelConfig:
    """A Qwen3Config."""
    bias = f.flag("attention_bias", False)
    attention = AttentionConfig(qkv_bias=bias, out_bias=bias, qk_norm="head")
    return read_like_llama(f, n_ctx=32768, d_head=128, attention=attention, mask=read_masks(f))


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    return write_like_llama(config) | write_masks(config) | {"attention_bias": config.attention.qkv_bias}


FAMILY = Family(model_type="qwen3", architecture="Qwen3ForCausalLM", read=read, write=write, layout=layout_like_llama)
