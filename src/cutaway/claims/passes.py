"""Claim 1: one pass gives one token."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from cutaway.claims.claim import Claim, Evidence, met
from cutaway.claims.lab import Lab, scores
from cutaway.figures import Table
from cutaway.language_model import LanguageModel

PROMPT = 8  # tokens
LONG = 40  # new tokens, and a tenth of it
CACHES = (False, True)


class Counter:
    """Counts the passes of a network, the positions that each computes, and the blocks that run in them.

    It watches the embedding and the blocks themselves, and believes no count that a generation reports.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = copy.copy(model)
        self.model.end_ids = frozenset()  # no token ends the text early
        self.widths: list[int] = []
        self.blocks = 0

    @property
    def passes(self) -> int:
        return len(self.widths)

    @property
    def positions(self) -> int:
        return sum(self.widths)

    def greedy(self, ids: list[int], n: int, *, cache: bool = True) -> list[int]:
        """n new tokens by the model's own loop; its passes are counted from zero."""
        with self._watching():
            steps = self.model.run([ids], max_tokens=n, temperature=0, cache=cache)
            return [piece.choice.token for _, piece in steps]

    def two_at_a_time(self, ids: list[int], n: int) -> list[int]:
        """n new tokens with two taken from each pass: the winner, and the runner-up as if it came after."""
        text = list(ids)
        with self._watching():
            while len(text) < len(ids) + n:
                text += scores(self.model, text)[-1].topk(2).indices.tolist()
        return text[len(ids) : len(ids) + n]

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self.widths.clear()
        self.blocks = 0
        network = self.model.network
        hooks = [network.embed.register_forward_hook(self._count)]
        hooks += [block.register_forward_hook(self._count_block) for block in network.blocks]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _count(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.widths.append(output.shape[1])

    def _count_block(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.blocks += 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The new tokens of one run, and what it took."""

    tokens: list[int]
    passes: int
    positions: int
    runs_of_blocks: int


def measure(lab: Lab, broken: bool) -> Evidence:
    """Passes for some tokens and for ten times as many, with the cache and without."""
    counter, config = Counter(lab.model), lab.model.config
    n_long = min(LONG, (config.n_ctx - 1) // 2 // 10 * 10 or config.n_ctx - 1)
    n_short = max(1, n_long // 10)
    ids = lab.ids(max(1, min(PROMPT, config.n_ctx - n_long)))
    first = int(scores(lab.model, ids)[-1].argmax())
    both = {n: runs_of(counter, ids, n, broken=broken) for n in (n_short, n_long)}
    literal = counter.greedy(ids, n_long, cache=False) if broken else both[n_long][0].tokens
    runs = {(n, cache): one for n, pair in both.items() for cache, one in zip(CACHES, pair, strict=True)}
    longest = [runs[n_long, cache].tokens for cache in CACHES]
    same = min(sum(map(int.__eq__, tokens, literal)) for tokens in longest)
    layers = {one.runs_of_blocks / one.passes for one in runs.values()}
    as_said = [
        all(one.passes == n for (n, _), one in runs.items()),
        all(tokens == literal for tokens in longest),
    ]
    figures = {
        f"passes for {n_short} tokens": max(runs[n_short, cache].passes for cache in CACHES),
        f"passes for {n_long} tokens": max(runs[n_long, cache].passes for cache in CACHES),
        "of these tokens, equal to those of the loop that re-runs everything": same,
        "first token from the prompt's own pass": int(all(tokens[0] == first for tokens in longest)),
        "blocks that run in a pass": max(layers),
    }
    return Evidence(
        holds=met(broken, as_said) and longest[0][0] == first and layers == {config.n_layers},
        figures=figures,
        drawings=() if broken else (_table(len(ids), runs),),
    )


def runs_of(counter: Counter, ids: list[int], n: int, *, broken: bool) -> tuple[Answer, Answer]:
    """n new tokens without the cache and with it; by the broken loop, which has none, once for both."""
    if broken:
        one = _answer(counter, counter.two_at_a_time(ids, n))
        return one, one
    return _answer(counter, counter.greedy(ids, n, cache=False)), _answer(counter, counter.greedy(ids, n, cache=True))


def _answer(counter: Counter, tokens: list[int]) -> Answer:
    return Answer(tokens=tokens, passes=counter.passes, positions=counter.positions, runs_of_blocks=counter.blocks)


def _table(n_prompt: int, runs: Mapping[tuple[int, bool], Answer]) -> Table:
    return Table(
        title="passes for some tokens and for ten times as many",
        note=f"A prompt of {n_prompt} tokens. The cache saves positions, not passes.",
        columns=[">new tokens", "loop", ">passes", ">positions computed"],
        rows=[[n, "cached" if cache else "re-run", one.passes, one.positions] for (n, cache), one in runs.items()],
    )


CLAIM = Claim(
    number=1,
    title="One pass, one token",
    says="A forward pass ends in the scores of one next token, and the answer grows by that one. The pass that reads "
    "the prompt gives the first; ten times the tokens take ten times the passes. No part of the model writes several "
    "tokens, plans an answer, or ranks whole answers.",
    criterion="the passes of the network, counted at its embedding, equal the new tokens, with the cache and without; "
    "each runs every block once; the first token is the winner of the prompt's own pass; and the loop with the cache "
    "gives the tokens of the loop that re-runs everything.",
    control="two tokens taken from each pass, the winner and the runner-up: half the passes, and another text.",
    conditions=(
        "Batches share passes: one pass then gives one token to each text.",
        "Decoders that guess ahead and check the guess take fewer passes of the large model; none is used here.",
    ),
    measure=measure,
    code="out = model.generate([5, 9, 2], max_tokens=20, temperature=0)\nprint(len(out.tokens), out.passes)",
)
