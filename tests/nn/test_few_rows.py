"""The loops of a decoding step equal the torch operations that they stand in for, and leave the rest to torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cutaway.config import RMSNormConfig
from cutaway.nn import few_rows
from cutaway.nn.cache import LayerCache
from cutaway.nn.feedforward import gated
from cutaway.nn.kernel import Fused
from cutaway.nn.linear import Linear
from cutaway.nn.mask import Mask
from cutaway.nn.norm import RMSNorm
from cutaway.nn.position import _rotate
from cutaway.nn.tap import IDLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may bring no team of threads")

BF16 = torch.bfloat16
NAN, INF = float("nan"), float("inf")
DTYPES = pytest.mark.parametrize("dtype", few_rows.DTYPES, ids=str)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With two, even the smallest attention is divided."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    monkeypatch.setattr(few_rows, "SECOND_THREAD", 0)
    yield
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype)


def ints(*numbers: Any) -> Tensor:
    """The slots of rows."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def seen(*ranges: tuple[int, int]) -> Tensor:
    """The keys that the one query of each row sees."""
    return ints(*ranges)[:, None]


def assert_rounded_once(mine: Tensor, exact: Tensor) -> None:
    """Against fp64: fp32 within 1e-5, bf16 within half the distance of two neighbours."""
    rtol = 1e-5 if mine.dtype == torch.float32 else 1.001 * torch.finfo(mine.dtype).eps / 2
    torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=1e-5, equal_nan=True)


def operations(x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Every operation on rows [B 1 D]: by the loops, and by torch in fp64."""
    n_rows, _, d = x.shape
    weight, gain = random(13, d, dtype=x.dtype, seed=1), random(d, dtype=x.dtype, seed=2)
    other, (cos, sin) = gain.repeat(n_rows, 1, 1), random(2, 1, 1, 1, d // 4 * 2)
    q, (k, v) = x[:, None], random(2, 1, 1, 9, d, dtype=x.dtype).expand(2, n_rows, 1, 9, d)
    ranges = seen(*[(0, 9)] * n_rows)
    X, W, g, Q, K, V = (t.double() for t in (x, weight, gain, q, k, v))
    return {
        "linear": (few_rows.linear(x, weight, None), F.linear(X, W)),
        "rms_norm": (few_rows.rms_norm(x, gain, 1e-5, 0.0), F.rms_norm(X, (d,), g, 1e-5)),
        "rms_norm, offset": (few_rows.rms_norm(x, gain, 0.5, 1.0), F.rms_norm(X, (d,), 1 + g, 0.5)),
        "rotate": (few_rows.rotate(q, cos, sin), _rotate(Q, cos.double(), sin.double())),
        "silu_gate": (few_rows.silu_gate(x, other), F.silu(X) * g),
        "add": (few_rows.add(x, other), X + g),
        "attend": (few_rows.attend(q, k, v, 0.3, ranges), F.scaled_dot_product_attention(Q, K, V, scale=0.3)),
    }


@DTYPES
@pytest.mark.parametrize("d", [5, 16, 37, 300])
def test_every_operation(d: int, dtype: torch.dtype, threads: None) -> None:
    """And a row does not depend on the rows beside it: bit for bit, at any number of rows."""
    x = 2 * random(8, 1, d, dtype=dtype)
    alone = [operations(row[None]) for row in x]
    for n_rows in range(1, 9):
        for name, (mine, exact) in operations(x[:n_rows]).items():
            assert mine.dtype == dtype
            assert_rounded_once(mine, exact)
            assert torch.equal(mine, torch.cat([row[name][0] for row in alone[:n_rows]])), name


@DTYPES
@pytest.mark.parametrize("bad", [NAN, INF, -INF], ids=str)
def test_what_is_no_number_goes_where_torch_sends_it(bad: float, dtype: torch.dtype) -> None:
    for at in (0, 7, 18):
        x = random(2, 1, 19, dtype=dtype)
        x[1, 0, at] = bad
        for name, (mine, exact) in operations(x).items():
            if name != "silu_gate" or bad != -INF:  # torch gives NaN there, the limit is 0
                assert_rounded_once(mine, exact)


def test_other_defaults_change_nothing() -> None:
    x = random(2, 1, 19)
    expected = operations(x)
    try:
        torch.set_default_dtype(BF16)
        torch.set_default_device("meta")
        found = operations(x)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert all(torch.equal(found[name][0], expected[name][0]) for name in expected)


def test_four_python_threads_at_once(threads: None) -> None:
    xs = [random(2, 1, 200, seed=seed) for seed in range(4)]
    expected, n_threads = [operations(x) for x in xs], torch.get_num_threads()

    @torch.no_grad()
    def work(i: int) -> bool:
        torch.set_num_threads(n_threads)
        again = [operations(xs[i]) for _ in range(25)]
        return all(torch.equal(found[name][0], expected[i][name][0]) for found in again for name in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_by_hand() -> None:
    """A quarter turn takes (1, 0) to (0, 1); scores of 0 and ln 3 weigh the values 1 : 3."""
    weight, bias = torch.tensor([[1.0, 1.0, 1.0], [0.0, -1.0, 2.0]]), torch.tensor([10.0, 20.0])
    assert few_rows.linear(torch.tensor([[1.0, 2.0, 3.0]]), weight, bias).tolist() == [[16.0, 24.0]]
    x, cos, sin = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]).view(3, 1, 1, 1, 2)
    assert few_rows.rotate(x, cos, sin).flatten().tolist() == [0.0, 1.0]
    k, v = torch.tensor([1.0, 3.0]).log().view(1, 1, 2, 1), torch.tensor([4.0, 8.0]).view(1, 1, 2, 1)
    assert float(few_rows.attend(torch.ones(1, 1, 1, 1), k, v, 1.0, seen((0, 2)))) == pytest.approx(7.0)


# --- each by itself -------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(("d_out", "d_in"), [(1, 1), (3, 7), (5, 16), (49, 57), (64, 576), (1003, 100)])
def test_linear(d_out: int, d_in: int, dtype: torch.dtype, threads: None) -> None:
    """Widths below, at and past whole vectors; heights below, at and past the rows read side by side."""
    weight, bias = random(d_out, d_in, dtype=dtype), random(d_out, dtype=dtype, seed=1)
    for n_rows in range(1, few_rows.MAX_ROWS + 1):
        x = random(n_rows, 1, d_in, dtype=dtype, seed=2)
        assert few_rows.linear_applies(x, weight, bias)
        assert few_rows.linear_applies(x[:, 0], weight, bias) == (dtype is not BF16 or n_rows <= few_rows.MAX_PROMPT)
        assert_rounded_once(few_rows.linear(x, weight, bias), F.linear(x.double(), weight.double(), bias.double()))


def test_linear_of_views() -> None:
    """Any leading axes, rows that lie apart, a row that is only repeated."""
    weight = random(7, 5)
    for x in (random(2, 3, 5), random(5), random(4, 9)[:, 2:7], random(5, 4).T, random(1, 5).expand(3, 5)):
        assert_rounded_once(few_rows.linear(x, weight, None), F.linear(x.double(), weight.double()))


@DTYPES
def test_linear_in_pieces(dtype: torch.dtype, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces that threads take leave nothing out, whatever their size, and change no number."""
    x, weight = random(1, 1000, dtype=dtype), random(9001, 1000, dtype=dtype, seed=1)
    assert weight.nbytes > 4 * few_rows.PIECE
    whole = few_rows.linear(x, weight, None)
    torch.testing.assert_close(whole.double(), F.linear(x.double(), weight.double()), rtol=2**-8, atol=1e-4)
    for n_bytes in (1000, 5000, 70_000):
        monkeypatch.setattr(few_rows, "PIECE", n_bytes)
        assert torch.equal(few_rows.linear(x, weight[:1021], None), whole[:, :1021])


@DTYPES
def test_rotate(dtype: torch.dtype) -> None:
    """q and k as attention has them, views of one projection; each row at an angle of its own."""
    q, k, _ = (part.transpose(1, 2) for part in random(3, 1, 15, 64, dtype=dtype).split((9, 3, 3), dim=2))
    cos, sin = random(2, 3, 1, 1, 40, seed=1)
    for x in (q, k):
        assert few_rows.rotate_applies(x, cos)
        assert_rounded_once(few_rows.rotate(x, cos, sin), _rotate(x.double(), cos.double(), sin.double()))


@pytest.mark.parametrize("lower_half", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], ids=hex)
def test_bf16_is_rounded_to_nearest_even(lower_half: int) -> None:
    """For all 65 536 upper halves of an fp32, NaN too: the rotation adds the lower half and rounds."""
    upper = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    numbers, wanted = upper.view(BF16), ((upper.to(torch.int32) << 16) | lower_half).view(torch.float32)
    missing = torch.where(numbers.isfinite(), wanted - numbers.float(), wanted)
    x = torch.stack((numbers, torch.ones_like(numbers)), dim=-1)[:, None, None]
    cos, sin = torch.ones(x.shape), torch.stack((missing, missing), dim=-1)[:, None, None]
    rounded = few_rows.rotate(x, cos, sin)[:, 0, 0, 0]
    torch.testing.assert_close(rounded, wanted.to(BF16), rtol=0, atol=0, equal_nan=True)


@DTYPES
def test_append(dtype: torch.dtype) -> None:
    """Each row into its own slot, and into no other. Two kinds of view."""
    k, v = random(3, 1, 9, 7, dtype=dtype).transpose(1, 2)[:, 3:7], random(3, 4, 1, 10, dtype=dtype, seed=1)[..., 2:9]
    mine, expected = random(2, 3, 4, 11, 7, dtype=dtype), random(2, 3, 4, 11, 7, dtype=dtype)
    assert few_rows.append_applies(k, mine[0])
    few_rows.append(k, v, mine[0], mine[1], ints(0, 10, 5))
    for row, slot in enumerate((0, 10, 5)):
        expected[0, row, :, slot], expected[1, row, :, slot] = k[row, :, 0], v[row, :, 0]
    assert torch.equal(mine, expected)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float, ranges: Tensor) -> Tensor:
    slots = torch.arange(k.shape[2])
    mask = ((slots >= ranges[..., :1]) & (slots < ranges[..., 1:]))[:, None]
    q, k, v = q.double(), k.double(), v.double()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@DTYPES
@pytest.mark.parametrize(("n_heads", "n_kv", "d_head"), [(9, 3, 64), (4, 4, 16), (8, 1, 128), (2, 1, 5), (3, 1, 1)])
def test_attend(n_heads: int, n_kv: int, d_head: int, dtype: torch.dtype, threads: None) -> None:
    """Views of longer buffers, of two layouts; all keys or a window of them; rows of one length or of several."""
    q = random(2, 1, n_heads, d_head, dtype=dtype).transpose(1, 2)
    wide = random(2, n_kv, 300, d_head, dtype=dtype, seed=1), random(2, 300, n_kv, d_head, dtype=dtype).transpose(1, 2)
    for n in (1, 5, 16, 17, 290):
        for k, v in ((wide[0][:, :, :n], wide[1][:, :, :n]), (wide[1][:, :, :n], wide[0][:, :, :n])):
            assert few_rows.attend_applies(q, k, v)
            for rows in (((0, n), (0, n)), ((0, n), (n // 2, n)), ((0, 1), (max(n - 7, 0), n))):
                assert_rounded_once(few_rows.attend(q, k, v, 0.2, seen(*rows)), attended(q, k, v, 0.2, seen(*rows)))


def test_attend_weighs_exactly() -> None:
    """Values that make z the softmax itself: each weight within 1e-6 of its size. Flat, peaked, far below zero."""
    steps = torch.linspace(-86, 0, 301), torch.linspace(0, -3, 300)
    few = [0.0, 1.0, -1e4, -200.0, -88.0, -87.0, 1.0], [-1e4, -1e4 + 0.5, -1e4 - 0.5], [1e4, -1e4, 3e4]
    for scores in (*steps, *map(torch.tensor, few)):
        n = len(scores)
        q, k, v = torch.eye(n)[:1].view(1, 1, 1, n), torch.zeros(1, 1, n, n), torch.eye(n).view(1, 1, n, n)
        k[0, 0, :, 0] = scores
        z = few_rows.attend(q, k, v, 1.0, seen((0, n)))[0, 0, 0]
        torch.testing.assert_close(z.double(), scores.double().softmax(0), rtol=1e-6, atol=1e-37)


@DTYPES
def test_attend_reads_no_hidden_keys(dtype: torch.dtype) -> None:
    """And a row that sees nothing gathers nothing."""
    q, k, ranges = random(3, 2, 1, 16, dtype=dtype), random(3, 2, 6, 16, dtype=dtype), seen((1, 5), (0, 2), (3, 3))
    hidden = k.clone()
    hidden[0, :, [0, 5]], hidden[1, :, 2:], hidden[2] = NAN, NAN, NAN
    z = few_rows.attend(q, hidden, hidden, 1.0, ranges)
    assert torch.equal(z, few_rows.attend(q, k, k, 1.0, ranges))
    assert [int(row.count_nonzero()) for row in z] == [32, 32, 0]


@DTYPES
@pytest.mark.parametrize("at", [0, 7, 18])
def test_attend_hides_nothing_that_is_no_number(at: int, dtype: torch.dtype) -> None:
    """A score of NaN or +∞ leaves no sum to divide by; one of −∞ has no weight; a value spoils its coordinate alone."""
    q, (k, v), ranges = torch.ones(1, 2, 1, 3, dtype=dtype), random(2, 1, 2, 19, 3, dtype=dtype), seen((0, 19))
    plain = few_rows.attend(q, k, v, 1.0, ranges)
    for bad in (NAN, INF, -INF):
        worse_k, worse_v = k.clone(), v.clone()
        worse_k[0, 1, at, 2] = worse_v[0, 1, at, 2] = bad
        z = few_rows.attend(q, worse_k, v, 1.0, ranges)
        assert torch.equal(z[0, 0], plain[0, 0])
        assert z[0, 1].isfinite().all() if bad == -INF else z[0, 1].isnan().all()
        z = few_rows.attend(q, k, worse_v, 1.0, ranges)
        assert torch.equal(z[0, 1, 0, :2], plain[0, 1, 0, :2])
        assert str(float(z[0, 1, 0, 2])) == str(bad)


# --- where torch goes on --------------------------------------------------------------------------------------


Q, KV = random(1, 4, 1, 6), random(1, 2, 7, 6)
FITTING = {
    few_rows.linear_applies: (random(1, 6), random(4, 6), random(4)),
    few_rows.rms_norm_applies: (random(1, 6), random(6)),
    few_rows.rotate_applies: (Q, random(1, 1, 1, 6)),
    few_rows.append_applies: (KV[:, :, :1], KV),
    few_rows.attend_applies: (Q, KV, KV),
    few_rows.silu_gate_applies: (random(1, 1, 6), random(1, 1, 6)),
}


@pytest.mark.parametrize("applies", FITTING, ids=lambda applies: applies.__name__)
def test_leaves_to_torch_what_loops_cannot_read(applies: Callable[..., bool]) -> None:
    """Types that no loop was made for, two types at once, other devices, tensors that mean more, gradients;
    and passes in which operations become others or are counted."""
    (first, second, *rest), asked = FITTING[applies], []
    assert applies(first, second, *rest)
    with torch.inference_mode():
        assert applies(first, second, *rest)
    for state in (torch.enable_grad(), torch.autocast("cpu"), FlopCounterMode(display=False)):
        with state:
            assert not applies(first, second, *rest)
    torch.vmap(lambda _: asked.append(applies(first, second, *rest)) or _, randomness="same")(random(2))
    assert asked == [False]
    labelled = type("Labelled", (Tensor,), {})
    for change in (Tensor.half, Tensor.double, lambda t: t.to("meta"), lambda t: t.as_subclass(labelled)):
        assert not applies(*map(change, (first, second, *rest)))
        assert not applies(change(first), second, *rest)
        if applies is not few_rows.rotate_applies:
            assert not applies(first, change(second), *rest)
    assert not applies(first, second.bfloat16(), *rest)
    assert not rest or not applies(first, second, *(t.bfloat16() for t in rest))


def test_leaves_other_shapes_to_torch() -> None:
    for applies, *arguments in (
        (few_rows.linear_applies, random(few_rows.MAX_ROWS + 1, 6), random(4, 6), None),
        (few_rows.linear_applies, random(5, 6, dtype=BF16), random(4, 6), None),
        (few_rows.linear_applies, random(1, 5), random(4, 6), None),
        (few_rows.linear_applies, random(1, 6), random(6, 4).T, None),
        (few_rows.linear_applies, random(1, 6), random(4, 6), random(8)[::2]),
        (few_rows.rms_norm_applies, random(few_rows.FEW // 6 + 1, 6), random(6)),
        (few_rows.rms_norm_applies, random(1, 6), random(5)),
        (few_rows.rms_norm_applies, random(6, 2).T, random(6)),
        (few_rows.rotate_applies, random(1, 2, 2, 4), random(1, 1, 2, 4)),
        (few_rows.rotate_applies, random(1, 2, 1, 8)[..., ::2], random(1, 1, 1, 4)),
        (few_rows.append_applies, random(1, 2, 2, 4), random(1, 2, 9, 4)),
        (few_rows.append_applies, random(1, 2, 1, 8)[..., ::2], random(1, 2, 9, 4)),
        (few_rows.attend_applies, random(1, 2, 2, 4), *random(2, 1, 2, 9, 4)),
        (few_rows.attend_applies, random(1, 2, 1, 4), *random(2, 1, 2, 4, 9).mT),
        (few_rows.silu_gate_applies, random(1, 2, 4), random(1, 2, 4)),
        (few_rows.silu_gate_applies, random(3, 1, 4), random(1, 1, 4)),
    ):
        assert not applies(*arguments), [applies.__name__, *(t.shape for t in arguments)]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # torch's own message
        Linear(6, 4)(random(1, 5))


def appended(k: Tensor, v: Tensor) -> Tensor:
    cache = SimpleNamespace(lengths=[3], slots=ints(3))
    return torch.stack(LayerCache(cache, torch.zeros(1, 2, 7, 4), torch.zeros(1, 2, 7, 4)).append(k, v))


MASK = Mask(starts=(3,), n_queries=1, window=None)
ASKING = {
    "linear": (Linear(6, 4), [(1, 6)]),
    "rms_norm": (RMSNorm(6, RMSNormConfig()), [(1, 6)]),
    "rotate": (_rotate, [(1, 2, 1, 4), (1, 1, 1, 4), (1, 1, 1, 4)]),
    "append": (appended, [(1, 2, 1, 4), (1, 2, 1, 4)]),
    "attend": (lambda *qkv: Fused(0.5)(*qkv, MASK, IDLE), [(1, 4, 1, 4), (1, 2, 4, 4), (1, 2, 4, 4)]),
    "silu_gate": (partial(gated, F.silu), [(1, 1, 6), (1, 1, 6)]),
}


@pytest.mark.parametrize("name", ASKING)
def test_the_modules_ask_the_loops_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And torch's own way, which a pass that keeps gradients goes, gives the same."""
    (module, shapes), loop, calls = ASKING[name], getattr(few_rows, name), []
    arguments = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    monkeypatch.setattr(few_rows, name, lambda *them: calls.append(name) or loop(*them))
    mine = module(*arguments)
    assert calls == [name]
    with torch.enable_grad():
        torch.testing.assert_close(mine, module(*arguments).detach(), rtol=1e-5, atol=1e-5)
    assert calls == [name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler, at its import
def test_leaves_traced_programs_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported and compiled ones."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # whose checks cannot be traced
    x, layer, seen = random(1, 6), nn.Sequential(RMSNorm(6, RMSNormConfig()), Linear(6, 4)), []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    exported = torch.export.export(layer, (x,))
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for program in (exported.module(), compiled):
        torch.testing.assert_close(program(x), layer(x), rtol=1e-5, atol=1e-5)
    assert {F.linear, torch.rms_norm} <= set(seen)
    aten = torch.ops.aten
    assert {aten.linear.default, aten.rms_norm.default} <= {node.target for node in exported.graph.nodes}


def test_leaves_everything_to_torch_where_the_loops_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cutaway.nn.loops", None)
    few_rows.loops.cache_clear()
    try:
        assert not any(applies(*arguments) for applies, arguments in FITTING.items())
    finally:
        few_rows.loops.cache_clear()
