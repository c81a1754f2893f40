"""A config as the metadata of a GGUF file: the inverse of `gguf_config`, for what llama.cpp calls gpt2 and llama.

The architecture decides, not the family a model came from: a mistral without windows and a phi3 whose heads turn
whole are llamas there. Whatever llama.cpp would compute differently is refused by name.

Source: llama.cpp, src/models/gpt2.cpp and llama.cpp; its converter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cutaway.checkpoint.gguf_config import ROPE_DIVISORS
from cutaway.config import (
    LayerNormConfig,
    LearnedPositionConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RMSNormConfig,
    RotaryConfig,
    WindowMaskConfig,
    YarnScaling,
)
from cutaway.errors import UnsupportedError
from cutaway.nn.position import Rotary

INSTEAD = "convert to a folder instead"


@dataclass(frozen=True, kw_only=True)
class Description:
    """One model in llama.cpp's words.

    `metadata` are the keys behind the architecture's name. `separate`: q, k, v and gate, up are tensors of their own,
    and q's and k's rows lie in pairs. `divisors` of the rotary frequencies go into a tensor.
    """

    architecture: str
    metadata: Mapping[str, Any]
    separate: bool
    divisors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def describe(config: ModelConfig) -> Description:
    """The architecture and metadata that say exactly this config.

    Raises:
        UnsupportedError: no gpt2 and no llama; the message names what is not.
    """
    learned = any(isinstance(position, LearnedPositionConfig) for position in config.positions)
    return _gpt2(config) if learned else _llama(config)


def _gpt2(config: ModelConfig) -> Description:
    _check("gpt2", _common(config), {
        "norm": (_names(config.norm), LayerNormConfig.__name__),
        "norm.bias": (getattr(config.norm, "bias", None), True),
        "position": (_names(*config.positions), LearnedPositionConfig.__name__),
        "n_kv_heads": (config.n_kv_heads, config.n_heads),
        "n_heads · d_head": (config.n_heads * config.d_head, config.d_model),
        "attention.qkv_bias": (config.attention.qkv_bias, True),
        "attention.out_bias": (config.attention.out_bias, True),
        "feedforward.activation": (config.feedforward.activation, "gelu_tanh"),
        "feedforward.gated": (config.feedforward.gated, False),
        "feedforward.bias": (config.feedforward.bias, True),
    })  # fmt: skip
    metadata = _sizes(config) | {"attention.layer_norm_epsilon": config.norm.eps}
    return Description(architecture="gpt2", metadata=metadata, separate=False)


def _llama(config: ModelConfig) -> Description:
    rotary = next((p for p in config.positions if isinstance(p, RotaryConfig)), RotaryConfig())
    _check("llama", _common(config), {
        "norm": (_names(config.norm), RMSNormConfig.__name__),
        "norm.offset": (getattr(config.norm, "offset", None), 0.0),
        "position": (_names(*config.positions), RotaryConfig.__name__),
        "rotations": (len(set(config.positions)), 1),
        "rotary.d_rotary": (rotary.d_rotary or config.d_head, config.d_head),
        "attention.out_bias": (config.attention.out_bias, config.attention.qkv_bias),
        "feedforward.activation": (config.feedforward.activation, "silu"),
        "feedforward.gated": (config.feedforward.gated, True),
    })  # fmt: skip
    scaling, divisors = _scaling(rotary, config)
    metadata = _sizes(config) | {
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.d_head,
        "attention.value_length": config.d_head,
        "attention.layer_norm_rms_epsilon": config.norm.eps,
        "rope.dimension_count": config.d_head,
        "rope.freq_base": rotary.theta,
        **scaling,
    }
    return Description(architecture="llama", metadata=metadata, separate=True, divisors=divisors)


def _sizes(config: ModelConfig) -> dict[str, Any]:
    return {
        "context_length": config.n_ctx,
        "embedding_length": config.d_model,
        "block_count": config.n_layers,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "vocab_size": config.d_vocab,
    }


def _common(config: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """What both architectures want: the value here, and the one value there."""
    windows = [mask.size for mask in config.masks if isinstance(mask, WindowMaskConfig)]
    plain = config.d_head**-0.5
    return {
        "norm_placement": (config.norm_placement, "pre"),
        "parallel": (config.parallel, False),
        # A window as long as the context hides nothing.
        "mask.size": (min([*windows, config.n_ctx]), config.n_ctx),
        "attention.scale": (config.attention_scale, plain),
        "attention.soft_cap": (config.attention.soft_cap, None),
        "attention.qk_norm": (config.attention.qk_norm, None),
        "embed_scale": (config.embed_scale, 1.0),
        "logit_soft_cap": (config.logit_soft_cap, None),
    }


def _check(architecture: str, *wanted: Mapping[str, tuple[Any, Any]]) -> None:
    for table in wanted:
        for name, (here, there) in table.items():
            if here != there:
                raise UnsupportedError(
                    f"{name} = {here}: llama.cpp's {architecture} has {there}, and GGUF is written for its gpt2 and "
                    f"llama alone: {INSTEAD}"
                )


def _names(*parts: object) -> str:
    return " and ".join(dict.fromkeys(type(part).__name__ for part in parts))


def _scaling(rotary: RotaryConfig, config: ModelConfig) -> tuple[dict[str, Any], dict[str, tuple[float, ...]]]:
    match rotary.scaling:
        case None:
            return {}, {}
        case LinearScaling(factor=factor):
            return {"rope.scaling.type": "linear", "rope.scaling.factor": factor}, {}
        case Llama3Scaling():
            plain, scaled = (_frequencies(r, config.d_head) for r in (replace(rotary, scaling=None), rotary))
            return {}, {ROPE_DIVISORS: tuple((plain / scaled).tolist())}
        case LongRopeScaling(short_factor=short, long_factor=long, attention_factor=1.0) if short == long:
            return {}, {ROPE_DIVISORS: short}
        case YarnScaling(truncate=True) as s if math.isclose(s.attention_factor, _amplitude(s.factor), rel_tol=1e-6):
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": s.factor,
                "rope.scaling.original_context_length": s.n_ctx_original,
                "rope.scaling.yarn_beta_fast": s.beta_fast,
                "rope.scaling.yarn_beta_slow": s.beta_slow,
            }, {}
    raise UnsupportedError(
        f"rotary.scaling = {rotary.scaling}: llama.cpp's llama scales linearly, by yarn in its plain form, or by one "
        f"divisor a frequency at every length: {INSTEAD}"
    )


def _frequencies(rotary: RotaryConfig, d_head: int) -> torch.Tensor:
    return Rotary(rotary, d_head).frequencies(0, torch.device("cpu"))


def _amplitude(factor: float) -> float:
    """What yarn multiplies q and k by unless told otherwise. Source: arXiv:2309.00071, section 3.4."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
