"""What a run will need, worked out before its first step: data, work, memory and time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from cutaway.account import flops, memory, parameters
from cutaway.account.available import available_memory as available_memory
from cutaway.account.available import host_memory as host_memory
from cutaway.account.machine import matrix_peak
from cutaway.account.memory import FP32
from cutaway.config import ModelConfig
from cutaway.errors import TrainingError
from cutaway.train.loss import CHUNK

SHARE = 0.35  # of the matrix peak: what a small model reaches where nothing is known of the machine


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run in numbers. `memory` [B] is of one process, by what holds it; `n_flops` are those of all processes.

    Memory is what tensors take. An allocator may keep more: glibc's, on the CPU, up to 1.4 times as much.
    `n_tokens` are the training tokens found, `epochs` how often the run reads them. `peak` [FLOP/s] is one process's
    measured matrix peak, and `seconds` are foreseen at `share` of it, for what `n_made` steps of before leave to do.
    """

    n_tokens: int
    n_val_tokens: int
    n_documents: int
    n_steps: int
    n_made: int
    tokens_per_step: int
    epochs: float
    n_parameters: int
    flops_per_token: int
    n_flops: int
    memory: dict[str, int]
    peak: float
    share: float
    seconds: float

    @property
    def n_bytes(self) -> int:
        """The memory of one process, all together [B]."""
        return sum(self.memory.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def check(self, available: int) -> None:
        """Hold what a process needs against the memory there is for it [B].

        Raises:
            TrainingError: it cannot fit; says how much is needed and for what, and what to lower.
        """
        if self.n_bytes <= available:
            return
        parts = ", ".join(f"{name} {_megabytes(n)}" for name, n in self.memory.items())
        passing = self.memory["activations"] + self.memory["logits"]
        raise TrainingError(
            f"training needs {_megabytes(self.n_bytes)} ({parts}), {_megabytes(available)} are available: "
            + (
                "lower --batch-size or --n-ctx, or raise --accumulate"
                if passing > self.n_bytes - passing
                else "choose a smaller --size, or shard it over more processes"
            )
        )


def make_plan(
    config: ModelConfig,
    *,
    n_tokens: int,
    n_val_tokens: int,
    n_documents: int,
    batch_size: int,
    n_ctx: int,
    n_steps: int,
    optimizer: Literal["muon", "adamw"],
    dtype: torch.dtype,
    device: torch.device,
    bytes_per_weight: int = FP32,
    n_processes: int = 1,
    sharded: bool = False,
    accumulate: int = 1,
    share: float = SHARE,
    n_made: int = 0,
    dropout: bool = False,
) -> Plan:
    """Plan a run of `n_steps` steps of `batch_size` windows, over all processes and their `accumulate` parts.

    `dtype` is the type of the products; where it is narrower than the weights (autocast), a copy of the weights in it
    is counted. `sharded`: weights, gradients and optimizer are divided among the processes.
    """
    tokens_per_step = batch_size * n_ctx
    flops_per_token = 3 * flops.per_token(config, n_ctx)
    n_flops = flops_per_token * tokens_per_step * n_steps
    n_windows = -(-batch_size // (accumulate * n_processes))  # at once
    narrow = dtype.itemsize
    kernel = memory.kernel_of_training(n_ctx, narrow, device.type)
    n_shards = n_processes if sharded else 1
    needed = {
        **memory.held(config, optimizer, narrow=narrow, wide=bytes_per_weight, n_shards=n_shards),
        "activations": memory.activations(
            config, n_ctx, n_windows, narrow=narrow, wide=bytes_per_weight, kernel=kernel, dropout=dropout
        ),
        "logits": memory.loss_in_chunks(config, n_ctx * n_windows, CHUNK, wide=bytes_per_weight),
    }
    peak = matrix_peak(dtype, device)
    return Plan(
        n_tokens=n_tokens,
        n_val_tokens=n_val_tokens,
        n_documents=n_documents,
        n_steps=n_steps,
        n_made=n_made,
        tokens_per_step=tokens_per_step,
        epochs=tokens_per_step * n_steps / n_tokens,
        n_parameters=parameters.total(config),
        flops_per_token=flops_per_token,
        n_flops=n_flops,
        memory=needed,
        peak=peak,
        share=share,
        seconds=n_flops * (1 - n_made / n_steps) / (peak * share * n_processes),
    )


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.0f} MB" if n < 1e10 else f"{n / 1e9:,.0f} GB"
