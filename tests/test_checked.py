"""What a config that checks itself says about a value that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from cutaway.config import AttentionConfig, FeedForwardConfig, LayerNormConfig, RMSNormConfig, RotaryConfig
from cutaway.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RMSNormConfig, {"eps": float("inf")}, "RMSNormConfig: eps = inf: it must be a finite number"),
        (LayerNormConfig, {"bias": 1}, "LayerNormConfig: bias = 1: it must be true or false"),
        (RotaryConfig, {"d_rotary": 2.0}, "RotaryConfig: d_rotary = 2.0: it must be a whole number"),
        (RotaryConfig, {"d_rotary": True}, "RotaryConfig: d_rotary = True: it must be a whole number"),
        (AttentionConfig, {"qk_norm": "all"}, "AttentionConfig: qk_norm = 'all': one of head, width"),
        (
            FeedForwardConfig,
            {"activation": None},
            "FeedForwardConfig: activation = None: one of gelu, gelu_tanh, relu, silu",
        ),
        (
            RotaryConfig,
            {"scaling": "yarn"},
            "RotaryConfig: scaling = 'yarn': it must be LinearScaling or DynamicScaling or Llama3Scaling or "
            "YarnScaling or LongRopeScaling",
        ),
    ],
)
def test_a_value_of_another_type_is_told_what_fits(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**values)
    assert str(error.value) == message
