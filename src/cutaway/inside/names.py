"""What the values of a pass are called, what shape they have, and how a user points at some of them.

`blocks.3.attn.pattern` is one value, `blocks.*.attn.pattern` or `blocks.3.attn.*` are many, and brackets pick parts:
`blocks.3.attn.pattern[head 5, query -1]`, `blocks.*.ff.post[neuron 7, 9, position 2:6]`. All of it is known from the
config alone, before anything runs.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cutaway.config import LearnedPositionConfig, ModelConfig
from cutaway.errors import InsideError

Axes = tuple[str, ...]
Span = tuple[int, int | None]  # first, and one past the last; None: to the end
Index = Sequence[int]  # which of an axis: heads, neurons, absolute positions

STREAM, SCORES = ("B", "T", "D"), ("B", "H", "T", "S")
BEFORE: dict[str, Axes] = {"tokens": ("B", "T"), "positions": ("B", "T"), "embed": STREAM, "pos_embed": STREAM}
BLOCK: dict[str, Axes] = {
    "resid_pre": STREAM,
    "attn.norm": STREAM,
    "attn.q_raw": ("B", "H", "T", "Dh"),
    "attn.k_raw": ("B", "K", "T", "Dh"),
    "attn.q": ("B", "H", "T", "Dh"),
    "attn.k": ("B", "K", "S", "Dh"),
    "attn.v": ("B", "K", "S", "Dh"),
    "attn.scores": SCORES,
    "attn.scaled": SCORES,
    "attn.masked": SCORES,
    "attn.pattern": SCORES,
    "attn.z": ("B", "H", "T", "Dh"),
    "attn.head_out": ("B", "H", "T", "D"),
    "attn.out": STREAM,
    "resid_mid": STREAM,
    "ff.norm": STREAM,
    "ff.pre": ("B", "T", "F"),
    "ff.up": ("B", "T", "F"),
    "ff.post": ("B", "T", "F"),
    "ff.out": STREAM,
    "resid_post": STREAM,
}
AFTER: dict[str, Axes] = {"final_norm": STREAM, "logits": ("B", "T", "V")}
WHOLE_NUMBERS = ("tokens", "positions")

# The axes that a word in brackets may mean; the first that a value has is meant.
WORDS: dict[str, Axes] = {
    "head": ("H", "K"),
    "position": ("T", "S"),
    "query": ("T",),
    "key": ("S",),
    "neuron": ("F",),
}


def names(config: ModelConfig) -> dict[str, Axes]:
    """Every name of a model, in the order of the pass, with its axes."""
    learned = any(isinstance(position, LearnedPositionConfig) for position in config.positions)
    gated = config.feedforward.gated
    before = {name: axes for name, axes in BEFORE.items() if learned or name != "pos_embed"}
    block = {name: axes for name, axes in BLOCK.items() if gated or name != "ff.up"}
    blocks = {f"blocks.{i}.{name}": axes for i in range(config.n_layers) for name, axes in block.items()}
    return before | blocks | AFTER


def sizes(config: ModelConfig, n_rows: int, n_queries: int, n_keys: int) -> dict[str, int]:
    """How long each axis is."""
    return {
        "B": n_rows,
        "T": n_queries,
        "S": n_keys,
        "D": config.d_model,
        "H": config.n_heads,
        "K": config.n_kv_heads,
        "Dh": config.d_head,
        "F": config.d_ff,
        "V": config.d_vocab,
    }


def shape_of(config: ModelConfig, name: str, n_rows: int, n_queries: int, n_keys: int) -> tuple[int, ...]:
    """The shape of a value in a pass of T new positions over S keys.

    Raises:
        InsideError: no such name.
    """
    known = names(config)
    if name not in known:
        raise InsideError(no_such_name(name, known))
    length = sizes(config, n_rows, n_queries, n_keys)
    return tuple(length[axis] for axis in known[name])


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One name, and the parts of it that are meant: (word, spans) pairs, none for all of it.

    Equal to itself alone: hundreds are looked up in each trace, and their words would be compared.
    """

    name: str
    axes: Axes
    picks: tuple[tuple[str, tuple[Span, ...]], ...] = ()

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:  # kept: a trace asks for those of hundreds
        words = (f"{word} {', '.join(map(_written, spans))}" for word, spans in self.picks)
        return f"{self.name}[{', '.join(words)}]" if self.picks else self.name

    @functools.cached_property
    def scope(self) -> tuple[str, str]:
        """The block that it is in, or "", and what it is called there."""
        block, name = ".".join(self.name.split(".")[:2]), self.name.split(".", 2)[-1]
        return (block, name) if self.name.startswith("blocks.") else ("", self.name)

    @functools.cached_property
    def place(self) -> int:
        """The axis along which the text runs: T, or S for keys and values."""
        return self.axes.index("T" if "T" in self.axes else "S")

    def spans(self, axis: int) -> tuple[Span, ...] | None:
        """What is picked on an axis; None for all."""
        found = [spans for word, spans in self.picks if _axis(word, self.axes) == axis]
        return found[0] if found else None

    def index(self, axis: int, universe: range, n: int) -> Index:
        """Those of `universe` that are meant, where negative numbers count back from `n`."""
        spans = self.spans(axis)
        if spans is None:
            return universe
        bounds = [_absolute(span, n) for span in spans]
        return [i for i in universe if any(first <= i and (stop is None or i < stop) for first, stop in bounds)]

    def indices(self, lengths: Mapping[str, int], n_prompt: int) -> list[Index]:
        """What is meant of every axis of a whole text."""
        counted_back = [n_prompt if axis in "TS" else lengths[axis] for axis in self.axes]
        return [self.index(i, range(lengths[axis]), counted_back[i]) for i, axis in enumerate(self.axes)]

    def misfit(self, lengths: Mapping[str, int], n_prompt: int) -> str | None:
        """Why this cannot be in a text with axes of these lengths; None if it can."""
        for word, spans in self.picks:
            axis = _axis(word, self.axes)
            if axis is None:
                able = [w for w in WORDS if _axis(w, self.axes) is not None]
                return f"{self.name} has no {word}: pick by {', '.join(able)}"
            letter = self.axes[axis]
            n = lengths[letter]
            for span in spans:
                first, stop = _absolute(span, n_prompt if letter in "TS" else n)
                if not (0 <= first < n and (stop is None or first < stop <= n)):
                    return f"{self.name}: {word} {_written(span)} is outside 0 to {n - 1}"
        return None

    def n_bytes(self, lengths: Mapping[str, int], n_prompt: int, itemsize: int) -> int:
        """What one text takes [B]."""
        itemsize = 8 if self.name in WHOLE_NUMBERS else itemsize
        if not self.picks:
            return prod([lengths[axis] for axis in self.axes]) * itemsize
        return prod(map(len, self.indices(lengths, n_prompt))) * itemsize


def fitting(config: ModelConfig, patterns: str | Iterable[str], texts: Iterable[tuple[int, int]]) -> list[Target]:
    """What the patterns point at in texts of (prompt, whole) lengths [token].

    With a wildcard, names that lack what the brackets pick are passed over; a whole value makes its parts unnecessary.

    Raises:
        InsideError: a pattern that means nothing here.
    """
    return list(_fitting(config, tuple(listed(patterns)), tuple(dict.fromkeys(texts))))


def listed(patterns: Any) -> list[str]:
    """One pattern or several, as a list.

    Raises:
        InsideError: something that is no text.
    """
    several = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    for pattern in several:
        if not isinstance(pattern, str):
            raise InsideError(f"{pattern!r:.40} is no name: write it like blocks.3.attn.pattern[head 5]")
    return several


@functools.lru_cache(maxsize=32)  # hundreds of names, often the same for many texts, and of a large model 0.4 MB
def _fitting(config: ModelConfig, patterns: tuple[str, ...], texts: tuple[tuple[int, int], ...]) -> tuple[Target, ...]:
    lengths = [(sizes(config, 1, n, n), n_prompt) for n_prompt, n in texts]
    found: dict[str, Target] = {}
    for pattern in patterns:
        targets = _matching(config, pattern)
        misfits = [next((m for pair in lengths if (m := t.misfit(*pair)) is not None), None) for t in targets]
        if all(misfits) or (any(misfits) and "*" not in pattern):
            raise InsideError(next(filter(None, misfits)))
        found |= {str(t): t for t, misfit in zip(targets, misfits, strict=True) if misfit is None}
    order = {name: i for i, name in enumerate(names(config))}
    kept = (t for t in found.values() if not t.picks or t.name not in found)
    return tuple(sorted(kept, key=lambda t: order[t.name]))


@functools.lru_cache(maxsize=64)  # the same for texts of any length
def _matching(config: ModelConfig, pattern: str) -> tuple[Target, ...]:
    return tuple(matching(names(config), pattern))


def matching(known: Mapping[str, Axes], pattern: str) -> list[Target]:
    """All names that a pattern fits, with what its brackets pick.

    Raises:
        InsideError: there are none, or the pattern cannot be read.
    """
    name, picks = parse(pattern)
    if "*" in name:
        regex = re.compile(re.escape(name).replace(r"\*", ".*"))
        fits = [k for k in known if regex.fullmatch(k)]
    else:
        fits = [name] if name in known else []
    found = [Target(name=k, axes=known[k], picks=picks) for k in fits]
    if not found:
        raise InsideError(no_such_name(name, known))
    return found


def parse(pattern: str) -> tuple[str, tuple[tuple[str, tuple[Span, ...]], ...]]:
    """A pattern's name and what its brackets pick.

    Raises:
        InsideError: brackets that cannot be read.
    """
    match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(?:\[([^\[\]]*)\])?\s*", pattern)
    if match is None:
        raise InsideError(f"{pattern!r} is no name: write it like blocks.3.attn.pattern[head 5, query -1]")
    picks: dict[str, list[Span]] = {}
    word = ""
    for item in (match[2] or "").split(",") if match[2] is not None else ():
        part = re.fullmatch(r"\s*([a-z]+(?=\s))?\s*(-?\d{1,9})?\s*(:)?\s*(-?\d{1,9})?\s*", item)
        word = (part and part[1]) or word
        if (
            part is None
            or word not in WORDS
            or not (part[2] or part[3])
            or (part[4] and (not part[3] or part[4] == "0"))
        ):
            raise InsideError(f"{item.strip()!r} in {pattern!r}: write {', '.join(WORDS)} and a number or a range 2:5")
        picks.setdefault(word, []).append(_span(part[2], part[3], part[4]))
    return match[1], tuple((word, tuple(spans)) for word, spans in picks.items())


def no_such_name(name: str, known: Iterable[str]) -> str:
    """What to say about a name that there is not: the nearest ones that there are."""
    known, tail = list(known), name.rpartition(".")[2]
    layer, n_layers = re.match(r"blocks\.(\d+)\.", name), sum(k.endswith(".resid_pre") for k in known)
    if layer is not None and int(layer[1]) >= n_layers:
        return f"{name}: layer {layer[1]} is outside 0 to {n_layers - 1}"
    near = difflib.get_close_matches(name.replace("*", "0"), known, n=3, cutoff=0.5)
    near = near or [k for k in known if k.endswith(f".{tail}")][:3]
    return f"{name} is no value of this model: " + (
        f"did you mean {', '.join(near)}?" if near else f"the names are {', '.join((*BEFORE, *AFTER))}, blocks.N.…"
    )


def _axis(word: str, axes: Axes) -> int | None:
    if word in ("query", "key") and not {"T", "S"} <= set(axes):
        return None
    return next((axes.index(axis) for axis in WORDS[word] if axis in axes), None)


def _span(first: str | None, colon: str | None, stop: str | None) -> Span:
    if colon:
        return int(first or 0), None if stop is None else int(stop)
    number = int(first or 0)
    return number, number + 1


def _written(span: Span) -> str:
    first, stop = span
    if stop == first + 1:
        return str(first)
    return f"{first}:" if stop is None else f"{first}:{stop}"


def _absolute(span: Span, n: int) -> Span:
    first, stop = span
    if stop is not None and stop <= 0:  # -1 alone is the span from -1 to 0
        stop += n
    return first + n if first < 0 else first, stop
