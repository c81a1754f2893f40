"""ModelConfig: defaults are the classic, every contradiction is named, and data round-trips."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.config import (
    AttentionConfig,
    DynamicScaling,
    LayerNormConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RMSNormConfig,
    RotaryConfig,
    WindowMaskConfig,
    YarnScaling,
)
from cutaway.errors import ConfigError
from cutaway.presets import PRESETS
from support.tiny import OURS

SIZES: dict[str, Any] = {"n_layers": 2, "n_ctx": 16, "d_model": 12, "d_vocab": 10, "n_heads": 3}


def test_the_defaults_are_the_lecture() -> None:
    c = ModelConfig(**SIZES)
    assert (c.n_kv_heads, c.d_head, c.d_ff) == (3, 4, 48)
    assert c.attention_scale == 0.5
    assert c.tied
    assert isinstance(c.norm, LayerNormConfig)


@pytest.mark.parametrize("config", [*OURS.values(), *PRESETS.values()])
def test_a_config_survives_json(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_layers": 0}, "n_layers = 0"),
        ({"n_layers": 2**40}, "n_layers"),
        ({"position": "rotary"}, "position = 'rotary'"),
        ({"norm": RotaryConfig()}, "norm = RotaryConfig"),
        ({"d_model": 12.0}, "d_model = 12.0"),
        ({"d_vocab": True}, "d_vocab = True"),
        ({"n_heads": 5}, "d_model = 12 is not a multiple of n_heads = 5"),
        ({"n_kv_heads": 2}, "n_kv_heads = 2 does not divide n_heads = 3"),
        ({"norm_placement": "middle"}, "norm_placement = 'middle'"),
        ({"embed_scale": float("nan")}, "embed_scale = nan"),
        ({"logit_soft_cap": -1.0}, "logit_soft_cap = -1.0"),
        ({"mask": (WindowMaskConfig(size=2),)}, "mask lists 1 layers, n_layers is 2"),
        ({"position": RotaryConfig(d_rotary=6)}, "rotary turns 6 coordinates of d_head = 4"),
        ({"d_head": 3, "position": RotaryConfig()}, "rotary turns 3 coordinates"),
        (
            {"d_head": 2, "position": RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8))},
            "rotary turns 2 coordinates: dynamic scaling needs 4",
        ),
        ({"d_ff": 10**400}, "d_ff = 1000"),
        ({"embed_scale": 10**400}, "embed_scale = 1000"),
        (
            {
                "position": RotaryConfig(
                    scaling=LongRopeScaling(
                        short_factor=(1.0,), long_factor=(1.0, 1.0), n_ctx_original=4, attention_factor=1.0
                    )
                )
            },
            "longrope short_factor has 1 entries: 2 frequencies",
        ),
    ],
)
def test_a_contradiction_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as error:
        ModelConfig(**{**SIZES, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: RMSNormConfig(eps=0.0),
        lambda: RotaryConfig(theta=-1.0),
        lambda: RotaryConfig(d_rotary=3),
        lambda: WindowMaskConfig(size=0),
        lambda: AttentionConfig(soft_cap=0.0),
        lambda: AttentionConfig(qk_norm="some"),  # type: ignore[arg-type]
        lambda: RMSNormConfig(eps=10**400),
        lambda: RMSNormConfig(eps=10**5000),
        lambda: RotaryConfig(d_rotary=10**400 + 1),
        lambda: LinearScaling(factor=0.0),
        lambda: LinearScaling(factor=1e300),
        lambda: DynamicScaling(factor=-1.0, n_ctx_original=8),
        lambda: DynamicScaling(factor=2.0, n_ctx_original=1),
        lambda: Llama3Scaling(factor=2.0, low_freq_factor=4.0, high_freq_factor=4.0, n_ctx_original=8),
        lambda: Llama3Scaling(factor=2.0, low_freq_factor=0.0, high_freq_factor=4.0, n_ctx_original=8),
        lambda: YarnScaling(factor=2.0, n_ctx_original=8, attention_factor=0.0),
        lambda: YarnScaling(factor=2.0, n_ctx_original=8, attention_factor=1.0, beta_fast=1.0, beta_slow=2.0),
        lambda: YarnScaling(factor=2.0, n_ctx_original=8, attention_factor=1.0, beta_slow=5e-324),
        lambda: YarnScaling(factor=2.0, n_ctx_original=8, attention_factor=1.0, beta_fast=1e308),
        lambda: RotaryConfig(theta=1.0, scaling=YarnScaling(factor=2.0, n_ctx_original=8, attention_factor=1.0)),
        lambda: LongRopeScaling(short_factor=(0.0,), long_factor=(1.0,), n_ctx_original=8, attention_factor=1.0),
        lambda: LongRopeScaling(short_factor=(1.0,), long_factor=(1.0,), n_ctx_original=1, attention_factor=1.0),
    ],
)
def test_a_part_checks_itself(build: Any) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("data", [{"n_layers": 1}, {**SIZES, "colour": "red"}, {**SIZES, "norm": {"kind": "Path"}}])
def test_data_that_is_no_config_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ModelConfig.from_dict(data)


@given(
    st.dictionaries(
        st.sampled_from(list(ModelConfig(**SIZES).to_dict())),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
    )
)
def test_hostile_data_gives_a_config_or_a_named_error(data: dict[str, Any]) -> None:
    try:
        ModelConfig.from_dict({**SIZES, **data})
    except ConfigError as error:
        assert "\n" not in str(error)


def test_a_config_is_a_value() -> None:
    c = ModelConfig(**SIZES)
    assert hash(c) == hash(replace(c))
    with pytest.raises(AttributeError):
        c.n_layers = 3  # type: ignore[misc]


def test_known_sizes_are_known() -> None:
    """Widths of published models, as their papers print them."""
    assert PRESETS["gpt2"].d_head == 64
    assert (PRESETS["gpt3"].n_layers, PRESETS["gpt3"].d_model, PRESETS["gpt3"].d_head) == (96, 12288, 128)
    assert PRESETS["smollm2-135m"].n_heads // PRESETS["smollm2-135m"].n_kv_heads == 3
