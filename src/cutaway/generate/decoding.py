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
from jaxtyping import Float
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


class Rereading:
    """Texts that grow together, each read from its beginning in every pass: the lecture's loop."""

    def __init__(self, network: Transformer, generations: Sequence[Generation] = ()) -> None:
        self.network = network
        self.generations = list(generations)

    @torch.inference_mode()
    def scores(self) -> Float[Tensor, "B V"]:
        """One pass: the scores of each text's next token."""
        return next_scores(self.network, [g.tokens for g in self.generations])

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these texts alone, in this order."""
        self.generations = [self.generations[row] for row in rows]


class Batch(Rereading):
    """Texts that grow together and remember their keys and values: a pass reads what is new of each.

    Between passes texts may leave and those of another batch join; each gets the tokens it would get alone.
    """

    def __init__(
        self, network: Transformer, generations: Sequence[Generation] = (), cache: Cache | None = None
    ) -> None:
        """`cache`: what has been read of these texts already, as the network would read it now."""
        super().__init__(network, generations)
        self.cache = cache or self._new_cache()
        self.step = Step(network, self.cache)

    @torch.inference_mode()
    def scores(self) -> Float[Tensor, "B V"]:
        if self.stale():
            self.cache = self._new_cache()
            self.step = Step(self.network, self.cache)
        new = self.unread
        needed = max(n + len(tokens) for n, tokens in zip(self.cache.lengths, new, strict=True))
        if needed > self.cache.n_slots:
            self._resize(self.cache.n_rows, min(max(needed, 2 * self.cache.n_slots), self.wanted))
        if all(len(tokens) == 1 for tokens in new):
            return self.step.scores(torch.tensor(new, device=self.network.embed.weight.device))
        return next_scores(self.network, new, self.cache)

    @torch.inference_mode()
    def read(self, n_most: int) -> bool:
        """Read the next `n_most` tokens of a single text, never its last; whether only `scores` is left to ask for.

        Where the rotation depends on the length of the text, `scores` reads it whole.
        """
        (generation,), (n_read,) = self.generations, self.cache.lengths
        stop = min(n_read + n_most, len(generation.tokens) - 1)
        if stop == n_read or self.network.rotation_changes(stop, len(generation.tokens)):
            return True
        new = torch.tensor([generation.tokens[n_read:stop]], device=self.network.embed.weight.device)
        self.network.residual(new, self.cache)
        return stop == len(generation.tokens) - 1

    def stale(self) -> list[int]:
        """The rows whose text has outgrown the rotation that its keys were cached under."""
        grown = [(n, len(g.tokens)) for n, g in zip(self.cache.lengths, self.generations, strict=True)]
        return [row for row, (n, n_now) in enumerate(grown) if n and self.network.rotation_changes(n, n_now)]

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        super().keep(rows)
        self.cache.keep(rows)
        n_slots = min(self.cache.n_slots, self.wanted)
        if 4 * len(rows) <= self.cache.n_rows or 2 * n_slots <= self.cache.n_slots:
            self.cache.resize(len(rows), n_slots)
        self.step = Step(self.network, self.cache)

    @torch.inference_mode()
    def join(self, other: Batch) -> None:
        """Take over the texts of another batch, with what it has read of them."""
        self.generations += other.generations
        n_rows, n_slots = rows_for(len(self.generations)), min(self.wanted, max(other.cache.lengths) + FIRST_ROOM)
        if n_rows > self.cache.n_rows or n_slots > self.cache.n_slots:
            self.cache.resize(max(n_rows, self.cache.n_rows), max(n_slots, self.cache.n_slots))
        self.cache.join(other.cache)
        self.step = Step(self.network, self.cache)

    @property
    def unread(self) -> list[list[int]]:
        """What the next pass reads of each text."""
        return [g.tokens[n:] for n, g in zip(self.cache.lengths, self.generations, strict=True)]

    @property
    def wanted(self) -> int:
        """Slots that the longest text will have filled at its end."""
        return max((slots_for(g.request, self.network.config.n_ctx) for g in self.generations), default=0)

    def n_bytes_with(self, requests: Sequence[Request]) -> int:
        """What the cache may grow to once these texts have joined [B]."""
        n_rows = max(rows_for(len(self.generations) + len(requests)), self.cache.n_rows)
        longest = max((slots_for(request, self.network.config.n_ctx) for request in requests), default=0)
        return n_rows * max(self.wanted, self.cache.n_slots, longest) * bytes_per_token(self.network)

    def _resize(self, n_rows: int, n_slots: int) -> None:
        self.cache.resize(n_rows, n_slots)
        self.step = Step(self.network, self.cache)

    def _new_cache(self) -> Cache:
        longest = max((len(g.tokens) for g in self.generations), default=0)
        n_slots = min(self.wanted, longest + FIRST_ROOM)
        return Cache(self.network.config, len(self.generations), self.network.embed.weight, n_slots)


def decode(
    network: Transformer, generations: Sequence[Generation], *, use_cache: bool = True
) -> Iterator[tuple[Generation, Piece]]:
    """Run passes until every text is finished; each pass gives every unfinished text one token."""
    live = [g for g in generations if g.finish_reason is None]
    batch = (Batch if use_cache else Rereading)(network, live)
    while live:
        for generation, row in zip(live, batch.scores(), strict=True):
            yield generation, generation.take(row)
        rows = [i for i, g in enumerate(live) if g.finish_reason is None]
        if len(rows) < len(live):
            batch.keep(rows)
        live = list(batch.generations)


def slots_for(request: Request, n_ctx: int) -> int:
    """The tokens of a text that will be read: its last is picked only."""
    return max(len(request.prompt), min(len(request.prompt) + request.max_tokens - 1, n_ctx))


def rows_for(n_texts: int) -> int:
    """Rows of a buffer that texts join one by one: a power of 2, so that few of them make it move."""
    return 1 << (n_texts - 1).bit_length() if n_texts else 0


def bytes_per_token(network: Transformer) -> int:
    """What a cache holds of one token [B]."""
    config = network.config
    return 2 * config.n_layers * config.n_kv_heads * config.d_head * network.embed.weight.dtype.itemsize


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
