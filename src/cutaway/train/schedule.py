"""The learning rate of each step: a pure function, so that a resumed run has nothing to restore."""

from __future__ import annotations

import math

from cutaway.train.config import TrainConfig

DECAY = 0.2  # the last part of a warm-up-stable-decay run, in which the rate falls


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step 0, 1, … steps−1: up linearly, then down to `final_lr` of the top by the schedule.

    "cosine" falls along half a cosine (arXiv:1608.03983); "wsd" stays and falls linearly in the last fifth
    (warm-up-stable-decay, arXiv:2404.06395).
    """
    warmup = min(config.warmup, config.steps // 2)
    if step < warmup:
        return config.top_rate * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, config.steps - warmup)
    cosine, wsd = 0.5 * (1 + math.cos(math.pi * done)), min(1.0, (1 - done) / DECAY)
    height = cosine if config.schedule == "cosine" else wsd
    return config.top_rate * (config.final_lr + (1 - config.final_lr) * height)
