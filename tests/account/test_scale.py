"""Rooflines, many GPUs, and what others have published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutaway.account import flops, memory, parameters
from cutaway.account import time as timing
from cutaway.account.hardware import HARDWARE, Hardware, hardware_named
from cutaway.account.runs import comparisons
from cutaway.account.scale import scale, traffic
from cutaway.errors import ConfigError
from cutaway.presets import PRESETS

SEVEN_B = PRESETS["llama2-7b"]
PLAIN = Hardware(name="plain", rates={"bfloat16": 100e12}, bandwidth=1e12, memory=100 * 10**9, link=2e11, source="test")


def test_the_longer_of_computing_and_reading_counts() -> None:
    assert timing.roofline(10**14, 10**9, PLAIN, "bfloat16").to_dict() == {
        "n_flops": 10**14,
        "n_bytes": 10**9,
        "seconds": 1.0,
        "bound": "computing",
    }
    reading = timing.roofline(10**12, 10**12, PLAIN, "bfloat16")
    assert (reading.seconds, reading.bound) == (1.0, "memory")


def test_what_is_not_known_is_not_guessed() -> None:
    for hardware, dtype in (("t4", "bfloat16"), ("m4-max", "float32"), ("m1", "float16")):
        found = timing.step(SEVEN_B, 100, HARDWARE[hardware], dtype)
        assert found.seconds is None and found.bound is None
    one = scale(SEVEN_B, HARDWARE["t4"], 4, strategy="sharded", n_ctx=512)
    assert one.tokens_per_second is None and one.days is None and one.gpu_hours is None


def test_a_step_reads_the_weights_and_a_prompt_computes() -> None:
    step = timing.step(SEVEN_B, 1000, PLAIN, "bfloat16")
    rows = SEVEN_B.d_model * SEVEN_B.d_vocab  # the embedding's: one of them is read
    n_bytes = 2 * (parameters.total(SEVEN_B) - rows) + memory.kv_cache(SEVEN_B, 1000, 2)
    assert (step.n_bytes, step.bound) == (n_bytes, "memory")
    assert step.seconds == n_bytes / 1e12
    prompt = timing.prefill(SEVEN_B, 1000, PLAIN, "bfloat16")
    assert prompt.bound == "computing"
    assert prompt.seconds == flops.prefill(SEVEN_B, 1000).total / 100e12
    together = timing.step(SEVEN_B, 1000, PLAIN, "bfloat16", n_texts=8)
    assert together.n_bytes - step.n_bytes == 7 * memory.kv_cache(SEVEN_B, 1000, 2)
    assert together.n_flops == 8 * step.n_flops


def test_a_tied_table_is_read_whole_by_the_head() -> None:
    assert timing.weights_read(PRESETS["gpt2"], 4) == 4 * (124_439_808 - 786_432)
    assert timing.weights_read(replace(PRESETS["gpt2"], tied=False), 4) == 4 * (124_439_808 - 786_432)


def test_traffic_by_hand() -> None:
    """A ring moves (N − 1)/N of its numbers each way round."""
    n = parameters.total(SEVEN_B)
    assert traffic(SEVEN_B, 1, "data", 2) == 0
    assert traffic(SEVEN_B, 4, "data", 2) == 2 * 4 * n * 3 // 4
    assert traffic(SEVEN_B, 4, "sharded", 2) == (2 * 2 + 4) * n * 3 // 4
    assert traffic(SEVEN_B, 4, "sharded", 4) == 3 * 4 * n * 3 // 4


def test_a_run_by_hand() -> None:
    one = scale(SEVEN_B, PLAIN, 8, strategy="data", n_ctx=1024, n_windows=2, n_tokens=10**9, share=0.5)
    assert one.computing == pytest.approx(2 * flops.training(SEVEN_B, 1024).total / 50e12)
    assert one.sending == pytest.approx(traffic(SEVEN_B, 8, "data", 2) / 1e11)
    step = max(one.computing or 0, one.sending or 0)
    assert one.tokens_per_second == pytest.approx(8 * 2 * 1024 / step)
    assert one.days == pytest.approx(10**9 / (8 * 2 * 1024 / step) / 86400)
    assert one.gpu_hours == pytest.approx((one.days or 0) * 24 * 8)
    assert one.n_flops == pytest.approx(flops.training(SEVEN_B, 1024).total / 1024 * 10**9)
    assert one.fits is False  # 16 bytes a parameter, and activations


def test_shards_fit_where_copies_do_not() -> None:
    data, sharded = (
        scale(SEVEN_B, HARDWARE["a100"], 16, strategy=strategy, n_ctx=4096, recompute=True)
        for strategy in ("data", "sharded")
    )
    assert (data.fits, sharded.fits) == (False, True)
    assert sharded.memory["optimizer"] == data.memory["optimizer"] // 16
    assert sharded.memory["activations"] == data.memory["activations"]
    assert sharded.sending is None  # the table knows no link between machines
    assert sharded.tokens_per_second is not None


def test_recomputing_costs_a_third_more_and_no_more_tokens() -> None:
    plain, again = (
        scale(SEVEN_B, HARDWARE["a100"], 1, strategy="data", n_ctx=4096, recompute=recompute)
        for recompute in (False, True)
    )
    assert plain.n_flops == again.n_flops
    assert plain.n_tokens == 20 * parameters.total(SEVEN_B)
    assert (again.days or 0) / (plain.days or 1) == pytest.approx(4 / 3, rel=0.01)


def test_published_runs() -> None:
    """FLOPs to the digits that were published, shares of the peak to a fortieth; durations at one share for all."""
    errors: dict[str, list[float]] = {}
    for one in comparisons():
        errors.setdefault(one.quantity, []).append(abs(one.error))
    for quantity, found in errors.items():
        if "parameters · tokens" in quantity or "TFLOP" in quantity:
            assert max(found) < 0.002, quantity
        elif quantity in ("training [FLOP]", "share of the peak", "tokens/s of a GPU"):
            assert max(found) < 0.03, quantity
    memory_errors = [one.error for one in comparisons() if "memory" in one.quantity]
    assert max(memory_errors) > 0 > min(memory_errors)  # what they keep lies between everything and nothing


def test_hardware_has_sources_and_names_are_found() -> None:
    assert all(one.source and one.bandwidth for one in HARDWARE.values())
    assert hardware_named("H100 PCIe") is HARDWARE["h100-pcie"]
    with pytest.raises(ConfigError, match="hardware = 'h10': did you mean h100"):
        hardware_named("h10")
