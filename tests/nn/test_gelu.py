"""GELU in loops equals torch's, its gradient too, and leaves to torch what is not for loops."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from cutaway.nn import few_rows, gelu
from cutaway.nn.gelu import MANY, PIECE, gelu_tanh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may bring no team of threads")

NAN, INF = float("nan"), float("inf")
EXACT = {torch.float32: 2e-6, torch.bfloat16: 2**-7}


def torch_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each call of the loops had."""
    sizes: list[int] = []
    forward = gelu.Looped.forward

    def counting(ctx: object, x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return forward(ctx, x)

    monkeypatch.setattr(gelu.Looped, "forward", staticmethod(counting))
    return sizes


def numbers(dtype: torch.dtype, n: int = MANY + PIECE // 2 + 3) -> Tensor:
    """More than a piece, and no whole number of vectors; with the far ends of the scale among them."""
    x = 4 * torch.randn(n, generator=torch.Generator().manual_seed(0))
    x[:8] = torch.tensor([0.0, -0.0, 1e-30, -30.0, 30.0, 1e4, -1e4, 5e-3])
    return x.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_value_and_gradient_are_those_of_the_formula(dtype: torch.dtype, looped: list[int]) -> None:
    x = numbers(dtype)
    exact = x.detach().double().requires_grad_()
    behind = torch.randn(len(x), generator=torch.Generator().manual_seed(1)).to(dtype)
    y, expected = gelu_tanh(x), torch_gelu(exact)
    y.backward(behind)
    expected.backward(behind.double())
    assert looped == [len(x)]
    assert x.grad is not None
    assert exact.grad is not None
    for got, wanted in ((y, expected), (x.grad, exact.grad)):
        assert got.dtype is dtype
        assert bool(((got.double() - wanted).abs() <= EXACT[dtype] * (1 + wanted.abs())).all())


def test_what_is_no_number_stays_none(looped: list[int]) -> None:
    x = numbers(torch.float32).detach()
    x[:3] = torch.tensor([NAN, INF, -INF])
    y = gelu_tanh(x.requires_grad_()).detach()
    assert looped
    assert bool(y[0].isnan())
    assert float(y[1]) == INF
    assert torch.equal(y[3:].isnan(), torch.zeros(len(x) - 3, dtype=torch.bool))


def test_parts_of_a_larger_tensor(looped: list[int]) -> None:
    whole = torch.randn(2 * MANY, 2)
    x = whole.requires_grad_()[:, 0]
    gelu_tanh(x).sum().backward()
    assert looped
    (expected,) = torch.autograd.grad(torch_gelu(whole[:, 0]).sum(), whole)
    assert whole.grad is not None
    assert torch.allclose(whole.grad, expected, atol=2e-6)


@pytest.mark.parametrize("step", [1, 2])  # 2: parts of a larger tensor, as a gate is
def test_the_gradients_own_gradient(step: int, looped: list[int]) -> None:
    x = numbers(torch.float32, 2 * MANY)
    for function in (gelu_tanh, torch_gelu):
        (slope,) = torch.autograd.grad(function(x[::step]).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), x)
        if function is gelu_tanh:
            ours = bend
    assert looped
    assert torch.allclose(ours, bend, atol=1e-5)


def test_several_gradients_at_once(looped: list[int]) -> None:
    x = numbers(torch.float32)
    several = torch.stack([torch.ones_like(x), 2 * torch.ones_like(x)])
    ours, theirs = (
        torch.autograd.grad(function(x), x, several, is_grads_batched=True)[0] for function in (gelu_tanh, torch_gelu)
    )
    assert looped
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where it loads its rules for this
def test_a_derivative_forward() -> None:
    x = numbers(torch.float32)
    for function in (gelu_tanh, torch_gelu):
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
        if function is gelu_tanh:
            ours = tangent
    assert torch.equal(ours, tangent)


def test_torch_does_what_is_not_for_loops(looped: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(torch.float32)
    few = x[: MANY - 1].detach().requires_grad_()
    with torch.no_grad():
        assert torch.equal(gelu_tanh(x), torch_gelu(x))
    assert torch.equal(gelu_tanh(few), torch_gelu(few))
    ours, theirs = (torch.func.grad(lambda x, f=f: f(x).sum())(x.detach()) for f in (gelu_tanh, torch_gelu))  # type: ignore[misc]
    assert torch.equal(ours, theirs)
    monkeypatch.setattr(few_rows, "loops", lambda: None)
    assert torch.equal(gelu_tanh(x), torch_gelu(x))
    assert looped == []
