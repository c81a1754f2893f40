"""Counts as formulas: sums of products of a config's letters, which can be written down and worked out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cutaway.config import ModelConfig

POWERS = {2: "²", 3: "³"}


class Formula:
    """A sum of terms, each a number of times some letters: 4d² + 2d·F."""

    def __init__(self, terms: Mapping[tuple[str, ...], int]) -> None:
        self.terms = {letters: n for letters, n in terms.items() if n}

    @classmethod
    def of(cls, letter: str, n: int = 1) -> Formula:
        """`n` times a letter; of the empty letter, the number itself."""
        return cls({(letter,) if letter else (): n})

    def __add__(self, other: Formula) -> Formula:
        return Formula(Counter(self.terms) + Counter(other.terms))

    def __mul__(self, other: Formula) -> Formula:
        product: Counter[tuple[str, ...]] = Counter()
        for a, n in self.terms.items():
            for b, m in other.terms.items():
                product[tuple(sorted(a + b, key=_place))] += n * m
        return Formula(product)

    def value(self, config: ModelConfig) -> int:
        """What it comes to for a config."""
        sizes = letters(config)
        total = 0
        for term, n in self.terms.items():
            for letter in term:
                n *= sizes[letter]
            total += n
        return total

    def __str__(self) -> str:
        return " + ".join(_term(term, n) for term, n in self.terms.items()) or "0"


ORDER = ("V", "n_ctx", "d", "H", "K", "Dh", "F")
NONE = Formula({})
ONE = Formula.of("")


def _place(letter: str) -> int:
    return ORDER.index(letter)


def letters(config: ModelConfig) -> dict[str, int]:
    """What each letter stands for: V d_vocab, d d_model, H n_heads, K n_kv_heads, Dh d_head, F d_ff."""
    values = (
        config.d_vocab,
        config.n_ctx,
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        config.d_head,
        config.d_ff,
    )
    return dict(zip(ORDER, values, strict=True))


def width(config: ModelConfig) -> Formula:
    """The residual stream's: d."""
    return Formula.of("d")


def query_width(config: ModelConfig) -> Formula:
    """All query heads together: d where they share it out, as the classic's do, else H·Dh."""
    return _d_or(config, config.n_heads, "H")


def key_width(config: ModelConfig) -> Formula:
    """All key heads together, and all value heads."""
    if config.n_kv_heads == config.n_heads:
        return query_width(config)
    return Formula({("K", "Dh"): 1})


def ff_width(config: ModelConfig) -> Formula:
    """The feed-forward's: 4d in the classic, else F."""
    return Formula.of("d", 4) if config.d_ff == 4 * config.d_model else Formula.of("F")


def _d_or(config: ModelConfig, n_heads: int, letter: str) -> Formula:
    shared_out = n_heads * config.d_head == config.d_model
    return Formula.of("d") if shared_out else Formula({(letter, "Dh"): 1})


def _term(term: tuple[str, ...], n: int) -> str:
    powers = Counter(term)
    letters = [letter + (POWERS.get(power, f"^{power}") if power > 1 else "") for letter, power in powers.items()]
    if not letters:
        return str(n)
    return ("" if n == 1 else str(n)) + "·".join(letters)
