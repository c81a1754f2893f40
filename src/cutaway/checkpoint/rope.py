"""Rotary settings of a foreign config, read and written: both the nested `rope_parameters` and the older fields.

Source: transformers 5, modeling_rope_utils.py and the families' configuration files.
"""

from __future__ import annotations

import math
from typing import Any

from cutaway.checked import is_finite
from cutaway.checkpoint.fields import Fields
from cutaway.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RotaryConfig,
    YarnScaling,
)
from cutaway.errors import UnsupportedError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rotary(
    f: Fields,
    *,
    d_head: int,
    n_ctx: int,
    theta: float,
    theta_field: str = "rope_theta",
    share_field: str = "partial_rotary_factor",
    share: float = 1.0,
    partial: bool = False,
    layer_type: str | None = None,
) -> RotaryConfig:
    """The rotation a config asks for; an explicit value beats any default, and a default in use is noted.

    `partial`: whether the family's plain rotation can leave a part of the head as it is; where it cannot, the reference
    ignores a share unless there is a scaling, and so do we. `layer_type`: of a family whose `rope_parameters` has an
    entry for each layer type, the one to read; nothing beside them is.
    """
    nested = f.part("rope_parameters")
    if nested is not None and layer_type is not None:
        nested = nested.part(layer_type)
    # Of a config that has both, the reference takes the older one.
    stated = [part for part in (f.part("rope_scaling"), nested) if part is not None and part.data]
    scaling = stated[0] if stated else None
    base = _first(f, stated, "rope_theta", theta_field)
    if base is None:
        f.notes.append(f"no {theta_field} in the config: the family's default {theta:g} is used")
        base = theta
    share = _first(f, stated, "partial_rotary_factor", share_field) or share
    original = None if layer_type is not None else f.optional_count("original_max_position_embeddings")
    kind = None if scaling is None else _read_scaling(f, scaling, n_ctx, original)
    if kind is None and not partial and int(min(d_head * share, 2**31)) != d_head:
        f.notes.append(f"{share_field} = {share:g} is not used: the plain rotation of this family turns whole heads")
        share = 1.0
    d_rotary = int(min(d_head * share, 2**31))  # refused there: no head is so wide
    return RotaryConfig(theta=base, d_rotary=None if d_rotary == d_head else d_rotary, scaling=kind)


def _first(f: Fields, stated: list[Fields], nested_name: str, name: str) -> float | None:
    """A number from the object that says the scaling, else from the top of the config, else from the other object."""
    places = [(part, nested_name) for part in stated]
    return next((place.number(word) for place, word in [*places[:1], (f, name), *places[1:]] if word in place), None)


def _read_scaling(f: Fields, scaling: Fields, n_ctx: int, original: int | None) -> RopeScaling | None:
    """`original`: what the top of the config says of it, which comes before what the scaling says."""
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    kind = "longrope" if kind == "su" else kind
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor=scaling.number("factor"))
    if kind == "dynamic":
        return DynamicScaling(factor=scaling.number("factor"), n_ctx_original=n_ctx)
    original = original or scaling.count("original_max_position_embeddings", n_ctx)
    if original < 2:
        raise scaling.wrong("original_max_position_embeddings", original, "it must be 2 or more")
    if kind == "llama3":
        return Llama3Scaling(
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            n_ctx_original=original,
        )
    factor = scaling.number("factor", n_ctx / original)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            n_ctx_original=original,
            attention_factor=scaling.optional_number("attention_factor") or _yarn_amplitude(scaling, factor),
            beta_fast=scaling.number("beta_fast", 32.0),
            beta_slow=scaling.number("beta_slow", 1.0),
            truncate=scaling.flag("truncate", True),
        )
    if kind == "longrope":
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        return LongRopeScaling(
            short_factor=_factors(scaling, "short_factor"),
            long_factor=_factors(scaling, "long_factor"),
            n_ctx_original=original,
            attention_factor=scaling.optional_number("attention_factor") or amplitude,
        )
    raise UnsupportedError(f"{scaling.origin}: rope_type = {kind!r}: Cutaway knows {', '.join(KINDS)}")


def _yarn_amplitude(scaling: Fields, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return mscale(scaling.number("mscale")) / mscale(scaling.number("mscale_all_dim"))
    return mscale(1.0)


def _factors(scaling: Fields, name: str) -> tuple[float, ...]:
    values = scaling.data.get(name)
    if not isinstance(values, list) or not all(is_finite(v) and v > 0 for v in values):
        raise scaling.wrong(name, values, "it must list one divisor above 0 for each frequency")
    return tuple(float(v) for v in values)


def write_scaling(rotary: RotaryConfig) -> dict[str, Any] | None:
    """The `rope_scaling` object of a rotation, in the form every reader knows; None for plain rotary."""
    match rotary.scaling:
        case None:
            return None
        case LinearScaling(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case DynamicScaling(factor=factor):
            return {"rope_type": "dynamic", "factor": factor}
        case Llama3Scaling() as s:
            return {
                "rope_type": "llama3",
                "factor": s.factor,
                "low_freq_factor": s.low_freq_factor,
                "high_freq_factor": s.high_freq_factor,
                "original_max_position_embeddings": s.n_ctx_original,
            }
        case YarnScaling() as s:
            return {
                "rope_type": "yarn",
                "factor": s.factor,
                "attention_factor": s.attention_factor,
                "beta_fast": s.beta_fast,
                "beta_slow": s.beta_slow,
                "truncate": s.truncate,
                "original_max_position_embeddings": s.n_ctx_original,
            }
        case LongRopeScaling() as s:
            return {
                "rope_type": "longrope",
                "short_factor": list(s.short_factor),
                "long_factor": list(s.long_factor),
                "attention_factor": s.attention_factor,
                "original_max_position_embeddings": s.n_ctx_original,
            }
