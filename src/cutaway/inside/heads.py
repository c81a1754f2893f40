"""What kind of head a pattern speaks of: where it looks, as a few numbers between 0 and 1, and how spread out.

Pure functions of patterns [… T S], one text read at once, so S = T. The first query is left out of every mean: it can
look only at itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.targets import Reader, count_of
from cutaway.text.ids import IdTokenizer

Pairs = list[list[int]]  # for each query, the keys that count


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to look, and what its score means."""

    name: str
    meaning: str
    score: Callable[[Tensor, Sequence[int]], Tensor]
    needs_repeats: bool = False


def entropy(pattern: Tensor) -> Tensor:
    """How spread out a query's attention is, on average: 0 on one key, ln n evenly over n of them […] [nats]."""
    if pattern.ndim > 3:  # a layer at a time, because the terms of all heads would be as large as the patterns
        return torch.stack([entropy(layer) for layer in pattern])
    terms = torch.special.entr(pattern[..., 1:, :]).sum(-1)
    return terms.mean(-1) if terms.shape[-1] else pattern.new_full(pattern.shape[:-2], torch.nan)


def share_on(pattern: Tensor, keys: Pairs) -> Tensor:
    """The attention of each query that falls on its keys, on average over those that have any; NaN if none has […]."""
    chosen = [(query, key) for query, of_query in enumerate(keys) if query for key in of_query]
    if not chosen:
        return pattern.new_full(pattern.shape[:-2], torch.nan)
    weights = pattern.new_zeros(pattern.shape[-2:])
    weights[tuple(zip(*chosen, strict=True))] = 1 / len({query for query, _ in chosen})
    return pattern.flatten(-2) @ weights.flatten()


def previous_keys(tokens: Sequence[int]) -> Pairs:
    """The position before."""
    return [[query - 1] if query else [] for query in range(len(tokens))]


def first_keys(tokens: Sequence[int]) -> Pairs:
    """The first position."""
    return [[0] for _ in tokens]


def own_keys(tokens: Sequence[int]) -> Pairs:
    """The query's own position."""
    return [[query] for query in range(len(tokens))]


def duplicate_keys(tokens: Sequence[int]) -> Pairs:
    """Where the query's token stood before; not at the first position, which draws attention whatever stands there."""
    return [[key for key in range(1, query) if tokens[key] == token] for query, token in enumerate(tokens)]


def induction_keys(tokens: Sequence[int]) -> Pairs:
    """What came after the query's token before, if that is not the query itself."""
    return [[key + 1 for key in range(query - 1) if tokens[key] == token] for query, token in enumerate(tokens)]


def looks_at(keys: Callable[[Sequence[int]], Pairs]) -> Callable[[Tensor, Sequence[int]], Tensor]:
    """The score of looking at these keys."""
    return lambda pattern, tokens: share_on(pattern, keys(tokens))


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="previous", meaning="looks at the token before", score=looks_at(previous_keys)),
        Kind(
            name="induction",
            meaning="from a token that came before, looks at what followed it then",
            score=looks_at(induction_keys),
            needs_repeats=True,
        ),
        Kind(
            name="duplicate",
            meaning="from a token that came before, looks at where it stood",
            score=looks_at(duplicate_keys),
            needs_repeats=True,
        ),
        Kind(name="own", meaning="looks at the token itself", score=looks_at(own_keys)),
        Kind(name="first", meaning="looks at the first position, the sink", score=looks_at(first_keys)),
        Kind(
            name="entropy",
            meaning="spreads its attention: 0 on one key, ln n evenly over n [nats]",
            score=lambda pattern, tokens: entropy(pattern),
        ),
    )
}


def summaries(pattern: Tensor, tokens: Sequence[int]) -> dict[str, Tensor]:
    """Every score of patterns [… T S], by kind […]; NaN where the text gives no occasion."""
    wide = pattern if pattern.dtype == torch.float64 else pattern.float()
    return {name: kind.score(wide, tokens) for name, kind in KINDS.items()}


def has_repeats(tokens: Sequence[int]) -> bool:
    """Whether an induction head could show itself: some token comes again, and not at once."""
    return any(induction_keys(tokens))


def probe(model: Reader, *, n: int = 32, seed: int = 0) -> list[int]:
    """Random tokens, each another, and the same again: the text on which an induction head cannot but show.

    Nothing but the repetition tells what comes next in the second half. A begin token stands before it if the model
    has one, and no other special token is in it.

    Args:
        n: tokens of one half.
        seed: of the draw.
    Raises:
        InsideError: more than the vocabulary or the context has room for.
    """
    begin = [] if model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    n_ctx, reader = model.network.config.n_ctx, model.tokenizer
    n = count_of(n, (n_ctx - len(begin)) // 2, "n")
    order = list(range(min(reader.d_vocab, model.network.config.d_vocab)))
    random.Random(seed).shuffle(order)
    if isinstance(reader, IdTokenizer):
        special = {reader.bos_id, reader.pad_id} | reader.eos_ids
        usable = [token for token in order if token not in special]
    else:
        usable = [token for token in order if token not in reader.special_ids and reader.token_bytes(token)]
    if n > len(usable):
        raise InsideError(f"n = {n}: the vocabulary has {len(usable)} tokens that are no special ones")
    return [*begin, *usable[:n], *usable[:n]]
