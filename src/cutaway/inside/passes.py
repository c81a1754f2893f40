"""The passes that a trace watches: over texts, with gradients, or token by token."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.generate.decoding import Generation, Piece, padded
from cutaway.inside.tap import Row, TraceTap
from cutaway.inside.values import Values
from cutaway.network import Transformer
from cutaway.nn.cache import Cache

# logits [T V] → one number; (position, token): that logit; the loss of the text's own next tokens
Of = Callable[[Tensor], Tensor] | tuple[int, int] | Literal["loss"]


@torch.no_grad()
def run_texts(network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]]) -> None:
    """One pass over whole texts, and the head for those positions that somebody wants to see behind it."""
    with unrecorded(network, tap):
        x, n_new = residual(network, tap, rows, texts)
        first = tap.first_behind(n_new)
        tap.begin(rows, [first] * len(rows), [n - first for n in n_new])
        network.unembed(x[:, first:], tap)
        tap.settle()


def unrecorded(network: Transformer, tap: TraceTap) -> AbstractContextManager[object]:
    """Leaves out what torch notes of views and changes for a later gradient: of a short pass a fiftieth.

    Unlike in inference mode, what comes of it may be used with gradients. Not where an edit may want some of its own,
    nor for weights that are more than plain tensors.
    """
    below = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", None)
    is_plain = type(network.embed.weight) is torch.nn.Parameter
    return nullcontext() if below is None or tap.edits or not is_plain else below()


def residual(
    network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]]
) -> tuple[Tensor, list[int]]:
    """The stream of a ragged batch after the last block [B T D], and how many positions each row has."""
    tokens, n_new = padded(texts, network.embed.weight.device)
    tap.begin(rows, [0] * len(rows), n_new)
    return network.residual(tokens, n_new=n_new, tap=tap), n_new


def run_backward(
    network: Transformer, tap: TraceTap, rows: Sequence[Row], texts: Sequence[list[int]], of: Of | None
) -> list[Values]:
    """One pass, and the gradient of each text's number by every kept value of that text."""
    with torch.inference_mode(False), torch.enable_grad():
        x, _ = residual(network, tap, rows, texts)
        logits = network.unembed(x, tap)
        total = sum(
            (number_of(row[: len(text)], of, text) for row, text in zip(logits, texts, strict=True)),
            logits.new_zeros(()),
        )
        return gradients(tap, rows, total)


def gradients(tap: TraceTap, rows: Sequence[Row], total: Tensor) -> list[Values]:
    """The gradient of a number by every value that was kept of each text; the graph is let go."""
    points = list(tap.graph.items())
    found = torch.autograd.grad(total, [value for _, value in points], allow_unused=True)
    below = [Row(n_prompt=row.n_prompt) for row in rows]
    tap.begin(below, [0] * len(rows), [row.n_prompt for row in rows])
    for (name, value), gradient in zip(points, found, strict=True):
        tap.keep(name, torch.zeros_like(value) if gradient is None else gradient)
    tap.graph.clear()
    return [row.values() for row in below]


def number_of(logits: Tensor, of: Of | None, text: list[int]) -> Tensor:
    """The number whose gradient is wanted, from one text and its logits [T V].

    Raises:
        InsideError: it is not one number that depends on the logits, or lies outside them.
    """
    if of is None:
        return logits[-1].max()
    if callable(of):
        return differentiable(of(logits), "of")
    if isinstance(of, str):
        return loss_of(logits, of, text)
    try:
        position, token = map(operator.index, of)
    except (TypeError, ValueError) as error:
        raise InsideError(f'of = {of!r:.40}: give (position, token), "loss", or a function of the logits') from error
    n_tokens, d_vocab = logits.shape
    if not (-n_tokens <= position < n_tokens and 0 <= token < d_vocab):
        raise InsideError(
            f"of = ({position}, {token}): the position is from {-n_tokens} to {n_tokens - 1}, "
            f"the token from 0 to {d_vocab - 1}"
        )
    return logits[position, token]


def differentiable(number: Any, role: str) -> Tensor:
    """What a function of the logits gave, as a number with a graph; `role` is what the function is called.

    Raises:
        InsideError: it is not one number, or has no graph.
    """
    if not (isinstance(number, Tensor) and number.numel() == 1 and number.requires_grad):
        raise InsideError(
            f"{role} must turn the logits [T V] into one number that depends on them, such as logits[-1, 7]"
        )
    return number.reshape(())


def loss_of(logits: Tensor, of: str, text: list[int]) -> Tensor:
    """The mean cross-entropy of each next token of a text [nats]; the first token is not predicted.

    Raises:
        InsideError: another word than "loss"; a text of one token, in which nothing is predicted.
    """
    if of != "loss":
        raise InsideError(f'of = {of!r}: it must be "loss", (position, token), or a function of the logits')
    if len(text) < 2:
        raise InsideError("of = 'loss' with a text of 1 token: nothing in it is predicted; give at least 2")
    wide = logits[:-1].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, torch.tensor(text[1:], device=logits.device))


def run_generations(
    network: Transformer,
    tap: TraceTap,
    rows: Sequence[Row],
    generations: Sequence[Generation],
    *,
    use_cache: bool = True,
) -> Iterator[tuple[Generation, Piece]]:
    """Decode until every text is finished, as `decode` does, each pass through the tap; one pass where none grows."""
    live = [(row, g) for row, g in zip(rows, generations, strict=True) if g.finish_reason is None]
    if generations and not live:
        run_texts(network, tap, rows, [g.tokens for g in generations])
    n_slots = min(max((len(g.tokens) + g.request.max_tokens for _, g in live), default=0), network.config.n_ctx)
    cache: Cache | None = None
    while live:
        if use_cache and (cache is None or _is_stale(network, cache, [g for _, g in live])):
            cache = Cache(network.config, len(live), network.embed.weight, n_slots)
        n_read = [0] * len(live) if cache is None else cache.lengths
        new = [g.tokens[n:] for n, (_, g) in zip(n_read, live, strict=True)]
        with torch.no_grad():
            scores = step(network, tap, [row for row, _ in live], new, cache)
        for (_, generation), row_scores in zip(live, scores, strict=True):
            yield generation, generation.take(row_scores)
        going = [i for i, (_, g) in enumerate(live) if g.finish_reason is None]
        if cache is not None and 0 < len(going) < len(live):
            cache.keep(going)
        live = [live[i] for i in going]


def step(
    network: Transformer, tap: TraceTap, rows: Sequence[Row], new: Sequence[list[int]], cache: Cache | None
) -> Tensor:
    """Read what is new of each text, or without a cache all of it; the scores of what comes next [B V].

    The last position goes through the head by itself, as it does when nobody watches: the same product, bit for bit.
    """
    tokens, n_new = padded(new, network.embed.weight.device)
    firsts = [0] * len(rows) if cache is None else list(cache.lengths)
    tap.begin(rows, firsts, n_new)
    x = network.residual(tokens, cache, n_new, tap)
    if tokens.shape[1] > 1:
        tap.begin(rows, firsts, [n - 1 for n in n_new])
        if tap.sees_behind():
            network.unembed(x, tap)
        tap.begin(rows, [first + n - 1 for first, n in zip(firsts, n_new, strict=True)], [1] * len(rows))
        last = torch.tensor(n_new, device=x.device) - 1
        x = x[torch.arange(len(rows), device=x.device), last][:, None]
    scores = network.unembed(x, tap)[:, 0]
    tap.settle()  # before the cache moves what the last block showed of it
    return scores


def _is_stale(network: Transformer, cache: Cache, live: Sequence[Generation]) -> bool:
    """Whether a text outgrows the rotation under which its keys were cached."""
    return any(network.rotation_changes(n, len(g.tokens)) for n, g in zip(cache.lengths, live, strict=True))
