"""phi3: a llama whose file holds q, k, v in one matrix and gate, up in another, as the network does."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family, masks_by_layer, window_of
from cutaway.checkpoint.families.llama import layout_like_llama, read_like_llama, write_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import Layout, whole
from cutaway.config import LongRopeScaling, ModelConfig, RotaryConfig

ORIGINAL = "original_max_position_embeddings"


def read(f: Fields) -> ModelConfig:
    """A Phi3Config.

    Where its scaling changes over stands at the top of the config; what the scaling itself says of it is not read.
    """
    for name in ("rope_scaling", "rope_parameters"):
        scaling = f.part(name)
        if scaling is not None and scaling.data.get("rope_type", scaling.data.get("type")) == "yarn":
            f = f.replace(**{name: {**scaling.data, "rope_type": "longrope"}})  # its early name in this family
    stated = ORIGINAL in f
    f = f if stated else f.replace(**{ORIGINAL: 4096})
    n_layers = f.n_layers()
    mask = masks_by_layer([True] * n_layers, f.optional_count("sliding_window"))
    config = read_like_llama(f, n_ctx=4096, eps=1e-5, mask=mask, partial=True)
    if not stated and isinstance(getattr(config.positions[0], "scaling", None), LongRopeScaling):
        f.notes.append(f"no {ORIGINAL} at the top of the config: the family's default 4096 is used")
    return config


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    fields = write_like_llama(config) | {"sliding_window": window_of(config)}
    rotary = config.positions[0]
    if isinstance(rotary, RotaryConfig) and isinstance(rotary.scaling, LongRopeScaling):
        fields[ORIGINAL] = rotary.scaling.n_ctx_original
    return fields


def layout(config: ModelConfig) -> Layout:
    """llama's, with the two fused matrices."""
    table = layout_like_llama(config)
    for i in range(config.n_layers):
        table[f"blocks.{i}.attn.qkv.weight"] = whole(f"model.layers.{i}.self_attn.qkv_proj.weight")
        table[f"blocks.{i}.ff.gate_up.weight"] = whole(f"model.layers.{i}.mlp.gate_up_proj.weight")
    return table


FAMILY = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    read=read,
    write=write,
    layout=layout,
    buffers=(r"\.rotary_emb\.inv_freq$",),
)
