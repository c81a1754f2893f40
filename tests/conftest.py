"""Shapes in signatures are checked while the tests run; one torch thread each, for the tests run side by side."""

from __future__ import annotations

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

ROOMS = [
    "attention",
    "block",
    "cache",
    "feedforward",
    "few_rows",
    "kernel",
    "linear",
    "mask",
    "norm",
    "position",
    "tap",
]
install_import_hook(
    [*(f"cutaway.nn.{room}" for room in ROOMS), "cutaway.network", "cutaway.generate"], "beartype.beartype"
)
torch.set_num_threads(1)
settings.register_profile("cutaway", deadline=None)  # a shared machine may pause anywhere
settings.load_profile("cutaway")
