"""Rotation by eye, and what depends on a length."""

from __future__ import annotations

import math

import pytest
import torch

from cutaway.config import DynamicScaling, LongRopeScaling, ModelConfig, RotaryConfig
from cutaway.nn.position import LearnedPosition, NoPosition, Rotary, build_position
from cutaway.nn.tap import IDLE

CPU = torch.device("cpu")
LONGROPE = LongRopeScaling(short_factor=(1.0,), long_factor=(2.0,), n_ctx_original=8, attention_factor=3.0)


def turned(rotary: Rotary, x: list[float], position: int, length: int = 1) -> list[float]:
    q = torch.tensor(x)[None, None, None]
    rotate = rotary.at(torch.tensor([[position]]), [length])
    return rotate(q, q)[0].flatten().tolist()


def test_a_pair_turns_by_its_angle() -> None:
    """d_head 2 has one pair at 1 rad a position."""
    found = turned(Rotary(RotaryConfig(), 2), [1.0, 0.0], 1)
    assert found == pytest.approx([math.cos(1), math.sin(1)])


def test_partners_lie_half_a_head_apart() -> None:
    """With theta 1 every pair turns alike: a quarter turn takes (x1, x3) to (−x3, x1)."""
    rotary = Rotary(RotaryConfig(theta=1.0), 4)
    q = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, None, None]
    rotate = rotary.at(torch.tensor([[1]]), [1])
    c, s = math.cos(1), math.sin(1)
    expected = [1 * c - 3 * s, 2 * c - 4 * s, 3 * c + 1 * s, 4 * c + 2 * s]
    assert rotate(q, q)[0].flatten().tolist() == pytest.approx(expected)


def test_a_partial_rotation_leaves_the_rest() -> None:
    assert turned(Rotary(RotaryConfig(d_rotary=2), 4), [1.0, 0.0, 5.0, 6.0], 3)[2:] == [5.0, 6.0]


def test_scores_depend_on_the_distance_alone() -> None:
    rotary = Rotary(RotaryConfig(), 8)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    scores = []
    for offset in (0, 100):
        rotated, _ = rotary.at(torch.tensor([[offset + 7]]), [1])(q, q)
        key, _ = rotary.at(torch.tensor([[offset + 2]]), [1])(k, k)
        scores.append(float((rotated * key).sum()))
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_dynamic_scaling_starts_past_the_original_context() -> None:
    rotary = Rotary(RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8)), 4)
    assert not rotary.changes(1, 8)
    assert rotary.changes(8, 9)
    assert rotary.changes(9, 10)


def test_longrope_changes_once() -> None:
    rotary = Rotary(RotaryConfig(scaling=LONGROPE), 2)
    assert [rotary.changes(n, n + 1) for n in range(6, 11)] == [False, False, True, False, False]
    assert turned(rotary, [1.0, 0.0], 1, length=9) == pytest.approx([3 * math.cos(0.5), 3 * math.sin(0.5)])


def test_rows_of_different_lengths_turn_by_their_own() -> None:
    rotary = Rotary(RotaryConfig(scaling=LONGROPE), 2)
    q = torch.tensor([1.0, 0.0]).expand(2, 1, 1, 2)
    both, _ = rotary.at(torch.tensor([[1]]), [8, 9])(q, q)
    assert both[0].flatten().tolist() == pytest.approx([3 * math.cos(1), 3 * math.sin(1)])
    assert both[1].flatten().tolist() == pytest.approx([3 * math.cos(0.5), 3 * math.sin(0.5)])


def test_a_learned_position_adds_its_row() -> None:
    position = LearnedPosition(4, 2)
    x = torch.zeros(2, 3, 2)
    found = position.embed(x, torch.tensor([[1, 2, 3]]), IDLE)
    assert torch.equal(found[1], position.weight[1:4])


def test_nothing_is_nothing() -> None:
    q, k = torch.randn(2, 1, 1, 1, 4)
    rotate = NoPosition().at(torch.tensor([[5]]), [1])
    assert all(a is b for a, b in zip(rotate(q, k), (q, k), strict=True))


def test_frequencies_do_not_pile_up() -> None:
    """A text that grows for ever asks for a new length each time; the memory stays bounded."""
    rotary = Rotary(RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8)), 4)
    for n in range(1000):
        rotary.frequencies(n, CPU)
    assert len(rotary._known) <= 66


def test_what_another_thread_clears_is_still_returned() -> None:
    class Cleared(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: object, value: object) -> None:
            """Gone before it is read."""

    rotary = Rotary(RotaryConfig(scaling=DynamicScaling(factor=2.0, n_ctx_original=8)), 4)
    expected = rotary.frequencies(20, CPU)
    rotary._known = Cleared()
    assert torch.equal(rotary.frequencies(20, CPU), expected)


def test_a_network_shares_modules_between_layers_of_one_kind() -> None:
    from cutaway.network import Transformer

    near, far = RotaryConfig(theta=10.0), RotaryConfig(theta=1000.0)
    config = ModelConfig(n_layers=3, n_ctx=8, d_model=8, d_vocab=5, n_heads=2, position=(near, far, near))
    network = Transformer(config)
    assert len(network.positions) == 2
    assert network.position_of == [0, 1, 0]
    assert isinstance(build_position(near, config), Rotary)
