"""What a training run is asked to do: one frozen set of choices, kept beside everything the run writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from cutaway.checked import check_count, check_positive, check_types
from cutaway.config import FeedForwardConfig, ModelConfig, RMSNormConfig, RotaryConfig
from cutaway.errors import ConfigError
from cutaway.presets import PRESETS, classic

Arch = Literal["gpt2", "llama"]
OptimizerName = Literal["muon", "adamw"]
Precision = Literal["auto", "fp32", "bf16"]
Switch = Literal["auto", "on", "off"]
Parallel = Literal["auto", "data", "sharded"]

# n_layers, n_heads, d_model: sizes that one machine trains.
SIZES = {
    "nano": (4, 4, 128),
    "mini": (4, 4, 256),
    "small": (6, 6, 384),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
}

# Highest rates that small models of a few million parameters took well; larger ones want less.
RATES = {"muon": 6e-3, "adamw": 1e-3}

SHAPE = ("arch", "size", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_ff")  # a model has its own


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All choices of a run.

    A step reads `batch_size` windows of `n_ctx` tokens, over all processes together, `accumulate` parts one after
    another. Lengths of time are in steps. `eval_windows` bounds what an evaluation reads; 0 reads everything.

    Raises:
        ConfigError: a value out of its range, or a shape for a model that has one.
    """

    texts: tuple[str, ...] = ()
    # text
    tokenizer: str = "bpe"
    vocab_size: int | None = None
    val_fraction: float = 0.1
    text_field: str = "text"
    lenient: bool = False
    # model
    arch: Arch | None = None  # gpt2; a preset has its own
    size: str = "mini"
    n_layers: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_model: int | None = None
    d_ff: int | None = None
    n_ctx: int | None = None
    from_model: str | None = None
    dropout: float = 0.0
    # optimisation
    steps: int = 1000
    batch_size: int = 16
    accumulate: int = 1
    optimizer: OptimizerName = "muon"
    lr: float | None = None  # by the optimizer, see RATES
    weight_decay: float = 0.1
    schedule: Literal["cosine", "wsd"] = "cosine"
    warmup: int = 50
    final_lr: float = 0.05
    clip: float = 1.0
    precision: Precision = "auto"
    compile: Switch = "auto"
    parallel: Parallel = "auto"
    # watching and keeping
    eval_every: int = 100
    eval_windows: int = 256
    sample_every: int = 500
    save_every: int = 500
    keep: int = 2
    patience: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("steps", "batch_size", "accumulate", "eval_every", "save_every", "keep"):
            check_count(name, getattr(self, name))
        for name in ("vocab_size", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_ff", "n_ctx"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("warmup", "eval_windows", "sample_every", "patience", "seed"):
            if not 0 <= getattr(self, name) < 2**31:
                raise ConfigError(f"{name} = {getattr(self, name)}: it must be a whole number of 0 or more")
        check_positive("lr", self.top_rate)
        check_positive("clip", self.clip)
        for name in ("val_fraction", "dropout", "final_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: it must be from 0 to below 1")
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"accumulate = {self.accumulate} does not divide batch_size = {self.batch_size}: "
                "a step is made of equal parts"
            )
        if self.size not in SIZES and self.size not in PRESETS:
            raise ConfigError(f"size = {self.size!r}: one of {', '.join([*SIZES, *PRESETS])}")
        given = [name for name in SHAPE if getattr(self, name) != getattr(TrainConfig, name)]
        if self.from_model is not None and given:
            raise ConfigError(f"{', '.join(given)}: the model that --from names has its own shape, leave it out")

    @property
    def top_rate(self) -> float:
        """The highest learning rate: `lr`, or what goes with the optimizer."""
        return RATES[self.optimizer] if self.lr is None else self.lr

    def model(self, d_vocab: int) -> ModelConfig:
        """The architecture to train from nothing: a size, with every number that was given on its own."""
        if self.size in PRESETS:
            if self.arch is not None:
                raise ConfigError(f"arch = {self.arch!r}: the preset {self.size} has its own, leave it out")
            given = {name: getattr(self, name) for name in ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_ff")}
            changed = {name: value for name, value in given.items() if value is not None}
            return replace(PRESETS[self.size], d_vocab=d_vocab, n_ctx=self.n_ctx or 1024, **changed)
        n_layers, n_heads, d_model = SIZES[self.size]
        n_layers, d_model = self.n_layers or n_layers, self.d_model or d_model
        n_heads = self.n_heads or (n_heads if self.d_model is None else max(1, d_model // 64))
        if self.arch != "llama":
            if self.n_kv_heads not in (None, n_heads):
                raise ConfigError(f"n_kv_heads = {self.n_kv_heads}: gpt2 has one a head; --arch llama shares them")
            sized = classic(n_layers, n_heads, d_model, self.n_ctx or 256, d_vocab)
            return replace(sized, d_ff=self.d_ff or 4 * d_model)
        return ModelConfig(
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=self.n_kv_heads or _half(n_heads),
            d_model=d_model,
            d_ff=self.d_ff
            or 64 * -(-8 * d_model // 192),  # 8/3 · d_model: as many weights as the classic's 4 · d_model
            n_ctx=self.n_ctx or 256,
            d_vocab=d_vocab,
            norm=RMSNormConfig(eps=1e-5),
            position=RotaryConfig(),
            feedforward=FeedForwardConfig(activation="silu", gated=True, bias=False),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"texts": list(self.texts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`.

        Raises:
            ConfigError: a name that is no choice of a run, or a value that does not fit.
        """
        unknown = sorted(set(data) - {f.name for f in fields(cls)})
        if unknown:
            raise ConfigError(f"{', '.join(unknown)}: no such option of a training run")
        return cls(**{**data, "texts": tuple(data.get("texts", ()))})

    def to_json(self) -> bytes:
        """One JSON object."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False).encode() + b"\n"


def _half(n_heads: int) -> int:
    """Key/value heads for so many query heads: half as many, where that goes."""
    return n_heads // 2 if n_heads % 2 == 0 else n_heads
