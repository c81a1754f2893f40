"""The loss equals torch's own, whole or in parts, and so do its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cutaway.network import Transformer
from cutaway.presets import classic
from cutaway.train import loss as room
from cutaway.train.initialise import initialise
from cutaway.train.loss import IGNORE, CrossEntropy, Objective


def inputs(n: int = 10, d: int = 6, v: int = 13) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator, requires_grad=True)
    w = torch.randn(v, d, generator=generator, requires_grad=True)
    targets = torch.randint(v, (n,), generator=generator)
    targets[3] = IGNORE
    return x, w, targets


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("chunk", [1 << 22, 26])  # all rows at once; two rows at a time
def test_value_and_gradients_are_those_of_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, chunk: int
) -> None:
    monkeypatch.setattr(room, "CHUNK", chunk)
    x, w, targets = inputs()
    ours = CrossEntropy.apply(x, w, targets, cap)
    gradients = torch.autograd.grad(ours * 0.5, (x, w))
    scores = x @ w.T
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    theirs = F.cross_entropy(scores, targets, ignore_index=IGNORE, reduction="sum")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-5)
    for mine, other in zip(gradients, torch.autograd.grad(theirs * 0.5, (x, w)), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_only_a_chunk_of_the_scores_is_held() -> None:
    """T·V numbers are never in memory: the widest tensor made has CHUNK numbers at most."""
    x, w, targets = torch.randn(4096, 4), torch.randn(2048, 4, requires_grad=True), torch.zeros(4096, dtype=torch.long)
    sizes = []

    class Widest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    with Widest():
        CrossEntropy.apply(x, w, targets, None).backward()
    assert max(sizes) == room.CHUNK < x.shape[0] * w.shape[0]


def test_uneven_parts_give_the_gradient_of_the_whole() -> None:
    """X5: 10 and 100 targets at mean losses 1 and 2 make (10·1 + 100·2)/110 = 1.9091, not 1.5; gradients alike."""
    x, w, _ = inputs(110)
    targets = torch.randint(13, (110,), generator=torch.Generator().manual_seed(1))
    whole = torch.autograd.grad(CrossEntropy.apply(x, w, targets, None) / 110, (x, w))
    parts = [torch.zeros_like(x), torch.zeros_like(w)]
    for rows in (slice(0, 10), slice(10, 110)):
        loss = CrossEntropy.apply(x[rows], w, targets[rows], None) / 110
        for total, part in zip(parts, torch.autograd.grad(loss, (x, w)), strict=True):
            total += part
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert pytest.approx(1.9091, abs=1e-4) == (10 * 1.0 + 100 * 2.0) / 110


def test_the_target_of_a_position_is_the_next_id() -> None:
    """X6: on ids 0..7 the loss pairs position i with i+1, once; a second shift would pair it with i+2."""
    network = Transformer(classic(1, 2, 8, 8, d_vocab=8))
    initialise(network, 0)
    ids = torch.arange(8)[None]
    expected = F.cross_entropy(network(ids[:, :-1])[0], torch.arange(1, 8), reduction="sum")
    torch.testing.assert_close(Objective(network)(ids[:, :-1], ids[:, 1:]), expected)


def test_in_bf16_the_loss_is_close_and_gradients_keep_their_type() -> None:
    x, w, targets = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        loss = CrossEntropy.apply(x, w, targets, None)
    exact = CrossEntropy.apply(x, w, targets, None)
    assert loss.dtype is torch.float32
    assert abs(loss - exact) < 0.02 * exact
    for gradient in torch.autograd.grad(loss, (x, w)):
        assert gradient.dtype is torch.float32


def test_the_heads_gradient_is_summed_in_fp32_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in bf16, as a sharded run computes: many chunks are as exact as one."""
    x, w, _ = inputs(512)
    targets = torch.randint(13, (512,), generator=torch.Generator().manual_seed(1))
    exact = torch.autograd.grad(CrossEntropy.apply(x, w, targets, None), w)[0]
    errors = []
    for chunk in (1 << 22, 26):
        monkeypatch.setattr(room, "CHUNK", chunk)
        small = w.detach().bfloat16().requires_grad_()
        gradient = torch.autograd.grad(CrossEntropy.apply(x.detach().bfloat16(), small, targets, None), small)[0]
        errors.append(float((gradient - exact).norm().detach() / exact.norm().detach()))
    assert errors[1] < 1.5 * errors[0]
