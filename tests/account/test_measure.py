"""Measured on this machine: exact where it must be, within a tenth where it may differ, told where not known."""

from __future__ import annotations

import pytest
import torch

from cutaway.account import measure as room
from cutaway.account.measure import Measured, measure
from cutaway.config import ModelConfig
from cutaway.errors import ConfigError
from cutaway.network import Transformer
from cutaway.presets import PRESETS, classic
from support.tiny import OURS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SPENT", 0.0001)
    monkeypatch.setattr("cutaway.account.machine.matrix_peak", lambda dtype, device: 1e11)
    monkeypatch.setattr("cutaway.account.machine.memory_bandwidth", lambda device: 1e10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("config", OURS.values(), ids=OURS)
def test_every_kind_of_part(config: ModelConfig, dtype: torch.dtype) -> None:
    rows = measure(config, 48, dtype=dtype, device=CPU)
    assert {row.unit for row in rows} == {"", "B", "FLOP", "s"}
    for row in rows:
        if row.exact:
            assert row.predicted == row.measured, row
        elif row.unit == "B" and dtype is torch.float32:
            assert row.error is not None and abs(row.error) < 0.1, row
        elif row.unit == "s":
            assert row.predicted and row.measured, row


def test_what_the_counter_does_not_see_is_the_square() -> None:
    config = classic(2, 4, 64, 128, 67)
    rows = {row.what: row for row in measure(config, 96, device=CPU)}
    as_it_runs = rows["prefill of 96, as it runs"]
    assert as_it_runs.predicted is not None and as_it_runs.measured is not None
    assert as_it_runs.predicted - as_it_runs.measured == 2 * 2 * 2 * 96 * 96 * 64
    assert "fused" in as_it_runs.note and not as_it_runs.exact


def test_a_network_that_is_not_the_config_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more layer than the account is told of: nothing that must be equal still is."""

    class Deeper(Transformer):
        def __init__(self, config: ModelConfig) -> None:
            super().__init__(classic(3, 4, 64, 128, 67))
            self.config = config

    monkeypatch.setattr(room, "Transformer", Deeper)
    monkeypatch.setattr(room, "Cache", lambda config, *rest: Real(classic(3, 4, 64, 128, 67), *rest))
    rows = measure(classic(2, 4, 64, 128, 67), 32, device=CPU)
    assert all(row.predicted != row.measured for row in rows if row.exact)
    assert all(row.error is not None and row.error < -0.1 for row in rows if row.unit == "B")


Real = room.Cache


def test_what_cannot_be_measured_is_refused_before_it_is_built() -> None:
    with pytest.raises(ConfigError, match=r"would take [\d,.]+ GB, [\d,.]+ GB are free"):
        measure(PRESETS["gpt3"], 256, device=CPU)
    with pytest.raises(ConfigError, match="128 tokens to measure with: it must be from 2 to 127"):
        measure(classic(2, 4, 64, 128, 67), 128, device=CPU)


def test_an_error_needs_both_numbers() -> None:
    assert Measured(what="x", unit="s", predicted=2.0, measured=4.0).error == -0.5
    assert Measured(what="x", unit="s", predicted=None, measured=4.0).error is None


@pytest.mark.parametrize(("bandwidth", "is_told"), [(1.0, True), (1e18, False)])
def test_what_is_faster_than_memory_says_why(monkeypatch: pytest.MonkeyPatch, bandwidth: float, is_told: bool) -> None:
    """A small network lies in a cache, and beats the bound that memory sets."""
    monkeypatch.setattr(room, "SPENT", 0.0001)
    monkeypatch.setattr("cutaway.account.machine.matrix_peak", lambda dtype, device: 1e18)
    monkeypatch.setattr("cutaway.account.machine.memory_bandwidth", lambda device: bandwidth)
    rows = [row for row in measure(classic(2, 4, 64, 128, 67), 32, device=CPU) if row.unit == "s"]
    assert all(("a cache held" in row.note) == is_told for row in rows)
