"""How long it takes at best: the roofline of computing and of reading memory, whichever is longer.

Source: Williams, Waterman and Patterson, Roofline, 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cutaway.account import flops, memory, parameters
from cutaway.account.hardware import Hardware
from cutaway.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds at the least, and what bounds them; None where the hardware's numbers are not known."""

    n_flops: int
    n_bytes: int
    seconds: float | None
    bound: Literal["computing", "memory"] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def roofline(n_flops: int, n_bytes: int, hardware: Hardware, dtype: str) -> Time:
    """So many FLOPs of one type, over so many bytes of memory."""
    rate, bandwidth = hardware.rate(dtype), hardware.bandwidth
    if not rate or not bandwidth:
        return Time(n_flops=n_flops, n_bytes=n_bytes, seconds=None, bound=None)
    computing, reading = n_flops / rate, n_bytes / bandwidth
    return Time(
        n_flops=n_flops,
        n_bytes=n_bytes,
        seconds=max(computing, reading),
        bound="computing" if computing >= reading else "memory",
    )


def weights_read(config: ModelConfig, itemsize: int) -> int:
    """What a pass reads of the weights [B]: all but the tables of which it takes single rows."""
    rows_only = parameters.by_group(config)["positions"]
    if not config.tied:  # a shared table is read whole, as the head
        rows_only += parameters.by_group(config)["embedding"]
    return (parameters.total(config) - rows_only) * itemsize


def prefill(config: ModelConfig, n_tokens: int, hardware: Hardware, dtype: str, n_texts: int = 1) -> Time:
    """A prompt's pass; of memory, the weights and the cache it writes."""
    itemsize = int(memory.BYTES[dtype])
    n_bytes = weights_read(config, itemsize) + memory.kv_cache(config, n_tokens, itemsize, n_texts)
    return roofline(flops.prefill(config, n_tokens).total * n_texts, n_bytes, hardware, dtype)


def step(config: ModelConfig, n_keys: int, hardware: Hardware, dtype: str, n_texts: int = 1) -> Time:
    """One new token a text: all weights once, and each text's keys and values within reach."""
    itemsize = int(memory.BYTES[dtype])
    n_bytes = weights_read(config, itemsize) + memory.kv_needed(config, n_keys, itemsize, n_texts)
    return roofline(flops.step(config, n_keys).total * n_texts, n_bytes, hardware, dtype)


def training_step(
    config: ModelConfig,
    n_ctx: int,
    hardware: Hardware,
    dtype: str,
    n_windows: int = 1,
    *,
    recompute: bool = False,
    optimizer: memory.Optimizer = "adamw",
) -> Time:
    """Forward, backward and update of some windows; of memory, weights, gradients and optimizer, read and written."""
    n_flops = flops.training(config, n_ctx, recompute=recompute).total * n_windows
    moved = 2 * (2 * memory.weights(config) + memory.optimizer_numbers(config, optimizer) * memory.FP32)
    return roofline(n_flops, moved, hardware, dtype)
