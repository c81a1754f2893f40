"""Rows of logits, settings, and what is left of a row."""

from __future__ import annotations

import math
from collections import Counter

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from cutaway.generate.sampling import (
    SamplingConfig,
    choose,
    new_generator,
)

INF = math.inf
GREEDY = SamplingConfig(temperature=0)
PLAIN = SamplingConfig(temperature=1)

anytime = settings(deadline=None)
rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(torch.tensor)
configs = st.builds(
    SamplingConfig,
    temperature=st.floats(0.01, 10),
    top_k=st.none() | st.integers(0, 50),
    top_p=st.none() | st.floats(0.01, 1),
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.floats(0.5, 2),
)


def logs(*probs: float) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64).log().float()


def kept(logits: Tensor) -> list[int]:
    return logits.isfinite().nonzero()[:, 0].tolist()


def sample(logits: Tensor, config: SamplingConfig, n: int, seed: int = 0) -> Counter[int]:
    generator = new_generator(seed)
    return Counter(choose(logits, config, (), generator).token for _ in range(n))
