"""Every number that a transformer learns: in which tensor, by which formula, how many.

Equal to the built network, tensor by tensor: names, shapes and the exact total, for every config.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cutaway.account.formula import NONE, ONE, Formula, ff_width, key_width, query_width, width
from cutaway.config import LayerNormConfig, LearnedPositionConfig, ModelConfig, NormConfig

Group = Literal["embedding", "positions", "attention", "feed-forward", "norms", "head"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A matrix or a vector of the model: some rows of a tensor of the network.

    `tensor` is that tensor's name, below its block where `in_block`. A head that is the embedding's own table has a
    shape, and counts nothing.
    """

    name: str
    group: Group
    tensor: str
    rows: Formula
    columns: Formula | None = None
    in_block: bool = True
    shared: bool = False

    @property
    def formula(self) -> Formula:
        """How many numbers it has, in one layer."""
        return self.rows * (self.columns or ONE)

    def count(self, config: ModelConfig) -> int:
        """The same as a number; 0 where another part holds them."""
        return 0 if self.shared else self.formula.value(config)


def parts(config: ModelConfig) -> list[Part]:
    """Everything outside the blocks once, everything inside one block once."""
    return [*_before(config), *_block(config), *_after(config)]


def _before(config: ModelConfig) -> Iterator[Part]:
    d = width(config)
    yield Part(
        name="embedding W_E",
        group="embedding",
        tensor="embed.weight",
        rows=Formula.of("V"),
        columns=d,
        in_block=False,
    )
    for i, kind in enumerate(dict.fromkeys(config.positions)):
        if isinstance(kind, LearnedPositionConfig):
            yield Part(
                name="position table W_pos",
                group="positions",
                tensor=f"positions.{i}.weight",
                rows=Formula.of("n_ctx"),
                columns=d,
                in_block=False,
            )


def _block(config: ModelConfig) -> Iterator[Part]:
    d, q, kv, f = width(config), query_width(config), key_width(config), ff_width(config)
    pre, post = config.norm_placement != "post", config.norm_placement != "pre"
    options, ff = config.attention, config.feedforward
    if pre:
        yield from _norm("norm before attention", "attn_norm", config.norm, d)
    for name, rows in (("W_Q", q), ("W_K", kv), ("W_V", kv)):
        yield Part(name=name, group="attention", tensor="attn.qkv.weight", rows=rows, columns=d)
    if options.qkv_bias:
        yield Part(name="biases of Q, K, V", group="attention", tensor="attn.qkv.bias", rows=q + kv + kv)
    if options.qk_norm == "head":
        for letter in "qk":
            yield from _norm(f"norm of {letter}", f"attn.{letter}_norm", config.norm, Formula.of("Dh"))
    elif options.qk_norm == "width":
        for letter, whole in (("q", q), ("k", kv)):
            yield from _norm(f"norm of {letter}", f"attn.{letter}_norm.norm", config.norm, whole)
    yield Part(name="W_O", group="attention", tensor="attn.out.weight", rows=d, columns=q)
    if options.out_bias:
        yield Part(name="bias of W_O", group="attention", tensor="attn.out.bias", rows=d)
    if post:
        yield from _norm("norm after attention", "attn_post_norm", config.norm, d)
    if pre:
        yield from _norm("norm before the feed-forward", "ff_norm", config.norm, d)
    first = "ff.gate_up" if ff.gated else "ff.up"
    names = ("W_gate", "W_up") if ff.gated else ("W_1",)
    for name in names:
        yield Part(name=name, group="feed-forward", tensor=f"{first}.weight", rows=f, columns=d)
    yield Part(name="W_2", group="feed-forward", tensor="ff.down.weight", rows=d, columns=f)
    if ff.bias:
        for name in names:
            yield Part(name=f"bias of {name}", group="feed-forward", tensor=f"{first}.bias", rows=f)
        yield Part(name="bias of W_2", group="feed-forward", tensor="ff.down.bias", rows=d)
    if post:
        yield from _norm("norm after the feed-forward", "ff_post_norm", config.norm, d)


def _after(config: ModelConfig) -> Iterator[Part]:
    yield from _norm("final norm", "final_norm", config.norm, width(config), in_block=False)
    yield Part(
        name="head W_U, the embedding's own table" if config.tied else "head W_U",
        group="head",
        tensor="head.weight",
        rows=Formula.of("V"),
        columns=width(config),
        in_block=False,
        shared=config.tied,
    )


def _norm(name: str, tensor: str, config: NormConfig, size: Formula, in_block: bool = True) -> Iterator[Part]:
    yield Part(name=name, group="norms", tensor=f"{tensor}.weight", rows=size, in_block=in_block)
    if isinstance(config, LayerNormConfig) and config.bias:
        yield Part(name=f"{name}, shift", group="norms", tensor=f"{tensor}.bias", rows=size, in_block=in_block)


# --- what they come to -------------------------------------------------------------------------------------


def total(config: ModelConfig) -> int:
    """All parameters, a shared table once."""
    return sum(part.count(config) * (config.n_layers if part.in_block else 1) for part in parts(config))


def in_block(config: ModelConfig) -> int:
    """The parameters of one block."""
    return sum(part.count(config) for part in parts(config) if part.in_block)


def block_matrices(config: ModelConfig) -> int:
    """The numbers in the matrices of one block: what a token is multiplied with there."""
    return sum(part.count(config) for part in parts(config) if part.in_block and part.columns is not None)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape by its name in the network, a shared table's once."""
    inside: dict[str, tuple[int, ...]] = {}
    outside: dict[str, tuple[int, ...]] = {}
    for part in parts(config):
        if part.shared:
            continue
        known = inside if part.in_block else outside
        n_before = known.get(part.tensor, (0,))[0]  # parts of one tensor lie on top of each other
        rest = () if part.columns is None else (part.columns.value(config),)
        known[part.tensor] = (n_before + part.rows.value(config), *rest)
    blocks = {f"blocks.{i}.{name}": shape for i in range(config.n_layers) for name, shape in inside.items()}
    return outside | blocks


@dataclass(frozen=True, kw_only=True)
class Row:
    """Some parameters of one kind: how many in a layer (or outside the layers), in how many layers."""

    name: str
    group: Group
    formula: str
    each: int
    n_layers: int  # 0: outside the layers
    share: float  # of all parameters

    @property
    def total(self) -> int:
        return self.each * max(self.n_layers, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return vars(self) | {"total": self.total}


def table(config: ModelConfig) -> list[Row]:
    """Where the parameters are: each kind of matrix, vectors together, with formula, number and share."""
    whole = total(config)
    kinds: dict[str, list[Part]] = {}
    for part in parts(config):
        kinds.setdefault(_kind(part), []).append(part)
    rows = []
    for name, members in kinds.items():
        formula = sum((part.formula for part in members), NONE)
        each = sum(part.count(config) for part in members)
        n_layers = config.n_layers if members[0].in_block else 0
        rows.append(
            Row(
                name=name,
                group=members[0].group,
                formula=str(formula) if each else f"{formula}, counted once",
                each=each,
                n_layers=n_layers,
                share=each * max(n_layers, 1) / whole,
            )
        )
    order = {group: i for i, group in enumerate(GROUPS)}
    outside_last = [row for row in rows if row.group == "norms" and not row.n_layers]
    rows = sorted((row for row in rows if row not in outside_last), key=lambda row: order[row.group])
    at = next(i for i, row in enumerate(rows) if row.group == "head")
    return [*rows[:at], *outside_last, *rows[at:]]


def by_group(config: ModelConfig) -> dict[Group, int]:
    """How many parameters each group has, over all layers."""
    counts: dict[Group, int] = dict.fromkeys(GROUPS, 0)
    for part in parts(config):
        counts[part.group] += part.count(config) * (config.n_layers if part.in_block else 1)
    return counts


def group_formula(config: ModelConfig, group: Group) -> Formula:
    """A group's formula in one layer: 4d² for the matrices of the classic's attention, 8d² for its feed-forward's.

    Biases are left out; the norms are nothing but vectors and are whole.
    """
    return sum(
        (part.formula for part in parts(config) if part.in_block and part.group == group and _counts(part)), NONE
    )


def _counts(part: Part) -> bool:
    return part.columns is not None or part.group == "norms"


def _kind(part: Part) -> str:
    if part.columns is not None or not part.in_block:
        return part.name if part.group != "norms" else "final norm"
    if part.group == "norms":
        return "norms of q and k" if part.name.startswith("norm of") else "norms"
    return "attention's biases" if part.group == "attention" else "feed-forward's biases"
