"""qwen2: a llama with biases on q, k and v, and a window in the upper layers where the config asks for one."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import (
    Family,
    masks_by_layer,
    read_layer_types,
    read_window,
    window_of,
    write_layer_types,
)
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.config import AttentionConfig, MaskConfig, ModelConfig


def read_masks(f: Fields) -> MaskConfig | tuple[MaskConfig, ...]:
    """The window is off unless `use_sliding_window`; then it holds from layer `max_window_layers` up."""
    n_layers = f.n_layers()
    window = read_window(f) if f.flag("use_sliding_window", False) else None
    first = f.data.get("max_window_layers", 28)
    if not isinstance(first, int) or first < 0:
        raise f.wrong("max_window_layers", first, "it must be a whole number of 0 or more")
    return masks_by_layer(read_layer_types(f, n_layers, [i >= first for i in range(n_layers)]), window)


def write_masks(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read_masks`."""
    window = window_of(config)
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": write_layer_types(config),
    }


def read(f: Fields) -> ModelConfig:
    """A Qwen2Config."""
    return read_like_llama(f, n_ctx=32768, attention=AttentionConfig(qkv_bias=True), mask=read_masks(f))


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    return write_like_llama(config) | write_masks(config)


FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    read=read,
    write=write,
    layout=layout_like_llama,
    buffers=(r"\.rotary_emb\.inv_freq$",),
)
