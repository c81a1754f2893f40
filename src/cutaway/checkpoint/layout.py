"""How a foreign file's tensors become ours, and ours theirs again.

A layout names, for every parameter of the network, the foreign tensors that fill it, each with the rows it fills and
the two changes of form (transposed, reordered) that lead there and back. One table serves loading and saving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

Change = Callable[[Tensor], Tensor]


def same(x: Tensor) -> Tensor:
    """The tensor as it is."""
    return x


def transposed(x: Tensor) -> Tensor:
    """Input × output instead of output × input, as GPT-2's files store it; a vector stays."""
    return x.t()


@dataclass(frozen=True, kw_only=True)
class Part:
    """One foreign tensor and the rows of our parameter it fills."""

    theirs: str
    start: int = 0
    stop: int | None = None  # None: to the last row
    to_ours: Change = same
    to_theirs: Change = same

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


Layout = dict[str, tuple[Part, ...]]


def whole(theirs: str, change: Change = same, back: Change | None = None) -> tuple[Part, ...]:
    """One foreign tensor fills the whole parameter. `back` undoes `change`, unless that undoes itself."""
    return (Part(theirs=theirs, to_ours=change, to_theirs=back or change),)


def stacked(names: Sequence[str], sizes: Sequence[int]) -> tuple[Part, ...]:
    """Several foreign tensors on top of each other, `sizes` rows each."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        Part(theirs=name, start=end - size, stop=end) for name, size, end in zip(names, sizes, ends, strict=True)
    )


def with_bias(layout: Layout, name: str, parts: tuple[Part, ...], bias: bool) -> None:
    """Enter `name`.weight and, where there is one, `name`.bias, whose foreign names differ in their last word."""
    for kind in ("weight", "bias") if bias else ("weight",):
        layout[f"{name}.{kind}"] = tuple(replace(part, theirs=f"{part.theirs}.{kind}") for part in parts)


def foreign_parts(layout: Layout) -> Iterator[tuple[str, Part]]:
    """Every foreign tensor with the name of the parameter it goes to."""
    for ours, parts in layout.items():
        for part in parts:
            yield ours, part


def export(parameters: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Our parameters as the foreign file wants them, each in memory of its own."""
    return {
        part.theirs: part.to_theirs(parameters[ours][part.rows]).contiguous() for ours, part in foreign_parts(layout)
    }
