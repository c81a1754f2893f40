"""Claim 1: one pass gives one token."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from cutaway.claims.claim import Claim, Evidence
from cutaway.claims.lab import Lab, scores
from cutaway.figures import Table
from cutaway.language_model import LanguageModel

PROMPT = 8  # tokens
LONG = 40  # new tokens, and a tenth of it


class Counter:
    """Counts the passes of a network, and the positions that each computes, by watching its embedding."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = copy.copy(model)
        self.model.end_ids = frozenset()  # no token ends the text early
        self.widths: list[int] = []

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
        hook = self.model.network.embed.register_forward_hook(self._count)
        try:
            yield
        finally:
            hook.remove()

    def _count(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.widths.append(output.shape[1])


def measure(lab: Lab, broken: bool) -> Evidence:
    """Passes for some tokens and for ten times as many, with the cache and without."""
    counter = Counter(lab.model)
    n_ctx = lab.model.config.n_ctx
    n_long = min(LONG, (n_ctx - 1) // 2 // 10 * 10 or n_ctx - 1)
    n_short = max(1, n_long // 10)
    ids = lab.ids(max(1, min(PROMPT, n_ctx - n_long)))
    literal = counter.greedy(ids, n_long, cache=False)
    passes = {}
    for n in (n_short, n_long):
        tokens = counter.two_at_a_time(ids, n) if broken else counter.greedy(ids, n)
        passes[n] = counter.passes
    first = int(scores(lab.model, ids)[-1].argmax())
    figures = {
        f"passes for {n_short} tokens": passes[n_short],
        f"passes for {n_long} tokens": passes[n_long],
        "tokens equal to those of the loop that re-runs everything": sum(map(int.__eq__, tokens, literal)),
        "first token from the prompt's own pass": int(tokens[0] == first),
    }
    return Evidence(
        holds=all(n == passes[n] for n in passes) and tokens == literal and tokens[0] == first,
        figures=figures,
        drawings=() if broken else (_table(counter, ids, n_short, n_long),),
    )


def _table(counter: Counter, ids: list[int], *lengths: int) -> Table:
    rows = []
    for n in lengths:
        for cache in (False, True):
            counter.greedy(ids, n, cache=cache)
            rows.append([n, "cached" if cache else "re-run", counter.passes, counter.positions])
    return Table(
        title="passes for some tokens and for ten times as many",
        note=f"A prompt of {len(ids)} tokens. The cache saves positions, not passes.",
        columns=[">new tokens", "loop", ">passes", ">positions computed"],
        rows=rows,
    )


CLAIM = Claim(
    number=1,
    title="One pass, one token",
    says="A forward pass ends in the scores of one next token, and the answer grows by that one. The pass that reads "
    "the prompt gives the first; ten times the tokens take ten times the passes. No part of the model writes several "
    "tokens, plans an answer, or ranks whole answers.",
    criterion="the passes of the network, counted at its embedding, equal the new tokens; the first token is the "
    "prompt's own winner; the loop with the cache gives the tokens of the loop that re-runs everything.",
    control="two tokens taken from each pass, the winner and the runner-up: half the passes, and another text.",
    conditions=(
        "Batches share passes: one pass then gives one token to each text.",
        "Decoders that guess ahead and check the guess take fewer passes of the large model; none is used here.",
    ),
    measure=measure,
    code="out = model.generate([5, 9, 2], max_tokens=20, temperature=0)\nprint(len(out.tokens), out.passes)",
)
