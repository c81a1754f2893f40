"""Training runs small enough for a test: their text, their choices, and the weights that came of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import cutaway

TINY: dict[str, Any] = {
    "tokenizer": "bytes",
    "n_layers": 1,
    "n_heads": 2,
    "d_model": 16,
    "n_ctx": 8,
    "batch_size": 4,
    "warmup": 2,
    "eval_windows": 4,
    "sample_every": 0,
    "compile": "off",
}


def bottles(n_lines: int) -> str:
    """A text with something to learn in it."""
    return "".join(f"{n} bottles hang on the wall, take {n % 7} down.\n" for n in range(n_lines))


def weights(folder: Path) -> torch.Tensor:
    """All weights of a run's best checkpoint, or of one checkpoint, in a row."""
    return torch.cat([p.flatten() for p in cutaway.load(folder).network.parameters()])
