"""How an account is shown: tables of its numbers, and what grows with the length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutaway.account import flops, memory, parameters
from cutaway.account.formula import letters
from cutaway.account.scale import IN_A_MACHINE
from cutaway.account.units import amount, per_cent, size, span
from cutaway.config import ModelConfig
from cutaway.figures import Bars, Figure, Lines, Prose, Series, Table

if TYPE_CHECKING:
    from cutaway.account.cost import Cost

UNKNOWN = "unknown"


def figures(cost: Cost) -> list[Figure]:
    """What was measured first, if anything was; then parameters, work, memory, time and scale."""
    return [
        Prose(title="", lines=list(_summary(cost))),
        *_measured(cost),
        _parameters(cost),
        _where(cost.config),
        _work(cost),
        _work_by_length(cost),
        _memory(cost),
        _memory_by_length(cost),
        *_time(cost),
        *_scale(cost),
    ]


def _summary(cost: Cost) -> Iterator[str]:
    config, asked = cost.config, cost.asked
    sizes = letters(config)
    yield ", ".join(f"{letter} = {n:,}" for letter, n in sizes.items()) + f", {config.n_layers} layers"
    groups = parameters.by_group(config)
    attention, feedforward = (parameters.group_formula(config, group) for group in ("attention", "feed-forward"))
    in_block = groups["attention"] + groups["feed-forward"] + groups["norms"]
    yield (
        f"A block's attention has {attention} weights, its feed-forward {feedforward}: "
        f"{groups['feed-forward'] / in_block:.0%} of a block is feed-forward."
    )
    crossing = flops.squares_overtake_feedforward(config)
    if crossing is None:
        yield "Scores and mixing never cost as much as the feed-forward: windows bound them."
    else:
        reached = "has" if asked.context >= crossing else "has not"
        yield (
            f"Scores and mixing, T×T, cost as much as the feed-forward from T = {crossing:,}: a context of "
            f"{asked.context:,} {reached} reached it."
        )
    if cost.hardware is None:
        yield "Time: unknown, for no hardware is named."
    yield from _fits(cost)


def _fits(cost: Cost) -> Iterator[str]:
    """What there is room for, running and in training."""
    fits, asked = cost.fits, cost.asked
    if fits is None or cost.hardware is None:
        return
    said = {True: "fits", False: "does not fit"}
    n = f"{asked.batch:,} × {asked.context:,} tokens"
    room = f"beside the weights there is room for keys and values of {fits['cached_tokens']:,} tokens"
    yield (
        f"One {cost.hardware.name} has {size(fits['memory'])}. Running {n} in {asked.dtype} takes "
        f"{size(fits['running_bytes'])} and {said[bool(fits['running'])]}; "
        f"{room if fits['cached_tokens'] else 'the weights alone leave no room'}."
    )
    sharded = [one for one in cost.scales if one.strategy == "sharded" and one.fits is not None]
    yield (
        f"Training on {n} takes {size(fits['training_bytes'])} and {said[bool(fits['training'])]}"
        + "".join(
            f"; fully sharded over {one.n_gpus:,} it takes {size(one.n_bytes)} of each and {said[bool(one.fits)]}"
            for one in sharded
        )
        + "."
    )


def _parameters(cost: Cost) -> Table:
    rows = [
        [
            row.name,
            row.formula,
            f"{row.each:,}" if row.each else "shared",
            f"× {row.n_layers}" if row.n_layers else "",
            f"{row.total:,}",
            per_cent(row.share),
        ]
        for row in parameters.table(cost.config)
    ]
    total = parameters.total(cost.config)
    return Table(
        title="Parameters",
        note="What is learned: in a layer by which formula, how many, in how many layers, in all.",
        columns=["part", "formula", ">each", ">layers", ">in all", ">share"],
        rows=[*rows, ["all", "", "", "", f"{total:,}", per_cent(1)]],
    )


def _where(config: ModelConfig) -> Bars:
    counts = {group: n for group, n in parameters.by_group(config).items() if n}
    return Bars(
        title="Where the parameters are", labels=list(counts), values=[n / 1e6 for n in counts.values()], unit="million"
    )


SUBLAYERS = {
    "embedding": "lookup",
    "qkv": "queries, keys, values",
    "scores": "scores q·k, T×T",
    "mixing": "mixing pattern·v, T×T",
    "out": "W_O",
    "feedforward": "feed-forward",
    "head": "head",
}


def _work(cost: Cost) -> Table:
    config, asked = cost.config, cost.asked
    training = flops.training(config, asked.context, recompute=asked.recompute)
    columns: dict[str, flops.Flops] = {
        f">prompt of {asked.context:,}": flops.prefill(config, asked.context),
        f">a step at {asked.context:,}": flops.step(config, asked.context),
        f">{asked.tokens:,} tokens, cached": flops.generation(config, asked.context, asked.tokens, cache=True),
        f">{asked.tokens:,} tokens, no cache": flops.generation(config, asked.context, asked.tokens, cache=False),
        ">training forward": training.forward,
        ">backward": training.backward,
    }
    if asked.recompute:
        columns[">recomputed"] = training.recomputed
    n_read = asked.context + asked.tokens - 1  # the last token is written, and not read
    past = (
        f" The model reads {config.n_ctx:,} tokens at most, {n_read - config.n_ctx:,} fewer than {asked.tokens:,} new "
        "ones take: give --context or --tokens less."
        if n_read > config.n_ctx
        else ""
    )
    rows = [[name, *(amount(getattr(column, key)) for column in columns.values())] for key, name in SUBLAYERS.items()]
    return Table(
        title="Work [FLOP], of one text",
        note="A multiply-add is 2. Every query meets every key of its window: the causal half is not cut. Norms, "
        "softmax and non-linearities are not counted. A prompt's last position alone goes through the head." + past,
        columns=["sub-layer", *columns],
        rows=[*rows, ["all", *(amount(column.total) for column in columns.values())]],
    )


def _lengths(config: ModelConfig, context: int) -> list[int]:
    """Powers of two from 16 to well past where anything happens."""
    crossing = flops.squares_overtake_feedforward(config) or 0
    last = max(context, min(4 * crossing, 2**20), 1024)
    lengths = [2**n for n in range(4, 21) if 2**n < last]
    return [*lengths, last]


def _work_by_length(cost: Cost) -> Lines:
    config = cost.config
    lengths = _lengths(config, cost.asked.context)
    passes = [flops.forward(config, n) for n in lengths]
    lines = {
        "scores and mixing": [one.squares for one in passes],
        "feed-forward": [one.feedforward for one in passes],
        "projections": [one.qkv + one.out for one in passes],
        "head": [one.head for one in passes],
    }
    crossing = flops.squares_overtake_feedforward(config)
    cross = "" if crossing is None else f" Scores and mixing cross the feed-forward at T = {crossing:,}."
    return Lines(
        title="Work of one pass against its length",
        note=f"All positions scored. What grows with T is a line of slope 1, what grows with T² one of slope 2.{cross}",
        series=[Series(name=name, x=lengths, y=[float(n) for n in line]) for name, line in lines.items()],
        x="T [tokens]",
        y="FLOP",
        log_x=True,
        log_y=True,
    )


def _memory(cost: Cost) -> Table:
    asked, held = cost.asked, cost.memory
    training = held["training"]
    n = f"{asked.batch:,} × {asked.context:,} tokens"
    rows = [
        *(
            [f"weights, {name}", size(n_bytes), "running, scales not counted" if "bits" in name else "running"]
            for name, n_bytes in held["weights"].items()
        ),
        [f"keys and values, {n}, {asked.dtype}", size(held["kv_cache"]), "running"],
        [f"keys and values of a token, {asked.dtype}", size(held["kv_cache_per_token"]), "running"],
        [f"peak of a prompt, {n}, {asked.dtype}", size(held["prefill_peak"]), "weights, cache, activations"],
        [f"scores of a layer, {n}", size(held["scores_of_a_layer"]), "only where the reference kernel shows them"],
        [f"scores of all layers, {n}", size(held["scores_of_all_layers"]), "only where a trace keeps them"],
        [f"weights to train, fp32 and a copy in {asked.dtype}", size(training["weights"]), "training"],
        ["gradients, fp32", size(training["gradients"]), "training"],
        [f"optimizer, {asked.optimizer}, fp32", size(training["optimizer"]), "training"],
        [f"activations, {n}, fused kernel", size(training["activations"]), "training"],
        ["… blocks recomputed", size(training["activations_recomputed"]), "instead"],
        ["… reference kernel, patterns kept", size(training["activations_with_reference_kernel"]), "instead"],
        ["scores of the loss, a few rows at a time", size(training["logits"]), "training"],
    ]
    if held["kv_cache_within_windows"] < held["kv_cache"]:
        rows.insert(
            6, ["… of them within their layer's window", size(held["kv_cache_within_windows"]), "all that is read"]
        )
    if asked.dtype == "float32":
        rows = [[str(name).replace(" and a copy in float32", ""), *rest] for name, *rest in rows]
    return Table(
        title="Memory",
        note="What tensors take; an allocator may keep more. The fused kernel never holds T×T scores.",
        columns=["what", ">size", "where"],
        rows=rows,
    )


def _memory_by_length(cost: Cost) -> Lines:
    config, asked = cost.config, cost.asked
    lengths = _lengths(config, asked.context)
    lines = {
        "weights": [memory.weights(config, asked.itemsize) for _ in lengths],
        "keys and values": [memory.kv_cache(config, n, asked.itemsize) for n in lengths],
        "scores of a layer": [memory.scores(config, n, n, asked.itemsize) for n in lengths],
        "activations in training": [memory.activations(config, n, narrow=asked.itemsize) for n in lengths],
    }
    return Lines(
        title="Memory of one text against its length",
        note=f"In {asked.dtype}. Weights know no length; the T×T scores are the one line of slope 2, where held.",
        series=[Series(name=name, x=lengths, y=[float(n) for n in line]) for name, line in lines.items()],
        x="T [tokens]",
        y="bytes",
        log_x=True,
        log_y=True,
    )


def _time(cost: Cost) -> Iterator[Table]:
    times, hardware, asked = cost.times, cost.hardware, cost.asked
    if times is None or hardware is None:
        return
    rate = hardware.rate(asked.dtype)
    per_second = {
        "prefill": asked.batch * asked.context,
        "step": asked.batch,
        "training_step": asked.batch * asked.context,
    }
    rows = []
    for key, one in times.items():
        seconds = one.seconds
        rows.append(
            [
                {"prefill": "a prompt", "step": "a step", "training_step": "a training step"}[key],
                amount(one.n_flops),
                size(one.n_bytes),
                UNKNOWN if seconds is None else span(seconds),
                one.bound or UNKNOWN,
                UNKNOWN if seconds is None else amount(per_second[key] / seconds),
            ]
        )
    known = [name for name in hardware.rates if name != asked.dtype] if rate is None else []
    other = f" Its rate is published for {' and '.join(known)}: give --dtype." if known else ""
    yield Table(
        title=f"Time at best on one {hardware.name}, {asked.dtype}",
        note=f"{asked.batch:,} × {asked.context:,} tokens. "
        f"The longer of computing at {UNKNOWN if rate is None else amount(rate) + 'FLOP/s'} and reading at "
        f"{UNKNOWN if hardware.bandwidth is None else size(hardware.bandwidth) + '/s'} ({hardware.source}).{other}",
        columns=["pass", ">FLOP", ">bytes", ">seconds", "bound by", ">tokens/s"],
        rows=rows,
    )


def _scale(cost: Cost) -> Iterator[Table]:
    if not cost.scales:
        return
    first = cost.scales[0]
    names = {"data": "data parallel", "sharded": "fully sharded"}

    def row(name: str, *values: str) -> list[str]:
        return [name, *values]

    scales = cost.scales
    again = " without what is recomputed" if first.recompute else ""
    far = " Between machines the link is not known." if first.n_gpus > IN_A_MACHINE else ""
    yield Table(
        title=f"Training on {first.n_gpus:,} × {first.hardware}",
        note=f"{first.n_tokens:,} tokens, {first.n_flops:.3g} FLOP{again}; {first.n_windows} × {first.n_ctx:,} "
        f"tokens a GPU at once, {first.dtype}, at {first.share:.0%} of the matrix peak.{far}",
        columns=["", *(f">{names[one.strategy]}" for one in scales)],
        rows=[
            *(row(f"{part} a GPU", *(size(one.memory[part]) for one in scales)) for part in first.memory),
            row("memory a GPU", *(size(one.n_bytes) for one in scales)),
            row("fits", *({None: UNKNOWN, True: "yes", False: "no"}[one.fits] for one in scales)),
            row("a GPU sends a step", *(size(one.sent) for one in scales)),
            row("… which takes", *(UNKNOWN if one.sending is None else span(one.sending) for one in scales)),
            row("computing a step", *(UNKNOWN if one.computing is None else span(one.computing) for one in scales)),
            row(
                "tokens/s",
                *(UNKNOWN if one.tokens_per_second is None else amount(one.tokens_per_second) for one in scales),
            ),
            row("days", *(UNKNOWN if one.days is None else _days(one.days) for one in scales)),
            row("GPU-hours", *(UNKNOWN if one.gpu_hours is None else f"{one.gpu_hours:,.0f}" for one in scales)),
        ],
    )


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _measured(cost: Cost) -> Iterator[Table]:
    if not cost.measured:
        return
    rows = []
    for one in cost.measured:
        exact = one.unit in ("", "FLOP") or one.exact
        show = (lambda x: f"{x:,.0f}") if exact else size if one.unit == "B" else span
        error = one.error
        told = "exact" if error == 0 else "" if error is None else f"{error:+.1%}"
        rows.append(
            [
                f"{one.what} [{one.unit}]" if one.unit else one.what,
                UNKNOWN if one.predicted is None else show(one.predicted),
                UNKNOWN if one.measured is None else show(one.measured),
                told,
                one.note,
            ]
        )
    yield Table(
        title="Predicted and measured here",
        note="Sizes and counted FLOPs are to be equal; peaks within a tenth; times are a bound from below.",
        columns=["what", ">predicted", ">measured", ">error", ""],
        rows=rows,
    )
