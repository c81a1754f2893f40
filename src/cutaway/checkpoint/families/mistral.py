"""mistral: a llama whose layers all have a sliding window, where the config names one."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family, masks_by_layer, read_layer_types, read_window, window_of
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.config import ModelConfig


def read(f: Fields) -> ModelConfig:
    """A MistralConfig."""
    n_layers = f.n_layers()
    windowed = read_layer_types(f, n_layers, [True] * n_layers)
    return read_like_llama(f, n_ctx=131072, mask=masks_by_layer(windowed, read_window(f)))


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    return write_like_llama(config) | {"sliding_window": window_of(config)}


FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    read=read,
    write=write,
    layout=layout_like_llama,
    buffers=(r"\.rotary_emb\.inv_freq$",),
)
