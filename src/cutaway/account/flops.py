"""What a pass computes: multiplications and additions of every sub-layer, as functions of the length.

A multiply-add is 2. Counted are the products with matrices, and q·k and pattern·v; not biases, norms, softmax and
non-linearities. A lookup is 0; the head is a product, tied or not. Every query meets every key of its window: the
causal half is cut only where `halved` asks for it.

Source: PaLM, arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from cutaway.checked import check_count
from cutaway.config import MaskConfig, ModelConfig, WindowMaskConfig

MOST = 10**15  # tokens that are generated or trained on


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs by sub-layer, over all layers. `scores` is q·k and `mixing` pattern·v: the two that know a square."""

    embedding: int = 0
    qkv: int = 0
    scores: int = 0
    mixing: int = 0
    out: int = 0
    feedforward: int = 0
    head: int = 0

    @property
    def attention(self) -> int:
        """The whole sub-layer: projections, scores, mixing."""
        return self.qkv + self.scores + self.mixing + self.out

    @property
    def squares(self) -> int:
        """What grows with the square of the length."""
        return self.scores + self.mixing

    @property
    def total(self) -> int:
        return sum(n for _, n in self)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return ((f.name, getattr(self, f.name)) for f in fields(self))

    def __add__(self, other: Flops) -> Flops:
        return Flops(**{name: n + getattr(other, name) for name, n in self})

    def __mul__(self, times: int) -> Flops:
        return Flops(**{name: n * times for name, n in self})

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self) | {"total": self.total}


def forward(
    config: ModelConfig,
    n_queries: int,
    n_keys: int | None = None,
    *,
    n_scored: int | None = None,
    halved: bool = False,
) -> Flops:
    """One pass over `n_queries` new tokens of one text.

    Args:
        n_keys: keys there are when the pass ends, cached and new; None: no cache, as many as queries.
        n_scored: positions that go through the head; None: all. A prompt needs the last alone.
        halved: count the half of the square that a causal mask leaves (only without a cache).
    Raises:
        ConfigError: a length below 1.
    """
    keys = _given(n_keys, n_queries)
    check_count("tokens", n_queries)
    check_count("keys", keys)
    assert not halved or keys == n_queries, "the half of a square"
    pairs = _doubled_half if halved else _doubled_square
    doubled = sum(pairs(mask, n_queries, keys) for mask in config.masks)
    return _of(config, n_queries, _given(n_scored, n_queries), doubled)


def step(config: ModelConfig, n_keys: int) -> Flops:
    """One new token against a cache; `n_keys` with its own."""
    return forward(config, 1, n_keys)


def prefill(config: ModelConfig, n_tokens: int) -> Flops:
    """A prompt's pass: all of it through the blocks, its last position through the head."""
    return forward(config, n_tokens, n_scored=1)


def generation(config: ModelConfig, n_prompt: int, n_new: int, *, cache: bool) -> Flops:
    """All passes that give `n_new` tokens after a prompt: as many as there are tokens.

    With a cache the first reads the prompt and each other one token; without, each reads the whole text again.
    """
    check_count("new tokens", n_new, MOST)
    if cache:
        n_steps = n_new - 1
        doubled = 2 * sum(_pairs_of_steps(mask, n_prompt + 1, n_prompt + n_steps) for mask in config.masks)
        return prefill(config, n_prompt) + _of(config, n_steps, n_steps, doubled)
    last = n_prompt + n_new - 1
    n_read = sum_over(lambda n: n, n_prompt, last, None, 1)
    doubled = 2 * sum(_pairs_of_passes(mask, n_prompt, last) for mask in config.masks)
    return _of(config, n_read, n_new, doubled)


@dataclass(frozen=True, kw_only=True)
class TrainingFlops:
    """FLOPs of one window in training: its forward pass, the backward one, and what is computed again for it."""

    forward: Flops
    recomputed: Flops

    @property
    def backward(self) -> Flops:
        """Two products for each of the forward pass: along what was read, and along the matrix."""
        return self.forward * 2

    @property
    def total(self) -> int:
        return self.forward.total + self.backward.total + self.recomputed.total

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "forward": self.forward.to_dict(),
            "backward": self.backward.to_dict(),
            "recomputed": self.recomputed.to_dict(),
            "total": self.total,
        }


def training(config: ModelConfig, n_ctx: int, *, recompute: bool = False, halved: bool = False) -> TrainingFlops:
    """One window of `n_ctx` tokens; `recompute`: blocks keep nothing and run forward again in the backward pass."""
    once = forward(config, n_ctx, halved=halved)
    again = Flops(**{name: 0 if name == "head" else n for name, n in once})
    return TrainingFlops(forward=once, recomputed=again if recompute else Flops())


def per_token(config: ModelConfig, n_ctx: int) -> int:
    """Forward FLOPs of one token of a window of `n_ctx` [FLOP/token]; training takes three times as many."""
    return forward(config, n_ctx).total // n_ctx


# --- what overtakes what -----------------------------------------------------------------------------------


def squares_overtake_feedforward(config: ModelConfig) -> int | None:
    """The length from which scores and mixing cost as much as the feed-forward: 4d in the classic.

    None where windows keep them below for ever.
    """
    return _crossing(config, _of(config, 1, 1, 0).feedforward)


def squares_overtake_matrices(config: ModelConfig) -> int | None:
    """The length from which scores and mixing cost as much as all matrices of the blocks: 6d in the classic."""
    linear = _of(config, 1, 1, 0)
    return _crossing(config, linear.qkv + linear.out + linear.feedforward)


def _crossing(config: ModelConfig, target: int) -> int | None:
    """The first length at which a token's squares reach `target` FLOPs."""
    edges = sorted({edge for edge in map(_edge, config.masks) if edge is not None})

    def reached(n: int) -> bool:
        return 4 * sum(reach(mask, n) for mask in config.masks) * config.n_heads * config.d_head >= target

    unbounded = sum(1 for mask in config.masks if _edge(mask) is None)
    if not unbounded and not reached(edges[-1]):
        return None
    low, high = 0, 1
    while not reached(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


# --- parts -------------------------------------------------------------------------------------------------


def reach(mask: MaskConfig, n_keys: int) -> int:
    """The keys that count for a query: all there are, or the window's."""
    return min(n_keys, mask.size) if isinstance(mask, WindowMaskConfig) else n_keys


def _pairs_of_steps(mask: MaskConfig, first: int, last: int) -> int:
    """Pairs of query and key in steps against `first` to `last` keys."""
    return sum_over(lambda n: reach(mask, n), first, last, _edge(mask), 1)


def _pairs_of_passes(mask: MaskConfig, first: int, last: int) -> int:
    """Pairs in whole passes over `first` to `last` tokens."""
    return sum_over(lambda n: n * reach(mask, n), first, last, _edge(mask), 2)


def sum_over(f: Callable[[int], int], first: int, last: int, edge: int | None, degree: int) -> int:
    """Σ f(n) for n from `first` to `last`, where f is a polynomial up to `edge` and another one past it.

    A million tokens are summed as fast as two: each stretch has the sum that Newton's differences give.
    """
    if edge is not None and first <= edge < last:
        return _stretch(f, first, edge, degree) + _stretch(f, edge + 1, last, degree)
    return _stretch(f, first, last, degree)


def _stretch(f: Callable[[int], int], first: int, last: int, degree: int) -> int:
    n = last - first + 1
    if n <= 0:
        return 0
    values = [f(first + i) for i in range(min(n, degree + 1))]
    total, chosen = 0, n  # chosen: n over k + 1
    for k in range(len(values)):
        total += values[0] * chosen
        values = [b - a for a, b in pairwise(values)]
        chosen = chosen * (n - k - 1) // (k + 2)
    return total


def _of(config: ModelConfig, n_tokens: int, n_scored: int, doubled_pairs: int) -> Flops:
    """Flops of so many tokens in the blocks and in the head, and of half so many pairs of query and key."""
    d, d_attended, d_kv = config.d_model, config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    n_ff_matrices = 3 if config.feedforward.gated else 2
    in_blocks = 2 * n_tokens * config.n_layers
    return Flops(
        qkv=in_blocks * d * (d_attended + 2 * d_kv),
        scores=doubled_pairs * d_attended,
        mixing=doubled_pairs * d_attended,
        out=in_blocks * d_attended * d,
        feedforward=in_blocks * n_ff_matrices * d * config.d_ff,
        head=2 * n_scored * d * config.d_vocab,
    )


def _given(n: int | None, otherwise: int) -> int:
    return otherwise if n is None else n


def _doubled_square(mask: MaskConfig, n_queries: int, n_keys: int) -> int:
    """Twice the pairs of every query with every key in its reach."""
    return 2 * n_queries * reach(mask, n_keys)


def _doubled_half(mask: MaskConfig, n_queries: int, n_keys: int) -> int:
    """Twice the pairs under the diagonal, which itself is cut in half, and within the window."""
    w = reach(mask, n_keys)
    return 2 * n_queries * w - w * w


def _edge(mask: MaskConfig) -> int | None:
    return mask.size if isinstance(mask, WindowMaskConfig) else None
