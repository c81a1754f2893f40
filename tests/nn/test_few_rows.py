"""The loops of a decoding step equal the torch operations that they stand in for, and leave the rest to torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutaway
from cutaway.config import RMSNormConfig
from cutaway.nn import few_rows
from cutaway.nn.cache import LayerCache
from cutaway.nn.feedforward import GatedFeedForward
from cutaway.nn.kernel import Fused
from cutaway.nn.linear import Linear
from cutaway.nn.mask import Mask
from cutaway.nn.norm import RMSNorm
from cutaway.nn.position import _rotate
from cutaway.nn.tap import IDLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may bring no team of threads")

BF16 = torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", list(few_rows.MAX_ROWS), ids=str)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*numbers: Any) -> Tensor:
    """The slots of rows, or the ranges of keys that they see."""
    return torch.tensor(numbers, dtype=torch.int64)


def assert_rounded_once(mine: Tensor, exact: Tensor) -> None:
    """Against fp64: fp32 within 1e-5, bf16 within half the distance of two neighbours."""
    rtol = 1e-5 if mine.dtype == torch.float32 else 1.001 * torch.finfo(mine.dtype).eps / 2
    torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=1e-5)


def same(mine: Tensor, other: Tensor) -> bool:
    """The same numbers, NaN in the same places."""
    return mine.dtype == other.dtype and torch.allclose(mine, other, rtol=0, atol=0, equal_nan=True)


# --- linear ---------------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("d_out", "d_in"), [(1, 1), (3, 7), (5, 16), (49, 57), (64, 576), (1003, 100)])
def test_linear(d_out: int, d_in: int, has_bias: bool, dtype: torch.dtype, threads: None) -> None:
    """Widths below, at and past whole vectors; heights below, at and past the rows read side by side."""
    weight, bias = random(d_out, d_in, dtype=dtype), random(d_out, dtype=dtype, seed=1) if has_bias else None
    for n_rows in range(1, few_rows.MAX_ROWS[dtype] + 1):
        x = random(n_rows, d_in, dtype=dtype, seed=2)
        assert few_rows.linear_applies(x, weight)
        y = few_rows.linear(x, weight, bias)
        assert y.dtype == dtype
        assert_rounded_once(y, F.linear(x.double(), weight.double(), None if bias is None else bias.double()))


def test_linear_by_hand() -> None:
    x, weight = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 1.0, 1.0], [0.0, -1.0, 2.0]])
    assert few_rows.linear(x, weight, torch.tensor([10.0, 20.0])).tolist() == [[16.0, 24.0]]


def test_linear_sums_in_fp32_and_rounds_to_even() -> None:
    """256 + 1 lies between 256 and 258, 258 + 1 between 258 and 260; in steps of bf16, 256 + 1 + 1 would stay 256."""
    weight = torch.tensor([[256.0, 1.0, 0.0], [258.0, 1.0, 0.0], [256.0, 1.0, 1.0]], dtype=BF16)
    assert few_rows.linear(torch.ones(1, 3, dtype=BF16), weight, None).tolist() == [[256.0, 260.0, 258.0]]


def test_linear_of_views() -> None:
    """Any leading axes, rows that lie apart, a row that is only repeated."""
    weight = random(7, 5)
    for x in (random(2, 3, 5), random(5), random(4, 9)[:, 2:7], random(5, 4).T, random(1, 5).expand(3, 5)):
        torch.testing.assert_close(few_rows.linear(x, weight, None), F.linear(x, weight), rtol=1e-5, atol=1e-5)


@DTYPES
def test_linear_in_many_pieces(dtype: torch.dtype, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that the threads share: nothing is left out at any seam, and the pieces do not change the numbers."""
    x, weight = random(3, 60, dtype=dtype), random(1021, 60, dtype=dtype, seed=1)
    whole = few_rows.linear(x, weight, None)
    assert_rounded_once(whole, F.linear(x.double(), weight.double()))
    for n_bytes in (100, 1000, 7000):
        monkeypatch.setattr(few_rows, "PIECE", n_bytes)
        assert torch.equal(few_rows.linear(x, weight, None), whole)


def test_linear_of_a_large_weight(threads: None) -> None:
    x, weight = random(1, 1000), random(5001, 1000, seed=1)
    assert weight.nbytes > 4 * few_rows.PIECE
    torch.testing.assert_close(few_rows.linear(x, weight, None), F.linear(x, weight), rtol=1e-5, atol=1e-4)


# --- norm, rotation, cache ------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("d", [1, 15, 64, 577])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(d: int, offset: float, dtype: torch.dtype) -> None:
    weight = random(d, dtype=dtype, seed=1)
    for n_rows in (1, 3, 8):
        x = 3 * random(n_rows, 1, d, dtype=dtype)
        assert few_rows.rms_norm_applies(x, weight)
        exact = F.rms_norm(x.double(), (d,), weight.double() + offset, 1e-5)
        assert_rounded_once(few_rows.rms_norm(x, weight, 1e-5, offset), exact)


def test_rms_norm_by_hand() -> None:
    """The root of the mean square of 3 and 4 is √12.5; an eps of 12.5 makes it 5."""
    y = few_rows.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), 12.5, 0.0)
    torch.testing.assert_close(y, torch.tensor([[0.6, 8.0]]), rtol=1e-6, atol=0)


@DTYPES
@pytest.mark.parametrize("d_rotary", [64, 40, 2])
@pytest.mark.parametrize("n_rows", [1, 3])
def test_rotate(n_rows: int, d_rotary: int, dtype: torch.dtype) -> None:
    """q and k as attention has them, views of one projection; angles for all rows or one for each."""
    q, k, _ = (part.transpose(1, 2) for part in random(n_rows, 1, 15, 64, dtype=dtype).split((9, 3, 3), dim=2))
    for n_tables in {1, n_rows}:
        cos, sin = random(n_tables, 1, 1, d_rotary, seed=1), random(n_tables, 1, 1, d_rotary, seed=2)
        for x in (q, k):
            assert few_rows.rotate_applies(x, cos)
            assert_rounded_once(few_rows.rotate(x, cos, sin), _rotate(x.double(), cos.double(), sin.double()))


def test_rotate_by_hand() -> None:
    """A quarter turn takes (1, 0) to (0, 1)."""
    x, cos, sin = (torch.tensor(pair).view(1, 1, 1, 2) for pair in ([1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]))
    assert few_rows.rotate(x, cos, sin).flatten().tolist() == [0.0, 1.0]


def every_bf16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16)


def test_every_bf16_number_is_read_and_written_exactly() -> None:
    numbers = every_bf16()
    assert same(few_rows.linear(torch.ones(1, 1, dtype=BF16), numbers[:, None], None)[0], numbers)
    kept = torch.stack((torch.ones_like(numbers), torch.ones_like(numbers), numbers), dim=-1)[:, None, None]
    assert same(few_rows.rotate(kept, torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)), kept)


@pytest.mark.parametrize("lower_half", [0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], ids=hex)
def test_bf16_is_rounded_to_nearest_even(lower_half: int) -> None:
    """For every upper half of an fp32, NaN too: the rotation adds what is missing to the bf16 number, and rounds."""
    numbers = every_bf16()
    wanted = ((numbers.view(torch.int16).to(torch.int32) << 16) | lower_half).view(torch.float32)
    missing = torch.where(wanted.isnan(), wanted, wanted - numbers.float())
    x = torch.stack((numbers, torch.ones_like(numbers)), dim=-1)[:, None, None]
    cos, sin = torch.ones_like(x, dtype=torch.float32), torch.stack((missing, missing), dim=-1)[:, None, None]
    assert same(few_rows.rotate(x, cos, sin)[:, 0, 0, 0], wanted.to(BF16))


@DTYPES
def test_append(dtype: torch.dtype) -> None:
    """Each row into its own slot of a buffer that is longer than wide, and into no other."""
    k, v = (random(3, 1, 15, 7, dtype=dtype, seed=s).transpose(1, 2)[:, n : n + 4] for s, n in ((1, 0), (2, 9)))
    buffers = random(2, 3, 4, 11, 7, dtype=dtype)
    mine, expected = buffers.clone(), buffers.clone()
    assert few_rows.append_applies(k, mine[0])
    few_rows.append(k, v, mine[0], mine[1], ints(0, 10, 5))
    for row, slot in enumerate((0, 10, 5)):
        expected[0, row, :, slot], expected[1, row, :, slot] = k[row, :, 0], v[row, :, 0]
    assert torch.equal(mine, expected)


# --- attention ------------------------------------------------------------------------------------------------


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float, ranges: Tensor) -> Tensor:
    slots = torch.arange(k.shape[2])
    mask = ((slots >= ranges[:, :1]) & (slots < ranges[:, 1:]))[:, None, None]
    q, k, v = q.double(), k.double(), v.double()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@DTYPES
@pytest.mark.parametrize(("n_heads", "n_kv", "d_head"), [(9, 3, 64), (4, 4, 16), (8, 1, 128), (2, 1, 5), (3, 1, 1)])
def test_attend(n_heads: int, n_kv: int, d_head: int, dtype: torch.dtype, threads: None) -> None:
    """Over views of a longer buffer, all keys or a window of them, rows of one length or of several."""
    k_buffer, v_buffer = (random(2, n_kv, 300, d_head, dtype=dtype, seed=seed) for seed in (1, 2))
    q = random(2, 1, n_heads, d_head, dtype=dtype).transpose(1, 2)
    for n in (1, 5, 16, 17, 290):
        k, v = k_buffer[:, :, :n], v_buffer[:, :, :n]
        assert few_rows.attend_applies(q, k, v)
        for rows in (((0, n), (0, n)), ((0, n), (n // 2, n)), ((0, 1), (max(n - 7, 0), n))):
            assert_rounded_once(few_rows.attend(q, k, v, 0.2, ints(*rows)), attended(q, k, v, 0.2, ints(*rows)))


def test_attend_to_views() -> None:
    """Keys that lie between those of other heads, in another order, or are the same for all rows."""
    q, all_of_a_row = random(2, 4, 1, 8), ints((0, 6), (0, 6))
    views = (random(2, 6, 2, 8).transpose(1, 2), random(6, 2, 2, 8).permute(1, 2, 0, 3))
    for k in (*views, random(1, 2, 6, 8).expand(2, 2, 6, 8), random(2, 2, 6, 24)[..., 3:11]):
        v = k.flip(2) + 1
        for keys, values in ((k, v), (v, k)):
            z = few_rows.attend(q, keys, values, 0.3, all_of_a_row)
            assert_rounded_once(z, attended(q, keys, values, 0.3, all_of_a_row))


def test_attend_by_hand() -> None:
    """Scores 0 and ln 3: a quarter of the first value and three quarters of the second."""
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 3.0**0.5]).log() * 2, torch.tensor([4.0, 8.0])
    k = torch.tensor([0.0, float(k[1])]).view(1, 1, 2, 1)
    z = few_rows.attend(q, k, v.view(1, 1, 2, 1), 1.0, ints((0, 2)))
    torch.testing.assert_close(z, torch.full((1, 1, 1, 1), 7.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param(torch.linspace(-86, 0, 301), id="down to where fp32 ends"),
        pytest.param(torch.linspace(0, -3, 300), id="flat"),
        pytest.param(torch.zeros(299), id="equal"),
        pytest.param(torch.tensor([0.0, 1.0, -1e4, -200.0, -88.0, -87.0, 1.0]), id="peaked"),
        pytest.param(torch.tensor([-1e4, -1e4 + 0.5, -1e4 - 0.5]), id="far below zero"),
        pytest.param(torch.tensor([1e4, -1e4, 3e4]), id="far apart"),
    ],
)
def test_attend_weighs_exactly(scores: Tensor) -> None:
    """Values that make z the softmax itself: each weight within 1e-6 of its own size."""
    n = len(scores)
    q, k, v = torch.eye(n)[:1].view(1, 1, 1, n), torch.zeros(1, 1, n, n), torch.eye(n).view(1, 1, n, n)
    k[0, 0, :, 0] = scores
    z = few_rows.attend(q, k, v, 1.0, ints((0, n)))[0, 0, 0]
    torch.testing.assert_close(z.double(), scores.double().softmax(0), rtol=1e-6, atol=1e-37)


def test_attend_to_nothing_gathers_nothing() -> None:
    q, k = random(2, 1, 1, 16), random(2, 1, 4, 16)
    z = few_rows.attend(q, k, k, 1.0, ints((2, 2), (2, 3)))
    assert z[0].count_nonzero() == 0
    torch.testing.assert_close(z[1], k[1, :, 2:3])


@DTYPES
def test_attend_does_not_read_hidden_keys(dtype: torch.dtype) -> None:
    q, k, ranges = random(2, 2, 1, 16, dtype=dtype), random(2, 2, 6, 16, dtype=dtype), ints((1, 5), (0, 2))
    hidden = k.clone()
    hidden[0, :, [0, 5]], hidden[1, :, 2:] = NAN, NAN
    assert torch.equal(few_rows.attend(q, k, k, 1.0, ranges), few_rows.attend(q, hidden, hidden, 1.0, ranges))


# --- the gate and the sum -------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("d", [1, 37, 256])
def test_silu_gate_and_add(d: int, dtype: torch.dtype) -> None:
    """Two halves of one projection, as the feed-forward block has them; large numbers of both signs."""
    for n_rows in (1, 3):
        gate, up = (30 * random(n_rows, 1, 2 * d, dtype=dtype)).chunk(2, dim=-1)
        assert few_rows.silu_gate_applies(gate, up)
        assert_rounded_once(few_rows.silu_gate(gate, up), F.silu(gate.double()) * up.double())
        x, y = gate.contiguous(), up.contiguous()
        assert_rounded_once(few_rows.add(x, y), x.double() + y.double())


# --- what holds for all ---------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("bad", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("at", [0, 4, 18])
def test_what_is_no_number_goes_where_torch_sends_it(at: int, bad: float, dtype: torch.dtype) -> None:
    row = random(2, 1, 19, dtype=dtype)
    row[1, 0, at] = bad
    weight = random(4, 19, dtype=dtype, seed=1)
    sin, cos = torch.zeros(1, 1, 1, 18), torch.ones(1, 1, 1, 18)
    z = few_rows.rotate(row[:, None], cos, sin)[:, 0]
    mine = few_rows.linear(row, weight, None), few_rows.rms_norm(row, weight[0], 1e-5, 0.0), few_rows.add(row, row), z
    turned = _rotate(row[:, None].double(), cos.double(), sin.double())[:, 0].to(dtype)
    torchs = F.linear(row, weight), F.rms_norm(row, (19,), weight[0], 1e-5), row + row, turned
    for a, b in zip(mine, torchs, strict=True):
        torch.testing.assert_close(a, b, rtol=0.01, atol=0.01, equal_nan=True)


@DTYPES
@pytest.mark.parametrize("at", [0, 4, 18])
def test_what_is_no_number_is_seen_by_attention(at: int, dtype: torch.dtype) -> None:
    """A score of NaN or +∞ leaves no sum to divide by; one of −∞ has no weight; a value spoils its coordinate alone."""
    q, ranges = torch.ones(1, 2, 1, 3, dtype=dtype), ints((0, 19))
    k, v = random(1, 2, 19, 3, dtype=dtype), random(1, 2, 19, 3, dtype=dtype, seed=1)
    plain = few_rows.attend(q, k, v, 1.0, ranges)
    for bad in (NAN, INF, -INF):
        worse = k.clone()
        worse[0, 1, at, 2] = bad
        z = few_rows.attend(q, worse, v, 1.0, ranges)
        assert torch.equal(z[0, 0], plain[0, 0])
        assert torch.equal(z[0, 1].isfinite(), torch.full((1, 3), bad == -INF))
        worse = v.clone()
        worse[0, 1, at, 2] = bad
        z = few_rows.attend(q, k, worse, 1.0, ranges)
        assert torch.equal(z[0, 1, 0, :2], plain[0, 1, 0, :2])
        assert same(z[0, 1, 0, 2], torch.tensor(bad, dtype=dtype))


@DTYPES
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    """Bit for bit, at any number of rows."""
    x, weight, k = random(8, 1, 100, dtype=dtype), random(33, 100, dtype=dtype), random(8, 2, 40, 50, dtype=dtype)
    table, ranges = random(8, 1, 1, 50), ints(*((row, 40 - row) for row in range(8)))
    operations: list[Callable[[int, int], Tensor]] = [
        lambda i, j: few_rows.linear(x[i:j], weight, None),
        lambda i, j: few_rows.rms_norm(x[i:j], weight[0], 1e-5, 0.0),
        lambda i, j: few_rows.silu_gate(x[i:j], x[i:j]),
        lambda i, j: few_rows.rotate(x[i:j].view(-1, 2, 1, 50), table[i:j], table[i:j]),
        lambda i, j: few_rows.attend(x[i:j].view(-1, 2, 1, 50), k[i:j], k[i:j], 0.1, ranges[i:j].contiguous()),
    ]
    for operation in operations:
        alone = torch.cat([operation(row, row + 1) for row in range(8)])
        for n_rows in range(2, 9):
            assert torch.equal(operation(0, n_rows), alone[:n_rows])


def test_four_python_threads_at_once(threads: None) -> None:
    weights, xs = [random(300 + i, 200, seed=i) for i in range(4)], [random(1, 200, seed=i) for i in range(4)]
    q, k, v = random(2, 4, 1, 64), random(2, 2, 600, 64, seed=1), random(2, 2, 600, 64, seed=2)
    ranges = [ints((0, 600 - i), (i, 600)) for i in range(4)]
    n_threads = torch.get_num_threads()

    def both(i: int) -> tuple[Tensor, Tensor]:
        return few_rows.linear(xs[i], weights[i], None), few_rows.attend(q, k, v, 0.125, ranges[i])

    expected = [both(i) for i in range(4)]

    def work(i: int) -> bool:
        torch.set_num_threads(n_threads)
        with torch.no_grad():
            return all(torch.equal(a, b) for _ in range(25) for a, b in zip(both(i), expected[i], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_other_defaults_change_nothing() -> None:
    x, weight, q, k, ranges = random(1, 6), random(4, 6), random(1, 2, 1, 4), random(1, 2, 3, 4), ints((0, 3))

    def results() -> list[Tensor]:
        return [
            few_rows.linear(x, weight, None),
            few_rows.rms_norm(x, weight[0], 1e-5, 0.0),
            few_rows.rotate(q, q[:, :1], q[:, 1:]),
            few_rows.attend(q, k, k, 1.0, ranges),
        ]

    expected = results()
    try:
        torch.set_default_dtype(BF16)
        torch.set_default_device("meta")
        mine = results()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(same(a, b) for a, b in zip(mine, expected, strict=True))


# --- where torch goes on ----------------------------------------------------------------------------------------


class Labelled(Tensor):
    """A tensor with a type of its own, which may mean anything."""


MASK = Mask(starts=(3,), n_queries=1, window=None)


def cases() -> list[Any]:
    """Each question with arguments that it agrees to."""
    q, k = random(1, 4, 1, 6), random(1, 2, 7, 6)
    return [
        pytest.param(few_rows.linear_applies, (random(1, 6), random(4, 6)), id="linear"),
        pytest.param(few_rows.rms_norm_applies, (random(1, 6), random(6)), id="rms_norm"),
        pytest.param(few_rows.rotate_applies, (q, random(1, 1, 1, 6)), id="rotate"),
        pytest.param(few_rows.append_applies, (k[:, :, :1], k), id="append"),
        pytest.param(few_rows.attend_applies, (q, k, k), id="attend"),
        pytest.param(few_rows.silu_gate_applies, (random(1, 1, 6), random(1, 1, 6)), id="silu_gate"),
    ]


@pytest.mark.parametrize(("applies", "arguments"), cases())
def test_leaves_to_torch_what_loops_cannot_read(applies: Callable[..., bool], arguments: tuple[Tensor, ...]) -> None:
    """Types that no loop was made for, two types at once, other devices, tensors that mean more, gradients."""
    assert applies(*arguments)
    with torch.inference_mode():
        assert applies(*arguments)
    with torch.enable_grad():
        assert not applies(*arguments)
    for change in (
        lambda t: t.half(),
        lambda t: t.double(),
        lambda t: t.to("meta"),
        lambda t: t.as_subclass(Labelled),
    ):
        assert not applies(*map(change, arguments))
        assert not applies(change(arguments[0]), *arguments[1:])
        if applies is not few_rows.rotate_applies:
            assert not applies(arguments[0], change(arguments[1]), *arguments[2:])
    assert not applies(arguments[0], arguments[1].bfloat16(), *arguments[2:])


@pytest.mark.parametrize(
    ("applies", "arguments"),
    [
        pytest.param(few_rows.linear_applies, (random(9, 6), random(4, 6)), id="nine rows"),
        pytest.param(few_rows.linear_applies, (random(5, 6).to(BF16), random(4, 6).to(BF16)), id="five rows of bf16"),
        pytest.param(few_rows.linear_applies, (random(1, 5), random(4, 6)), id="another width"),
        pytest.param(few_rows.linear_applies, (random(1, 6), random(6, 4).T), id="weight not in a row"),
        pytest.param(few_rows.rms_norm_applies, (random(9, 6), random(6)), id="nine rows to norm"),
        pytest.param(few_rows.rms_norm_applies, (random(6, 2).T, random(6)), id="rows to norm not in a row"),
        pytest.param(few_rows.rotate_applies, (random(1, 2, 2, 4), random(1, 1, 2, 4)), id="two positions"),
        pytest.param(
            few_rows.rotate_applies, (random(1, 2, 1, 8)[..., ::2], random(1, 1, 1, 4)), id="coordinates apart"
        ),
        pytest.param(few_rows.append_applies, (random(1, 2, 2, 4), random(1, 2, 9, 4)), id="two keys"),
        pytest.param(
            few_rows.append_applies, (random(1, 2, 1, 8)[..., ::2], random(1, 2, 9, 4)), id="key's numbers apart"
        ),
        pytest.param(few_rows.attend_applies, (random(1, 2, 2, 4), *random(2, 1, 2, 9, 4)), id="two queries"),
        pytest.param(
            few_rows.attend_applies, (random(1, 2, 1, 4), *random(2, 1, 2, 4, 9).mT), id="keys' numbers apart"
        ),
        pytest.param(few_rows.silu_gate_applies, (random(1, 2, 4), random(1, 2, 4)), id="two positions to gate"),
    ],
)
def test_leaves_other_shapes_to_torch(applies: Callable[..., bool], arguments: tuple[Tensor, ...]) -> None:
    assert not applies(*arguments)


def test_a_wrong_width_gets_torchs_own_message() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Linear(6, 4)(random(1, 5))


class Layer(nn.Module):
    """Norm and linear map, on rows of six."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = RMSNorm(6, RMSNormConfig(eps=1e-5)), Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def appended(k: Tensor, v: Tensor) -> Tensor:
    cache = SimpleNamespace(lengths=[3], slots=ints(3))
    return torch.stack(LayerCache(cache, torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4)).append(k, v))


@pytest.mark.parametrize(
    ("name", "module", "shapes"),
    [
        ("linear", Linear(6, 4), [(1, 6)]),
        ("rms_norm", RMSNorm(6, RMSNormConfig()), [(1, 6)]),
        ("rotate", _rotate, [(1, 2, 1, 4), (1, 1, 1, 4), (1, 1, 1, 4)]),
        ("append", appended, [(1, 2, 1, 4), (1, 2, 1, 4)]),
        ("attend", lambda *qkv: Fused(0.5)(*qkv, MASK, IDLE), [(1, 4, 1, 4), (1, 2, 4, 4), (1, 2, 4, 4)]),
        ("silu_gate", partial(GatedFeedForward.gate, SimpleNamespace(activation=F.silu)), [(1, 1, 6), (1, 1, 6)]),
    ],
    ids=lambda name: name if isinstance(name, str) else "",
)
def test_the_modules_ask_the_loops_first(
    name: str, module: Callable[..., Tensor], shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And torch's own way, which a pass that keeps gradients goes, gives the same."""
    arguments, loop, calls = [random(*shape, seed=i) for i, shape in enumerate(shapes)], getattr(few_rows, name), []
    monkeypatch.setattr(few_rows, name, lambda *them: calls.append(name) or loop(*them))
    mine = module(*arguments)
    assert calls == [name]
    with torch.enable_grad():
        torchs = module(*arguments)
    assert calls == [name]
    torch.testing.assert_close(mine, torchs.detach(), rtol=1e-5, atol=1e-5)


def test_leaves_exported_programs_to_torch() -> None:
    x, layer = random(1, 6), Layer()
    program = torch.export.export(layer, (x,))
    assert {torch.ops.aten.linear.default, torch.ops.aten.rms_norm.default} <= {n.target for n in program.graph.nodes}
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler, at its import
def test_leaves_compiled_programs_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    seen = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    x, layer = random(1, 6), Layer()
    y = torch.compile(layer, backend=backend, fullgraph=True)(x)
    assert {F.linear, torch.rms_norm} <= set(seen)
    torch.testing.assert_close(y, layer(x), rtol=1e-5, atol=1e-5)


def test_leaves_everything_to_torch_where_the_loops_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    x, layer = random(1, 6), Linear(6, 4)
    expected = layer(x)
    monkeypatch.setitem(sys.modules, "cutaway.nn.loops", None)
    few_rows._loops.cache_clear()
    try:
        assert not few_rows.linear_applies(x, layer.weight)
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    finally:
        few_rows._loops.cache_clear()


# --- processes, and what is kept on disk --------------------------------------------------------------------------


def run(program: str, **environment: str) -> None:
    """In a process of its own: what crashes or hangs there must not do so here."""
    search = os.pathsep.join([str(Path(cutaway.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search, **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    """It computes by torch's operations; the parent goes on as before. Nothing loads numba before the first row."""
    run("""
import os, sys, torch
from cutaway.nn import few_rows, linear
assert "numba" not in sys.modules
torch.set_num_threads(2)
torch.set_grad_enabled(False)
layer, x, q = linear.Linear(64, 64, bias=False), torch.ones(1, 64), torch.ones(1, 4, 1, 64)
layer.weight.fill_(1)
k, ranges = torch.ones(1, 4, 600, 64), torch.tensor([[0, 600]])
def right():
    return bool((layer(x) == 64).all())
assert few_rows.linear_applies(x, layer.weight) and right()
few_rows.attend(q, k, k, 1.0, ranges)
child = os.fork()
if child == 0:
    os._exit(0 if right() and not few_rows.linear_applies(x, layer.weight) else 3)
assert few_rows.linear_applies(x, layer.weight) and right()
few_rows.attend(q, k, k, 1.0, ranges)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")


DOUBLE = """
from numba import carray
from cutaway.nn import loops

@loops.loop(1)
def double(arguments):
    x = loops.numbers(carray(arguments, 2)[1], 1, loops.FP32)
    x[0] += x[0]
"""


@pytest.fixture
def doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A module with one small loop: each call imports it anew, runs it, and says how often a kept one was found."""
    monkeypatch.setattr("numba.core.config.CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "package").mkdir()
    path = tmp_path / "package" / "small.py"
    path.write_text(DOUBLE)

    def load() -> int:
        spec = importlib.util.spec_from_file_location("small", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = torch.tensor([21.0])
        module.double(1, x.data_ptr())
        assert x.tolist() == [42.0]
        return module.double.compiled.cache_hits

    return load


def test_a_loop_is_compiled_once(doubled: Callable[[], int]) -> None:
    assert [doubled(), doubled()] == [0, 1]


@pytest.mark.parametrize("n_kept", [0, 0.5, 0.99])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_kept_loop_is_compiled_again(
    suffix: str, n_kept: float, doubled: Callable[[], int], tmp_path: Path
) -> None:
    doubled()
    (kept,) = tmp_path.rglob(f"*.{suffix}")
    kept.write_bytes(kept.read_bytes()[: int(n_kept * kept.stat().st_size)])
    assert doubled() == 0


def test_a_package_nobody_may_write_to(
    doubled: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops are kept in the user's cache, and nowhere if there is none. A file stands where the folder would be."""
    (tmp_path / "package" / "__pycache__").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [doubled(), doubled()] == [0, 1]
    assert list((tmp_path / "home").rglob("*.nbi"))
    (tmp_path / "nobody").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    assert [doubled(), doubled()] == [0, 0]


def test_damaged_kept_loops_of_the_package(tmp_path: Path) -> None:
    """One damaged, one empty; all others are still found."""
    loops = few_rows._loops()
    kept = loops.append_fp32.compiled._cache.cache_path
    if kept is None:
        pytest.skip("nothing can be kept on this machine")
    shutil.copytree(Path(cutaway.__file__).parent, tmp_path / "cutaway", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "cutaway" / "nn" / "__pycache__"
    folder.mkdir()
    for file in Path(kept).glob("loops.*.nb[ic]"):
        shutil.copy2(file, folder)
    for file in folder.glob("loops.append_fp32*.nbi"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    for file in folder.glob("loops.append_bf16*.nbc"):
        file.write_bytes(b"")
    run(
        f"""
import torch
from cutaway.nn import few_rows
loops = few_rows._loops()
assert loops.__file__.startswith({str(tmp_path)!r})
assert [f.compiled.cache_hits for f in (loops.append_fp32, loops.append_bf16, loops.product_fp32)] == [0, 0, 1]
for dtype in few_rows.MAX_ROWS:
    new, old = torch.ones(2, 1, 1, 1, 3, dtype=dtype), torch.zeros(2, 1, 1, 2, 3, dtype=dtype)
    few_rows.append(*new, *old, torch.tensor([1]))
    assert old.tolist() == [[[[[0] * 3, [1] * 3]]]] * 2
""",
        PYTHONPATH=str(tmp_path),
        NUMBA_CACHE_DIR="",
    )
