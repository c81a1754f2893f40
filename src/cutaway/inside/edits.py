"""What a pass is changed by: each edit aims at named values and gives other numbers for them.

Edits are data. They act while one call runs, in the order given, also on every cached step of a generation, and
nothing of them remains. What takes its numbers from a trace, or gives one number a position, acts on the prompt alone
unless positions are named.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.names import WHOLE_NUMBERS, Axes, Index, Target
from cutaway.inside.values import Values, select


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where an edit acts in one pass of one text: the value, and which of every axis are to change."""

    target: Target
    index: Sequence[Index]
    whole: Tensor  # the value of this text, all of it that this pass computes
    first: int  # the position that `whole` begins at
    n_prompt: int

    @property
    def positions(self) -> Index:
        return self.index[self.target.place]


@dataclass(frozen=True, eq=False)
class Edit:
    """The base: it changes nothing. `at` is a name, with wildcards and brackets if wanted."""

    at: str

    def check(self, target: Target) -> None:
        """Whether this edit can act on this value.

        Raises:
            InsideError: it cannot.
        """
        if target.name in WHOLE_NUMBERS:
            raise InsideError(f"{target.name} cannot be edited: give another prompt")

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        """The positions that it acts on where none are named; None for all."""
        return None

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        """The numbers to go on with, of the part's shape or one that spreads to it."""
        return part


class Zero(Edit):
    """Zero ablation: of a head (`blocks.3.attn.z[head 5]`), a feed-forward, neurons, positions."""

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return torch.zeros_like(part)


@dataclass(frozen=True, eq=False)
class Scale(Edit):
    """Every number times a factor."""

    factor: float

    def check(self, target: Target) -> None:
        super().check(target)
        _require_number(self.factor, target, self)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return part * self.factor


@dataclass(frozen=True, eq=False)
class Add(Edit):
    """Add a vector, such as a steering direction [D]; `times` is its strength."""

    vector: Tensor
    _: KW_ONLY
    times: float = 1.0

    def check(self, target: Target) -> None:
        super().check(target)
        _require_tensor(self.vector, target, self)
        _require_number(self.times, target, self)

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return _reach_of(self.vector, axes, n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return part + _spread(self.vector.to(part) * self.times, part, site)


@dataclass(frozen=True, eq=False)
class Replace(Edit):
    """Other numbers instead: a vector, or a whole pattern [T S], whose rows are yours to make sum to 1."""

    value: Tensor

    def check(self, target: Target) -> None:
        super().check(target)
        _require_tensor(self.value, target, self)

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return _reach_of(self.value, axes, n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return _spread(self.value.to(part), part, site)


@dataclass(frozen=True, eq=False)
class Patch(Edit):
    """The numbers of another trace: at the same places, or where `positions` (here → there) says."""

    source: Values
    _: KW_ONLY
    positions: Mapping[int, int] = field(default_factory=dict)

    def check(self, target: Target) -> None:
        super().check(target)
        _require_trace(self.source, target, self)

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return sorted(_from_end(i, n_prompt) for i in self.positions) if self.positions else range(n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        n_there = self.source.n_prompt
        moved = {_from_end(a, site.n_prompt): _from_end(b, n_there) for a, b in self.positions.items()}
        index = list(site.index)
        if moved:
            index[site.target.place] = [moved.get(i, i) for i in site.positions]
        return _from(self.source, site, index)


@dataclass(frozen=True, eq=False)
class Mean(Edit):
    """Mean ablation: the mean over all positions of this text, or of the traces given as `source`.

    Without a source it acts on the prompt alone, and its mean is of the prompt.
    """

    _: KW_ONLY
    source: Values | Sequence[Values] = ()

    def check(self, target: Target) -> None:
        super().check(target)
        _refuse_scores(target, self)
        for source in [self.source] if isinstance(self.source, Values | str) else self.source:
            _require_trace(source, target, self)

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return None if self.source else range(n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        place = site.target.place
        sources = [self.source] if isinstance(self.source, Values) else self.source
        index = list(site.index)
        if not sources:
            index[place] = range(_prompt_of(site, self))
            return select(site.whole, index).mean(place, keepdim=True)
        found = []
        for source in sources:
            index[place] = range(source.length(site.target.name, place))
            found.append(_from(source, site, index).to(part))
        return torch.cat(found, dim=place).mean(place, keepdim=True)


@dataclass(frozen=True, eq=False)
class Resample(Edit):
    """Resample ablation: each position takes the numbers of a random one of `source`, another text's trace.

    Without a source the prompt's own positions exchange theirs. The draw depends on the seed and the position alone.
    """

    _: KW_ONLY
    source: Values | None = None
    seed: int = 0

    def check(self, target: Target) -> None:
        super().check(target)
        _refuse_scores(target, self)
        if self.source is not None:
            _require_trace(self.source, target, self)

    def reach(self, axes: Axes, n_prompt: int) -> Index | None:
        return None if self.source is not None else range(n_prompt)

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        place, index, drawn = site.target.place, list(site.index), random.Random(self.seed)
        if self.source is not None:
            n = self.source.length(site.target.name, place)
            draws = [drawn.randrange(n) for _ in range(max(site.positions) + 1)]
            index[place] = [draws[i] for i in site.positions]
            return _from(self.source, site, index)
        order = list(range(_prompt_of(site, self)))
        drawn.shuffle(order)
        index[place] = [order[i] for i in site.positions]
        return select(site.whole, index)


class KnockOut(Edit):
    """Cut edges of attention: `blocks.3.attn.masked[head 5, query 7, key 2]`, and what is left shares the weight.

    A query that may look nowhere any more gathers zeros.
    """

    def check(self, target: Target) -> None:
        if not target.name.endswith(".attn.masked"):
            raise InsideError(f"KnockOut at {target}: aim it at blocks.N.attn.masked[head h, query q, key k]")

    def __call__(self, part: Tensor, site: Site) -> Tensor:
        return torch.full_like(part, -torch.inf)


def _from(source: Values, site: Site, index: Sequence[Index]) -> Tensor:
    """Those numbers of a source, which must be of a model of the same sizes."""
    for axis, letter in enumerate(site.target.axes):
        n_here = len(site.index[axis])
        if letter not in "TS" and site.target.spans(axis) is None and source.length(site.target.name, axis) > n_here:
            raise InsideError(f"{site.target}: the source has more than {n_here} along {letter}: use one of this model")
    return source.part(site.target.name, index)


def _from_end(position: int, n: int) -> int:
    return position + n if position < 0 else position


def _reach_of(value: Tensor, axes: Axes, n_prompt: int) -> Index | None:
    place = axes.index("T" if "T" in axes else "S") - len(axes)
    return range(n_prompt) if value.ndim >= -place and value.shape[place] > 1 else None


def _spread(value: Tensor, part: Tensor, site: Site) -> Tensor:
    try:
        return value.expand(part.shape)
    except RuntimeError as error:
        shapes = f"a value of shape {tuple(value.shape)} does not spread to {tuple(part.shape)}"
        raise InsideError(f"{site.target}: {shapes}, the part it is for; change its shape or the brackets") from error


def _require_tensor(value: object, target: Target, edit: Edit) -> None:
    if not isinstance(value, Tensor):
        raise InsideError(f"{type(edit).__name__} at {target}: {value!r:.40} is no tensor: give torch.tensor(...)")


def _require_trace(value: object, target: Target, edit: Edit) -> None:
    if not isinstance(value, Values):
        raise InsideError(f"{type(edit).__name__} at {target}: {value!r:.40} is no trace: give model.trace(prompt)")


def _require_number(value: object, target: Target, edit: Edit) -> None:
    if not isinstance(value, Real | Tensor):  # numpy's are real numbers too
        raise InsideError(f"{type(edit).__name__} at {target}: {value!r:.40} is no number")


def _refuse_scores(target: Target, edit: Edit) -> None:
    if {"T", "S"} <= set(target.axes):
        raise InsideError(
            f"{type(edit).__name__} at {target}: each query has other keys, so its row is no one else's; "
            "use Replace or KnockOut, or aim at attn.z"
        )


def _prompt_of(site: Site, edit: Edit) -> int:
    """How many positions the prompt has, all of which the pass must hold."""
    if site.first or max(site.positions) >= site.n_prompt:
        raise InsideError(
            f"{type(edit).__name__} at {site.target}: a new token has no other positions at hand; give source=, a trace"
        )
    return site.n_prompt
