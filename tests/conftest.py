"""Shapes in signatures are checked while the tests run; one torch thread each, for the tests run side by side."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings
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
    "reference",
    "softmax",
    "tap",
]
install_import_hook(
    [*(f"cutaway.nn.{room}" for room in ROOMS), "cutaway.network", "cutaway.generate"], "beartype.beartype"
)
torch.set_num_threads(1)
slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("cutaway", deadline=None, suppress_health_check=slow)  # a shared machine may pause anywhere
settings.load_profile("cutaway")
