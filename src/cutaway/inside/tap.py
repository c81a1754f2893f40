"""The tap of a trace: it keeps and edits what was asked for, and lets everything else of the pass be.

A block of which nothing is asked gets the idle tap, so it runs as if nobody watched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.edits import Edit, Site
from cutaway.inside.names import AFTER, Index, Target
from cutaway.inside.values import Entry, Values, put, select
from cutaway.nn.tap import IDLE, Tap

Wanted = TypeVar("Wanted")

# What one product has in it, in the order in which it is shown; and what lies there too where nothing is rotated.
PRODUCTS = {("attn.q_raw", "attn.k_raw", "attn.v"): ("attn.q", "attn.k"), ("ff.pre", "ff.up"): ()}
FIRST = tuple(parts[0] for parts in PRODUCTS)
# What a cached step has no number for, because the key came later: hidden by the mask, or never computed (NaN).
LATER_KEYS = {"attn.pattern": 0.0, "attn.masked": -math.inf}


@dataclass(kw_only=True, eq=False)
class Row:
    """One text of the batch: what the current pass reads of it, and what was kept so far."""

    n_prompt: int
    first: int = 0
    n_new: int = 0
    pieces: dict[Target, list[tuple[tuple[Index, ...], Tensor]]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.first + self.n_new

    def view(self, target: Target, value: Tensor, at: int) -> Tensor:
        """This text's own share of a batch: its row, without the pads and what lies behind them."""
        value = value[min(at, value.shape[0] - 1)][None]  # positions come once where all texts start together
        for axis, letter in enumerate(target.axes):
            if letter in "TS":
                value = value.narrow(axis, 0, self.n_new if letter == "T" else self.end)
        return value

    def index(self, target: Target, value: Tensor, *, new_only: bool, reach: Index | None = None) -> list[Index]:
        """Which of every axis are meant in this pass. Old keys and values are kept already: `new_only`."""
        index: list[Index] = []
        for axis, letter in enumerate(target.axes):
            is_place = axis == target.place
            first = self.first if letter == "T" or (is_place and new_only) else 0
            universe = range(first, self.end) if letter in "TS" else range(value.shape[axis])
            chosen = target.index(axis, universe, self.n_prompt if letter in "TS" else value.shape[axis])
            if is_place and reach is not None and target.spans(axis) is None:
                chosen = [i for i in chosen if i in reach]
            index.append(chosen)
        return index

    def local(self, target: Target, index: Sequence[Index]) -> list[Index]:
        """The same, counted from where this pass begins."""
        if "T" not in target.axes or not self.first:
            return list(index)
        axis = target.axes.index("T")
        here = index[axis]
        moved: Index = (
            range(here.start - self.first, here.stop - self.first)
            if isinstance(here, range)
            else [i - self.first for i in here]
        )
        return [moved if i == axis else chosen for i, chosen in enumerate(index)]

    def has_all(self, target: Target, value: Tensor) -> bool:
        """Whether all of a value is this text's and is wanted: the common case, made short."""
        return not target.picks and not self.first and value.shape[0] == 1 and value.shape[target.place] == self.n_new

    def keep(self, target: Target, value: Tensor, at: int = 0, *, lent: bool = False) -> None:
        """Hold what is wanted of this text's value; a text that is read again from an earlier place takes over.

        `at` is its row of the batch. What is `lent` is a view of memory that is all held anyway, and is not copied.
        """
        if self.has_all(target, value):
            part = value.detach() if value.requires_grad else value
            self.pieces[target] = [(ranges(value.shape), part if lent else compact(part))]
            return
        value = self.view(target, value, at)
        index = self.index(target, value, new_only=True)
        if not index[target.place]:  # keys that are wanted may be still to come
            return
        held = [(old, piece) for old, piece in self.pieces.get(target, []) if old[target.place][0] < self.first]
        part = select(value, self.local(target, index)).detach()
        part = part if lent else compact(part)
        self.pieces[target] = [*held, (tuple(index), part)]

    def entries(self) -> dict[Target, Entry]:
        """All that was kept, the steps of a generation joined to what one pass would give."""
        joined = {target: self._joined(target, pieces) for target, pieces in self.pieces.items()}
        return {target: entry for target, entry in joined.items() if all(entry.index)}  # every axis has some

    def _joined(self, target: Target, pieces: Sequence[tuple[tuple[Index, ...], Tensor]]) -> Entry:
        if len(pieces) == 1 and not (self.first and "T" in target.axes and "S" in target.axes):
            index, part = pieces[0]
            return Entry(target=target, index=index, held=part)
        indices, parts = [index for index, _ in pieces], [part for _, part in pieces]
        all_of = list(indices[-1])
        if len(pieces) > 1:
            all_of[target.place] = [i for one in indices for i in one[target.place]]
        if "T" in target.axes and "S" in target.axes:
            keys = target.axes.index("S")
            all_of[keys] = target.index(keys, range(self.end), self.n_prompt)
            fill = LATER_KEYS.get(target.scope[1], math.nan)
            n_later = [len(all_of[keys]) - part.shape[-1] for part in parts]
            parts = [F.pad(part, (0, n), value=fill) if n else part for part, n in zip(parts, n_later, strict=True)]
        held = parts[0] if len(parts) == 1 else torch.cat(parts, dim=target.place)
        return Entry(target=target, index=tuple(all_of), held=held)

    def values(self) -> Values:
        """The same by name."""
        return Values(list(self.entries().values()), self.n_prompt)


class TraceTap(Tap):
    """What one trace wants of a pass over several texts."""

    def __init__(self, keep: Sequence[Target], edits: Sequence[tuple[Edit, Target]], *, grad: bool = False) -> None:
        self.kept = _by_name((target.name, target) for target in keep)
        self.edits = _by_name((target.name, (edit, target)) for edit, target in edits)
        self.grad = grad
        self.rows: list[Row] = []
        self.graph: dict[str, Tensor] = {}
        self.behind = [target for name in AFTER for target in self.kept.get(name, ())]  # the last block
        self.due: list[tuple[str, Tensor]] = []  # what is to be kept of the current block
        self.product = 0  # where the product that is shown just now lies
        self.scopes: dict[str, dict[str, str]] = {}  # of each block: its names, and what they are called outside
        for target in (*keep, *(target for _, target in edits)):
            scope, inner = target.scope
            self.scopes.setdefault(scope, {})[inner] = target.name
        wholes = {name for name, targets in self.kept.items() if any(not target.picks for target in targets)}
        self.lending = {
            f"{scope}.{part}"
            for scope in self.scopes
            for parts, others in PRODUCTS.items()
            if wholes.issuperset(whole := {f"{scope}.{part}" for part in parts}) and whole.isdisjoint(self.edits)
            for part in (*parts, *others)
        }

    def inside(self, scope: str) -> Tap:
        names = self.scopes.get(scope)
        self.settle()
        return Scope(self, names) if names else IDLE  # made anew: two that hold each other outlive their use

    def begin(self, rows: Sequence[Row], firsts: Sequence[int], n_new: Sequence[int]) -> None:
        """The next pass reads `n_new` tokens of each row, the first at these positions."""
        self.settle()
        self.rows = list(rows)
        for row, first, n in zip(rows, firsts, n_new, strict=True):
            row.first, row.n_new = first, n

    def first_behind(self, lengths: Sequence[int]) -> int:
        """The first position of which a value behind the last block is wanted, in any text of these lengths.

        Where one is edited, all are: a mean reads every position, and a [T D] vector spreads over every one.
        """
        if any(name in self.edits for name in AFTER):
            return 0
        reached = [
            target.index(target.place, range(n), row.n_prompt)
            for target in self.behind
            for row, n in zip(self.rows, lengths, strict=True)
        ]
        return min((index[0] for index in reached if index), default=0)

    def sees_behind(self) -> bool:
        """Whether a value behind the last block is wanted at any position of this pass."""
        return any(
            len(target.index(target.place, range(row.first, row.end), row.n_prompt))
            for target in self.behind
            for row in self.rows
        )

    def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]  # all values are tensors
        for edit, target in self.edits.get(name, ()):
            value = self.edited(edit, target, value)
        if name in self.kept:
            value = self.hold(name, value)
        return value

    def edited(self, edit: Edit, target: Target, value: Tensor) -> Tensor:
        """The value with one edit in it; as it is where there is nothing to change."""
        self.settle()  # an edit may write into what it is given, and that may lie where a value before it does
        changed = None
        for at, row in enumerate(self.rows):
            whole = row.view(target, value if changed is None else changed, at)
            index = row.index(target, whole, new_only=False, reach=edit.reach(target.axes, row.n_prompt))
            if not all(map(len, index)):
                continue
            local = row.local(target, index)
            part = select(whole, local)
            first = row.first if "T" in target.axes else 0
            site = Site(target=target, index=index, whole=whole, first=first, n_prompt=row.n_prompt)
            new = edit(part, site).to(part)
            try:
                new = new.expand(part.shape)
            except RuntimeError as error:
                wrong = f"{tuple(new.shape)} does not fit {tuple(part.shape)}"
                raise InsideError(f"{type(edit).__name__} at {target}: {wrong}, the part it is for") from error
            changed = copied(value) if changed is None else changed
            put(row.view(target, changed, at), local, new)
        return value if changed is None else changed

    def hold(self, name: str, value: Tensor) -> Tensor:
        """Keep the wanted parts. With gradients the value itself becomes a point of the graph with this name alone."""
        if self.grad and value.is_floating_point():
            value = value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
            self.graph[name] = value
        self.due.append((name, value))
        return value

    def settle(self) -> None:
        """Keep what is due: all that a block gave at once, while the processor's cache still has the code for it."""
        for name, value in self.due:
            self.keep(name, value)
        self.due.clear()

    def keep(self, name: str, value: Tensor) -> None:
        """Put each text's share where it belongs."""
        lent = self.is_lent(name, value)
        for target in self.kept[name]:
            for at, row in enumerate(self.rows):
                row.keep(target, value, at, lent=lent)

    def is_lent(self, name: str, value: Tensor) -> bool:
        """Whether a value lies in a product of which all parts are kept whole, such as that of x and W_Q, W_K and W_V.

        So it is for one text whose q and k are not normed; keys and values from a cache lie elsewhere, and so does what
        an edit gave.
        """
        if name not in self.lending or len(self.rows) > 1:
            return False
        if name.endswith(FIRST):
            self.product = value.untyped_storage().data_ptr()
        return value.untyped_storage().data_ptr() == self.product


class Scope(Tap):
    """The trace's tap inside one block."""

    def __init__(self, tap: TraceTap, names: dict[str, str]) -> None:
        self.tap = tap
        self.names = names

    def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]  # all values are tensors
        outside = self.names.get(name)
        return value if outside is None else self.tap(outside, value)

    def wants(self, *names: str) -> bool:
        return not self.names.keys().isdisjoint(names)


@functools.lru_cache(maxsize=256)
def ranges(shape: torch.Size) -> tuple[range, ...]:
    """All of every axis."""
    return tuple(map(range, shape))


def compact(value: Tensor) -> Tensor:
    """The value alone: a view would keep all that it was cut from, and see what is written there later."""
    return value.clone() if value.untyped_storage().nbytes() != value.numel() * value.element_size() else value


def copied(value: Tensor) -> Tensor:
    """A copy that lies in memory as the original does, so that the kernels go on as before, bit for bit."""
    if 0 in value.stride():  # one row read many times
        return value.clone(memory_format=torch.contiguous_format)
    return value.new_empty_strided(value.shape, value.stride()).copy_(value)


def _by_name(pairs: Iterable[tuple[str, Wanted]]) -> dict[str, list[Wanted]]:
    found: dict[str, list[Wanted]] = {}
    for name, wanted in pairs:
        found.setdefault(name, []).append(wanted)
    return found
