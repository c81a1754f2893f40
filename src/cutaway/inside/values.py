"""Kept values under their names, each with which heads, positions … it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.names import WORDS, Index, Target, parse


class NotKept(InsideError, KeyError):
    """A name that this trace did not keep."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


@dataclass(kw_only=True, eq=False, slots=True)  # not frozen, which takes three times as long to make
class Entry:
    """A value of one text, and which of every axis lie in it: held as it came, or made of what other entries hold."""

    target: Target
    index: tuple[Index, ...]
    held: Tensor | Callable[[], Tensor]

    @property
    def value(self) -> Tensor:
        if isinstance(self.held, Tensor):
            return self.held
        with torch.no_grad():
            return self.held()

    @property
    def n_bytes(self) -> int:
        """What it takes by itself [B]."""
        return self.held.numel() * self.held.element_size() if isinstance(self.held, Tensor) else 0


class Values(Mapping[str, Tensor]):
    """Name → tensor; also a part of what was kept: `values["blocks.3.attn.pattern[head 5]"]`."""

    def __init__(self, entries: Sequence[Entry], n_prompt: int) -> None:
        self.entries = list(entries)
        self._entries = {str(entry.target): entry for entry in entries}
        self.n_prompt = n_prompt  # where negative positions count back from

    def __getitem__(self, name: str) -> Tensor:
        """The value under a name.

        Raises:
            InsideError: it was not kept, or its brackets cannot be read.
        """
        if name in self._entries:
            return self._entries[name].value
        whole, picks = parse(name)
        written = str(Target(name=whole, axes=(), picks=picks))
        if written in self._entries:
            return self._entries[written].value
        if whole not in self._entries:
            raise NotKept(f"{name} was not kept; {self._described()}: name it in keep")
        entry = self._entries[whole]
        target = Target(name=whole, axes=entry.target.axes, picks=picks)
        lengths = dict(zip(target.axes, map(len, entry.index), strict=True))
        if (misfit := target.misfit(lengths, self.n_prompt)) is not None:
            raise NotKept(misfit)
        return select(entry.value, target.indices(lengths, self.n_prompt))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def n_bytes(self) -> int:
        """What the values take, each by itself: neighbours that are one tensor count twice [B]."""
        return sum(entry.n_bytes for entry in self.entries)

    def length(self, name: str, axis: int) -> int:
        """One past the last that is held along an axis of a name.

        Raises:
            InsideError: nothing is.
        """
        if not self.parts_of(name):
            raise _lacks(f"nothing of {name}")
        return max(entry.index[axis][-1] + 1 for entry in self.parts_of(name))

    def part(self, name: str, index: Sequence[Index]) -> Tensor:
        """The given heads, positions … of a value.

        Raises:
            InsideError: some of them were not kept.
        """
        missing = f"nothing of {name}"
        for entry in self.parts_of(name):
            absent = [sorted(set(wanted) - set(held)) for wanted, held in zip(index, entry.index, strict=True)]
            axis = next((i for i, gone in enumerate(absent) if gone), None)
            if axis is None:
                return select(entry.value, [_local(w, held) for w, held in zip(index, entry.index, strict=True)])
            missing = f"no {word_for(entry.target.axes[axis])} {absent[axis][0]} of {name}"
        raise _lacks(missing)

    def parts_of(self, name: str) -> list[Entry]:
        """All that is held of a value: the whole, or some parts."""
        return [entry for entry in self._entries.values() if entry.target.name == name]

    def _described(self) -> str:
        shown = list(self._entries)[:3]
        return f"the trace has {', '.join(shown)}" + (f" and {len(self) - 3} more" if len(self) > 3 else "")


def _lacks(missing: str) -> NotKept:
    return NotKept(f"the source trace has {missing}: keep it there, or aim the edit at what it has")


def word_for(axis: str) -> str:
    """The first word that may mean an axis, or its letter."""
    return next((word for word, axes in WORDS.items() if axis in axes), axis)


def select(value: Tensor, index: Sequence[Index]) -> Tensor:
    """Some of every axis, as a view where they lie side by side."""
    for axis, chosen in enumerate(index):
        if len(chosen) == value.shape[axis] and _side_by_side(chosen):
            continue
        if _side_by_side(chosen):
            value = value.narrow(axis, chosen[0] if chosen else 0, len(chosen))
        else:
            value = value.index_select(axis, torch.tensor(chosen, device=value.device))
    return value


def put(value: Tensor, index: Sequence[Index], part: Tensor) -> None:
    """Write `part` over some of every axis."""
    n_axes = len(index)
    where = [
        torch.tensor(chosen, device=value.device).view([-1 if i == axis else 1 for i in range(n_axes)])
        for axis, chosen in enumerate(index)
    ]
    if all(_side_by_side(chosen) for chosen in index):
        select(value, index).copy_(part)
    else:
        value.index_put_(tuple(where), part)


def _side_by_side(chosen: Index) -> bool:
    return isinstance(chosen, range) or not chosen or list(chosen) == list(range(chosen[0], chosen[0] + len(chosen)))


def _local(wanted: Index, held: Index) -> Index:
    if isinstance(held, range) and isinstance(wanted, range):
        return range(wanted.start - held.start, wanted.stop - held.start)
    where = {i: at for at, i in enumerate(held)}
    return [where[i] for i in wanted]
