"""The auto-regressive loop: one pass, one token, appended and run again.

The prompt's own pass gives the first token, so N tokens take N passes. With a cache a pass reads only what is new;
without one it re-runs everything, which is the same loop made slower. Several texts share a pass: each is padded on
the right, where its queries never look, so it gets the tokens it would get alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cutaway.generate.sampling import Choice, SamplingConfig, choose, new_generator
from cutaway.generate.step import Step
from cutaway.generate.stopping import FinishReason, StopMatcher, StopStrings
from cutaway.network import Transformer
from cutaway.nn.cache import Cache

FIRST_ROOM = 512  # new tokens that the cache has room for before it grows


@runtime_checkable
class Text(Protocol):
    """Turns ids into text as they come: a character is given once it is whole."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one text is to be continued with. `n_known` bounds the ids that may be sampled."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingConfig
    stops: StopStrings
    end_ids: frozenset[int]
    seed: int | None = None
    n_logprobs: int | None = None
    explain: bool = False
    n_known: int | None = None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One step of one text: the token picked, and the text that became safe to show with it."""

    text: str
    choice: Choice


class Generation:
    """One text as it grows."""

    def __init__(self, request: Request, text: Text, n_ctx: int) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.choices: list[Choice] = []
        self.finish_reason: FinishReason | None = None if request.max_tokens else "length"
        self._n_ctx = n_ctx
        self._text = text
        self._stop = StopMatcher(request.stops)
        self._generator = new_generator(request.seed)

    def take(self, logits: Tensor) -> Piece:
        """Pick the next token from its scores, and find out whether it is the last."""
        request = self.request
        choice = choose(
            logits,
            request.sampling,
            self.tokens,
            self._generator,
            n_known=request.n_known,
            step=len(self.choices),
            n_logprobs=request.n_logprobs,
            explain=request.explain,
        )
        self.choices.append(choice)
        self.tokens.append(choice.token)
        text, stopped = self._stop.push(self._text.push(choice.token))
        if stopped or choice.token in request.end_ids:
            self.finish_reason = "stop"
        elif len(self.choices) == request.max_tokens or len(self.tokens) > self._n_ctx:
            self.finish_reason = "length"  # the token past the context was scored, but cannot be read
        if self.finish_reason is not None and not stopped:
            rest, _ = self._stop.push(self._text.finish())
            text += rest + self._stop.finish()
            if self._stop.matched is not None:
                self.finish_reason = "stop"
        return Piece(text=text, choice=choice)


def decode(
    network: Transformer, generations: Sequence[Generation], *, use_cache: bool = True
) -> Iterator[tuple[Generation, Piece]]:
    """Run passes until every text is finished; each pass gives every unfinished text one token."""
    live = [g for g in generations if g.finish_reason is None]
    memory = _Memory(network, live) if use_cache and live else None
    while live:
        with torch.inference_mode():
            scores = memory.next_scores(live) if memory else next_scores(network, [g.tokens for g in live])
        for generation, row in zip(live, scores, strict=True):
            yield generation, generation.take(row)
        rows = [i for i, g in enumerate(live) if g.finish_reason is None]
        if memory is not None and 0 < len(rows) < len(live):
            memory.keep(rows)
        live = [live[i] for i in rows]


def next_scores(network: Transformer, texts: Sequence[Sequence[int]], cache: Cache | None = None) -> Tensor:
    """The scores of the token after each text [B V]; with a cache, after what it holds and each text."""
    tokens, n_new = padded(texts, network.embed.weight.device)
    x = network.residual(tokens, cache, n_new)
    last = torch.tensor(n_new, device=x.device) - 1
    return network.unembed(x[torch.arange(len(n_new), device=x.device), last][:, None])[:, 0]


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int]]:
    """Ids [B T], padded on the right with 0, and how many are real in each row."""
    n_real = [len(text) for text in texts]
    width = max(n_real)
    rows = [[*text, *[0] * (width - len(text))] for text in texts]
    return torch.tensor(rows, device=device), n_real


class _Memory:
    """The cache of a running batch, thrown away where a text outgrows the rotation its keys were cached under."""

    def __init__(self, network: Transformer, live: Sequence[Generation]) -> None:
        self.network = network
        wanted = max(len(g.tokens) + g.request.max_tokens for g in live)
        longest = max(len(g.tokens) for g in live)
        self.n_slots = min(wanted, longest + FIRST_ROOM, network.config.n_ctx)
        self._start(len(live))

    def next_scores(self, live: Sequence[Generation]) -> Tensor:
        grown = [(n, len(g.tokens)) for n, g in zip(self.cache.lengths, live, strict=True)]
        if any(n and self.network.rotation_changes(n, n_now) for n, n_now in grown):
            self._start(len(live))
        new = [g.tokens[n:] for n, g in zip(self.cache.lengths, live, strict=True)]
        if all(len(tokens) == 1 for tokens in new):
            return self.step.scores(torch.tensor(new, device=self.network.embed.weight.device))
        return next_scores(self.network, new, self.cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        self.cache.keep(rows)
        self.step = Step(self.network, self.cache)

    def _start(self, n_rows: int) -> None:
        self.cache = Cache(self.network.config, n_rows, self.network.embed.weight, self.n_slots)
        self.step = Step(self.network, self.cache)
