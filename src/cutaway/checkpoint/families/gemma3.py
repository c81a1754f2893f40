"""gemma3_text: a gemma2 with a norm on q and k instead of caps, and two rotations: near layers and far ones."""

from __future__ import annotations

from typing import Any

from cutaway.checkpoint.families.family import Family, read_layer_types
from cutaway.checkpoint.families.gemma2 import read_like_gemma, write_like_gemma
from cutaway.checkpoint.families.llama import layout_like_llama
from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.rope import read_rotary, write_scaling
from cutaway.config import ModelConfig, PositionConfig, RotaryConfig, WindowMaskConfig

LAYER_TYPES = ("full_attention", "sliding_attention")


def read(f: Fields) -> ModelConfig:
    """A Gemma3TextConfig: layers with a window turn by the local theta, the others by the global one."""
    n_layers, n_ctx = f.n_layers(), f.count("max_position_embeddings", 131072)
    pattern = f.count("sliding_window_pattern", 6)
    windowed = read_layer_types(f, n_layers, [(i + 1) % pattern != 0 for i in range(n_layers)])
    d_head = f.count("head_dim", 256)
    cap = f.optional_number("attn_logit_softcapping", None)
    if cap is not None:
        f.notes.append(f"attn_logit_softcapping = {cap:g} is not used, as in transformers: this family caps no scores")
        f = f.replace(attn_logit_softcapping=None)
    nested = f.part("rope_parameters")
    if nested is not None and nested.data and not any(name in nested for name in LAYER_TYPES):
        f.notes.append(
            "rope_parameters names no layer type, so it is not used, as in transformers: "
            "put it under full_attention and sliding_attention"
        )
    far = read_rotary(merged(f), d_head=d_head, n_ctx=n_ctx, theta=1_000_000.0, layer_type="full_attention")
    near = read_rotary(
        f.replace(rope_scaling=None),  # scaling is for the far ones
        d_head=d_head,
        n_ctx=n_ctx,
        theta=10_000.0,
        theta_field="rope_local_base_freq",
        layer_type="sliding_attention",
    )
    position: tuple[PositionConfig, ...] = tuple(near if here else far for here in windowed)
    one_kind = position[0] if len(set(position)) == 1 else position
    return read_like_gemma(f, caps=(None, None), windowed=windowed, qk_norm="head", n_ctx=n_ctx, position=one_kind)


def merged(f: Fields) -> Fields:
    """The config for the far layers: the reference lays `rope_scaling` over what `rope_parameters` says of them.

    The kind stands there already, so one that `rope_scaling` gives by the old name `type` changes nothing.
    """
    older, nested = f.part("rope_scaling"), f.part("rope_parameters")
    if older is None:
        return f
    stated = None if nested is None else nested.part("full_attention")
    scaling = {**({} if stated is None else stated.data), **older.data}
    if "type" in older and "rope_type" not in older:
        f.notes.append("rope_scaling gives its kind as type, which is not used, as in transformers: call it rope_type")
        scaling = {"rope_type": "default", **scaling}
    return f.replace(rope_scaling=scaling, rope_parameters=None)


def write(config: ModelConfig) -> dict[str, Any]:
    """The inverse of `read`."""
    fields = write_like_gemma(config)
    by_kind = {isinstance(m, WindowMaskConfig): p for m, p in zip(config.masks, config.positions, strict=True)}
    far, near = by_kind.get(False), by_kind.get(True)
    fields.pop("rope_scaling", None)
    if isinstance(far, RotaryConfig):
        fields["rope_theta"] = far.theta
        scaling = write_scaling(far)
        fields |= {} if scaling is None else {"rope_scaling": scaling}
    if isinstance(near, RotaryConfig):
        fields["rope_local_base_freq"] = near.theta
    return fields


FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    read=read,
    write=write,
    layout=layout_like_llama,
)
