"""The kernels by hand-sized inputs: the scale, the cap, the mask with a past, a query that sees nothing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.config import CausalMaskConfig, MaskConfig, NoMaskConfig, WindowMaskConfig
from cutaway.nn.kernel import CHUNK, SHORT, Chunked, Fused, Kernel, build_kernels, in_products, learns_short
from cutaway.nn.mask import Mask, build_mask
from cutaway.nn.reference import Reference, soft_cap
from cutaway.nn.tap import IDLE, Tap
from support.tiny import distance

CPU = torch.device("cpu")


class Keep(Tap):
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def __call__(self, name, value):  # type: ignore[no-untyped-def]
        self.kept[name] = value
        return value


def masked(config: MaskConfig, n_queries: int, starts: tuple[int, ...]) -> Mask:
    return build_mask(config, starts, n_queries, [start + n_queries for start in starts], CPU)


def causal(n_queries: int, *starts: int) -> Mask:
    return masked(CausalMaskConfig(), n_queries, starts or (0,))


def window(size: int, n_queries: int, *starts: int) -> Mask:
    return masked(WindowMaskConfig(size=size), n_queries, starts or (0,))


def random_qkv(n_queries: int, n_keys: int, n_heads: int = 4, n_kv: int = 2, d: int = 4) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((n_heads, n_queries), (n_kv, n_keys), (n_kv, n_keys))
    return tuple(torch.randn(1, heads, n, d, generator=generator) for heads, n in shapes)


def test_the_scale_is_applied_once() -> None:
    """A2: head_dim 4 and raw scores [2, 0] give [0.7311, 0.2689]; twice would give [0.6225, 0.3775]."""
    q = torch.tensor([[[[2.0, 0, 0, 0]]]])
    k = torch.tensor([[[[1.0, 0, 0, 0], [0, 0, 0, 0]]]])
    v = torch.eye(4)[None, None, :2]
    for kernel in build_kernels(scale=4**-0.5, cap=None):
        z = kernel(q, k, v, causal(1, 1), IDLE)
        assert torch.allclose(z[0, 0, 0, :2], torch.tensor([0.7311, 0.2689]), atol=5e-5)


def test_the_soft_cap_is_a_scaled_tanh() -> None:
    """C9: cap 30 turns 124 into 29.985, not into 123.94."""
    assert float(soft_cap(torch.tensor(124.0), 30.0)) == pytest.approx(29.985, abs=1e-3)
    assert soft_cap(torch.tensor(124.0), None) == 124


def test_the_attention_cap_comes_before_the_mask() -> None:
    """C9: masked entries stay −inf, and scores are scaled, then capped, then masked."""
    q, k, v = (100 * t if i < 2 else t for i, t in enumerate(random_qkv(3, 3)))
    keep = Keep()
    Reference(0.5, 50.0)(q, k, v, causal(3), keep)
    scores, scaled, masked = (keep.kept[f"attn.{name}"] for name in ("scores", "scaled", "masked"))
    assert torch.allclose(scaled, 50 * torch.tanh(scores * 0.5 / 50))
    assert scaled.abs().max() <= 50
    assert masked[0, 0].isneginf().tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def test_capped_scores_never_take_the_fused_kernel() -> None:
    """C9: torch's fused attention knows no cap."""
    assert isinstance(build_kernels(1.0, None)[0], Fused)
    assert isinstance(build_kernels(1.0, 50.0)[0], Chunked)


@pytest.mark.parametrize(
    ("n_queries", "rows"),
    [(1, [[1, 1, 1, 1, 1]]), (2, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])],
)
def test_the_mask_is_aligned_to_the_last_key(n_queries: int, rows: list[list[int]]) -> None:
    """A3: with cached keys one query sees all 5, two queries see 11110 and 11111."""
    q, k, v = random_qkv(n_queries, 5)
    keep = Keep()
    mask = causal(n_queries, 5 - n_queries)
    reference = Reference(0.5, None)(q, k, v, mask, keep)
    assert (keep.kept["attn.pattern"][0, 0] > 0).int().tolist() == rows
    assert distance(Fused(0.5)(q, k, v, mask, IDLE), reference) <= 1e-6


@pytest.mark.parametrize(
    ("n_cached", "rows"),
    [
        (0, ["100000", "110000", "111000", "111100", "011110", "001111"]),
        (4, ["011110", "001111"]),
        (5, ["001111"]),
    ],
)
def test_the_window_counts_the_token_itself(n_cached: int, rows: list[str]) -> None:
    """C6: window 4 over 6 tokens gives 1, 2, 3, 4, 4, 4 keys; row 5 sees 2..5; the same with a cache."""
    mask = window(4, 6 - n_cached, n_cached)
    q, k, v = random_qkv(6 - n_cached, 6)
    keep = Keep()
    reference = Reference(0.5, None)(q, k, v, mask, keep)
    found = ["".join(str(int(x > 0)) for x in row) for row in keep.kept["attn.pattern"][0, 0]]
    assert found == rows
    assert distance(Fused(0.5)(q, k, v, mask, IDLE), reference) <= 1e-6
    assert distance(Chunked(0.5, 9.0)(q, k, v, mask, IDLE), Reference(0.5, 9.0)(q, k, v, mask, IDLE)) <= 1e-6


@pytest.mark.parametrize("masked", ["window", "past"])
def test_chunks_change_nothing(masked: str) -> None:
    """Longer than a chunk, not a multiple of one, with a window or with a past."""
    n = 2 * CHUNK + 37
    mask = window(50, n) if masked == "window" else causal(n, 11)
    q, k, v = random_qkv(n, mask.n_keys)
    for cap in (None, 3.0):
        fast, reference = build_kernels(0.5, cap)
        assert distance(fast(q, k, v, mask, IDLE), reference(q, k, v, mask, IDLE)) <= 1e-5


def test_a_query_that_sees_nothing_gathers_nothing() -> None:
    """A1: a fully masked row gives zeros and finite gradients in both kernels, where a plain softmax gives NaN."""

    class Blind(Mask):
        def visible(self, queries: slice, keys: slice) -> Tensor:
            seen = torch.ones(1, 1, 2, 5, dtype=torch.bool)
            seen[..., 0, :] = False
            return seen

    mask = Blind(starts=(3,), n_queries=2, window=None)
    results = []
    for kernel in build_kernels(0.5, None):
        q, k, v = (t.requires_grad_() for t in random_qkv(2, 5))
        z = kernel(q, k, v, mask, IDLE)
        z.sum().backward()
        assert z[0, :, 0].abs().max() == 0
        assert all(bool(t.grad.isfinite().all()) for t in (q, k, v))
        results.append(z.detach())
    assert distance(*results) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_every_type_has_gradients_in_both_kernels(dtype: torch.dtype, cap: float | None) -> None:
    """They equal those of the formula in float64, within what the type can hold."""

    def gradients(kernel: Kernel, dtype: torch.dtype) -> list[Tensor]:
        q, k, v = (t.to(dtype).requires_grad_() for t in random_qkv(5, 5))
        kernel(q, k, v, window(3, 5), IDLE).double().square().sum().backward()
        return [t.grad.double() for t in (q, k, v)]

    def formula(q: Tensor, k: Tensor, v: Tensor, mask: Mask, tap: Tap) -> Tensor:
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        scores = soft_cap(0.5 * q @ k.mT, cap).masked_fill(~mask.visible(slice(0, 5), slice(0, 5)), -math.inf)
        return scores.softmax(-1) @ v

    expected = gradients(formula, torch.float64)
    for kernel in build_kernels(0.5, cap):
        for found, wanted in zip(gradients(kernel, dtype), expected, strict=True):
            assert distance(found, wanted) <= 10 * torch.finfo(dtype).eps


def test_the_fused_mask_stays_small() -> None:
    """The mask of a chunk grows with the keys in reach, never with T×T."""
    mask = window(32, 4096)
    queries = slice(1024, 1024 + CHUNK)
    visible = mask.visible(queries, mask.keys(queries))
    assert visible is not None
    assert visible.shape == (1, 1, CHUNK, CHUNK + 31)


@pytest.mark.parametrize("starts", [(0,), (3,), (0, 4)])
def test_the_mask_is_the_pure_rule(starts: tuple[int, ...]) -> None:
    mask = window(3, 4, *starts)
    keys = slice(0, mask.n_keys)
    seen = mask.visible(slice(0, 4), keys)
    assert seen is not None
    for row, start in enumerate(starts):
        for t in range(4):
            for s in range(mask.n_keys):
                assert bool(seen[row, 0, t, s]) == (0 <= start + t - s < 3)


def test_torch_agrees_with_the_reference_on_the_plain_triangle() -> None:
    q, k, v = random_qkv(7, 7)
    expected = F.scaled_dot_product_attention(q, *(t.repeat_interleave(2, 1) for t in (k, v)), is_causal=True)
    assert distance(Reference(1 / math.sqrt(4), None)(q, k, v, causal(7), IDLE), expected) <= 1e-6


def test_without_a_mask_every_key_is_seen_but_no_pad() -> None:
    """Two texts of 4 and 2 tokens: the pads of the shorter one stay hidden."""
    q, k, v = (t.expand(2, -1, -1, -1).contiguous() for t in random_qkv(4, 4))
    mask = build_mask(NoMaskConfig(), (0, 0), 4, (4, 2), CPU)
    assert mask.visible(slice(0, 4), slice(0, 4)).long().sum(-1).squeeze(1).tolist() == [[4] * 4, [2] * 4]  # type: ignore[union-attr]
    assert not mask.is_triangle
    for kernel in build_kernels(scale=0.5, cap=None):
        z = kernel(q, k, v, mask, IDLE)
        alone = F.scaled_dot_product_attention(q[1:, :, :2], k[1:, :, :2], v[1:, :, :2], scale=0.5, enable_gqa=True)
        assert distance(z[1:, :, :2], alone) < 1e-6
        whole = F.scaled_dot_product_attention(q[:1], k[:1], v[:1], scale=0.5, enable_gqa=True)
        assert distance(z[:1], whole) < 1e-6


@pytest.mark.parametrize("n_kv", [4, 2, 1])
def test_short_texts_learn_as_the_formula_does(n_kv: int) -> None:
    """In 16 bits with a gradient: the same z, and the same gradients of q, k and v, within what 16 bits hold."""
    scale, n = 0.35, 24
    wide = [x.requires_grad_() for x in random_qkv(n, n, 4, n_kv, 8)]
    narrow = [x.detach().bfloat16().requires_grad_() for x in wide]
    exact = Reference(scale, None)(*wide, causal(n), IDLE)
    z = Fused(scale)(*narrow, causal(n), IDLE)
    assert torch.equal(z, in_products(*narrow, scale))
    assert distance(z.detach().float(), exact.detach()) <= 0.02
    behind = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    exact_slopes = torch.autograd.grad(exact, wide, behind)
    slopes = torch.autograd.grad(z, narrow, behind.bfloat16())
    for slope, exact_slope in zip(slopes, exact_slopes, strict=True):
        assert distance(slope.float(), exact_slope) <= 0.03


def test_only_short_texts_in_16_bits_keep_their_patterns() -> None:
    q = torch.zeros(1, 1, SHORT, 4, dtype=torch.bfloat16, requires_grad=True)
    assert learns_short(q)
    assert not learns_short(q.float())
    assert not learns_short(q.detach())
    assert not learns_short(torch.zeros(1, 1, SHORT + 1, 4, dtype=torch.bfloat16, requires_grad=True))
    with torch.no_grad():
        assert not learns_short(q)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("which", [0, 1], ids=["q", "k"])
def test_nan_reaches_the_same_queries_in_both_kernels(which: int, bad: float) -> None:
    """And no others: a text beside it in the batch is not touched."""
    qkv = [x.repeat(2, 1, 1, 1) for x in random_qkv(5, 5)]
    qkv[which][0, :, 2] = bad
    with torch.no_grad():
        fast, reference = (kernel(*qkv, causal(5, 0, 0), IDLE).isnan() for kernel in build_kernels(0.5, None))
    assert torch.equal(fast, reference)
    assert fast[0, :, 2].all()
    assert not fast[1].any()


@pytest.mark.parametrize("mask", [causal(7), causal(7, 0, 0), window(3, 7), causal(5, 2)], ids=str)
def test_hiding_in_place_is_hiding(mask: Mask) -> None:
    """Whatever stands where a query may not look: NaN and infinity too."""
    scores = torch.randn(2, 3, mask.n_queries, mask.n_keys, generator=torch.Generator().manual_seed(0))
    queries, keys = slice(0, mask.n_queries), slice(0, mask.n_keys)
    hidden = torch.isneginf(mask.hide(scores, queries, keys, in_place=False))
    scores[hidden & (scores > 0)] = math.nan
    scores[hidden & (scores < -1)] = math.inf
    wanted = mask.hide(scores, queries, keys, in_place=False)
    assert torch.equal(mask.hide(scores.clone(), queries, keys, in_place=True), wanted)
    assert not wanted.isnan().any()
