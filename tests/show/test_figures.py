"""Figures as text: small ones whose every character can be checked by eye."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from cutaway.figures import (
    Bars,
    Cell,
    Figure,
    HeatMap,
    HeatMaps,
    Lines,
    Prose,
    Result,
    Scale,
    Series,
    Table,
    Tokens,
)
from cutaway.show.figures import drawing, drawn

NAN, INF = float("nan"), float("inf")


def text(what: Any, width: int = 80, **options: Any) -> str:
    """As it is printed without a terminal, the spaces at the ends of lines cut."""
    file = io.StringIO()
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, "_environ": {}}
    Console(file=file, width=width, **plain | options).print(what)
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).rstrip("\n")


def lines(figure: Figure, width: int = 80) -> list[str]:
    """All but the title."""
    return text(drawing(figure), width).split("\n")[1:]


def heat_map(values: Any, scale: Scale = "share", **fields: Any) -> HeatMap:
    values = np.array(values, dtype=float)
    n_rows, n_columns = values.shape
    given: dict[str, Any] = {
        "rows": [str(i) for i in range(n_rows)],
        "columns": [str(i) for i in range(n_columns)],
        "row_axis": "layer",
        "column_axis": "head",
        "says": "head {row}.{column}: {value}",
    }
    return HeatMap(title="t", values=values, scale=scale, **given | fields)


def attention(values: Any, labels: list[str]) -> HeatMap:
    says = "query ‘{row}’ looks at key ‘{column}’: {value}"
    return heat_map(values, rows=labels, columns=labels, row_axis="query", column_axis="key", says=says)


class Answer(Result):
    heading = "What was asked"

    def __init__(self, *given: Figure) -> None:
        self.given = list(given)

    def figures(self) -> list[Figure]:
        return self.given

    def to_dict(self) -> dict[str, Any]:
        return {}


# One of each kind, with all that may be in the way: wide, joined, controlling and marked-up text, no number at all.
ODD = ["日本", "😸 1/3", "e\u0301", "\u0301", "a\x1b[2J\nb", "\u202eb", "[bold]x[/bold]", "", "a very long one indeed"]
N = len(ODD)
WAVE = np.sin(np.arange(N * N)).reshape(N, N)
HOLED = np.where(np.triu(np.ones((N, N), bool), 1), np.nan, WAVE)
LONG = [f"w{i}" for i in range(130)]
LONG_WAVE = np.where(np.triu(np.ones((130, 130), bool), 1), np.nan, np.cos(np.arange(130 * 130)).reshape(130, 130))
AXES = {"row_axis": "query", "column_axis": "key", "says": "‘{row}’ {column} {value}"}
CELLS: list[list[Cell]] = [[*ODD[:3], 0.5, None, 3], [*ODD[3:6], -1e-9, 2.0, None]]
KINDS: list[Figure] = [
    Prose(title="a", note="[red]", lines=[*ODD, "one two three " * 20]),
    Tokens(title="b", labels=ODD * 5, ids=[0] * 5 * N, first=997),
    Table(title="c", columns=["what", "[b]", "why", ">a long heading", ">n", ">m"], rows=CELLS),
    Bars(title="d", labels=ODD, values=[3.0, -1.5, 0.0, NAN, INF, -1e-7, 2.0, 1.0, 0.5], unit="nats"),
    Lines(title="e", series=[Series(name=x, x=[1, 2, 4], y=[1, NAN, i]) for i, x in enumerate(ODD)], x="x", y="y"),
    Lines(title="f", series=[Series(name="a", x=[0, 1, 1e6], y=[1, 2, 3])], x="x", y="y", log_x=True, log_y=True),
    heat_map(HOLED, "signed", rows=ODD, columns=ODD),
    heat_map(HOLED, "size", rows=ODD, columns=ODD[::-1], cells=[ODD] * N),
    heat_map(LONG_WAVE, rows=LONG, columns=LONG),
    HeatMaps(title="g", names=ODD, across=3, rows=ODD, columns=ODD, values=np.stack([HOLED] * N), **AXES),
    HeatMaps(
        title="h",
        names=[f"{i}.{j}" for i in range(20) for j in range(9)],
        across=9,
        rows=LONG,
        columns=LONG,
        values=np.stack([LONG_WAVE] * 180),
        **AXES,
    ),
]


@pytest.mark.parametrize("width", [12, 40, 80, 120, 1000])
@pytest.mark.parametrize("figure", KINDS, ids=lambda figure: f"{figure.title}-{figure.kind}")
def test_no_drawing_is_wider_than_the_screen_or_acts_on_it(figure: Figure, width: int) -> None:
    seen = text(drawing(figure), width)
    assert max(map(cell_len, seen.split("\n"))) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", seen)


def test_a_result_has_a_heading_and_every_figure() -> None:
    answer = Answer(Prose(title="One", note="how", lines=["first", "second"]), Prose(title="Two", lines=["[b]third"]))
    seen = "What was asked\n\nOne\nhow\nfirst\nsecond\n\nTwo\n[b]third"
    assert text(answer) == seen
    assert text(answer, markup=True) == seen
    assert len(list(drawn(answer))) == 5


def test_tokens_stand_over_their_positions() -> None:
    figure = Tokens(title="t", labels=["To", "·be", "", "日本語"], ids=[1, 2, 3, 4], first=9)
    assert lines(figure) == ["│To│·be│  │日本語│", " 9  10  11 12"]
    assert lines(figure, 12) == ["│To│·be│  │", " 9  10  11", "│日本語│", " 12"]


def test_numbers_of_a_table_have_their_points_below_each_other() -> None:
    figure = Table(title="t", columns=["head", ">size", ">rank"], rows=[["3.5", 0.01234, 1], ["b", 12.5, None]])
    assert lines(figure) == ["head      size   rank", "─────────────────────", "3.5     0.0123      1", "b      12.5"]


def test_a_table_that_is_too_wide_goes_on_below() -> None:
    figure = Table(title="t", columns=["", ">first of all", ">second"], rows=[["a", 123.0, 456.0]])
    assert lines(figure, 20) == [
        "    first of",
        "         all",
        "────────────",
        "a        123",
        "",
        "    second",
        "──────────",
        "a      456",
    ]
    assert lines(figure, 21)[:2] == ["    first of", "         all   second"]
    assert lines(figure, 25)[0] == "    first of all   second"


def test_bars() -> None:
    figure = Bars(title="t", labels=["·the", "日本"], values=[0.5, 0.1])
    assert lines(figure, 30) == ["·the  0.500  ████████████████", "日本  0.100  ███▎"]


def test_bars_below_zero_go_the_other_way() -> None:
    figure = Bars(title="t", labels=["a", "b", "c", "d"], values=[8.0, -4.0, NAN, -1.0], unit="nats")
    assert lines(figure, 24) == [
        "   [nats]",
        "a   8.00      │████████",
        "b  −4.00  ████│",
        "c   –         │",
        "d  −1.00     █│",
    ]
    assert lines(Bars(title="t", labels=["a"], values=[-0.5]), 16) == ["a  −0.500  ████│"]


def test_of_many_bars_those_furthest_from_zero_are_shown() -> None:
    seen = lines(Bars(title="t", labels=LONG, values=[float(i - 65) for i in range(130)]))
    assert seen[-1] == "shown: the 48 furthest from zero of 130"
    assert [line.split()[0] for line in seen[:-1]] == [*LONG[:25], *LONG[107:]]


def test_attention() -> None:
    figure = attention([[1, NAN, NAN], [0.4, 0.6, NAN], [0.1, 0.005, 0.03]], ["·a", "·very·long·one", "·a"])
    assert lines(figure) == [
        "query ↓  key →",
        "                  0 1 2",
        "0 ·a             │██· · │",
        "1 ·very·long·one │▓▓██· │",
        "2 ·a             │▒▒  ░░│",
        "blank < 0.01  ░ ≥ 0.01  ▒ ≥ 0.05  ▓ ≥ 0.2  █ ≥ 0.5  · masked",
        "strongest: query ‘·very·long·one’(1) looks at key ‘·very·long·one’(1): 0.600",
        "           query ‘·very·long·one’(1) looks at key ‘·a’(0): 0.400",
        "           query ‘·a’(2) looks at key ‘·a’(0): 0.100",
    ]


def test_columns_have_their_names_where_there_is_room() -> None:
    figure = attention([[1, NAN], [0.3, 0.7]], ["日本", "b"])
    assert lines(figure)[:4] == [
        "query ↓  key →",
        "      日本 b",
        "日本 │█████·    │",
        "b    │▓▓▓▓▓█████│",
    ]


def test_the_sign_is_seen_without_colour() -> None:
    figure = heat_map([[8, 4.1, 2, 1, 0], [-8, -4.1, -2, -1, -0.1]], "signed", unit="nats")
    assert lines(figure) == [
        "layer ↓  head →",
        "   0 1 2 3 4",
        "0 │██▓▓▒▒░░  │",
        "1 │≡≡══──╌╌  │",
        "≡ ≤ −6.00  ═ ≤ −4.00  ─ ≤ −2.00  ╌ ≤ −0.800  blank around 0  ░ ≥ 0.800  ▒ ≥ 2.00",
        "▓ ≥ 4.00  █ ≥ 6.00  [nats]",
        "strongest: head 0.0: 8.00 nats",
        "           head 1.0: −8.00 nats",
        "           head 0.1: 4.10 nats",
    ]


def test_what_is_masked_differs_from_zero() -> None:
    figure = heat_map([[0, -INF, -3]], "signed", absent="no key")
    assert lines(figure)[2:4] == [
        "0 │  · ≡≡│",
        "≡ ≤ −2.25  ═ ≤ −1.50  ─ ≤ −0.750  ╌ ≤ −0.300  blank around 0  · no key",
    ]
    assert lines(heat_map([[NAN, NAN]], "size"))[2:] == ["0 │· · │", "no numbers  · masked"]
    assert lines(heat_map([[0, 0]], "signed"))[2:4] == ["0 │    │", "all 0"]
    assert lines(heat_map(np.zeros((0, 3)))) == ["no numbers: 0 rows, 3 columns"]


def test_sizes_go_from_the_least_to_the_most() -> None:
    assert lines(heat_map([[10, 12, 14.5, 16, 20]], "size"))[2:4] == [
        "0 │  ░░▒▒▓▓██│",
        "blank < 12.0  ░ ≥ 12.0  ▒ ≥ 14.0  ▓ ≥ 16.0  █ ≥ 18.0",
    ]
    assert lines(heat_map([[3, 3]], "size"))[2:4] == ["0 │████│", "█ all 3.00"]
    assert lines(heat_map([[2.181, 2.183, 2.186]], "size"))[3] == (
        "blank < 2.182  ░ ≥ 2.182  ▒ ≥ 2.183  ▓ ≥ 2.184  █ ≥ 2.185"  # as many digits as tell them apart
    )


def test_what_does_not_fit_is_said() -> None:
    values = np.where(np.triu(np.ones((130, 130), bool), 1), np.nan, 0.001)
    values[70, 3] = 0.25
    values[129, 129] = values[129, 0] = 1
    seen = lines(attention(values, LONG), 40)
    # query and key 0, a gap, and the last: 40 cells less 8 for the label and 3 for the frame
    assert seen[1:4] == [
        "            111111111111111111111111111",
        "            000000011111111112222222222",
        "          0┊345678901234567890123456789",
    ]
    assert seen[4].startswith("  0 w0   │ ┊") and seen[4].endswith("·│")
    assert seen[5] == "⋮        ├" + "┈" * 29 + "┤"
    assert seen[6].startswith(" 68 w68  │")
    assert seen[67] == "129 w129 │█┊" + " " * 26 + "█│"
    words = " ".join(seen[68:])
    assert words.startswith("shown: query: the first and the last 62 of 130; key: the first and the last 27 of 130;")
    assert "strongest: query ‘w129’(129) looks at key ‘w0’(0): 1.00" in words
    assert "query ‘w70’(70) looks at key ‘w3’(3): 0.250" in words  # not drawn, and still said


def test_names_of_columns_are_listed_once() -> None:
    figure = heat_map(np.zeros((1, 3)), columns=["·twenty", "·three", "日本"], column_axis="position")
    assert lines(figure, 24)[1:5] == ["   0 1 2", "0 │      │", "position:  0 ·twenty", "1 ·three  2 日本"]


def test_a_cell_may_hold_a_text() -> None:
    figure = heat_map(
        [[0.6, 0.06], [0.3, NAN]],
        columns=["·a", "日本"],
        row_axis="layer",
        column_axis="position",
        cells=[["·the", "日本語日本語"], ["a\nb", ""]],
        says="{row} {column}: {cell} {value}",
    )
    assert lines(figure) == [
        "position →",
        "layer ↓   ·a             日本",
        "0       █ ·the         ▒ 日本語日本語",
        "1       ▓ a↵b          ·",
        "blank < 0.01  ░ ≥ 0.01  ▒ ≥ 0.05  ▓ ≥ 0.2  █ ≥ 0.5  · masked",
        "strongest: 0 ·a: ·the 0.600",
        "           0 日本: 日本語日本語 0.0600",
    ]
    assert lines(figure, 20)[:5] == [
        "position →",
        "layer…   日本",
        "0      ▒ 日本…",
        "1      ·",
        "shown: position: the",
    ]


def test_small_maps_are_whole_where_they_fit() -> None:
    values = np.array([[[0.6, 0.06], [0.3, NAN]], [[0, 1], [1, 0]]])
    grid: dict[str, Any] = {"rows": ["0", "1"], "columns": ["0", "1"], "row_axis": "layer", "column_axis": "head"}
    figure = HeatMaps(title="t", names=["first", "x"], across=2, values=values, says="{value}", **grid)
    assert lines(figure) == [
        "  first  x",
        "   01     01",
        "0 │█▒    │ █",
        "1 │▓·    │█",
        "layer ↓  head →",
        "blank < 0.01  ░ ≥ 0.01  ▒ ≥ 0.05  ▓ ≥ 0.2  █ ≥ 0.5  · masked",
    ]


def maps(n_layers: int, n: int) -> HeatMaps:
    """Two heads a layer: one that looks at key 0, one that looks at the key before."""
    names = [f"{layer}.{head}" for layer in range(n_layers) for head in range(2)]
    labels = [f"w{i}" for i in range(n)]
    values = np.zeros((2 * n_layers, n, n))
    values[0::2, :, 0] = 1
    values[1::2, np.arange(1, n), np.arange(n - 1)] = 1
    values[:, np.triu(np.ones((n, n), bool), 1)] = np.nan
    return HeatMaps(title="t", names=names, across=2, rows=labels, columns=labels, values=values, **AXES)


def test_small_maps_show_the_largest_number_of_each_part() -> None:
    assert lines(maps(2, 48))[:8] == [
        "0.0           0.1",
        "│█ ·········· │██··········",
        "│█   ········ │ ███········",
        "│█     ······ │   ███······",
        "│█       ···· │     ███····",
        "│█         ·· │       ███··",
        "│█            │         ███",
        "1.0           1.1",
    ]
    assert lines(maps(2, 48))[-3:] == [
        "query ↓  key →, 48 × 48 in 6 × 12 parts, of each its largest number",
        "blank < 0.01  ░ ≥ 0.01  ▒ ≥ 0.05  ▓ ≥ 0.2  █ ≥ 0.5  · masked",
        "open one: --attention 1.1",
    ]


def test_of_too_many_maps_the_last_row_is_shown() -> None:
    seen = lines(maps(30, 48))
    assert seen[:2] == ["    .0            .1", "0.  │█            │           █"]
    assert seen[30] == "29. │█            │           █"
    assert seen[31:33] == [
        "of each map its last query, w47, over 48 keys in 12 parts, of each part its",
        "largest number",
    ]
    assert seen[-1] == "open one: --attention 29.1"


def test_a_line() -> None:
    figure = Lines(title="t", series=[Series(name="loss", x=[0, 10], y=[0, 13])], x="step", y="nats")
    seen = lines(figure, 34)
    assert seen[0] == "nats"
    assert seen[1].endswith("⡠⠊") and seen[14].startswith(" 0 ┤⡠⠊") and seen[4].startswith("10 ┤")
    assert [line[-2:].strip() for line in seen[15:18]] == ["─┴", "10", "ep"]
    assert seen[18:] == [
        "       first at   is   last at",
        "──────────────────────────────",
        "loss          0    0        10",
        "",
        "       is   least   most",
        "────────────────────────",
        "loss   13       0     13",
    ]


def test_lines_are_told_apart_by_their_marks() -> None:
    series = [Series(name=name, x=[1, 2, 3], y=[i, i, i]) for i, name in enumerate(["a", "b", "c"])]
    seen = lines(Lines(title="t", series=series, x="x", y="y"), 20)
    assert [seen[row].count(mark) for row, mark in ((1, "■"), (14, "●"))] == [3, 3]
    assert sum(line.count("○") for line in seen[1:15]) == 3
    assert "● a  ○ b  ■ c" in seen
    # lines that meet are said to
    same = Lines(title="t", series=[Series(name=name, x=[1, 2], y=[0, 1]) for name in "ab"], x="x", y="y")
    assert "● a  ○ b  ✱ several" in lines(same)


def test_powers_of_ten_are_as_far_apart_on_a_logarithmic_axis() -> None:
    points = Series(name="a", x=[1, 10, 100, 1000], y=[1e-3, 1e-2, NAN, 1])
    seen = lines(Lines(title="t", series=[points], x="x", y="y", log_x=True, log_y=True), 60)
    assert [line.split()[0] for line in seen if "┤" in line] == ["1", "0.1", "0.01", "0.001"]
    ticks = [match.start() for match in re.finditer("┴", seen[15])]
    assert len(ticks) == 4 and max(np.diff(ticks)) - min(np.diff(ticks)) <= 1
    assert seen[1].endswith("●")  # a point by itself
    zero = Series(name="a", x=[1, 2, 3], y=[0, 1, 2])
    assert "1 point at or below 0 has no place on a logarithmic axis" in lines(
        Lines(title="t", series=[zero], x="x", y="y", log_y=True)
    )
    assert lines(Lines(title="t", series=[], x="x", y="y")) == ["no numbers"]


def test_colour_adds_to_the_drawing_and_changes_nothing() -> None:
    figure = drawing(heat_map([[1, -1]], "signed"))
    shown = text(figure, force_terminal=True, color_system="truecolor")
    assert re.search(r"\x1b\[38;2;47;129;199m█", shown) and re.search(r"\x1b\[38;2;213;94;0m≡", shown)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == text(figure)
    assert "38;" not in text(figure, force_terminal=True, color_system="truecolor", no_color=True)
