"""The rate of each step, by hand."""

from __future__ import annotations

import pytest

from cutaway.train.config import TrainConfig
from cutaway.train.schedule import learning_rate


def rates(**choices: object) -> list[float]:
    config = TrainConfig(lr=1.0, final_lr=0.2, warmup=4, steps=24, **choices)  # type: ignore[arg-type]
    return [learning_rate(step, config) for step in range(24)]


def test_it_rises_linearly_then_falls_along_a_cosine() -> None:
    got = rates(schedule="cosine")
    assert got[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert got[14] == pytest.approx(0.2 + 0.8 * 0.5)  # half way
    assert got[23] == pytest.approx(0.2, abs=0.01)
    assert got[4:] == sorted(got[4:], reverse=True)


def test_wsd_stays_and_falls_in_the_last_fifth() -> None:
    got = rates(schedule="wsd")
    assert got[4:21] == pytest.approx([1.0] * 17)
    assert got[20:] == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_a_warm_up_longer_than_half_the_run_is_cut() -> None:
    config = TrainConfig(steps=4, warmup=50)
    assert max(learning_rate(step, config) for step in range(4)) == config.top_rate
