"""Two models side by side, or two checkpoints of one run: weights, heads, the lens, and what they make of a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import Figure, HeatMap, Lines, Numbers, Prose, Result, Series, Table, plain
from cutaway.inside.targets import Reader, count_of, wide
from cutaway.inside.trace import LIMIT, Trace, trace
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from cutaway.text.prompt import as_list

KEEP = ("blocks.*.attn.pattern", "blocks.*.resid_post")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One weight of both models: its length in each, and how far it moved, ‖b − a‖ / ‖a‖; None where it is not."""

    name: str
    norm_a: float | None
    norm_b: float | None
    change: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison(Result):
    """What differs between two models; a field is None where there is nothing in common, or it is still to be compared.

    `heads` is the Jensen-Shannon divergence of the patterns, from 0 to ln 2, on average over the queries [nats].
    `lens_kl` and `kl` are Σ p_a · ln(p_a / p_b) on average over the positions [nats].
    """

    names: tuple[str, str]
    last: int | None  # positions of each text that the lens read, counted from the end; None: all
    n_tokens: tuple[int, int]  # predicted in each
    loss: tuple[float, float]  # [nat/token]
    bits_per_byte: tuple[float | None, float | None]
    weights: tuple[Part, ...]
    heads: Numbers | None  # [layer, head]
    lens_winner: Numbers | None  # [layer]: the share of positions at which both would say the same
    lens_kl: Numbers | None  # [layer]
    winner: float | None  # the same of the models' own next tokens
    kl: float | None
    notes: tuple[str, ...]  # what could not be compared, and why

    @property
    def heading(self) -> str:
        a, b = self.names
        return f"{a} and {b} on {self.n_tokens[0]} predicted tokens"

    def figures(self) -> list[Figure]:
        rows = [list(row) for row in zip(self.names, self.loss, self.bits_per_byte, self.n_tokens, strict=True)]
        found: list[Figure] = [
            Table(
                title="How well each predicts the text",
                note="Nats per token depend on the tokenizer, bits per byte do not.",
                columns=["model", ">loss [nat/token]", ">bits per byte", ">tokens"],
                rows=rows,
            )
        ]
        if self.lens_winner is not None and self.lens_kl is not None:
            layers = list(range(len(self.lens_kl)))
            where = f"At the last {self.last} positions of each text." if self.last else "At all positions."
            found += [
                _line(
                    "How often both would say the same token after each layer", "share", layers, self.lens_winner, where
                ),
                _line("How far apart the layers' distributions are", "KL [nats]", layers, self.lens_kl, where),
            ]
        if self.heads is not None:
            found.append(
                HeatMap(
                    title="How differently the heads look",
                    note="Jensen-Shannon divergence of the patterns [nats]: 0 the same, 0.69 nothing in common.",
                    rows=[str(i) for i in range(len(self.heads))],
                    columns=[str(i) for i in range(self.heads.shape[1])],
                    values=self.heads,
                    row_axis="layer",
                    column_axis="head",
                    says="layer {row}, head {column}: {value} nats apart",
                    scale="size",
                    unit="nats",
                )
            )
        found += self._weights() if self.weights else []
        return [*found, Prose(title="Not compared", lines=self.notes)] if self.notes else found

    def to_dict(self) -> dict[str, Any]:
        held = vars(self) | {"weights": [plain(asdict(part), 6) for part in self.weights]}
        return {"kind": "comparison"} | {name: plain(value, 6) for name, value in held.items()}

    def _weights(self) -> list[Figure]:
        """What is in no block as a table; what every block has as a map of layer and part."""
        inside = [part for part in self.weights if part.name.startswith("blocks.")]
        outside = [part for part in self.weights if not part.name.startswith("blocks.")]
        rows = [[part.name, part.norm_a, part.norm_b, part.change] for part in outside]
        columns = ["weight", f">‖{self.names[0]}‖", f">‖{self.names[1]}‖", ">change"]
        note = "The change is ‖b − a‖ / ‖a‖."
        found: list[Figure] = [Table(title="Weights outside the blocks", columns=columns, rows=rows, note=note)]
        kinds = list(dict.fromkeys(part.name.split(".", 2)[2] for part in inside))
        changes = {part.name: part.change for part in inside if part.change is not None}
        n_layers = 1 + max((int(part.name.split(".")[1]) for part in inside), default=-1)
        if changes:
            values = [[changes.get(f"blocks.{i}.{kind}", math.nan) for kind in kinds] for i in range(n_layers)]
            found.append(
                HeatMap(
                    title="How far the weights of each block moved",
                    note=note,
                    rows=[str(i) for i in range(n_layers)],
                    columns=kinds,
                    values=np.array(values),
                    row_axis="layer",
                    column_axis="weight",
                    says="layer {row}, {column}: moved by {value} of its length",
                    scale="size",
                    absent="not in both",
                )
            )
        return found


@torch.no_grad()
def compare(
    a: Reader,
    b: Reader,
    texts: Any,
    *,
    names: tuple[str, str] = ("a", "b"),
    last: int | None = None,
    limit: int = LIMIT,
    progress: Callable[[int, int, Comparison | None], None] = lambda done, total, so_far: None,
) -> Comparison:
    """What two models have in common and where they part, on one text or several.

    Tokens are compared where both read the texts as the same ids over vocabularies of one size, heads and layers where
    there are as many of both, weights where name and shape are the same; `notes` says what was left out.

    Args:
        texts: one prompt or a list; at least one of two tokens.
        names: what the two are called.
        last: how many positions of each text the lens reads, counted from the end; None: all. Each costs a product
            with the head in every layer of both.
        limit: what the traces of one text may hold in each model [B].
        progress: called with how many layers of how many are read by the lens, in all texts, and for the first text
            with what is found so far: the loss of `a`, then all but the lens and the weights, which take longest.
    Raises:
        InsideError: no text in which anything is predicted; a `last` below 1; more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    last = None if last is None else count_of(last, 10**9, "last")
    prompts, _ = as_list(texts)
    ids = [[model.ids(prompt) for prompt in prompts] for model in (a, b)]
    read = [pair for pair in zip(*ids, strict=True) if all(len(text) > 1 for text in pair)]
    if not read:
        raise InsideError("nothing to compare on: give a text of two tokens or more")
    notes = _differences(a, b, all(one == other for one, other in read))
    together, layers, heads = (not notes[name] for name in ("tokens", "layers", "heads"))
    sums, n_layers = _Sums(), a.network.config.n_layers
    losses: tuple[list[float], list[float]] = ([], [])

    def found(n_texts: int, weights: tuple[Part, ...] = (), unmatched: str = "") -> Comparison:
        n_tokens = [sum(len(pair[i]) - 1 for pair in read[:n_texts]) for i in (0, 1)]
        n_bytes = [_n_bytes(m, [pair[i] for pair in read[:n_texts]]) for i, m in enumerate((a, b))]
        totals = [sum(one) if one else math.nan for one in losses]
        end, lens = sums.mean("end"), sums.mean("lens")
        return Comparison(
            names=names,
            last=last,
            n_tokens=(n_tokens[0], n_tokens[1]),
            loss=(totals[0] / n_tokens[0], totals[1] / n_tokens[1]),
            bits_per_byte=(_bits(totals[0], n_bytes[0]), _bits(totals[1], n_bytes[1])),
            weights=weights,
            heads=sums.mean("heads"),
            lens_winner=None if lens is None else lens[:, 0],
            lens_kl=None if lens is None else lens[:, 1],
            winner=None if end is None else float(end[0]),
            kl=None if end is None else float(end[1]),
            notes=tuple(note for note in (*notes.values(), unmatched) if note),
        )

    for i, (one, other) in enumerate(read):
        (left,) = trace(a, [one], keep=KEEP, limit=limit)
        losses[0].append(_loss(left))
        progress(i * n_layers, len(read) * n_layers, found(1) if i == 0 else None)
        (right,) = trace(b, [other], keep=KEEP, limit=limit)
        losses[1].append(_loss(right))
        if together:
            sums.add_pass(left, right, heads=layers and heads)
        progress(i * n_layers, len(read) * n_layers, found(1) if i == 0 else None)
        if together and layers:
            for n_done in sums.add_lens(left, right, a.network, b.network, last):
                progress(i * n_layers + n_done, len(read) * n_layers, None)
    return found(len(read), *_weights(a.network, b.network))


class _Sums:
    """Means over the positions of all texts."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.n: dict[str, int] = {}

    def add_pass(self, a: Trace, b: Trace, *, heads: bool) -> None:
        """The next tokens, and the heads where there are as many."""
        self._take("end", apart(a.logits, b.logits), len(a.tokens))
        if heads:
            names = [name for name in a if name.endswith("attn.pattern")]
            rows = [jensen_shannon(a[name][0, :, 1:].cpu(), b[name][0, :, 1:].cpu()).sum(-1) for name in names]
            self._take("heads", torch.stack(rows), len(a.tokens) - 1)  # the first query can look only at itself

    def add_lens(self, a: Trace, b: Trace, net_a: Transformer, net_b: Transformer, last: int | None) -> Iterator[int]:
        """What the layers would say at the last positions; after each, how many are done."""
        rows: list[Tensor] = []
        n = min(last or len(a.tokens), len(a.tokens))
        for name in [name for name in a if name.endswith("resid_post")]:
            rows.append(apart(net_a.unembed(a[name][:, -n:])[0], net_b.unembed(b[name][:, -n:])[0]))
            yield len(rows)
        self._take("lens", torch.stack(rows), n)

    def mean(self, name: str) -> Numbers | None:
        """None of what was not compared."""
        return (self.total[name] / self.n[name]).numpy() if name in self.total else None

    def _take(self, name: str, summed: Tensor, n: int) -> None:
        self.total[name] = self.total.get(name, 0) + summed.double()
        self.n[name] = self.n.get(name, 0) + n


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Of two models' logits [T V], summed over positions: how often the winner is the same, and KL(a ‖ b) [2]."""
    log_a, log_b = (wide(logits).cpu().log_softmax(-1) for logits in (a, b))
    same = (log_a.argmax(-1) == log_b.argmax(-1)).sum()
    return torch.stack([same.to(log_a), (log_a.exp() * (log_a - log_b)).sum()])


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """How far apart two distributions are, from 0 to ln 2 […] [nats]."""
    p, q = wide(p), wide(q)
    entropy = torch.special.entr
    return (entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2).sum(-1).clamp(min=0)


def _differences(a: Reader, b: Reader, same_ids: bool) -> dict[str, str]:
    """Why tokens, layers or heads cannot be compared; nothing where they can."""
    one, other = a.network.config, b.network.config
    tokens = layers = heads = ""
    if not same_ids:
        tokens = "next tokens, lens and heads: the two read the texts as different tokens"
    elif one.d_vocab != other.d_vocab:
        tokens = f"next tokens, lens and heads: vocabularies of {one.d_vocab} and {other.d_vocab} tokens"
    if one.n_layers != other.n_layers:
        layers = f"lens and heads, layer by layer: {one.n_layers} layers and {other.n_layers}"
    if one.n_heads != other.n_heads:
        heads = f"heads: {one.n_heads} a layer and {other.n_heads}"
    return {"tokens": tokens, "layers": layers, "heads": heads}


def _loss(found: Trace) -> float:
    """Summed over the text [nat]."""
    targets = torch.tensor(found.tokens[1:], device=found.logits.device)
    return float(torch.nn.functional.cross_entropy(wide(found.logits[:-1]), targets, reduction="sum"))


def _n_bytes(model: Reader, texts: Sequence[list[int]]) -> int | None:
    """Of what is predicted; None where ids have no text."""
    tokenizer = model.tokenizer
    if isinstance(tokenizer, IdTokenizer):
        return None
    return sum(len(tokenizer.token_bytes(i)) for text in texts for i in text[1:])


def _bits(loss: float, n_bytes: int | None) -> float | None:
    return float(loss) / math.log(2) / n_bytes if n_bytes else None


def _weights(a: Transformer, b: Transformer) -> tuple[tuple[Part, ...], str]:
    """Every weight of either, and what to say of those that are not in both."""
    left, right = dict(a.named_parameters()), dict(b.named_parameters())
    parts = []
    for name in dict.fromkeys([*left, *right]):
        x, y = left.get(name), right.get(name)
        both = x is not None and y is not None and x.shape == y.shape
        norm_a, norm_b = (None if w is None else float(wide(w).norm()) for w in (x, y))
        change = None
        if both and x is not None and y is not None:
            moved = float((wide(y).cpu() - wide(x).cpu()).norm())
            change = moved / norm_a if norm_a else (0.0 if not moved else None)  # from nothing there is no share
        parts.append(Part(name=name, norm_a=norm_a, norm_b=norm_b, change=change))
    n_apart = sum(
        name not in left or name not in right or left[name].shape != right[name].shape for name in {**left, **right}
    )
    return tuple(parts), f"{n_apart} of {len(parts)} weights: only in one model, or of another shape" if n_apart else ""


def _line(title: str, y: str, layers: Sequence[float], values: Numbers, note: str) -> Lines:
    series = [Series(name=y, x=layers, y=[float(v) for v in values])]
    return Lines(title=title, series=series, x="after layer", y=y, note=note)
