"""Attention: where every head looks, what kind of head it is, and one head through all its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np
import torch

from cutaway.config import ModelConfig
from cutaway.errors import InsideError
from cutaway.figures import Cell, Figure, HeatMap, HeatMaps, Numbers, Prose, Result, Scale, Table, Tokens, plain
from cutaway.inside.heads import KINDS, has_repeats, summaries
from cutaway.inside.labels import labels
from cutaway.inside.targets import Reader, wide
from cutaway.inside.trace import LAST, LIMIT, Trace, trace
from cutaway.nn.attention import Attention as AttentionModule
from cutaway.nn.mask import build_mask

Head = str | tuple[int, int]  # "3.5" or (3, 5): layer 3, head 5

LOOKS = "query ‘{row}’ looks at key ‘{column}’: {value}"
N_BEST = 3  # heads of each kind that the table names
SHARES = [name for name in KINDS if name != "entropy"]
SINK = (
    "Softmax must spend all of a query's attention. A head that finds nothing to gather often rests on the first "
    "position, which is seen from everywhere unless a window hides it: an attention sink. Much attention there need "
    "not mean that the first token matters: look at what one head moves, stage by stage, to tell (arXiv:2309.17453)."
)
NO_REPEATS = (
    "No token of this text comes twice with another between, so there is no induction to score: give the text of "
    "`probe(model)`, random tokens that repeat (on the command line --probe)."
)
FEW_REPEATS = "In a text with few repetitions induction is scored on few queries: `probe(model)`, or --probe, has many."


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Result):
    """The patterns of all heads [layer, head, query, key], NaN where the mask hides a key; and the scores of each head.

    `scores` has an array [layer, head] for each of KINDS, NaN where the text gives no occasion.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    patterns: Numbers
    scores: Mapping[str, Numbers]

    @property
    def heading(self) -> str:
        n_layers, n_heads = self.patterns.shape[:2]
        return f"Attention: where {n_layers} × {n_heads} heads look in {len(self.tokens)} tokens"

    def best(self, kind: str, n: int = N_BEST) -> list[tuple[int, int, float]]:
        """The heads that score highest: layer, head, score.

        Raises:
            InsideError: no such kind.
        """
        if kind not in self.scores:
            raise InsideError(f"{kind!r} is no kind of head: one of {', '.join(self.scores)}")
        values = self.scores[kind]
        order = np.argsort(-values, axis=None, kind="stable")[:n]
        places = [divmod(int(i), values.shape[1]) for i in order]
        return [(*place, float(values[place])) for place in places if np.isfinite(values[place])]

    def figures(self) -> list[Figure]:
        n_layers, n_heads, n_queries, _ = self.patterns.shape
        return [
            Tokens(title="The text", labels=self.labels, ids=self.tokens),
            HeatMaps(
                title="Where each head looks",
                note="Named layer.head. Each row is a query, whose attention sums to 1 over the keys up to its own.",
                names=[f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads)],
                across=n_heads,
                rows=self.labels,
                columns=self.labels,
                values=self.patterns.reshape(-1, n_queries, n_queries),
                row_axis="query",
                column_axis="key",
                says=LOOKS,
            ),
            self._table(),
            HeatMaps(
                title="What kind of head",
                note="Average attention on what the kind looks at, over the queries that have such a key.",
                names=SHARES,
                across=len(SHARES),
                **self._grid(),
                values=np.stack([self.scores[name] for name in SHARES]),
                says="head {row}.{column} gives {value} of its attention",
                absent="no occasion",
            ),
            HeatMap(
                title="How spread out",
                note="Entropy of a query's attention, on average over queries.",
                **self._grid(),
                values=self.scores["entropy"],
                says="head {row}.{column} spreads its attention by {value}",
                scale="size",
                unit="nats",
                absent="no occasion",
            ),
            Prose(title="How to read it", lines=self._notes()),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "attention"} | {name: plain(value, 6) for name, value in vars(self).items()}

    def _grid(self) -> dict[str, Any]:
        n_layers, n_heads = self.patterns.shape[:2]
        rows, columns = [str(i) for i in range(n_layers)], [str(i) for i in range(n_heads)]
        return {"rows": rows, "columns": columns, "row_axis": "layer", "column_axis": "head"}

    def _table(self) -> Table:
        rows: list[list[Cell]] = [
            [name if rank == 0 else "", f"{layer}.{head}", score, KINDS[name].meaning if rank == 0 else ""]
            for name in KINDS
            for rank, (layer, head, score) in enumerate(self.best(name))
        ]
        return Table(
            title="The heads that score highest",
            note="The first query is left out, as it sees nothing but itself." + self._occasion(),
            columns=["kind", "head", ">score", "it"],
            rows=rows,
        )

    def _occasion(self) -> str:
        return "" if has_repeats(self.tokens) else f" {NO_REPEATS}"

    def _notes(self) -> list[str]:
        kinds = [f"{kind.name}: {kind.meaning}." for kind in KINDS.values()]
        lines = [*kinds, FEW_REPEATS if has_repeats(self.tokens) else NO_REPEATS]
        if len(self.tokens) < 2:
            return lines
        share = float(self.scores["first"].mean())
        return [*lines, f"All heads together give {share:.2f} of their attention to the first position. {SINK}"]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAttention(Result):
    """One head through all its stages, each [query, key]; NaN where the mask hides a key.

    `scores` and `scaled` come before the mask, so they have a number for later keys too. `moved` is the length of
    pattern · v · W_O, which each key adds to the residual stream; `share` is that over the sum of the row.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    layer: int
    head: int
    scores: Numbers
    scaled: Numbers
    masked: Numbers
    pattern: Numbers
    moved: Numbers
    share: Numbers
    kinds: Mapping[str, float]  # the head's score of each kind, NaN where the text gives no occasion
    scale: float
    soft_cap: float | None
    kv_head: int  # whose keys and values it reads
    shared_with: tuple[int, ...]  # the other heads that read them
    norm_behind: bool  # whether a norm stands between what the head adds and the residual stream

    @property
    def heading(self) -> str:
        return f"Attention of head {self.layer}.{self.head}, stage by stage, in {len(self.tokens)} tokens"

    def figures(self) -> list[Figure]:
        cap = "" if self.soft_cap is None else f", bent to within ±{self.soft_cap:g}"
        behind = " The norm behind attention is not in it." if self.norm_behind else ""
        return [
            Tokens(title="The text", labels=self.labels, ids=self.tokens),
            self._map("pattern", "Softmax of each row: where the query looks. Rows sum to 1."),
            self._map("scores", "q · k, before the mask: later keys have a score too.", "signed"),
            self._map("scaled", f"Scores times {self.scale:.4g}{cap}.", "signed"),
            self._map("masked", "What the softmax is taken of: a query sees no later key.", "signed"),
            self._map("moved", f"The length of what each key adds: ‖pattern · v · W_O‖.{behind}", "size"),
            self._map("share", "What each key moves, of all that the query gathers: a key with a short value fades."),
            Table(
                title="What kind of head",
                note="" if has_repeats(self.tokens) else NO_REPEATS,
                columns=["kind", ">score", "it"],
                rows=[[name, self.kinds[name], kind.meaning] for name, kind in KINDS.items()],
            ),
            Prose(title="How to read it", lines=self._notes()),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "head attention"} | {name: plain(value, 6) for name, value in vars(self).items()}

    def _map(self, stage: str, note: str, scale: Scale = "share") -> HeatMap:
        says = LOOKS if stage == "pattern" else f"query ‘{{row}}’, key ‘{{column}}’, {stage}: {{value}}"
        return HeatMap(
            title=stage,
            note=note,
            rows=self.labels,
            columns=self.labels,
            values=getattr(self, stage),
            row_axis="query",
            column_axis="key",
            says=says,
            scale=scale,
        )

    def _notes(self) -> list[str]:
        lines = []
        if self.shared_with:
            others = ", ".join(map(str, self.shared_with))
            lines.append(f"Its keys and values are those of key head {self.kv_head}, read by heads {others} as well.")
        if len(self.tokens) > 1:
            known = self.share[1:][np.isfinite(self.share[1:]).any(-1)]  # a query that does not see it takes nothing
            at, moved = self.kinds["first"], float(np.nan_to_num(known[:, 0]).mean()) if len(known) else float("nan")
            lines.append(
                f"It gives {at:.2f} of its attention to the first position, and {moved:.2f} of what it moves is from "
                f"there. {SINK}"
            )
        return lines


@overload
def attention(model: Reader, prompt: Any, *, head: None = None, limit: int = LIMIT) -> Attention: ...
@overload
def attention(model: Reader, prompt: Any, *, head: Head, limit: int = LIMIT) -> HeadAttention: ...
@torch.no_grad()
def attention(model: Reader, prompt: Any, *, head: Head | None = None, limit: int = LIMIT) -> Attention | HeadAttention:
    """Where heads look: the patterns of all, or with `head` all stages of one.

    Args:
        head: "3.5" or (3, 5) for head 5 of layer 3.
        limit: what the trace may hold [B].
    Raises:
        InsideError: no such head, or more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    chosen = None if head is None else head_of(model.network.config, head)
    ids = model.ids(prompt)
    return all_heads(model, ids, limit) if chosen is None else one_head(model, ids, *chosen, limit)


def all_heads(model: Reader, ids: list[int], limit: int) -> Attention:
    """Every pattern of a text, and what kind each head is."""
    config, n_tokens = model.network.config, len(ids)
    (found,) = trace(model, [ids], keep=["blocks.*.attn.pattern", LAST], limit=limit)
    patterns = np.empty((config.n_layers, config.n_heads, n_tokens, n_tokens), dtype=np.float32)
    for layer in range(config.n_layers):
        patterns[layer] = found[f"blocks.{layer}.attn.pattern"][0].float().cpu().numpy()
    scores = {name: value.numpy() for name, value in summaries(torch.from_numpy(patterns), ids).items()}
    for layer in range(config.n_layers):
        patterns[layer][:, hidden(config, layer, n_tokens)] = np.nan
    return Attention(tokens=tuple(ids), labels=tuple(labels(model.tokenizer, ids)), patterns=patterns, scores=scores)


def one_head(model: Reader, ids: list[int], layer: int, head: int, limit: int) -> HeadAttention:
    """All stages of one head."""
    (found,) = trace(model, [ids], keep=[*stages_of(model.network.config, layer, head).values(), LAST], limit=limit)
    return seen(model, found, layer, head)


def stages_of(config: ModelConfig, layer: int, head: int) -> dict[str, str]:
    """The trace names of what a head is shown by: its stages, and the values that it reads."""
    at, kv_head = f"blocks.{layer}.attn", head * config.n_kv_heads // config.n_heads
    stages = {name: f"{at}.{name}[head {head}]" for name in ("scores", "scaled", "masked", "pattern")}
    return stages | {"v": f"{at}.v[head {kv_head}]"}


def seen(model: Reader, found: Trace, layer: int, head: int) -> HeadAttention:
    """All stages of one head, from a trace that has kept them."""
    config, ids = model.network.config, found.tokens
    module = cast(AttentionModule, model.network.get_submodule(f"blocks.{layer}.attn"))
    n_shared = config.n_heads // config.n_kv_heads
    kv_head = head // n_shared
    values = {name: wide(found[key][0, 0]) for name, key in stages_of(config, layer, head).items()}
    lengths = (values.pop("v") @ wide(module.W_O[head])).norm(dim=-1)
    moved = values["pattern"] * lengths
    kinds = {name: float(score) for name, score in summaries(values["pattern"], ids).items()}
    values |= {"moved": moved, "share": moved / moved.sum(-1, keepdim=True).clamp(min=torch.finfo(moved.dtype).tiny)}
    unseen = torch.from_numpy(hidden(config, layer, len(ids))).to(moved.device)
    for name in ("masked", "pattern", "moved", "share"):
        values[name] = values[name].masked_fill(unseen, torch.nan)
    return HeadAttention(
        tokens=tuple(ids),
        labels=tuple(labels(model.tokenizer, ids)),
        layer=layer,
        head=head,
        **{name: value.cpu().numpy() for name, value in values.items()},
        kinds=kinds,
        scale=config.attention_scale,
        soft_cap=config.attention.soft_cap,
        kv_head=kv_head,
        shared_with=tuple(h for h in range(config.n_heads) if h // n_shared == kv_head and h != head),
        norm_behind=config.norm_placement != "pre",
    )


def hidden(config: ModelConfig, layer: int, n_tokens: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True where this layer's mask hides a key from a query [query, key]."""
    everything, cpu = slice(0, n_tokens), torch.device("cpu")
    seen = build_mask(config.masks[layer], [0], n_tokens, [n_tokens], cpu).visible(everything, everything)
    return np.zeros((n_tokens, n_tokens), dtype=np.bool_) if seen is None else ~seen[0, 0].numpy()


def head_of(config: ModelConfig, head: Any) -> tuple[int, int]:
    """The layer and the head that a user means.

    Raises:
        InsideError: neither "layer.head" nor a pair, or a head that there is not.
    """
    parts: Sequence[Any] = head.split(".") if isinstance(head, str) else head
    try:
        layer, number = map(int, parts)
    except (TypeError, ValueError) as error:
        raise InsideError(f"head = {head!r:.40}: write it as layer.head, such as 3.5") from error
    for what, value, n in (("layer", layer, config.n_layers), ("head", number, config.n_heads)):
        if not 0 <= value < n:
            raise InsideError(f"head = {layer}.{number}: {what} {value} is outside 0 to {n - 1}")
    return layer, number
