"""Patterns whose scores are never written out: softened in one loop, a few queries at a time."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from torch import Tensor

from cutaway.nn import few_rows
from cutaway.nn import reference as formula
from cutaway.nn.mask import Mask
from cutaway.nn.reference import Reference
from cutaway.nn.softmax import soften
from cutaway.nn.tap import IDLE, Tap
from support.tiny import distance

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch may bring no team of threads")

NAN, INF = math.nan, math.inf
MASKS = {
    "a text": Mask(starts=(0,), n_queries=50, window=None),
    "a window": Mask(starts=(0, 0), n_queries=33, window=7),
    "a past": Mask(starts=(5,), n_queries=4, window=None),
    "rows that start apart": Mask(starts=(2, 9), n_queries=21, window=None),
    "rows that start apart, a window": Mask(starts=(2, 9), n_queries=21, window=6),
    "no mask": Mask(starts=(0, 0), n_queries=9, window=None, lengths=(9, 4)),
    "one query": Mask(starts=(0,), n_queries=1, window=None),
}


class Wants(Tap):
    """Keeps what it is handed; hands on a copy of it, or something else."""

    def __init__(
        self, *names: str, instead: Tensor | None = None, at: str = "attn.pattern", copies: bool = False
    ) -> None:
        self.names = names
        self.instead = {} if instead is None else {at: instead}
        self.copies = copies
        self.kept: dict[str, Tensor] = {}

    def wants(self, *names: str) -> bool:
        return not set(self.names).isdisjoint(names)

    def __call__(self, name, value):  # type: ignore[no-untyped-def]
        self.kept[name] = value
        return self.instead.get(name, value.clone() if self.copies else value)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with torch.no_grad():
        yield


def random_qkv(mask: Mask, n_heads: int, n_kv: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((n_heads, mask.n_queries), (n_kv, mask.n_keys), (n_kv, mask.n_keys))
    q, k, v = (torch.randn(len(mask.starts), heads, n, 8, generator=generator) for heads, n in shapes)
    return 4 * q, k, v


def softened(scores: Tensor, mask: Mask, scale: float = 1.0) -> Tensor:
    pattern = torch.full((*scores.shape[:3], mask.n_keys), NAN)
    soften(scores.clone(), pattern, scale, mask.ranges, 0, 0)
    return pattern


@pytest.mark.parametrize("near", [3, 16, 128])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_formula(name: str, heads: tuple[int, int], near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formula, "NEAR", near)
    mask, reference = MASKS[name], Reference(8**-0.5, None)
    q, k, v = random_qkv(mask, *heads)
    shown, stages = Wants("attn.pattern"), Wants("attn.pattern", "attn.masked")
    z = reference(q, k, v, mask, shown)
    assert distance(z, reference(q, k, v, mask, stages)) <= 2e-6
    assert list(shown.kept) == ["attn.pattern"]
    assert list(stages.kept) == ["attn.scores", "attn.scaled", "attn.masked", "attn.pattern"]
    pattern, expected = shown.kept["attn.pattern"], stages.kept["attn.pattern"]
    assert distance(pattern, expected) <= 1e-6
    assert torch.equal(pattern == 0, stages.kept["attn.masked"].isneginf())
    assert float((pattern.sum(-1) - 1).abs().max()) <= 1e-6


@pytest.mark.parametrize("near", [3, 16, 128])
@pytest.mark.parametrize("name", [name for name in MASKS if len(MASKS[name].starts) == 1 and "past" not in name])
def test_its_scores_can_be_had_afterwards_bit_for_bit(name: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Softening them gives the pattern again, and those that no query sees are q·kᵀ too."""
    monkeypatch.setattr(formula, "NEAR", near)
    mask, reference = MASKS[name], Reference(8**-0.5, None)
    q, k, v = random_qkv(mask, 6, 2)
    shown = Wants("attn.pattern")
    reference(q, k, v, mask, shown)
    scores = reference.scores(q, k, mask)
    assert torch.equal(softened(scores, mask, 8**-0.5), shown.kept["attn.pattern"])
    assert distance(scores, q @ k.repeat_interleave(3, 1).mT) <= 1e-5


def test_a_long_text_in_pieces_and_threads() -> None:
    """More rows than one piece has, and several chunks of queries."""
    mask = Mask(starts=(0,), n_queries=300, window=None)
    q, k, v = random_qkv(mask, 6, 2)
    shown, stages = Wants("attn.pattern"), Wants("attn.scores")
    z = Reference(0.3, None)(q, k, v, mask, shown)
    assert distance(z, Reference(0.3, None)(q, k, v, mask, stages)) <= 5e-6
    scores = 0.3 * stages.kept["attn.scores"].double()
    exact = scores.masked_fill(torch.ones(300, 300).triu(1).bool(), -INF).softmax(-1)
    assert distance(shown.kept["attn.pattern"], exact) <= 1e-6


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00001, 0x7F800001, -0x3FFFFF])
@pytest.mark.parametrize("n", [2, 37])
def test_whatever_bits_a_nan_has_it_stays_one(n: int, bits: int) -> None:
    """Such as those of a file that was erased to ones."""
    scores = torch.zeros(1, 1, 1, n)
    scores.view(torch.int32)[0, 0, 0, 0] = bits
    assert softened(scores, Mask(starts=(n - 1,), n_queries=1, window=None)).isnan().all()
    k = torch.ones(1, 1, n, 8)
    k.view(torch.int32)[0, 0, 0, 0] = bits
    ranges = Mask(starts=(n - 1,), n_queries=1, window=None).ranges
    assert few_rows.attend(torch.ones(1, 1, 1, 8), k, torch.ones(1, 1, n, 8), 1.0, ranges).isnan().all()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.0, 0.0], [0.5, 0.5]),
        ([1000.0, 0.0], [1.0, 0.0]),
        ([-1000.0, -1000.0], [0.5, 0.5]),
        ([-INF, 0.0], [0.0, 1.0]),
        ([-INF, -INF], [0.0, 0.0]),  # it sees nothing and gathers nothing
        ([NAN, 0.0], [NAN, NAN]),
        ([-NAN, 5.0], [NAN, NAN]),
        ([NAN, -INF], [NAN, NAN]),
        ([INF, 0.0], [NAN, NAN]),  # as torch's softmax has it
        ([-0.0, 0.0], [0.5, 0.5]),
        ([3.4e38, -3.4e38], [1.0, 0.0]),
    ],
)
@pytest.mark.parametrize("n", [2, 37])
def test_the_ends_of_the_scale(row: list[float], expected: list[float], n: int) -> None:
    """The same in a long row, whose numbers are taken in vectors: there the others are −∞."""
    others = [-INF] * (n - 2)
    scores = torch.tensor([[[[*others, *row]]]])
    found = softened(scores, Mask(starts=(n - 1,), n_queries=1, window=None))[0, 0, 0]
    wanted = torch.tensor([*([0.0 if expected[0] == expected[0] else NAN] * (n - 2)), *expected])
    assert torch.allclose(found, wanted, atol=1e-7, equal_nan=True)
    plain = scores.softmax(-1)[0, 0, 0]
    assert bool(plain.isneginf().any()) or torch.allclose(
        found, plain.nan_to_num() if wanted.sum() == 0 else plain, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("hidden", [NAN, INF, -INF])
def test_what_is_hidden_does_not_matter(hidden: float) -> None:
    """Whatever lies above the diagonal; what memory held before is written over."""
    mask = MASKS["a text"]
    scores = torch.randn(1, 3, 50, 50, generator=torch.Generator().manual_seed(0))
    worse = scores.masked_fill(torch.ones(50, 50).triu(1).bool(), hidden)
    assert torch.equal(softened(worse, mask), softened(scores, mask))


@pytest.mark.parametrize("near", [3, 16, 128])
@pytest.mark.parametrize("name", MASKS)
def test_what_is_wanted_or_put_back_changes_no_bit(name: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 5, below the trace: each stage, copied and handed on."""
    monkeypatch.setattr(formula, "NEAR", near)
    mask, reference = MASKS[name], Reference(8**-0.5, None)
    q, k, v = random_qkv(mask, 6, 2)
    plain = Wants("attn.pattern")
    z = reference(q, k, v, mask, plain)
    for stage in formula.STAGES:
        for copies in (False, True):
            tap = Wants(stage, copies=copies)
            assert torch.equal(reference(q, k, v, mask, tap), z), stage
            assert torch.equal(tap.kept["attn.pattern"], plain.kept["attn.pattern"]), stage


@pytest.mark.parametrize("handed_on", [lambda x: x.mT.contiguous().mT, lambda x: x.double()], ids=["strides", "fp64"])
def test_what_is_handed_on_may_lie_otherwise(handed_on: Callable[[Tensor], Tensor]) -> None:
    """The loop reads memory as it lies: equal numbers in another order or type must give the same."""
    mask, reference = MASKS["a text"], Reference(0.5, None)
    q, k, v = random_qkv(mask, 6, 2)
    plain = Wants("attn.masked")
    z = reference(q, k, v, mask, plain)
    masked = plain.kept["attn.masked"]
    before = masked.clone()
    assert torch.equal(reference(q, k, v, mask, Wants("attn.masked", instead=handed_on(masked), at="attn.masked")), z)
    assert torch.equal(masked, before), "it is somebody's, and not written over"


def test_an_edited_score_is_seen_where_the_mask_hid_it() -> None:
    """A masked score that is set opens the way to a later key."""
    mask = MASKS["a text"]
    q, k, v = random_qkv(mask, 6, 2)
    open_ = torch.full((1, 6, 50, 50), -INF).masked_fill(torch.eye(50).roll(1, 1).bool(), 0.0)
    tap = Wants("attn.masked", instead=open_, at="attn.masked")
    z = Reference(0.5, None)(q, k, v, mask, tap)
    assert distance(z, v.repeat_interleave(3, 1).roll(-1, 2)) <= 1e-6


def test_an_edited_pattern_gathers_anew() -> None:
    """Even where it looks at what comes later."""
    mask, reference = MASKS["a text"], Reference(0.5, None)
    q, k, v = random_qkv(mask, 6, 2)
    ahead = torch.eye(50).roll(1, 1).expand(1, 6, 50, 50)
    z = reference(q, k, v, mask, Wants("attn.pattern", instead=ahead))
    assert distance(z, v.repeat_interleave(3, 1).roll(-1, 2)) <= 1e-6


def test_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap, a gradient, another type of number, nobody to run the loops: the stages one by one."""
    mask = MASKS["a text"]
    q, k, v = random_qkv(mask, 6, 2)
    monkeypatch.setattr(formula, "soften", None)
    Reference(0.5, 30.0)(q, k, v, mask, IDLE)
    Reference(0.5, None)(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask, IDLE)
    with torch.enable_grad():
        assert Reference(0.5, None)(q.requires_grad_(), k, v, mask, IDLE).requires_grad
    q = q.detach()
    for reference, two in ((Reference(0.5, 30.0), (q, k)), (Reference(0.5, None), (q.double(), k.double()))):
        assert torch.equal(reference.scores(*two, mask), formula.by_groups(two[0], two[1].mT))
    monkeypatch.setattr(few_rows, "loops", lambda: None)
    Reference(0.5, None)(q, k, v, mask, IDLE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler, at its import
@pytest.mark.parametrize("name", ["a window", "rows that start apart", "no mask"])
def test_a_mask_that_is_written_out_compiles_without_a_break(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a model with windows stays one graph."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # whose checks cannot be traced
    mask = dataclasses.replace(MASKS[name])  # with nothing worked out yet
    everything = slice(0, mask.n_queries), slice(0, mask.n_keys)

    def hidden(x: Tensor) -> Tensor:
        visible = mask.visible(*everything)
        assert visible is not None
        return x.masked_fill(~visible, -INF)

    x = torch.randn(len(mask.starts), 1, mask.n_queries, mask.n_keys)
    assert torch.equal(torch.compile(hidden, backend="eager", fullgraph=True)(x), hidden(x))
