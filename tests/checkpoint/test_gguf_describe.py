"""What llama.cpp would compute differently is refused by name, before a file is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cutaway.checkpoint.gguf_describe import describe
from cutaway.config import (
    AttentionConfig,
    DynamicScaling,
    FeedForwardConfig,
    LayerNormConfig,
    ModelConfig,
    RMSNormConfig,
    RotaryConfig,
    YarnScaling,
)
from cutaway.errors import UnsupportedError
from support.gguf_files import GPT2, LLAMA
from support.tiny import OURS

REFUSED: dict[str, ModelConfig] = {
    "position = RotaryConfig and NoPositionConfig": OURS["no positions in layer 2"],
    "norm = LayerNormConfig": OURS["parallel"].__class__(**{**OURS["parallel"].__dict__, "parallel": False}),
    "parallel = True": OURS["parallel"],
    "mask.size = 4": OURS["windows"],
    "norm_placement = sandwich": OURS["capped sandwich"],
    "norm_placement = post": OURS["post norms"],
    "rotary.scaling = DynamicScaling": replace(
        LLAMA, position=RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8))
    ),
    "rotary.scaling = LongRopeScaling": OURS["longrope"],
    "rotary.scaling = YarnScaling": replace(
        LLAMA, position=RotaryConfig(scaling=YarnScaling(factor=4.0, n_ctx_original=16, attention_factor=1.0))
    ),
    "rotary.d_rotary = 4": replace(LLAMA, position=RotaryConfig(d_rotary=4)),
    "rotations = 2": replace(LLAMA, position=(RotaryConfig(), RotaryConfig(), RotaryConfig(theta=5.0))),
    "attention.out_bias = False": replace(LLAMA, attention=AttentionConfig(qkv_bias=True)),
    "attention.qk_norm = head": replace(LLAMA, attention=AttentionConfig(qk_norm="head")),
    "attention.scale = 0.5": replace(LLAMA, attention=AttentionConfig(scale=0.5)),
    "attention.soft_cap = 5.0": replace(LLAMA, attention=AttentionConfig(soft_cap=5.0)),
    "norm.offset = 1.0": replace(LLAMA, norm=RMSNormConfig(offset=1.0)),
    "embed_scale = 8.0": replace(LLAMA, embed_scale=8.0),
    "logit_soft_cap = 3.0": replace(LLAMA, logit_soft_cap=3.0),
    "feedforward.activation = gelu_tanh": replace(
        LLAMA, feedforward=FeedForwardConfig(activation="gelu_tanh", gated=True, bias=False)
    ),
    "feedforward.activation = gelu:": replace(GPT2, feedforward=FeedForwardConfig(activation="gelu")),
    "feedforward.bias = False": replace(GPT2, feedforward=FeedForwardConfig(bias=False)),
    "norm.bias = False": replace(GPT2, norm=LayerNormConfig(bias=False)),
    "n_kv_heads = 2": replace(GPT2, n_kv_heads=2),
    "n_heads · d_head = 32": replace(GPT2, d_head=8),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_llama_cpp_would_compute_differently_is_refused_by_name(why: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        describe(REFUSED[why])
    assert why in str(caught.value)
    assert "llama.cpp's" in str(caught.value)
    assert "\n" not in str(caught.value)
