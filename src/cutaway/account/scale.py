"""A training run over N GPUs: what each holds, what they send each other, how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cutaway.account import flops, memory, parameters
from cutaway.account.hardware import Hardware
from cutaway.config import ModelConfig

SHARE = 0.4  # of the matrix peak: what well-made runs of published models reach, between a third and a half
IN_A_MACHINE = 8  # GPUs that share a link; between machines the table knows none
TOKENS_PER_PARAMETER = 20  # a run's length where none is named; arXiv:2203.15556

Strategy = Literal["data", "sharded"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A run in numbers. `memory` [B] is of one GPU; `sent` [B] is what one GPU sends in a step.

    `computing` and `sending` are a step's seconds, `share` of the peak taken for the first; they overlap, so the
    longer one counts. None: the hardware's numbers are not known.
    """

    strategy: Strategy
    hardware: str
    n_gpus: int
    dtype: str
    share: float
    n_ctx: int
    n_windows: int  # a GPU
    recompute: bool
    n_tokens: int
    n_flops: int  # of the whole run
    memory: dict[str, int]
    fits: bool | None
    sent: int
    computing: float | None
    sending: float | None
    tokens_per_second: float | None

    @property
    def n_bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def seconds(self) -> float | None:
        """The whole run."""
        return None if self.tokens_per_second is None else self.n_tokens / self.tokens_per_second

    @property
    def days(self) -> float | None:
        return None if self.seconds is None else self.seconds / 86_400

    @property
    def gpu_hours(self) -> float | None:
        return None if self.seconds is None else self.seconds * self.n_gpus / 3600

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return vars(self) | {"n_bytes": self.n_bytes, "days": self.days, "gpu_hours": self.gpu_hours}


def scale(
    config: ModelConfig,
    hardware: Hardware,
    n_gpus: int,
    *,
    strategy: Strategy,
    n_ctx: int,
    n_windows: int = 1,
    n_tokens: int | None = None,
    dtype: str = "bfloat16",
    optimizer: memory.Optimizer = "adamw",
    recompute: bool = False,
    share: float = SHARE,
) -> Scale:
    """Weights, gradients and optimizer in fp32, products in `dtype`.

    "data": every GPU holds everything, and gradients are averaged. "sharded": each holds its share, gathers a block's
    weights for the forward and for the backward pass, and gives its part of every gradient.
    """
    n_weights = parameters.total(config)
    n_tokens = TOKENS_PER_PARAMETER * n_weights if n_tokens is None else n_tokens
    narrow = int(memory.BYTES[dtype])
    n_shards = n_gpus if strategy == "sharded" else 1
    kept = memory.recomputed_activations if recompute else memory.activations
    held = {
        **memory.held(config, optimizer, narrow=narrow, n_shards=n_shards),
        "activations": kept(config, n_ctx, n_windows, narrow=narrow),
        "logits": memory.loss_in_chunks(config, n_ctx * n_windows),
    }
    sent = traffic(config, n_gpus, strategy, narrow)
    per_window = flops.training(config, n_ctx, recompute=recompute).total
    rate = hardware.rate(dtype)
    computing = per_window * n_windows / (rate * share) if rate else None
    known_link = hardware.link is not None and n_gpus <= IN_A_MACHINE
    sending = 0.0 if n_gpus == 1 else sent / (hardware.link / 2) if known_link and hardware.link else None
    step = None if computing is None else max(computing, sending or 0.0)
    useful = flops.training(config, n_ctx).total / n_ctx  # what is computed again is work, and no more tokens
    return Scale(
        strategy=strategy,
        hardware=hardware.name,
        n_gpus=n_gpus,
        dtype=dtype,
        share=share,
        n_ctx=n_ctx,
        n_windows=n_windows,
        recompute=recompute,
        n_tokens=n_tokens,
        n_flops=int(useful * n_tokens),
        memory=held,
        fits=None if hardware.memory is None else sum(held.values()) <= hardware.memory,
        sent=sent,
        computing=computing,
        sending=sending,
        tokens_per_second=None if step is None else n_gpus * n_windows * n_ctx / step,
    )


def traffic(config: ModelConfig, n_gpus: int, strategy: Strategy, narrow: int) -> int:
    """What one GPU sends in a step, in rings [B].

    Averaging gradients is a reduce-scatter and an all-gather of fp32 numbers. Sharded: weights in the products' type
    are gathered twice, and fp32 gradients scattered once. Each moves (N − 1)/N of its numbers.
    """
    n_weights = parameters.total(config)
    moved = 2 * memory.FP32 if strategy == "data" else 2 * narrow + memory.FP32
    return moved * n_weights * (n_gpus - 1) // n_gpus
