"""What a foreign family is: its name, how its config reads and writes, and where its tensors go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cutaway.checkpoint.fields import Fields
from cutaway.checkpoint.layout import Layout
from cutaway.config import Activation, CausalMaskConfig, MaskConfig, ModelConfig, WindowMaskConfig

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type` of transformers.

    `write` is the inverse of `read` for the configs the family can express: saving tries it and compares.
    `buffers` are patterns of tensors in old files that are no weights.
    """

    model_type: str
    architecture: str
    read: Callable[[Fields], ModelConfig]
    write: Callable[[ModelConfig], dict[str, Any]]
    layout: Callable[[ModelConfig], Layout]
    buffers: tuple[str, ...] = ()


def read_activation(f: Fields, name: str, default: str) -> Activation:
    """The non-linearity by the family's word for it."""
    word = f.text(name, default)
    if word not in ACTIVATIONS:
        raise f.wrong(name, word, f"Cutaway knows {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[word]


def write_activation(activation: Activation, tanh: Literal["gelu_new", "gelu_pytorch_tanh"]) -> str:
    """The family's word; `tanh` is how it calls the tanh form of GELU."""
    return tanh if activation == "gelu_tanh" else activation


def read_window(f: Fields) -> int | None:
    """The window size: 4096 where the config is silent, none where it says `null`."""
    return None if f.data.get("sliding_window", 4096) is None else f.count("sliding_window", 4096)


def masks_by_layer(windowed: list[bool], size: int | None) -> MaskConfig | tuple[MaskConfig, ...]:
    """One mask if all layers agree, else one a layer."""
    if size is None or not any(windowed):
        return CausalMaskConfig()
    masks = tuple(WindowMaskConfig(size=size) if here else CausalMaskConfig() for here in windowed)
    return masks[0] if len(set(masks)) == 1 else masks


def read_layer_types(f: Fields, n_layers: int, default: list[bool]) -> list[bool]:
    """Which layers have a sliding window."""
    if "layer_types" not in f:
        return default
    kinds = f.items("layer_types", str, n_layers)
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise f.wrong("layer_types", kind, "Cutaway knows full_attention and sliding_attention")
    return [kind == "sliding_attention" for kind in kinds]


def write_layer_types(config: ModelConfig) -> list[str]:
    """The inverse of `read_layer_types`."""
    return ["sliding_attention" if isinstance(m, WindowMaskConfig) else "full_attention" for m in config.masks]


def window_of(config: ModelConfig) -> int | None:
    """The window size, the same in every layer that has one."""
    sizes = {mask.size for mask in config.masks if isinstance(mask, WindowMaskConfig)}
    return sizes.pop() if len(sizes) == 1 else None
