"""Senses: one word in several sentences, where its vectors part, and which heads and feed-forwards part them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.config import NoMaskConfig
from cutaway.errors import InsideError
from cutaway.figures import Bars, Figure, HeatMap, Lines, Numbers, Prose, Result, Series, Table, plain
from cutaway.generate.decoding import padded
from cutaway.inside.edits import Edit, Replace
from cutaway.inside.labels import labels
from cutaway.inside.targets import Reader, count_of, whole_number, wide
from cutaway.inside.trace import LAST, LIMIT, watching
from cutaway.inside.values import Values
from cutaway.nn.cache import Cache
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer

N_CONTROLS = 10  # draws of other parts
MANY = 6  # pairs that still have a line each


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence as it is read, and where the word's last token stands."""

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    position: int
    sense: str
    shown: str  # up to the word, which is all that the word's vector can know of


@dataclass(frozen=True)
class Part:
    """A head, a feed-forward, or all of attention where a norm stands behind it."""

    name: str  # such as "head 3.5" or "ff 3"
    at: str  # its value in a trace
    kind: str  # "head", "ff", or "attn"
    share: float  # of the distance between the senses at the end, which all parts and the rest of the pass add up to
    taken: bool  # whether it was taken away in the confirmation


@dataclass(frozen=True, kw_only=True, eq=False)
class Senses(Result):
    """The vectors of one word in several sentences: how alike they are, and what makes them differ.

    `similarity` [state, sentence, sentence] is the cosine of the word's vectors: first of the static row, then after
    each block. `parts` are all, the one that parts the senses most first; those taken away in the confirmation gave
    every sentence their mean over the sentences. `without` is what the similarity of different senses is at the end
    then, and `controls` what it is without as many parts of the same kinds, drawn from the rest.
    """

    word: str
    sentences: tuple[Sentence, ...]
    static_difference: float  # max|Δ| of the static rows: 0, as it is one row
    similarity: Numbers
    parts: tuple[Part, ...]
    without: float
    controls: tuple[float, ...]

    @property
    def heading(self) -> str:
        return f"Senses of ‘{self.word}’ in {len(self.sentences)} sentences"

    @property
    def across(self) -> list[tuple[int, int]]:
        """Pairs of sentences with different senses."""
        return [(a, b) for a, b in self._pairs() if self.sentences[a].sense != self.sentences[b].sense]

    @property
    def within(self) -> list[tuple[int, int]]:
        """Pairs of sentences with the same sense."""
        return [(a, b) for a, b in self._pairs() if self.sentences[a].sense == self.sentences[b].sense]

    @property
    def taken(self) -> list[Part]:
        """The parts that were taken away."""
        return [part for part in self.parts if part.taken]

    @property
    def end(self) -> float:
        """How alike different senses are at the end, on average."""
        return float(self._mean(self.across)[-1])

    def figures(self) -> list[Figure]:
        return [
            Table(
                title="The sentences",
                note="A vector knows what stands before it alone, so each is shown up to the word.",
                columns=["", "sense", "up to the word", ">position"],
                rows=[[str(i + 1), one.sense, one.shown, one.position] for i, one in enumerate(self.sentences)],
            ),
            self._lines(),
            self._matrix(),
            Table(
                title="What pulls the senses apart",
                note="What a part adds itself, as a share of the distance between the vectors at the end; what it "
                "makes later parts add is in theirs.",
                columns=["part", ">share"],
                rows=[[part.name, part.share] for part in self.taken],
            ),
            Bars(
                title="Without these parts",
                note="Similarity of different senses at the end, when these parts give every sentence their mean, and "
                f"when {len(self.controls)} draws of as many others do.",
                labels=["as it is", "without these", "without others"],
                values=[self.end, self.without, float(np.mean(self.controls)) if self.controls else float("nan")],
                unit="cosine",
            ),
            Prose(title="What was found", lines=self._says()),
        ]

    def to_dict(self) -> dict[str, Any]:
        listed = {"sentences": [vars(one) for one in self.sentences], "parts": [vars(part) for part in self.parts]}
        return {"kind": "senses"} | plain(vars(self) | listed | {"end": self.end}, 6)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return itertools.combinations(range(len(self.sentences)), 2)

    def _mean(self, pairs: Sequence[tuple[int, int]]) -> Numbers:
        return np.mean([self.similarity[:, a, b] for a, b in pairs], axis=0)

    def _lines(self) -> Lines:
        states = list(range(len(self.similarity)))
        pairs = [*self._pairs()]
        named = {f"{a + 1} and {b + 1}": self.similarity[:, a, b] for a, b in pairs} if len(pairs) <= MANY else {}
        means = {"different senses": self.across, "same sense": self.within} if len(pairs) > 1 else {}
        named = {name: self._mean(chosen) for name, chosen in means.items() if chosen} | named
        series = [Series(name=name, x=states, y=[float(v) for v in values]) for name, values in named.items()]
        return Lines(
            title="How alike the vectors are, layer by layer",
            note="0 is the static row, which is the same in every sentence; then after each block.",
            series=series,
            x="blocks passed",
            y="cosine",
        )

    def _matrix(self) -> HeatMap:
        numbered = enumerate(self.sentences, start=1)
        names = [str(i) if one.sense == str(i) else f"{i} {one.sense}" for i, one in numbered]
        return HeatMap(
            title="How alike at the end",
            rows=names,
            columns=names,
            values=self.similarity[-1],
            row_axis="sentence",
            column_axis="sentence",
            says="sentences {row} and {column}: cosine {value}",
            scale="size",
            unit="cosine",
        )

    def _says(self) -> list[str]:
        means = self._mean(self.across)
        lowest, n_blocks = int(means.argmin()), len(means) - 1
        least = f"least alike after block {lowest} of {n_blocks} ({means[lowest]:.3f}), and " * (lowest < n_blocks)
        lines = [
            f"Before the first block all are one row of the table: they differ by {self.static_difference:g}. "
            f"Different senses are {least}alike by {self.end:.3f} at the end."
        ]
        if self.within:
            lines.append(f"The same sense is alike by {self._mean(self.within)[-1]:.3f} at the end.")
        names = ", ".join(part.name for part in self.taken)
        if self.controls:
            lines.append(
                f"Without {names}, different senses are alike by {self.without:.3f}; without as many others, by "
                f"{np.mean(self.controls):.3f} ({min(self.controls):.3f} to {max(self.controls):.3f})."
            )
        return lines


@torch.no_grad()
def senses(
    model: Reader,
    word: Any,
    sentences: Sequence[Any],
    *,
    groups: Sequence[Any] | None = None,
    n: int | None = None,
    seed: int = 0,
    limit: int = LIMIT,
) -> Senses:
    """How the vectors of one word part in several sentences, and what parts them.

    The word's last token is looked at, where the word stands for the last time in a sentence. What a part adds there
    is compared between sentences of different senses, along the difference of their vectors after the last block: the
    shares of the parts and of what is no part (positions, biases) add up to 1. Then the heads and the feed-forwards
    with the largest shares are made to give every sentence the same, their mean, and so are others as a control.

    Args:
        word: as it is written in the sentences; for ids, an id or several.
        groups: the sense of each sentence, such as ["river", "river", "money"]; None: each has its own.
        n: heads and feed-forwards that are taken away, of each so many; None takes 5, or half of a small model's.
        seed: of the draws of other parts.
        limit: what the look at the word may hold [B].
    Raises:
        InsideError: fewer than two sentences or senses, a sentence without the word, one where it is another token,
            two senses with the same words before it, or a model without a causal mask.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    if any(isinstance(mask, NoMaskConfig) for mask in model.network.config.masks):
        raise InsideError(
            "senses: without a mask a word's vector knows what stands behind it; take a model that has one"
        )
    found = sentences_of(model, word, sentences, groups)
    parts = parts_of(model)
    n_layers = model.network.config.n_layers
    n = count_of(max(1, min(5, n_layers // 2)) if n is None else n, n_layers, "n")
    states = [f"blocks.{layer}.resid_post" for layer in range(n_layers)]
    names = ["embed", *states, *(at for _, at, _ in parts)]
    words = Words(model, [one.tokens[: one.position + 1] for one in found], limit)
    vectors, added = words.values(names).split([1 + n_layers, len(parts)], dim=1)
    across = [(a, b) for a, b in itertools.combinations(range(len(found)), 2) if found[a].sense != found[b].sense]
    shares = shares_of(vectors[:, -1], added, across, found)
    order = sorted(range(len(parts)), key=lambda i: -shares[i])
    kinds = [parts[i][2] for i in order]
    taken = {i for kind in kinds for i in [i for i in order if parts[i][2] == kind][:n]}
    mean = added.mean(0)

    def end_without(chosen: Iterable[int]) -> float:
        alike = cosines(words.ends([Replace(last(parts[i][1]), mean[i]) for i in chosen]))
        return float(np.mean([alike[pair] for pair in across]))

    drawn = draws([part[2] for part in parts], taken, random.Random(seed))
    return Senses(
        word=word if isinstance(word, str) else " ".join(labels(model.tokenizer, ids_of(word))),
        sentences=tuple(found),
        static_difference=float((vectors[:, 0] - vectors[:1, 0]).abs().max()),
        similarity=np.stack([cosines(vectors[:, state]) for state in range(vectors.shape[1])]),
        parts=tuple(Part(*parts[i], share=float(shares[i]), taken=i in taken) for i in order),
        without=end_without(taken),
        controls=tuple(map(end_without, drawn)),
    )


class Words:
    """Texts up to the word, read once into a cache: a look at the word, or an edit there, then reads that token alone.

    What is changed at the last position changes nothing before it, as no mask lets a token look ahead.
    """

    def __init__(self, model: Reader, texts: Sequence[Sequence[int]], limit: int) -> None:
        self.network, self.limit = model.network, limit
        self.generations = model.generations([list(text) for text in texts], max_tokens=0)
        tokens, lengths = padded(texts, self.network.embed.weight.device)
        self.cache = Cache(self.network.config, len(texts), self.network.embed.weight)
        self.network.residual(tokens, self.cache, lengths)
        self.last = tokens.gather(1, torch.tensor(lengths, device=tokens.device)[:, None] - 1)
        self.back = [-1] * len(texts)

    def values(self, names: Sequence[str]) -> Tensor:
        """What these are at the word [text name D]."""
        names = [last(name) for name in names]
        _, kept = self._read(keep=[*names, LAST])
        return torch.stack([torch.stack([wide(one[name].flatten()).double() for name in names]) for one in kept])

    def ends(self, edits: Sequence[Edit]) -> Tensor:
        """The word's vectors after the last block, with edits [text D]."""
        x, _ = self._read(keep=None, edits=edits)
        return wide(x).double()

    def _read(self, **wanted: Any) -> tuple[Tensor, list[Values]]:
        watch = watching(self.network, self.generations, limit=self.limit, **wanted)
        self.cache.advance(self.back)
        watch.tap.begin(watch.rows, self.cache.lengths, [1] * len(watch.rows))
        x = self.network.residual(self.last, self.cache, tap=watch.tap)
        return x[:, 0], [watch.values(row) for row in watch.rows]


def last(name: str) -> str:
    """The name at the last position."""
    return f"{name[:-1]}, position -1]" if name.endswith("]") else f"{name}[position -1]"


def parts_of(model: Reader) -> list[tuple[str, str, str]]:
    """All that a pass adds to the stream but the embedding and the biases: name, value in a trace, kind."""
    config = model.network.config
    parts: list[tuple[str, str, str]] = []
    for layer in range(config.n_layers):
        if config.norm_placement == "pre":
            at = f"blocks.{layer}.attn.head_out"
            parts += [(f"head {layer}.{head}", f"{at}[head {head}]", "head") for head in range(config.n_heads)]
        else:  # a norm takes all heads together
            parts.append((f"attention {layer}", f"blocks.{layer}.attn.out", "attn"))
        parts.append((f"ff {layer}", f"blocks.{layer}.ff.out", "ff"))
    return parts


def shares_of(
    ends: Tensor, added: Tensor, across: Sequence[tuple[int, int]], sentences: Sequence[Sentence]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """What each part adds to the distance between two senses, over it, on average over pairs [part].

    Raises:
        InsideError: two sentences between which there is no distance.
    """
    shares = []
    for a, b in across:
        difference = ends[a] - ends[b]
        if sentences[a].tokens[: sentences[a].position + 1] == sentences[b].tokens[: sentences[b].position + 1]:
            raise InsideError(
                f"sentences {a + 1} and {b + 1} are the same up to the word, so it cannot differ there: put what "
                "tells the senses apart before it"
            )
        shares.append((added[a] - added[b]) @ difference / (difference @ difference))
    return torch.stack(shares).mean(0).cpu().numpy()


def cosines(vectors: Tensor) -> Numbers:
    """Of each with each [n n]."""
    unit = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    return (unit @ unit.T).cpu().numpy()


def draws(kinds: Sequence[str], taken: Set[int], drawn: random.Random) -> list[list[int]]:
    """Sets of other parts, with as many of each kind as were taken; none where there are too few."""
    others = {kind: [i for i, k in enumerate(kinds) if k == kind and i not in taken] for kind in dict.fromkeys(kinds)}
    wanted = {kind: sum(kinds[i] == kind for i in taken) for kind in others}
    if any(wanted[kind] > len(others[kind]) for kind in others):
        return []
    return [[i for kind in others for i in drawn.sample(others[kind], wanted[kind])] for _ in range(N_CONTROLS)]


def sentences_of(model: Reader, word: Any, sentences: Sequence[Any], groups: Sequence[Any] | None) -> list[Sentence]:
    """The sentences read, each with the place of the word.

    Raises:
        InsideError: as in `senses`.
    """
    if isinstance(sentences, str) or len(sentences) < 2:
        raise InsideError("sentences: give two or more, in which the word has different senses")
    named = [str(i + 1) for i in range(len(sentences))] if groups is None else [str(group) for group in groups]
    if len(named) != len(sentences):
        raise InsideError(f"groups has {len(named)} entries, there are {len(sentences)} sentences: give one each")
    if len(set(named)) < 2:
        raise InsideError(f"groups: all sentences are of sense {named[0]!r:.40}: give two senses or more")
    found = []
    for i, (sentence, sense) in enumerate(zip(sentences, named, strict=True), start=1):
        ids = model.ids(sentence)
        at = place_of(model.tokenizer, word, ids, i)
        found.append(
            Sentence(
                tokens=tuple(ids),
                labels=tuple(labels(model.tokenizer, ids)),
                position=at,
                sense=sense,
                shown=model.tokenizer.decode(ids[: at + 1]).strip(),
            )
        )
    first, *others = found
    for i, one in enumerate(others, start=2):
        if one.tokens[one.position] != first.tokens[first.position]:
            here, there = one.labels[one.position], first.labels[first.position]
            raise InsideError(
                f"{word!r:.40} ends in the token {here} in sentence {i}, and in {there} in sentence 1: write it alike, "
                "such as with a space before it in both"
            )
    return found


def place_of(tokenizer: Tokenizer | IdTokenizer, word: Any, ids: Sequence[int], number: int) -> int:
    """Where the last token of the word stands, the last time that the word does.

    Raises:
        InsideError: the sentence does not have it.
    """
    if not isinstance(word, str) or isinstance(tokenizer, IdTokenizer):
        wanted = ids_of(tokenizer.encode(word, bos=False) if isinstance(word, str) else word)
        ends = [i for i in range(len(wanted), len(ids) + 1) if list(ids[i - len(wanted) : i]) == wanted]
        if wanted and ends:
            return ends[-1] - 1
    elif word.strip():
        pieces = [tokenizer.token_bytes(i) for i in ids]
        stops = [*itertools.accumulate(map(len, pieces))]
        text = b"".join(pieces).decode("utf-8", "surrogateescape")
        matches = [*re.finditer(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text)]
        if matches:
            stop = len(text[: matches[-1].end()].encode("utf-8", "surrogateescape"))
            return next(i for i, reached in enumerate(stops) if reached >= stop)
    shown = tokenizer.decode(ids).strip()
    raise InsideError(f"sentence {number} ({shown!r:.60}) has no word {word!r:.40}: write it there as it is given")


def ids_of(word: Any) -> list[int]:
    """One id or several, also as a tensor or an array; an InsideError for anything else."""
    several = word if isinstance(word, Iterable) and getattr(word, "ndim", None) != 0 else [word]
    return [whole_number(i, "word", "text, an id, or several ids") for i in several]
