"""What a run will need, worked out before its first step: data, work, memory and time."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from cutaway.config import LayerNormConfig, ModelConfig, WindowMaskConfig
from cutaway.errors import TrainingError
from cutaway.network import Transformer
from cutaway.train.loss import CHUNK
from cutaway.train.peak import matrix_peak

SHARE = 0.35  # of the matrix peak: what a small model reaches where nothing is known of the machine
FP32 = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run in numbers. `memory` [B] is of one process, by what holds it; `n_flops` are those of all processes.

    Memory is what tensors take. An allocator may keep more: glibc's, on the CPU, up to 1.4 times as much.
    `n_tokens` are the training tokens found, `epochs` how often the run reads them. `peak` [FLOP/s] is one process's
    measured matrix peak, and `seconds` are foreseen at `share` of it.
    """

    n_tokens: int
    n_val_tokens: int
    n_documents: int
    n_steps: int
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
) -> Plan:
    """Plan a run of `n_steps` steps of `batch_size` windows, over all processes and their `accumulate` parts.

    `dtype` is the type of the products; where it is narrower than the weights (autocast), a copy of the weights in it
    is counted. `sharded`: weights, gradients and optimizer are divided among the processes.
    """
    shapes = parameter_shapes(config)
    tokens_per_step = batch_size * n_ctx
    flops_per_token = 3 * forward_flops(config, n_ctx)
    n_flops = flops_per_token * tokens_per_step * n_steps
    n_tokens_at_once = -(-batch_size // (accumulate * n_processes)) * n_ctx
    memory = {
        **_held(config, shapes, optimizer, dtype, bytes_per_weight, n_processes if sharded else 1),
        "activations": activation_bytes(config, n_tokens_at_once, dtype, bytes_per_weight),
        "logits": _logits_bytes(config, n_tokens_at_once, bytes_per_weight),
    }
    peak = matrix_peak(dtype, device)
    return Plan(
        n_tokens=n_tokens,
        n_val_tokens=n_val_tokens,
        n_documents=n_documents,
        n_steps=n_steps,
        tokens_per_step=tokens_per_step,
        epochs=tokens_per_step * n_steps / n_tokens,
        n_parameters=sum(map(math.prod, shapes.values())),
        flops_per_token=flops_per_token,
        n_flops=n_flops,
        memory=memory,
        peak=peak,
        share=share,
        seconds=n_flops / (peak * share * n_processes),
    )


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by its name, a tied head's once. Takes no memory."""
    with torch.device("meta"):
        network = Transformer(config)
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def forward_flops(config: ModelConfig, n_ctx: int) -> int:
    """Forward FLOPs of one token of a window of `n_ctx` [FLOP/token].

    Every matrix the token is multiplied with, the head too and the embedding not, and 4·S·H·Dh for the scores and
    the mixing of each layer: S is the whole window, the causal half not cut, and at most the size of the layer's
    mask. A multiply-add is 2. Biases, norms, softmax and non-linearities are not counted. Training takes three times
    as many: the backward pass has two products for each of these.

    Source: PaLM, arXiv:2204.02311, appendix B.
    """
    d_attended = config.n_heads * config.d_head
    d_qkv = d_attended + 2 * config.n_kv_heads * config.d_head
    n_ff_matrices = 3 if config.feedforward.gated else 2
    block = config.d_model * (d_qkv + d_attended + n_ff_matrices * config.d_ff)
    reach = sum(min(n_ctx, mask.size) if isinstance(mask, WindowMaskConfig) else n_ctx for mask in config.masks)
    return 2 * (config.n_layers * block + config.d_model * config.d_vocab) + 4 * reach * d_attended


def activation_bytes(config: ModelConfig, n_tokens: int, dtype: torch.dtype, bytes_per_weight: int = FP32) -> int:
    """What autograd keeps of a forward pass over `n_tokens` for the backward one, without the head's [B].

    Wide numbers, in the residual stream's type: what each norm reads (RMSNorm also keeps it normalised). Narrow ones,
    in the products' type: what each matrix reads, q, k and v as the kernel sees them, its z, and the feed-forward
    before and after the non-linearity (a gated one keeps gate and value, and the gate's non-linearity too). A compiled
    network keeps less, because it computes some of it again. Left out: norms of q and k, soft caps of scores, and
    masks that are written out.
    """
    wide_bytes = max(dtype.itemsize, bytes_per_weight)
    d, d_attended = config.d_model, config.n_heads * config.d_head
    norm_numbers = d if isinstance(config.norm, LayerNormConfig) else 2 * d
    n_norms = 4 if config.norm_placement == "sandwich" else 2
    q_to_z = 2 * d_attended + 2 * config.n_kv_heads * config.d_head
    z_for_out = d_attended  # laid out again, heads side by side
    ff = (4 if config.feedforward.gated else 2) * config.d_ff
    log_totals = FP32 * config.n_heads  # of the softmax
    block = wide_bytes * n_norms * norm_numbers + dtype.itemsize * (2 * d + q_to_z + z_for_out + ff) + log_totals
    final = wide_bytes * (norm_numbers + d)
    return n_tokens * (config.n_layers * block + final)


def _held(
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    optimizer: Literal["muon", "adamw"],
    dtype: torch.dtype,
    bytes_per_weight: int,
    n_shards: int,
) -> dict[str, int]:
    """What stays from step to step [B]: weights, gradients, and what the optimizer keeps for each weight.

    AdamW keeps two numbers, Muon one, for the matrices in the blocks. A sharded network holds, beside its share, what
    is outside the blocks whole, and two blocks: the one at work and the next.
    """
    n_weights = sum(map(math.prod, shapes.values()))
    in_blocks = {name: shape for name, shape in shapes.items() if name.startswith("blocks.")}
    n_matrices = sum(math.prod(shape) for shape in in_blocks.values() if len(shape) == 2)
    n_kept = 2 * n_weights - (n_matrices if optimizer == "muon" else 0)
    if n_shards > 1:
        n_in_blocks = sum(map(math.prod, in_blocks.values()))
        at_work = (2 * n_in_blocks // config.n_layers + n_weights - n_in_blocks) * dtype.itemsize
        copied = 0
    else:
        at_work = 0
        n_multiplied = n_matrices + config.d_model * config.d_vocab
        copied = n_multiplied * dtype.itemsize if dtype.itemsize < bytes_per_weight else 0
    share = n_weights * bytes_per_weight // n_shards
    return {
        "weights": share + at_work + copied,
        "gradients": share + at_work,
        "optimizer": n_kept * bytes_per_weight // n_shards,
    }


def _logits_bytes(config: ModelConfig, n_tokens: int, bytes_per_weight: int) -> int:
    """What the loss holds [B]: a chunk of scores and of their slopes in fp32, and the head's gradient."""
    n_rows = min(n_tokens, max(1, CHUNK // config.d_vocab))
    return 2 * FP32 * n_rows * config.d_vocab + bytes_per_weight * config.d_model * config.d_vocab


def available_memory(device: torch.device) -> int:
    """Memory a process could still take on this device [B]; on the CPU what Linux and its control groups allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_memory(Path("/"))


def host_memory(root: Path) -> int:
    """What the kernel calls available, or the least that a control group of this process leaves [B].

    Where neither is told, nothing limits.
    """
    meminfo = _fields(root / "proc/meminfo")
    limits = [meminfo["MemAvailable"] * 1024] if "MemAvailable" in meminfo else []
    return max(0, min([*limits, *_left_in_groups(root)], default=sys.maxsize))


def _left_in_groups(root: Path) -> Iterator[int]:
    """Limit less use of every memory group around this process, versions 1 and 2; cached files do not count as use."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        limit, usage, cached = names
        own = Path(path.lstrip("/"))
        for group in (base / part for part in (own, *own.parents)):
            try:
                most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
            except OSError:  # the root has no limit, and a container does not see its own path
                continue
            if most != "max":
                yield int(most) - used + _fields(group / "memory.stat").get(cached, 0)


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `name: 12 kB` or `name 12` by their name; nothing where there is no such file."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {first.rstrip(":"): int(second) for first, second, *_ in words}


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.0f} MB" if n < 1e10 else f"{n / 1e9:,.0f} GB"
