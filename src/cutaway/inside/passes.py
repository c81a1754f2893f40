"""The passes that a trace watches: over texts, with gradients, or token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.generate.decoding import Generation, padded
from cutaway.inside.tap import Row, TraceTap
from cutaway.inside.values import Values
from cutaway.network import Transformer
from cutaway.nn.cache import Cache

Of = Callable[[Tensor], Tensor] | tuple[int, int]  # logits [T V] → one number, or (position, token)


@torch.no_grad()
def run_texts(network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]]) -> None:
    """One pass over whole texts."""
    forward(network, tap, rows, texts)


def forward(network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]]) -> Tensor:
    """The logits of a ragged batch [B T V]."""
    tokens, n_new = padded(texts, network.embed.weight.device)
    tap.begin(rows, [0] * len(rows), n_new)
    return network.unembed(network.residual(tokens, n_new=n_new, tap=tap), tap)


def run_backward(
    network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]], of: Of | None
) -> list[Values]:
    """One pass, and the gradient of each text's number by every kept value of that text."""
    with torch.inference_mode(False), torch.enable_grad():
        logits = forward(network, tap, rows, texts)
        total = sum(
            (number_of(row[: len(text)], of) for row, text in zip(logits, texts, strict=True)), logits.new_zeros(())
        )
        points = list(tap.graph.items())
        gradients = torch.autograd.grad(total, [value for _, value in points], allow_unused=True)
    below = [Row(n_prompt=row.n_prompt) for row in rows]
    tap.begin(below, [0] * len(rows), [len(text) for text in texts])
    for (name, value), gradient in zip(points, gradients, strict=True):
        tap.keep(name, torch.zeros_like(value) if gradient is None else gradient)
    tap.graph.clear()
    return [row.values() for row in below]


def number_of(logits: Tensor, of: Of | None) -> Tensor:
    """The number whose gradient is wanted, from one text's logits [T V].

    Raises:
        InsideError: it is not one number that depends on the logits, or lies outside them.
    """
    if of is None:
        return logits[-1].max()
    if callable(of):
        number = of(logits)
        if not (isinstance(number, Tensor) and number.numel() == 1 and number.requires_grad):
            raise InsideError(
                "of must turn the logits [T V] into one number that depends on them, such as logits[-1, 7]"
            )
        return number.reshape(())
    position, token = of
    n_tokens, d_vocab = logits.shape
    if not (-n_tokens <= position < n_tokens and 0 <= token < d_vocab):
        raise InsideError(
            f"of = ({position}, {token}): the position is from {-n_tokens} to {n_tokens - 1}, "
            f"the token from 0 to {d_vocab - 1}"
        )
    return logits[position, token]


@torch.no_grad()
def run_generations(
    network: Transformer, tap: TraceTap, rows: Sequence[Row], generations: Sequence[Generation]
) -> None:
    """Decode with the cache until every text is finished, as `decode` does, each pass through the tap."""
    live = [(row, g) for row, g in zip(rows, generations, strict=True) if g.finish_reason is None]
    n_slots = min(max(len(g.tokens) + g.request.max_tokens for g in generations), network.config.n_ctx)
    cache: Cache | None = None
    while live:
        if cache is None or _is_stale(network, cache, [g for _, g in live]):
            cache = Cache(network.config, len(live), network.embed.weight, n_slots)
        new = [g.tokens[n:] for n, (_, g) in zip(cache.lengths, live, strict=True)]
        scores = step(network, tap, [row for row, _ in live], new, cache)
        for (_, generation), row_scores in zip(live, scores, strict=True):
            generation.take(row_scores)
        going = [i for i, (_, g) in enumerate(live) if g.finish_reason is None]
        if 0 < len(going) < len(live):
            cache.keep(going)
        live = [live[i] for i in going]


def step(network: Transformer, tap: TraceTap, rows: Sequence[Row], new: Sequence[list[int]], cache: Cache) -> Tensor:
    """Read what is new of each text; the scores of what comes next [B V].

    The last position goes through the head by itself, as it does when nobody watches: the same product, bit for bit.
    """
    tokens, n_new = padded(new, network.embed.weight.device)
    firsts = list(cache.lengths)
    tap.begin(rows, firsts, n_new)
    x = network.residual(tokens, cache, n_new, tap)
    if tokens.shape[1] > 1:
        tap.begin(rows, firsts, [n - 1 for n in n_new])
        network.unembed(x, tap)
        tap.begin(rows, [first + n - 1 for first, n in zip(firsts, n_new, strict=True)], [1] * len(rows))
        last = torch.tensor(n_new, device=x.device) - 1
        x = x[torch.arange(len(rows), device=x.device), last][:, None]
    return network.unembed(x, tap)[:, 0]


def _is_stale(network: Transformer, cache: Cache, live: Sequence[Generation]) -> bool:
    """Whether a text outgrows the rotation under which its keys were cached."""
    return any(network.rotation_changes(n, len(g.tokens)) for n, g in zip(cache.lengths, live, strict=True))
