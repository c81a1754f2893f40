"""The peak is measured on products that grow, once, and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cutaway.account import machine
from cutaway.account.machine import matrix_peak

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    matrix_peak.cache_clear()
    yield
    matrix_peak.cache_clear()


def test_it_is_the_speed_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SIZES", (256,))
    before = torch.get_rng_state()
    assert 1e8 < matrix_peak(torch.float32, CPU) < 1e15
    assert torch.equal(before, torch.get_rng_state())


def test_the_best_size_counts_and_slow_ones_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {512: 0.001, 1024: 0.005, 2048: 0.08}
    asked = []

    def product(n: int, dtype: torch.dtype, device: torch.device) -> float:
        asked.append(n)
        return seconds[n]

    monkeypatch.setattr(machine, "_product", product)
    assert matrix_peak(torch.float32, CPU) == 2 * 1024**3 / 0.005
    assert asked == [512, 1024, 2048]
    matrix_peak(torch.float32, CPU)
    assert len(asked) == 3  # measured once
    matrix_peak(torch.bfloat16, CPU)
    assert len(asked) == 6


def test_a_cpu_without_bfloat16_still_multiplies_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops widen bfloat16, so a step may be faster than torch's products in it."""
    peaks = {torch.float32: 8e10, torch.bfloat16: 7e8, torch.float16: 6e8}
    monkeypatch.setattr(machine, "matrix_peak", lambda dtype, device: peaks[dtype])
    monkeypatch.setattr(machine, "memory_bandwidth", lambda device: 1e10)
    assert machine.this_machine(torch.bfloat16, CPU).rates == {"bfloat16": 8e10}
    assert machine.this_machine(torch.float16, CPU).rates == {"float16": 6e8}  # no loops for it
    peaks[torch.bfloat16] = 3e11
    assert machine.this_machine(torch.bfloat16, CPU).rates == {"bfloat16": 3e11}
