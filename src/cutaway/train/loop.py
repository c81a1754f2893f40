"""The loop: a batch, its loss, its gradient, a step; and what happens between steps."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cutaway.data.batches import Windows, batch
from cutaway.data.shards import Prepared, TokenStream
from cutaway.errors import TrainingError
from cutaway.train.config import TrainConfig
from cutaway.train.distributed import Ranks, gradients_meet
from cutaway.train.loss import IGNORE
from cutaway.train.optimizer import clip, set_rate
from cutaway.train.schedule import learning_rate
from cutaway.train.settle import Settled
from cutaway.train.state import Position
from cutaway.train.watch import Watcher

EVALUATED = 4096  # tokens a pass at least: without gradients there is room


class Loop:
    """Everything a step needs. The number of the step alone says which windows it reads and what it draws."""

    def __init__(
        self,
        config: TrainConfig,
        settled: Settled,
        module: nn.Module,
        optimizers: list[Optimizer],
        prepared: Prepared,
        ranks: Ranks,
    ) -> None:
        self.config = config
        self.module = module
        self.optimizers = optimizers
        self.prepared = prepared
        self.ranks = ranks
        self.n_ctx = settled.n_ctx
        self.windows = Windows(len(prepared.train), settled.n_ctx, config.seed)
        self.bf16 = settled.bf16
        self.autocast = settled.bf16 and not settled.sharded  # a sharded network has its own policy

    def run(self, position: Position, watcher: Watcher) -> str:
        """From where the run stands to its end: "finished", "stopped" when asked to, or "early"."""
        config = self.config
        before, started = position.seconds, time.perf_counter()
        early = self.early(position)  # a run that had ended so, and is resumed
        while position.step < config.steps and not early:
            begun = time.perf_counter()
            loss, norm, lr = self.step(position.step)
            position.step += 1
            position.seconds = before + time.perf_counter() - started
            n_tokens = config.batch_size * self.n_ctx
            watcher.stepped(
                {"step": position.step, "loss": loss, "lr": lr, "grad_norm": norm, "tokens": position.step * n_tokens}
                | {"tokens_per_s": n_tokens / (time.perf_counter() - begun), "seconds": position.seconds}
            )
            last = position.step == config.steps
            evaluates = position.step % config.eval_every == 0 or last
            before_this = replace(position)
            better = evaluates and self.validate(position, watcher)
            early = self.early(position)
            stop = bool(self.ranks.sum(float(watcher.asked_to_stop()))[0])
            ends = last or stop or early
            if better or ends or position.step % config.save_every == 0:
                position.seconds = before + time.perf_counter() - started
                if not watcher.save(position, must=ends):  # then the best is still the one before
                    position.best_step, position.best_loss = before_this.best_step, before_this.best_loss
            if config.sample_every and (position.step % config.sample_every == 0 or last):
                watcher.sample(position.step)
            if stop and not (early or last):
                return "stopped"
        return "early" if early else "finished"

    def early(self, position: Position) -> bool:
        """Whether evaluations have brought nothing better for as long as the run was to wait."""
        return bool(self.config.patience) and position.worse >= self.config.patience

    def step(self, number: int) -> tuple[float, float, float]:
        """One step: the loss [nat/token] and the gradient's norm, both before it, and the rate it was made with.

        Raises:
            TrainingError: a loss or gradient that is no number; no weight has been changed then.
        """
        config, ranks = self.config, self.ranks
        lr = learning_rate(number, config)
        set_rate(self.optimizers, lr)
        torch.manual_seed(hash((config.seed, number, ranks.rank)))
        self.module.train()
        starts = self.windows.starts(number * config.batch_size, config.batch_size)
        n_targets = config.batch_size * self.n_ctx
        parts = [starts[i :: config.accumulate][ranks.rank :: ranks.world] for i in range(config.accumulate)]
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for i, part in enumerate(parts):
            with gradients_meet(self.module, now=i == len(parts) - 1):
                loss = self.loss(self.prepared.train, part)
                # Processes' gradients are averaged where they meet, so each counts as many times as there are.
                (loss * (ranks.world / n_targets)).backward()
            total += loss.detach().cpu()
        mean = ranks.sum(float(total))[0] / n_targets
        norm = clip(self.module, config.clip)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            wider = ", or start another run with --precision fp32" if self.bf16 else ""  # no run changes its precision
            raise TrainingError(
                f"step {number + 1}: the loss is {mean:g}, the gradient's norm {norm:g}; no weight was changed: "
                f"resume with a lower --lr than {config.top_rate:g}{wider}"
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return mean, norm, lr

    def loss(self, stream: TokenStream, starts: np.ndarray, n_padded: int = 0) -> Tensor:
        """The summed loss of some windows [nat]; the last `n_padded` of them do not count."""
        tokens, targets = batch(stream, starts, self.n_ctx)
        if n_padded:
            targets = targets.copy()
            targets[-n_padded:] = IGNORE
        there = (torch.from_numpy(ids).to(self.ranks.device, non_blocking=True) for ids in (tokens, targets))
        with self.precision():
            loss: Tensor = self.module(*there)
        return loss

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Matrix products in bf16, where the run settled on that; weights and sums stay fp32."""
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.autocast):
            yield

    def validate(self, position: Position, watcher: Watcher) -> bool:
        """Evaluate, keep count, and say whether this is the best so far. A loss that is no number never is."""
        val = self.prepared.val
        if val is None:
            return False
        loss = self.evaluate(val)
        record = {"step": position.step, "val_loss": loss, "seconds": position.seconds}
        bits = loss / math.log(2) * len(val) / max(1, val.n_bytes)
        watcher.evaluated(record | {"val_bpb": bits})
        better = math.isfinite(loss) and (position.best_loss is None or loss < position.best_loss)
        if better:
            position.best_step, position.best_loss, position.worse = position.step, loss, 0
        else:
            position.worse += 1
        return better

    @torch.no_grad()
    def evaluate(self, stream: TokenStream) -> float:
        """The loss on windows spread evenly over a text [nat/token]: always the same ones."""
        config, ranks = self.config, self.ranks
        every = np.arange(0, len(stream) - self.n_ctx, self.n_ctx)
        n = min(len(every), config.eval_windows or len(every))
        chosen = every[np.arange(n) * len(every) // n]
        size = max(EVALUATED // self.n_ctx, config.batch_size // config.accumulate // ranks.world)
        self.module.eval()
        total = 0.0
        for first in range(0, n, size * ranks.world):  # all processes make as many passes, all of one shape
            part = chosen[first + ranks.rank * size :][:size]
            padding = np.zeros(size - len(part), dtype=np.int64)
            total += float(self.loss(stream, np.concatenate((part, padding)), len(padding)))
        return ranks.sum(total)[0] / (n * self.n_ctx)
