"""The picture of a run: how the loss fell."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.checkpoint.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
Points = tuple[list[int], list[float]]  # steps, and a value at each

# Blue and vermilion of Okabe and Ito's palette, told apart by everyone; ink for words, grey for the frame.
TRAIN, VAL, INK, FRAME = "#0072B2", "#D55E00", "#222222", "#999999"
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FRAME,
    "xtick.color": FRAME,
    "ytick.color": FRAME,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "cutaway",  # the same records give the same file
}
MAX_POINTS = 2000  # of a line: more cannot be seen
SMOOTH = 0.02  # of the run: how far to each side the smooth line averages
WARM = 0.02  # of the run: its steep beginning may leave the picture at the top


def draw_curve(records: Sequence[Record], stem: Path) -> None:
    """Write `stem`.svg and `stem`.png: the training and the validation loss by step. Nothing without a loss.

    The run's name, above, is the folder's.

    Raises:
        OSError: a file cannot be written; the picture of before is still there.
    """
    train, val = _points(records, "loss"), _points(records, "val_loss")
    if not train[0] and not val[0]:
        return
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters the font does not have
        figure = Figure(figsize=(8, 5))
        axes = figure.add_axes((0.105, 0.115, 0.795, 0.72))  # fixed: to measure every word first takes twice the time
        _draw(axes, train, val)
        _scales(axes, records)
        _title(figure, axes, stem.absolute().parent.name)
        with replacing(stem.with_name(f"{stem.name}.svg")) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
        with replacing(stem.with_name(f"{stem.name}.png")) as temporary:
            figure.savefig(temporary, format="png", dpi=200)


def smoothed(steps: Sequence[int], values: Sequence[float], width: float) -> list[float]:
    """The mean of what lies at most `width` steps away, and nearer at the start, where the loss falls fast."""
    sums = list(itertools.accumulate(values, initial=0.0))
    out = []
    for step in steps:
        reach = min(width, step / 10)
        first, end = bisect.bisect_left(steps, step - reach), bisect.bisect_right(steps, step + reach)
        out.append((sums[end] - sums[first]) / (end - first))
    return out


def _points(records: Sequence[Record], name: str) -> Points:
    pairs = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def _draw(axes: Axes, train: Points, val: Points) -> None:
    steps, losses = train
    last = max(1, *steps[-1:], *val[0][-1:])
    smooth = smoothed(steps, losses, SMOOTH * (steps[-1] - steps[0])) if steps else []
    every = slice(None, None, -(-len(steps) // MAX_POINTS) or 1)
    if steps:
        axes.plot(steps[every], losses[every], color=TRAIN, linewidth=0.7, alpha=0.3)
        axes.plot(steps[every], smooth[every], color=TRAIN, linewidth=1.8, label="training")
    if val[0]:
        axes.plot(*val, "o-", color=VAL, linewidth=1.2, markersize=4.5, markeredgecolor="white", label="validation")
        best = min(range(len(val[0])), key=val[1].__getitem__)
        step, loss = val[0][best], val[1][best]
        axes.plot(step, loss, "o", markersize=11, markerfacecolor="none", markeredgecolor=VAL, markeredgewidth=1.6)
        late = step > 0.6 * last
        axes.annotate(
            f"best {loss:.3f} at step {step:,}",
            (step, loss),
            xytext=(4 if late else -4, 16),
            textcoords="offset points",
            ha="right" if late else "left",
            va="bottom",
            color=VAL,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )
    axes.set_xlim(-0.02 * last, 1.02 * last)
    axes.set_ylim(*_limits(train, val, smooth))


def _limits(train: Points, val: Points, smooth: list[float]) -> tuple[float, float]:
    """The losses after the steep beginning, with some air; the best is near the bottom."""
    warm = WARM * max(train[0][-1:] + val[0][-1:])
    seen = [*smooth, *val[1]]
    late = [y for x, y in (*zip(train[0], smooth, strict=True), *zip(*val, strict=True)) if x >= warm] or seen
    low = min(min(seen), min(train[1], default=math.inf))
    air = max(0.06 * (max(late) - low), 0.02)
    return low - air, max(late) + air


def _scales(axes: Axes, records: Sequence[Record]) -> None:
    """Steps below, tokens above; nats on the left, bits per byte on the right."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

    axes.set_xlabel("step")
    axes.set_ylabel("loss [nats per token]")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(axis="y", color=FRAME, alpha=0.25, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    tokens = next((r["tokens"] / r["step"] for r in reversed(records) if r.get("tokens") and r["step"]), None)
    bits = next((r["val_bpb"] / r["val_loss"] for r in reversed(records) if r.get("val_bpb") and r["val_loss"]), None)
    if tokens is not None:
        above = axes.secondary_xaxis("top", functions=(lambda x: x * tokens, lambda x: x / tokens))
        above.xaxis.set_major_formatter(EngFormatter(sep=" "))
        above.set_xlabel("tokens")
    if bits is not None:
        right = axes.secondary_yaxis("right", functions=(lambda y: y * bits, lambda y: y / bits))
        right.set_ylabel("bits per byte")


def _title(figure: Figure, axes: Axes, name: str) -> None:
    axes.legend(frameon=False, loc="upper right")
    figure.suptitle(name, fontweight="bold", fontsize=14, y=0.985, parse_math=False)
