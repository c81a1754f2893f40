"""Muon: the same steps as torch's own, matrix by matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cutaway.account.measure import Live
from cutaway.train import muon
from cutaway.train.muon import SCRATCH, Muon, orthogonal, stacks, together

SHAPES = [(24, 8), (8, 8), (32, 8), (8, 32), (24, 8), (8, 24), (1, 5)]
OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def matrices(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_steps_are_those_of_torch() -> None:
    ours, theirs = ([nn.Parameter(m.clone()) for m in matrices(0)] for _ in range(2))
    optimizers = Muon(ours, **OPTIONS), torch.optim.Muon(theirs, **OPTIONS)  # type: ignore[arg-type]
    for seed in range(1, 6):
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for p, gradient in zip(parameters, matrices(seed), strict=True):
                p.grad = gradient
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        # bf16 sums may round another way in a stack: 2⁻⁸ of an update of 0.02 · 0.2 · √32 a step
        assert (a - b).abs().max() < 5 * 0.02 * 0.2 * 32**0.5 * 2**-7
        assert not torch.equal(a, torch.zeros_like(a))
    assert optimizers[0].state_dict().keys() == optimizers[1].state_dict().keys()


def test_singular_values_come_to_about_one() -> None:
    some = [m for m in matrices(3) if m.numel() == 24 * 8]
    for m, turned in zip(some, together(some, COEFFICIENTS, 5), strict=True):
        assert turned.shape == m.shape
        values = torch.linalg.svdvals(turned.float())
        assert values.min() > 0.3 and values.max() < 1.3  # 0.68 to 1.13 in exact numbers, less where one begins small


def test_stacks_are_of_one_shape_turned_or_not_and_have_room() -> None:
    given = matrices(5)
    shapes = [[tuple(m.shape) for m in some] for some in stacks(given)]
    assert shapes == [[(24, 8), (24, 8), (8, 24)], [(8, 8)], [(32, 8), (8, 32)], [(1, 5)]]
    large = [torch.empty(1 << 10, 1 << 11, device="meta") for _ in range(5)] + [torch.empty(SCRATCH, 2, device="meta")]
    assert [len(some) for some in stacks(large)] == [2, 2, 1, 1]


def test_a_step_takes_scratch_for_one_stack_and_not_for_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "SCRATCH", 2 * 64 * 128)
    parameters = [nn.Parameter(torch.randn(64, 128)) for _ in range(32)]
    optimizer = Muon(parameters, lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()  # the first makes what is kept
    past = [nn.Parameter(optimizer.state[p]["momentum_buffer"], requires_grad=False) for p in parameters]
    with Live(nn.ParameterList([*parameters, *past])) as live:  # type: ignore[arg-type]
        optimizer.step()
    assert 0 < live.peak < 2 * sum(p.numel() for p in parameters)


def test_a_stack_is_its_matrices_alone() -> None:
    stack = torch.stack([m for m in matrices(4) if m.shape == (24, 8)]).mT
    for i, m in enumerate(stack):
        assert torch.allclose(orthogonal(stack, COEFFICIENTS, 5)[i], orthogonal(m[None], COEFFICIENTS, 5)[0], atol=0.02)


@pytest.mark.filterwarnings("error")
def test_a_gradient_of_zeros_moves_nothing_and_none_is_left_out() -> None:
    still, untouched, moved = (nn.Parameter(torch.ones(4, 6)) for _ in range(3))
    optimizer = Muon([still, untouched, moved], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    still.grad, moved.grad = torch.zeros(4, 6), torch.eye(4, 6)
    optimizer.step()
    assert torch.equal(still, torch.ones(4, 6)) and torch.equal(untouched, torch.ones(4, 6))
    assert not torch.equal(moved, torch.ones(4, 6))
