"""Configs to account for: random ones of every kind, and those of all families."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from transformers import AutoConfig

from cutaway.checkpoint.families import FAMILIES as READERS
from cutaway.checkpoint.fields import Fields
from cutaway.config import (
    AttentionConfig,
    CausalMaskConfig,
    FeedForwardConfig,
    LayerNormConfig,
    LearnedPositionConfig,
    ModelConfig,
    NoPositionConfig,
    RMSNormConfig,
    RotaryConfig,
    WindowMaskConfig,
)
from support.tiny import FAMILIES, VARIANTS


def family_config(model_type: str, **changes: Any) -> ModelConfig:
    """The config of a tiny model of transformers, as its family reads it."""
    theirs = AutoConfig.for_model(model_type, **{**FAMILIES[model_type], **changes})
    return READERS[model_type].read(Fields(theirs.to_dict()))


FAMILY_CONFIGS = {name: (name, {}) for name in FAMILIES} | VARIANTS


@st.composite
def configs(draw: st.DrawFn, max_layers: int = 3) -> ModelConfig:
    """Any small config: grouped heads of any width, every norm, position, mask and bias."""
    n_layers = draw(st.integers(1, max_layers))
    n_kv_heads = draw(st.integers(1, 3))
    n_heads = n_kv_heads * draw(st.integers(1, 3))
    d_head = 2 * draw(st.integers(1, 4))
    positions = st.sampled_from(
        [LearnedPositionConfig(), NoPositionConfig(), RotaryConfig(), RotaryConfig(theta=5.0, d_rotary=2)]
    )
    masks = st.sampled_from([CausalMaskConfig(), WindowMaskConfig(size=draw(st.integers(1, 40)))])
    norm = draw(st.sampled_from([LayerNormConfig(), LayerNormConfig(bias=False), RMSNormConfig()]))
    return ModelConfig(
        n_layers=n_layers,
        n_ctx=draw(st.integers(1, 64)),
        d_model=draw(st.sampled_from([n_heads * d_head, 3, 10])),
        d_vocab=draw(st.integers(1, 50)),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_ff=draw(st.integers(0, 30)),
        norm=norm,
        norm_placement=draw(st.sampled_from(["pre", "post", "sandwich"])),
        parallel=draw(st.booleans()),
        position=tuple(draw(positions) for _ in range(n_layers)),
        mask=tuple(draw(masks) for _ in range(n_layers)),
        attention=AttentionConfig(
            qkv_bias=draw(st.booleans()),
            out_bias=draw(st.booleans()),
            qk_norm=draw(st.sampled_from([None, "head", "width"])),
        ),
        feedforward=FeedForwardConfig(gated=draw(st.booleans()), bias=draw(st.booleans())),
        tied=draw(st.booleans()),
    )
