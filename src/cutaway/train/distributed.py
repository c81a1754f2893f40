"""One process or many: who reads which part of a batch, and how gradients meet. torch's own engine does the work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from cutaway.errors import TrainingError
from cutaway.train.loss import Objective

PATIENCE = timedelta(hours=6)  # others wait this long for the one that prepares the texts or writes a checkpoint


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among all. Without torchrun there is one."""

    rank: int
    world: int
    device: torch.device

    @property
    def neighbours(self) -> int:
        """Processes on this machine, which share its memory; a GPU's is its own."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.device.type == "cpu" else 1

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes what is written once."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over all processes."""
        if self.world == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(x) for x in total]

    def least(self, number: float) -> float:
        """The smallest of all processes' numbers: what each measures alone, all decide on alike."""
        if self.world == 1:
            return number
        least = torch.tensor(number, dtype=torch.float64, device=self.device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        return float(least)

    def wait(self) -> None:
        """Until all have come this far."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The processes that torchrun started together, or this one alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(rank=0, world=1, device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        ranks = Ranks(rank=dist.get_rank(), world=world, device=device)
        yield ranks
        ranks.wait()  # one that leaves while another still works may take the connection down with it
    finally:
        if started:
            dist.destroy_process_group()


def shard(objective: Objective, bf16: bool) -> None:
    """Split every parameter over all processes (FSDP2): each block gathers its own just before it runs.

    Source: torch.distributed.fsdp.fully_shard.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for block in objective.network.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(objective, mp_policy=policy)


def replicate(objective: Objective, ranks: Ranks) -> nn.Module:
    """Every process holds everything, and gradients are averaged (data parallel)."""
    if ranks.world == 1:
        return objective
    return DistributedDataParallel(objective, gradient_as_bucket_view=True)  # no second copy of the gradients


@contextmanager
def gradients_meet(module: nn.Module, now: bool) -> Iterator[None]:
    """Whether this backward pass exchanges gradients; parts of a batch do so once, with the last.

    A sharded network does so each time, because a process that waits holds the whole gradient.
    """
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
    else:
        yield


def check_batch(batch_size: int, accumulate: int, ranks: Ranks) -> None:
    """Every process must have the same number of windows in every part.

    Raises:
        TrainingError: it does not come out even.
    """
    if batch_size % (accumulate * ranks.world):
        raise TrainingError(
            f"batch_size = {batch_size} does not split over {ranks.world} processes and accumulate = {accumulate}: "
            f"take a multiple of {accumulate * ranks.world}"
        )


def whole_parameters(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded parameters whole, on the CPU; every process must call it."""
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu() for name, p in parameters.items()}
