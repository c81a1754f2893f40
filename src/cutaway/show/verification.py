"""How `cutaway verify` looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cutaway.config import (
    LearnedPositionConfig,
    NoPositionConfig,
    PositionConfig,
    RopeScaling,
    RotaryConfig,
    WindowMaskConfig,
)
from cutaway.show.terminal import CONTROLS, console, count, size, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from cutaway.checkpoint.checks import Check
    from cutaway.checkpoint.verify import TokenizerFacts, Verification

WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
COLOURS = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def print_verification(result: Verification) -> None:
    """What `cutaway verify` found."""
    screen = console()
    screen.print(_facts(result))
    screen.print()
    screen.print(_checks(result.checks))
    screen.print()
    states = [check.state for check in result.checks]
    n_failed, n_skipped = states.count("failed"), states.count("skipped")
    skipped = f", {n_skipped} skipped" if n_skipped else ""
    if n_failed:
        screen.print(f"{n_failed} of {len(states)} checks failed{skipped}", style="bold red")
    else:
        screen.print(f"all {len(states) - n_skipped} checks passed{skipped}", style="bold green")


def _facts(result: Verification) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("source", result.source)
    table.add_row("family", result.family)
    table.add_row("weights", f"{count(result.n_parameters)} parameters, {size(result.n_bytes)} on {result.device}")
    table.add_row("type", f"{result.dtype} now, {result.stored} in the file")
    table.add_row("tensors", f"{len(result.used)} used, {len(result.unused)} unused")
    for name, reason in result.unused.items():
        table.add_row("", f"unused: {name}, {reason}".translate(CONTROLS))
    for position, layers in result.positions.items():
        table.add_row("position", f"{_position(position, result.config.d_head)}; {_layers(layers)}")
    for mask, layers in result.masks.items():
        window = f"causal, a window of {mask.size} tokens" if isinstance(mask, WindowMaskConfig) else "causal"
        table.add_row("mask", f"{window}; {_layers(layers)}")
    table.add_row("head", "tied to the embedding" if result.config.tied else "its own weights")
    table.add_row("tokenizer", _tokenizer(result.tokenizer))
    for note in result.notes:
        table.add_row("note", note.translate(CONTROLS))
    return table


def _checks(checks: Sequence[Check]) -> Table:
    from rich.text import Text

    table = table_of("", "check", ">largest error", ">allowed", "")
    for check in checks:
        state = Text(WORDS[check.state], style=COLOURS[check.state])
        numbers = ["" if x is None else f"{x:.2g}" for x in (check.error, check.tolerance)]
        table.add_row(state, check.name, *numbers, check.detail)
    return table


def _position(position: PositionConfig, d_head: int) -> str:
    match position:
        case RotaryConfig():
            turned = f"rotary, theta {position.theta:g}, {position.d_rotary or d_head} of {d_head} coordinates turn"
            return turned if position.scaling is None else f"{turned}, {_scaling(position.scaling)}"
        case LearnedPositionConfig():
            return "learned"
        case NoPositionConfig():
            return "none"


def _scaling(scaling: RopeScaling) -> str:
    kind = type(scaling).__name__.removesuffix("Scaling").lower()
    settings = [f"{name} {value:g}" for name, value in vars(scaling).items() if isinstance(value, int | float)]
    return f"{kind} scaling ({', '.join(settings)})"


def _layers(layers: Sequence[int]) -> str:
    """Layer numbers, with a dash for each run."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    return f"layer {shown}" if len(layers) == 1 else f"layers {shown}"


def _tokenizer(facts: TokenizerFacts | None) -> str:
    if facts is None:
        return "none: the model works by ids"
    begin = "none" if facts.bos_id is None else f"{facts.bos_id}{'' if facts.add_bos else ' (not added)'}"
    ends = ", ".join(map(str, facts.end_ids)) or "none"
    template = "with" if facts.chat_template else "without"
    return f"{facts.d_vocab} ids, begin {begin}, end {ends}, {template} a chat template"
