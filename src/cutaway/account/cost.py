"""What a model costs: one call, one result that holds every number of the account."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.account import flops, memory, parameters, peaks, time
from cutaway.account.formula import letters
from cutaway.account.hardware import Hardware, hardware_named
from cutaway.account.models import HasConfig, config_of
from cutaway.account.scale import SHARE, Scale, scale
from cutaway.checked import check_count, is_finite, short
from cutaway.config import ModelConfig
from cutaway.errors import ConfigError
from cutaway.figures import Figure, Result

if TYPE_CHECKING:
    from cutaway.account.measure import Measured

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
NEW_TOKENS = 500
MEASURED_TOKENS = 256  # of a measurement where no context is given


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: a length, a batch, how many new tokens, in which type, and how it is trained."""

    context: int
    batch: int
    tokens: int
    dtype: str
    optimizer: memory.Optimizer
    recompute: bool
    share: float

    @property
    def itemsize(self) -> int:
        return int(memory.BYTES[self.dtype])


@dataclass(frozen=True, kw_only=True)
class Cost(Result):
    """The account of one model."""

    model: str
    config: ModelConfig
    asked: Question
    hardware: Hardware | None = None
    scales: tuple[Scale, ...] = ()
    measured: tuple[Measured, ...] = field(default=())

    @property
    def heading(self) -> str:
        n = parameters.total(self.config)
        return f"What {self.model} costs: {n:,} parameters, at a context of {self.asked.context:,}"

    def figures(self) -> list[Figure]:
        from cutaway.account.view import figures

        return figures(self)

    # --- the numbers ---------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """Where the parameters are."""
        return {
            "total": parameters.total(self.config),
            "in_a_block": parameters.in_block(self.config),
            "by_group": dict(parameters.by_group(self.config)),
            "rows": [row.to_dict() for row in parameters.table(self.config)],
        }

    @property
    def flops(self) -> dict[str, Any]:
        """What passes compute, of one text or window."""
        config, asked = self.config, self.asked
        cached, uncached = (
            flops.generation(config, asked.context, asked.tokens, cache=cache) for cache in (True, False)
        )
        return {
            "convention": "a multiply-add is 2; every query meets every key of its window, the causal half is not cut",
            "prefill": flops.prefill(config, asked.context).to_dict(),
            "step": flops.step(config, asked.context).to_dict(),
            "generation": {
                "tokens": asked.tokens,
                "cached": cached.to_dict(),
                "uncached": uncached.to_dict(),
            },
            "training": flops.training(config, asked.context, recompute=asked.recompute).to_dict(),
            "training_per_token": 3 * flops.per_token(config, asked.context),
            "squares_overtake_feedforward": flops.squares_overtake_feedforward(config),
            "squares_overtake_matrices": flops.squares_overtake_matrices(config),
        }

    @property
    def memory(self) -> dict[str, Any]:
        """What memory holds [B]."""
        config, asked = self.config, self.asked
        size = asked.itemsize
        return {
            "weights": {name: memory.weights(config, n) for name, n in memory.BYTES.items()},
            "kv_cache": memory.kv_cache(config, asked.context, size, asked.batch),
            "kv_cache_within_windows": memory.kv_needed(config, asked.context, size, asked.batch),
            "kv_cache_per_token": memory.kv_cache(config, 1, size),
            "scores_of_a_layer": memory.scores(config, asked.context, asked.context, size) * asked.batch,
            "scores_of_all_layers": memory.scores(config, asked.context, asked.context, size)
            * asked.batch
            * config.n_layers,
            "prefill_peak": memory.weights(config, size)
            + peaks.prefill(config, asked.context, itemsize=size, n_texts=asked.batch),
            "training": self.training_memory,
        }

    @property
    def training_memory(self) -> dict[str, int]:
        """What a training step holds on one GPU, weights in fp32 [B]; the kinds of activations are alternatives."""
        config, asked = self.config, self.asked
        sizes, narrow = (config, asked.context, asked.batch), asked.itemsize
        return {
            **memory.held(config, asked.optimizer, narrow=narrow),
            "activations": memory.activations(*sizes, narrow=narrow),
            "activations_recomputed": memory.recomputed_activations(*sizes, narrow=narrow),
            "activations_with_reference_kernel": memory.activations(*sizes, narrow=narrow, kernel="reference"),
            "logits": memory.loss_in_chunks(config, asked.context * asked.batch),
        }

    @property
    def fits(self) -> dict[str, int | bool] | None:
        """What one piece of the hardware named has room for; None where its memory is not known."""
        if self.hardware is None or self.hardware.memory is None:
            return None
        room, held = self.hardware.memory, self.memory
        training = held["training"]
        kept = "activations_recomputed" if self.asked.recompute else "activations"
        trained = sum(training[name] for name in ("weights", "gradients", "optimizer", kept, "logits"))
        beside_weights = max(0, room - held["weights"][self.asked.dtype])
        return {
            "memory": room,
            "running_bytes": held["prefill_peak"],
            "running": held["prefill_peak"] <= room,
            "cached_tokens": beside_weights // held["kv_cache_per_token"],
            "training_bytes": trained,
            "training": trained <= room,
        }

    @property
    def times(self) -> dict[str, time.Time] | None:
        """The roofline on the hardware named; None where none is."""
        if self.hardware is None:
            return None
        config, asked, hardware = self.config, self.asked, self.hardware
        return {
            "prefill": time.prefill(config, asked.context, hardware, asked.dtype, asked.batch),
            "step": time.step(config, asked.context, hardware, asked.dtype, asked.batch),
            "training_step": time.training_step(
                config,
                asked.context,
                hardware,
                asked.dtype,
                asked.batch,
                recompute=asked.recompute,
                optimizer=asked.optimizer,
            ),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data, every number of the answer."""
        times = self.times
        return {
            "model": self.model,
            "config": self.config.to_dict(),
            "letters": letters(self.config),
            "asked": dict(vars(self.asked)),
            "parameters": self.parameters,
            "flops": self.flops,
            "memory": self.memory,
            "hardware": None if self.hardware is None else self.hardware.to_dict(),
            "fits": self.fits,
            "time": None if times is None else {name: one.to_dict() for name, one in times.items()},
            "scale": [one.to_dict() for one in self.scales],
            "measured": [row.to_dict() for row in self.measured],
        }


def cost(
    model: str | Path | ModelConfig | HasConfig,
    *,
    context: int | None = None,
    batch: int = 1,
    tokens: int = NEW_TOKENS,
    dtype: str | None = None,
    optimizer: memory.Optimizer = "adamw",
    recompute: bool = False,
    hardware: str | Hardware | None = None,
    gpus: int | None = None,
    train_tokens: int | None = None,
    share: float = SHARE,
    measure: bool = False,
    device: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Cost:
    """What a model holds, does and takes.

    Args:
        model: a preset, a config.json, a model's name, a config, or a model that is loaded.
        context: tokens of a text, of a prompt, and of a training window; None: all that the model can read.
        batch: texts at once, and windows that one GPU trains on at once.
        tokens: how many to generate after a prompt of `context`.
        dtype: of weights, cache and products; None: bfloat16, float32 when measuring. In training, weights and
            gradients are float32 and the products of this type.
        recompute: blocks keep nothing and run again in the backward pass.
        hardware: a name from the table, or "here" for this machine, measured; None: unknown, here when measuring.
        gpus: how many of them train it, at `share` of their matrix peak.
        train_tokens: to train on; None: 20 for each parameter.
        measure: run it here, and put what was measured beside what was foreseen; on 256 tokens, or `context`.
        device: to measure on; None: the CPU.
    Raises:
        ConfigError: a number out of its range, or a name that is not known.
        SourceError, CheckpointError: no such model, or one that cannot be read.
    """
    name, config = config_of(model)
    asked = Question(
        context=_count("context", config.n_ctx if context is None else context, config.n_ctx, config),
        batch=_count("batch", batch, 2**20),
        tokens=_count("tokens", tokens, flops.MOST),
        dtype=_named("dtype", dtype or ("float32" if measure else "bfloat16"), DTYPES),
        optimizer=_named("optimizer", optimizer, {"adamw": "adamw", "muon": "muon"}),  # type: ignore[arg-type]
        recompute=recompute,
        share=_share(share),
    )
    found = _hardware("here" if measure and hardware is None else hardware, asked.dtype, device)
    scales: tuple[Scale, ...] = ()
    if gpus is not None or train_tokens is not None:
        if found is None:
            asked_for = f"train_tokens = {short(train_tokens)}: on" if gpus is None else f"gpus = {short(gpus)}: of"
            raise ConfigError(f"{asked_for} which kind? Name it with --hardware, such as h100 or a100")
        scales = _scales(config, found, asked, _count("gpus", 1 if gpus is None else gpus, 10**6), train_tokens)
    measured: tuple[Measured, ...] = ()
    if measure:
        measured = _measured(config, asked, context, device, progress)
    return Cost(model=name, config=config, asked=asked, hardware=found, scales=scales, measured=measured)


def _scales(
    config: ModelConfig, hardware: Hardware, asked: Question, n_gpus: int, train_tokens: int | None
) -> tuple[Scale, ...]:
    """The run, data parallel and sharded."""
    n_tokens = None if train_tokens is None else _count("train_tokens", train_tokens, flops.MOST)
    return tuple(
        scale(
            config,
            hardware,
            n_gpus,
            strategy=strategy,
            n_ctx=asked.context,
            n_windows=asked.batch,
            n_tokens=n_tokens,
            dtype=asked.dtype,
            optimizer=asked.optimizer,
            recompute=asked.recompute,
            share=asked.share,
        )
        for strategy in (("data", "sharded") if n_gpus > 1 else ("data",))
    )


def _measured(
    config: ModelConfig, asked: Question, context: int | None, device: str | None, progress: Callable[[str], None]
) -> tuple[Measured, ...]:
    from cutaway.account.measure import measure
    from cutaway.nn.devices import as_device, as_dtype

    dtype = as_dtype(asked.dtype)
    assert dtype is not None
    n_tokens = min(MEASURED_TOKENS if context is None else context, config.n_ctx - 1)  # and a step after them
    return tuple(measure(config, n_tokens, dtype=dtype, device=as_device(device or "cpu"), progress=progress))


def _hardware(hardware: str | Hardware | None, dtype: str, device: str | None) -> Hardware | None:
    if hardware is None or isinstance(hardware, Hardware):
        return hardware
    if not isinstance(hardware, str):
        raise ConfigError(f"hardware = {short(hardware)}: it must be a name, such as h100, or a Hardware")
    if hardware.lower() != "here":
        return hardware_named(hardware)
    from cutaway.account.machine import this_machine
    from cutaway.nn.devices import as_device, as_dtype

    found = as_dtype(dtype)
    assert found is not None
    return this_machine(found, as_device(device or "cpu"))


def _count(name: str, value: int, limit: int, config: ModelConfig | None = None) -> int:
    """A number in its range; `config` where the limit is the model's context."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} = {short(value)}: it must be a whole number")
    if config is not None and value > limit:
        raise ConfigError(f"{name} = {value}: the model reads {limit} tokens at most: give no more than that")
    check_count(name, value, limit)
    return value


def _share(value: float) -> float:
    if not is_finite(value) or not 0 < value <= 1:
        raise ConfigError(f"share = {short(value)}: a part of the matrix peak, above 0 and 1 at most")
    return value


def _named(what: str, name: str, names: Mapping[str, str]) -> str:
    if name not in names:
        raise ConfigError(f"{what} = {short(name)}: use {' or '.join(dict.fromkeys(names.values()))}")
    return names[name]
