"""The model as it is: every part with its parameters and its work, and where each head looks, small."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.account import flops, parameters
from cutaway.account.units import amount
from cutaway.config import MaskConfig, ModelConfig, NoPositionConfig, RotaryConfig
from cutaway.figures import Cell, Figure, HeatMaps, Lines, Numbers, Result, Series, Table, Tokens, plain
from cutaway.inside.attention import hidden
from cutaway.inside.heads import (
    KINDS,
    duplicate_keys,
    entropy,
    first_keys,
    induction_keys,
    own_keys,
    previous_keys,
    share_on,
)
from cutaway.inside.labels import labels
from cutaway.language_model import LanguageModel
from cutaway.nn.tap import Tap
from cutaway.show.packed import THUMB

PAIRS = {
    "previous": previous_keys,
    "induction": induction_keys,
    "duplicate": duplicate_keys,
    "own": own_keys,
    "first": first_keys,
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the model: what it does in a line, what is learned in it, and its work in a pass over the text."""

    name: str
    kind: str  # "embedding", "positions", "attention", "feed-forward", "norm", "head"
    layer: int | None
    does: str
    n_parameters: int
    n_flops: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Tower(Result):
    """All parts in their order, and small pictures of where the heads look [layer, head, row, column].

    A picture shows the largest attention of each patch, NaN where the mask hides all of it. `kinds` are the scores of
    each head, `stream` the length of the residual stream at the last position: after the embedding and each block.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    parts: tuple[Part, ...]
    pictures: Numbers
    kinds: Mapping[str, Numbers]  # [layer, head]
    stream: tuple[float, ...]

    @property
    def heading(self) -> str:
        n = sum(part.n_parameters for part in self.parts)
        n_layers, n_heads = self.pictures.shape[:2]
        return f"{n_layers} layers of {n_heads} heads and a feed-forward, {n:,} parameters, {len(self.tokens)} tokens"

    def figures(self) -> list[Figure]:
        n_layers, n_heads, n_rows, n_columns = self.pictures.shape
        rows: list[list[Cell]] = [[p.name, p.does, p.n_parameters, amount(p.n_flops)] for p in self.parts]
        return [
            Tokens(title="The text", labels=self.labels, ids=self.tokens),
            HeatMaps(
                title="Where each head looks, small",
                note="Named layer.head. Queries from the top, keys from the left; the largest attention of each patch.",
                names=[f"{layer}.{head}" for layer in range(n_layers) for head in range(n_heads)],
                across=n_heads,
                rows=_ends(self.labels, n_rows),
                columns=_ends(self.labels, n_columns),
                values=self.pictures.reshape(-1, n_rows, n_columns),
                row_axis="query",
                column_axis="key",
                says="from {row}, looking at {column}: {value} at most",
            ),
            Lines(
                title="How long the residual stream is at the last position",
                series=[Series(name="length", x=list(range(len(self.stream))), y=self.stream)],
                x="blocks behind",
                y="length",
            ),
            Table(title="Every part", columns=["part", "it", ">parameters", ">FLOP"], rows=rows),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the pictures as bytes: 0 hidden, else 1 + 254 · share, one row after the other."""
        bytes_ = np.where(np.isnan(self.pictures), 0, 1 + np.rint(254 * np.nan_to_num(self.pictures))).astype(np.uint8)
        return {
            "kind": "tower",
            "tokens": list(self.tokens),
            "labels": list(self.labels),
            "parts": [vars(part) for part in self.parts],
            "pictures": {
                "shape": list(self.pictures.shape),
                "data": base64.b64encode(bytes_.tobytes()).decode("ascii"),
            },
            "kinds": {name: plain(value, 3) for name, value in self.kinds.items()},
            "meanings": {name: kind.meaning for name, kind in KINDS.items()},
            "stream": plain(self.stream, 4),
        }


class Small(Tap):
    """Makes a small picture and the scores of every pattern as it passes by, and holds none."""

    def __init__(self, config: ModelConfig, tokens: list[int], progress: Callable[[int, int], None]) -> None:
        self.progress = progress
        self.config = config
        self.n_tokens = len(tokens)
        self.starts = np.unique(np.arange(min(len(tokens), THUMB)) * len(tokens) // min(len(tokens), THUMB))
        self.unseen: dict[MaskConfig, Any] = {}  # whether a patch is hidden, for each kind of mask
        self.pairs = {name: keys(tokens) for name, keys in PAIRS.items()}
        self.pictures: list[Numbers] = []
        self.kinds: dict[str, list[Numbers]] = {name: [] for name in KINDS}
        self.stream: list[float] = []

    def wants(self, *names: str) -> bool:
        return "attn.pattern" in names

    def __call__(self, name: str, value: Tensor) -> Tensor:  # type: ignore[override]  # all values are tensors
        if name == "attn.pattern":
            self._pattern(value[0].float().cpu())
        elif name == "resid_post" or (name == "resid_pre" and not self.stream):
            self.stream.append(float(value[0, -1].double().norm()))
            self.progress(len(self.stream) - 1, self.config.n_layers)
        return value

    def _pattern(self, pattern: Tensor) -> None:
        scores = {name: share_on(pattern, keys) for name, keys in self.pairs.items()} | {"entropy": entropy(pattern)}
        for name, score in scores.items():
            self.kinds[name].append(score.numpy())
        layer = len(self.pictures)
        mask = self.config.masks[layer]
        if mask not in self.unseen:
            seen = ~hidden(self.config, layer, self.n_tokens)
            self.unseen[mask] = self._largest(seen.astype(np.float32)) == 0
        self.pictures.append(np.where(self.unseen[mask], np.nan, self._largest(pattern.numpy())))

    def _largest(self, values: Numbers) -> Numbers:
        """Of every patch the largest number."""
        rows: Numbers = np.maximum.reduceat(values, self.starts, axis=-2)
        return np.maximum.reduceat(rows, self.starts, axis=-1)


@torch.inference_mode()
def tower(
    model: LanguageModel, ids: list[int], *, progress: Callable[[int, int], None] = lambda done, total: None
) -> Tower:
    """One pass over a text, seen from afar.

    Args:
        progress: called with how many layers are passed, and how many there are.
    Raises:
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    ids = model.ids(ids)
    small = Small(model.config, ids, progress)
    model.network.residual(torch.tensor([ids], device=model.device), tap=small)
    return Tower(
        tokens=tuple(ids),
        labels=tuple(labels(model.tokenizer, ids)),
        parts=tuple(parts_of(model.config, len(ids))),
        pictures=np.stack(small.pictures),
        kinds={name: np.stack(values) for name, values in small.kinds.items()},
        stream=tuple(small.stream),
    )


def parts_of(config: ModelConfig, n_tokens: int) -> list[Part]:
    """Every part in the order of the pass; what is learned in a norm goes with what it stands before or behind."""
    found = parameters.parts(config)
    inside = {
        "attention": sum(p.count(config) for p in found if p.in_block and p.tensor.startswith("attn")),
        "feed-forward": sum(p.count(config) for p in found if p.in_block and p.tensor.startswith("ff")),
    }
    outside = {
        group: sum(p.count(config) for p in found if not p.in_block and p.group == group) for group in parameters.GROUPS
    }
    parts = [_part("embedding W_E", "embedding", "looks up the row of each token", outside["embedding"], 0)]
    if outside["positions"]:
        parts.append(_part("positions W_pos", "positions", "adds the row of each position", outside["positions"], 0))
    for layer in range(config.n_layers):
        one = dataclasses.replace(config, n_layers=1, position=config.positions[layer], mask=config.masks[layer])
        work = flops.forward(one, n_tokens, n_scored=1)
        does = f"{config.n_heads} heads gather from earlier positions{_turned(config, layer)}"
        thinks = f"{config.d_ff:,} neurons rework each position by itself"
        parts += [
            _part(f"attention {layer}", "attention", does, inside["attention"], work.attention, layer),
            _part(f"feed-forward {layer}", "feed-forward", thinks, inside["feed-forward"], work.feedforward, layer),
        ]
    head = "the embedding's own table, read the other way" if config.tied else "a row for each token"
    work = flops.forward(config, n_tokens, n_scored=1)
    return [
        *parts,
        _part("final norm", "norm", "brings the stream to one length", outside["norms"], 0),
        _part("head W_U", "head", f"scores every token: {head}", outside["head"], work.head),
    ]


def _part(name: str, kind: str, does: str, n_parameters: int, n_flops: int, layer: int | None = None) -> Part:
    return Part(name=name, kind=kind, layer=layer, does=does, n_parameters=n_parameters, n_flops=n_flops)


def _turned(config: ModelConfig, layer: int) -> str:
    position = config.positions[layer]
    if isinstance(position, RotaryConfig):
        return ", queries and keys turned by position"
    return ", without a position" if isinstance(position, NoPositionConfig) else ""


def _ends(words: tuple[str, ...], n: int) -> list[str]:
    """What the patches of a small picture are called: by their first token, and its position."""
    starts = np.unique(np.arange(n) * len(words) // n)
    return [f"{words[i]} ({i})" for i in starts]
