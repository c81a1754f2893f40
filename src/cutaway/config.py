"""ModelConfig and its parts: what a decoder-only transformer is made of, as frozen data without torch.

`n_` counts, `d_` is a width. The classic of the lecture is the plainest value of every part: a learned position
table, LayerNorm before each sub-layer, H heads of d/H, a 4d GELU feed-forward, a head tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from cutaway.checked import Checked, check_count, check_positive, short
from cutaway.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LayerNormConfig(Checked):
    """Subtract the mean, divide by the deviation, scale and shift. Source: arXiv:1607.06450."""

    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("norm.eps", self.eps)


@dataclass(frozen=True, kw_only=True)
class RMSNormConfig(Checked):
    """Divide by the root mean square, scale by `offset + weight` (Gemma stores weights around 0, offset 1).

    Source: arXiv:1910.07467.
    """

    eps: float = 1e-6
    offset: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("norm.eps", self.eps)


NormConfig = LayerNormConfig | RMSNormConfig


@dataclass(frozen=True, kw_only=True)
class NoPositionConfig(Checked):
    """Nothing tells this layer where a token stands, except the causal mask."""


@dataclass(frozen=True, kw_only=True)
class LearnedPositionConfig(Checked):
    """A table of n_ctx learned rows added to the embeddings: the one weight that depends on a length."""


@dataclass(frozen=True, kw_only=True)
class LinearScaling(Checked):
    """All frequencies divided by `factor`. Source: arXiv:2306.15595."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _factor(self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicScaling(Checked):
    """The base grows with the length once it passes `n_ctx_original` (dynamic NTK).

    Source: transformers, modeling_rope_utils.py.
    """

    factor: float
    n_ctx_original: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _factor(self.factor)
        _original(self.n_ctx_original)


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(Checked):
    """Low frequencies divided by `factor`, high ones kept, a ramp between. Source: Llama 3.1 reference code."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    n_ctx_original: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _factor(self.factor)
        _original(self.n_ctx_original)
        check_positive("scaling.low_freq_factor", self.low_freq_factor)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ConfigError(
                f"scaling.low_freq_factor = {self.low_freq_factor}: it must be below high_freq_factor = "
                f"{self.high_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class YarnScaling(Checked):
    """A ramp by number of rotations, and a temperature on the scores. Source: arXiv:2309.00071."""

    factor: float
    n_ctx_original: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _factor(self.factor)
        _original(self.n_ctx_original)
        check_positive("scaling.attention_factor", self.attention_factor)
        if not 1e-6 <= self.beta_slow <= self.beta_fast <= 1e6:
            raise ConfigError(
                f"scaling.beta_slow = {self.beta_slow}, beta_fast = {self.beta_fast}: they must be from 1e-6 to 1e6, "
                "the fast one not below the slow one"
            )


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(Checked):
    """A divisor per frequency, one set up to `n_ctx_original` tokens and one past it. Source: arXiv:2402.13753."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    n_ctx_original: int
    attention_factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _original(self.n_ctx_original)
        check_positive("scaling.attention_factor", self.attention_factor)
        for name in ("short_factor", "long_factor"):
            check_positive(f"scaling.{name}", min(getattr(self, name), default=1.0))


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(Checked):
    """Rotate pairs of q and k by an angle proportional to the position. Source: arXiv:2104.09864.

    `d_rotary` is how many of the d_head coordinates turn (None: all of them).
    """

    theta: float = 10_000.0
    d_rotary: int | None = None
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("rotary.theta", self.theta)
        if isinstance(self.scaling, YarnScaling) and self.theta <= 1:
            raise ConfigError(f"rotary.theta = {self.theta}: yarn needs one above 1")
        if self.d_rotary is not None and (self.d_rotary < 2 or self.d_rotary % 2):
            raise ConfigError(f"rotary.d_rotary = {short(self.d_rotary)}: it must be an even number of 2 or more")


PositionConfig = LearnedPositionConfig | RotaryConfig | NoPositionConfig


@dataclass(frozen=True, kw_only=True)
class CausalMaskConfig(Checked):
    """A query sees itself and everything before it."""


@dataclass(frozen=True, kw_only=True)
class WindowMaskConfig(Checked):
    """A query sees itself and the `size - 1` positions before it. Source: arXiv:2004.05150."""

    size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("mask.size", self.size)


@dataclass(frozen=True, kw_only=True)
class NoMaskConfig(Checked):
    """A query sees every position, later ones too: to show what the mask is for. No format has it."""


MaskConfig = CausalMaskConfig | WindowMaskConfig | NoMaskConfig

QKNorm = Literal["head", "width"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Checked):
    """How heads read: biases, the scale of the scores (None: 1/√d_head), a soft cap on them, a norm on q and k.

    `qk_norm` "head" normalises each head alone (Qwen 3), "width" all heads of a token together (OLMo 2).
    """

    qkv_bias: bool = False
    out_bias: bool = False
    scale: float | None = None
    soft_cap: float | None = None
    qk_norm: QKNorm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "soft_cap"):
            if getattr(self, name) is not None:
                check_positive(f"attention.{name}", getattr(self, name))


Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Checked):
    """The non-linearity, and whether a gate multiplies it (SwiGLU, GeGLU; arXiv:2002.05202)."""

    activation: Activation = "gelu_tanh"
    gated: bool = False
    bias: bool = True


NormPlacement = Literal["pre", "post", "sandwich"]

# Far above any model, and low enough that no product of sizes overflows and no hostile count of layers is built.
LIMITS = {
    "n_layers": 2**12,
    "n_ctx": 2**31,
    "d_model": 2**20,
    "d_vocab": 2**24,
    "n_heads": 2**16,
    "n_kv_heads": 2**16,
    "d_head": 2**16,
    "d_ff": 2**24,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """A decoder-only transformer, whole: every size and every choice, validated once.

    `position` and `mask` hold for all layers, or are tuples with one entry a layer. `norm_placement` says where a
    sub-layer's norm stands: on what it reads ("pre"), on what it adds ("post"), or both ("sandwich").
    `parallel`: the feed-forward reads the block's input, not what attention made of it.

    Raises:
        ConfigError: a value out of its range, or values that contradict each other.
    """

    n_layers: int
    n_ctx: int
    d_model: int
    d_vocab: int
    n_heads: int
    n_kv_heads: int = 0  # 0: as many as n_heads
    d_head: int = 0  # 0: d_model / n_heads
    d_ff: int = 0  # 0: 4 · d_model
    norm: NormConfig = field(default_factory=LayerNormConfig)
    norm_placement: NormPlacement = "pre"
    parallel: bool = False
    position: PositionConfig | tuple[PositionConfig, ...] = field(default_factory=LearnedPositionConfig)
    mask: MaskConfig | tuple[MaskConfig, ...] = field(default_factory=CausalMaskConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    feedforward: FeedForwardConfig = field(default_factory=FeedForwardConfig)
    tied: bool = True
    embed_scale: float = 1.0
    logit_soft_cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_layers", "n_ctx", "d_model", "d_vocab", "n_heads"):
            check_count(name, getattr(self, name), LIMITS[name])
        self._derive()
        for name in ("n_kv_heads", "d_head", "d_ff"):
            check_count(name, getattr(self, name), LIMITS[name])
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads = {self.n_kv_heads} does not divide n_heads = {self.n_heads}: "
                "each key/value head serves the same number of query heads"
            )
        check_positive("embed_scale", self.embed_scale)
        if self.logit_soft_cap is not None:
            check_positive("logit_soft_cap", self.logit_soft_cap)
        for name in ("position", "mask"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.n_layers:
                raise ConfigError(f"{name} lists {len(value)} layers, n_layers is {self.n_layers}: give one each")
        for position in self.positions:
            if isinstance(position, RotaryConfig):
                self._check_rotary(position)

    def _derive(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if not self.d_head:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_model = {self.d_model} is not a multiple of n_heads = {self.n_heads}: "
                    "change one of them, or give d_head"
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if not self.d_ff:
            object.__setattr__(self, "d_ff", 4 * self.d_model)

    def _check_rotary(self, rotary: RotaryConfig) -> None:
        d_rotary = rotary.d_rotary or self.d_head
        if d_rotary > self.d_head or d_rotary % 2:
            raise ConfigError(
                f"rotary turns {short(d_rotary)} coordinates of d_head = {self.d_head}: even, and no more"
            )
        if isinstance(rotary.scaling, DynamicScaling) and d_rotary < 4:
            raise ConfigError(f"rotary turns {d_rotary} coordinates: dynamic scaling needs 4 or more")
        if isinstance(rotary.scaling, LongRopeScaling):
            for name in ("short_factor", "long_factor"):
                n_factors = len(getattr(rotary.scaling, name))
                if n_factors != d_rotary // 2:
                    raise ConfigError(f"longrope {name} has {n_factors} entries: {d_rotary // 2} frequencies need one")

    @property
    def positions(self) -> tuple[PositionConfig, ...]:
        """The position of each layer."""
        return self.position if isinstance(self.position, tuple) else (self.position,) * self.n_layers

    @property
    def masks(self) -> tuple[MaskConfig, ...]:
        """The mask of each layer."""
        return self.mask if isinstance(self.mask, tuple) else (self.mask,) * self.n_layers

    @property
    def attention_scale(self) -> float:
        """What the scores are multiplied by: 1/√d_head unless the config says otherwise."""
        return self.attention.scale if self.attention.scale is not None else self.d_head**-0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain data; every part carries its `kind`, the class name, so that `from_dict` gives an equal config."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`.

        Raises:
            ConfigError: a key or kind that does not exist, or a value that does not fit.
        """
        return _construct(cls, {name: _parse(value) for name, value in data.items()})


_PARTS = {
    part.__name__: part for union in (NormConfig, PositionConfig, MaskConfig, RopeScaling) for part in get_args(union)
} | {part.__name__: part for part in (AttentionConfig, FeedForwardConfig)}

T = TypeVar("T")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if type(value).__name__ in _PARTS:
        return {"kind": type(value).__name__} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _parse(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_parse(item) for item in value)
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if kind not in _PARTS:
            raise ConfigError(f"kind = {kind!r} is no part of a model: one of {', '.join(sorted(_PARTS))}")
        return _construct(_PARTS[kind], {name: _parse(item) for name, item in value.items() if name != "kind"})
    return value


def _construct(cls: type[T], values: dict[str, Any]) -> T:
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error


def _factor(value: float) -> None:
    if not 0 < value <= LIMITS["n_ctx"]:
        raise ConfigError(f"scaling.factor = {short(value)}: it must be above 0, and {LIMITS['n_ctx']} at most")


def _original(value: int) -> None:
    if not 2 <= value <= LIMITS["n_ctx"]:
        raise ConfigError(f"scaling.n_ctx_original = {short(value)}: it must be from 2 to {LIMITS['n_ctx']}")
