"""Effects: what each part does to a number of the pass, found by taking the part away or by patching it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.figures import Cell, Figure, HeatMap, HeatMaps, Numbers, Prose, Result, Table, Tokens, plain
from cutaway.inside.estimate import estimated
from cutaway.inside.labels import labels
from cutaway.inside.metrics import Metric, measure_of
from cutaway.inside.names import shape_of
from cutaway.inside.sweep import Cut, Where, sweep
from cutaway.inside.targets import Reader, Token, count_of, position_of
from cutaway.inside.trace import LIMIT, headless
from cutaway.inside.values import Values

What = Literal["heads", "attn", "ff", "resid"]
How = Literal["zero", "mean", "patch"]
Positions = Literal["all", "each"] | Sequence[int | Sequence[int]]

VALUES: dict[What, str] = {"heads": "attn.z", "attn": "attn.out", "ff": "ff.out", "resid": "resid_pre"}
CALLED: dict[What, str] = {"heads": "head", "attn": "attention", "ff": "feed-forward", "resid": "stream into layer"}
N_LARGEST = 10
SAME = 1e-6  # a source whose number is no further from the prompt's has nothing to recover
DONE: dict[How, str] = {
    "zero": "replaced by zeros",
    "mean": "replaced by its mean over the positions of the prompt",
    "patch": "replaced by what it is in the source",
}
NOTES: dict[How, str] = {
    "zero": "Zeros are a value that the model may never have met, so some of an effect may be surprise at that: "
    "compare with the mean.",
    "mean": "The mean keeps what a part does at every position alike, and takes away what it does at one.",
    "patch": "The prompt is the corrupt run and the source the clean one: a part is taken over from the clean run into "
    "the corrupt one. Recovered 0 is the number of the prompt alone, 1 that of the source.",
}
STRAIGHT = (
    "Estimated from one pass and its gradient, as if every change went on in a straight line from the pass as it is. "
    "That is near for small changes, and wrong where softmax, norms or gates bend on the way: often in the first "
    "layers, and for attention to a first token that serves as a sink. Check what matters without the estimate."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Effects(Result):
    """A number of the pass with each part replaced, one at a time: each run, or all `estimated` from the gradient.

    `baseline` is the number of the prompt as it is, which is the corrupt run of a patching; `source_value` that of the
    source, the clean one. `values` are [layer, head, column], with one head where parts are no heads; a column is one
    set of positions, all replaced together.
    """

    tokens: tuple[int, ...]
    labels: tuple[str, ...]
    source_tokens: tuple[int, ...] | None
    source_labels: tuple[str, ...] | None
    what: What
    how: How
    estimated: bool
    metric: str
    unit: str
    positions: tuple[tuple[int, ...], ...]
    columns: tuple[str, ...]  # what the sets of positions are called
    baseline: float
    source_value: float | None
    values: Numbers

    @property
    def heading(self) -> str:
        part = "the stream into each layer" if self.what == "resid" else f"each {CALLED[self.what]}"
        estimated = ", estimated" * self.estimated
        return f"Effects on the {self.metric}{estimated}: {part} {DONE[self.how]}, one at a time"

    @property
    def changes(self) -> Numbers:
        """How far each replacement moves the number [layer, head, column]."""
        return self.values - self.baseline

    @property
    def recovery(self) -> Numbers | None:
        """The share of the way from the prompt's number to the source's; None where there is no such way."""
        if self.source_value is None or not abs(self.source_value - self.baseline) > SAME * max(1, abs(self.baseline)):
            return None
        return self.changes / (self.source_value - self.baseline)

    def largest(self, n: int = N_LARGEST) -> list[tuple[int, int, int]]:
        """The layer, head and column of the replacements that move the number most, either way."""
        order = np.argsort(-np.abs(self.changes), axis=None, kind="stable")[:n]
        return [cast(tuple[int, int, int], tuple(map(int, np.unravel_index(i, self.values.shape)))) for i in order]

    def figures(self) -> list[Figure]:
        texts: list[Figure] = [Tokens(title="The prompt", labels=self.labels, ids=self.tokens)]
        if self.source_tokens is not None:
            texts.append(Tokens(title="The source", labels=self.source_labels or (), ids=self.source_tokens))
        return [
            *texts,
            self._baselines(),
            self._map(),
            self._table(),
            Prose(title="How to read it", lines=[*[STRAIGHT] * self.estimated, NOTES[self.how], *self._limits()]),
        ]

    def to_dict(self) -> dict[str, Any]:
        worked_out = {"changes": self.changes, "recovery": self.recovery}
        return {"kind": "effects"} | {name: plain(value, 9) for name, value in (vars(self) | worked_out).items()}

    def _baselines(self) -> Table:
        rows: list[list[Cell]] = [["the prompt as it is" + " (corrupt)" * (self.how == "patch"), self.baseline]]
        if self.source_value is not None:
            rows.append(["the source as it is (clean)", self.source_value])
        return Table(title="What it is without any replacement", columns=["run", f">{self.metric}"], rows=rows)

    def _map(self) -> HeatMap | HeatMaps:
        recovery = self.recovery
        values = self.changes if recovery is None else recovery
        tells = "changes it by {value}" if recovery is None else "recovers {value}"
        layers = [str(layer) for layer in range(len(values))]
        heads = [str(head) for head in range(values.shape[1])]
        common: dict[str, Any] = {
            "title": ("Change of the " if recovery is None else "Share of the way to the source: ") + self.metric,
            "note": f"Each {CALLED[self.what]} {DONE[self.how]}, alone." if self.what != "resid" else "Each alone.",
            "scale": "signed",
            "unit": self.unit if recovery is None else "of the way",
        }
        if self.what != "heads":
            says = f"{CALLED[self.what]}{'' if self.what == 'resid' else ' of layer'} {{row}} at ‘{{column}}’ {tells}"
            axes: dict[str, Any] = {"row_axis": "layer", "column_axis": "position"}
            return HeatMap(rows=layers, columns=self.columns, values=values[:, 0], says=says, **axes, **common)
        if len(self.columns) == 1:
            axes = {"row_axis": "layer", "column_axis": "head"}
            says = f"head {{row}}.{{column}} {tells}"
            return HeatMap(rows=layers, columns=heads, values=values[:, :, 0], says=says, **axes, **common)
        return HeatMaps(
            names=[f"layer {layer}" for layer in layers],
            across=min(len(layers), 6),
            rows=heads,
            columns=self.columns,
            values=values,
            row_axis="head",
            column_axis="position",
            says=f"head {{row}} at ‘{{column}}’ {tells}",
            **common,
        )

    def _table(self) -> Table:
        recovery = self.recovery
        rows: list[list[Cell]] = []
        for layer, head, column in self.largest():
            place = (layer, head, column)
            part = f"head {layer}.{head}" if self.what == "heads" else f"{CALLED[self.what]} {layer}"
            numbers: list[Cell] = [float(self.values[place]), float(self.changes[place])]
            recovered: list[Cell] = [] if recovery is None else [float(recovery[place])]
            alone = f" ({self.positions[column][0]})" if len(self.positions[column]) == 1 else ""
            rows.append([part, self.columns[column] + alone, *numbers, *recovered])
        columns = ["part", "at", f">{self.unit or 'value'}", ">change", *([] if recovery is None else [">recovered"])]
        return Table(title="What moves it most", columns=columns, rows=rows)

    def _limits(self) -> list[str]:
        lines = ["One part alone is replaced: parts that stand in for each other each show little."]
        if self.source_value is not None and self.recovery is None:
            lines.append("Prompt and source give the same number, so there is nothing to recover: changes are shown.")
        return lines


@torch.no_grad()
def effects(
    model: Reader,
    prompt: Any,
    *,
    source: Any = None,
    what: What = "heads",
    how: How | None = None,
    metric: Metric | None = None,
    target: Token | None = None,
    versus: Token | None = None,
    position: int = -1,
    positions: Positions | None = None,
    estimate: bool = False,
    limit: int = LIMIT,
    batch: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Effects:
    """What a number of the pass becomes when one part is replaced: every part in turn, each alone.

    Args:
        source: a prompt of as many tokens, the clean one, whose parts are patched into `prompt`, the corrupt one.
        what: "heads" (z of each head), "attn" or "ff" (what a sub-layer adds), "resid" (the stream entering a block).
        how: "zero", "mean" (over the prompt's positions), or "patch"; None takes "patch" with a source, else "zero".
        metric: "logit", "logprob" [nats], "difference" (of the logits of target and versus), "kl" [nats] (of the
            source's distribution, or without one of the prompt's, from that of the edited pass), or a function of the
            logits [T V] to a number; None takes "difference" where there is a versus, else "logprob".
        target, versus: tokens, by text or id; without a target it is the likeliest of the source, or of the prompt.
        position: where the metric reads.
        positions: "all" at once, "each" by itself, or a list of some by themselves, a list within it being several at
            once; None takes all for heads and each for the others.
        estimate: take every replacement's change to first order, gradient · (new − old), from one pass forward and one
            back, instead of running it. A function of your own must then give a tensor that depends on the logits.
        limit: what the traces may hold, each, gradients included [B]; the graph of an estimate's pass comes on top.
        batch: passes at once.
        progress: called with how many passes are done, and how many there are; not where it is estimated.
    Raises:
        InsideError: an option out of its range or without use, texts of different lengths, more bytes than the limit.
        ContextError, TokenizerError, GenerationError: as in `generate`.
    """
    how = how or ("zero" if source is None else "patch")
    for role, chosen, known in (("what", what, get_args(What)), ("how", how, get_args(How))):
        if chosen not in known:
            raise InsideError(f"{role} = {chosen!r:.40}: it must be one of {', '.join(known)}")
    network, config, ids = model.network, model.network.config, model.ids(prompt)
    clean_ids = source_of(model, source, how, len(ids))
    at = position_of(position, len(ids))
    if estimate:
        check_estimate(metric, source, batch)
    sets = sets_of(("all" if what == "heads" else "each") if positions is None else positions, len(ids))
    batch = None if batch is None else count_of(batch, 10**6, "batch")
    layers = range(config.n_layers)
    value = VALUES[what]
    names = [f"blocks.{layer}.{value}" for layer in layers]
    before = [f"blocks.{layer}.resid_pre" for layer in layers]
    keep = names if estimate else [*before, *names * (how == "mean")]
    base = headless(model, ids, keep=keep, grad=estimate, limit=limit)
    clean = None if clean_ids is None else headless(model, clean_ids, keep=names, limit=limit)
    words, from_run = labels(model.tokenizer, ids), clean or base
    place, reference = f"{words[at]} ({at})", network.unembed(from_run.x[:, at, None])[0, 0]
    measure = measure_of(model, metric, target=target, versus=versus, position=at, place=place, reference=reference)
    n_heads = config.n_heads if what == "heads" else 1
    shape = shape_of(config, f"blocks.0.{value}", 1, len(ids), len(ids))[1:]
    new = [replacement(how, from_run.kept, name, from_run.x.new_zeros(()).expand(shape)) for name in names]
    if estimate:
        found = estimated(network, base, measure, dict(zip(names, new, strict=True)), sets)
    else:
        parts: list[Where] = [(head, one) if what == "heads" else (one,) for head in range(n_heads) for one in sets]
        cuts = [Cut(layer=layer, name=value, new=new[layer], parts=parts) for layer in layers]
        tokens = torch.tensor([ids], device=network.embed.weight.device)
        entering = [base.kept[name] for name in before]
        found = sweep(network, tokens, entering, cuts, measure, batch=batch, progress=progress)
    return Effects(
        tokens=tuple(ids),
        labels=tuple(words),
        source_tokens=None if clean_ids is None else tuple(clean_ids),
        source_labels=None if clean_ids is None else tuple(labels(model.tokenizer, clean_ids)),
        what=what,
        how=how,
        estimated=bool(estimate),
        metric=measure.name,
        unit=measure.unit,
        positions=tuple(map(tuple, sets)),
        columns=tuple(called(one, words) for one in sets),
        baseline=float(measure(network, measure.reads(base.x))),
        source_value=None if clean is None else float(measure(network, measure.reads(clean.x))),
        values=found.reshape(len(layers), n_heads, len(sets)).numpy(),
    )


def source_of(model: Reader, source: Any, how: How, n_tokens: int) -> list[int] | None:
    """The ids that are patched in, if any are.

    Raises:
        InsideError: a source that is missing, of no use, or of another length.
    """
    if source is None:
        if how == "patch":
            raise InsideError("how = 'patch': give a source, another prompt of as many tokens")
        return None
    if how != "patch":
        raise InsideError(f"how = {how!r} has no use for a source: leave it out, or patch")
    ids = model.ids(source)
    if len(ids) != n_tokens:
        raise InsideError(
            f"the source has {len(ids)} tokens, the prompt {n_tokens}: patching needs as many, so that each position "
            "has its own; change a word"
        )
    return ids


def check_estimate(metric: Any, source: Any, batch: Any) -> None:
    """Refuse what an estimate has no use for.

    Raises:
        InsideError: a batch; a metric that is flat at the prompt.
    """
    if batch is not None:
        raise InsideError(f"batch = {batch!r:.40}: an estimate is one pass and has no use for it; leave it out")
    if metric == "kl" and source is None:
        raise InsideError(
            "metric = 'kl' with estimate: from the prompt's own distribution it is 0 and flat, every estimate would be "
            "0; give a source, or take logprob"
        )


def sets_of(positions: Any, n_tokens: int) -> list[list[int]]:
    """The sets of positions that are replaced together.

    Raises:
        InsideError: none, or positions that the prompt does not have.
    """
    if isinstance(positions, str):
        if positions not in ("all", "each"):
            raise InsideError(f"positions = {positions!r:.40}: give 'all', 'each', or a list such as [2, 5]")
        return [list(range(n_tokens))] if positions == "all" else [[i] for i in range(n_tokens)]
    if isinstance(positions, Tensor | np.ndarray):
        positions = positions.tolist()
    try:
        listed = [list(one) if isinstance(one, Iterable) else [one] for one in positions]
    except TypeError as error:
        raise InsideError(f"positions = {positions!r:.40}: give 'all', 'each', or a list such as [2, 5]") from error
    if not listed or not all(listed):
        raise InsideError("positions: an empty list replaces nothing; name one, or 'all'")
    return [sorted({position_of(i, n_tokens) for i in one}) for one in listed]


def called(positions: Sequence[int], words: Sequence[str]) -> str:
    """A set of positions in words."""
    if len(positions) == 1:
        return words[positions[0]]
    if len(positions) == len(words):
        return "all positions"
    first, last = positions[0], positions[-1]
    return f"{first} to {last}" if last - first == len(positions) - 1 else ", ".join(map(str, positions))


def replacement(how: How, kept: Values, name: str, zeros: Tensor) -> Tensor:
    """What a value is replaced by, in the shape that it has in one text, which is that of `zeros`."""
    if how == "zero":
        return zeros
    return kept[name][0] if how == "patch" else kept[name][0].mean(-2, keepdim=True).expand_as(zeros)
