"""Training runs small enough for a test: their text, their choices, who watches, and the weights that came of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch

import cutaway
from cutaway.train.display import Display

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


class Watching(Display):
    """Remembers everything; may ask for an end."""

    def __init__(self, stop_at: int = 0) -> None:
        self.stop_at = stop_at
        self.losses: list[float] = []
        self.vals: list[float] = []
        self.notes: list[str] = []
        self.samples: list[str] = []

    def planned(self, plan: Any, notes: Any) -> None:
        self.plan = plan
        self.notes += notes

    def step(self, record: dict[str, Any]) -> None:
        self.losses.append(record["loss"])
        if record["step"] == self.stop_at:
            signal.raise_signal(signal.SIGTERM)

    def evaluation(self, record: dict[str, Any]) -> None:
        self.vals.append(record["val_loss"])

    def sample(self, text: str) -> None:
        self.samples.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)
