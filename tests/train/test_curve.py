"""The picture of a run: what is drawn, where, and that it is whole or not there."""

from __future__ import annotations

import re
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from cutaway.train.curve import draw_curve, smoothed


def run_of(n: int, *, bits: bool = True) -> list[dict[str, Any]]:
    """Loss 3 falling to 1 over `n` steps; validation each ten, best at step 30."""
    records: list[dict[str, Any]] = []
    for step in range(1, n + 1):
        records.append({"step": step, "loss": 3 - 2 * step / n, "tokens": 1000 * step})
        if step % 10 == 0:
            loss = 2.0 + abs(step - 30) / 100
            records.append({"step": step, "val_loss": loss} | ({"val_bpb": 1.5 * loss} if bits else {}))
    return records


def words(folder: Path) -> list[str]:
    tree = ET.parse(folder / "curve.svg")
    return [node.text or "" for node in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # nothing of it may be used: it holds on to figures
    folder = tmp_path / "my $run$"
    folder.mkdir()
    draw_curve(run_of(60), folder / "curve")
    assert {"my $run$", "step", "tokens", "loss [nats per token]", "bits per byte"} <= set(words(folder))
    assert {"training", "validation", "best 2.000 at step 30"} <= set(words(folder))
    assert "60 k" in words(folder)  # tokens above step 60
    assert sorted(path.name for path in folder.iterdir()) == ["curve.png", "curve.svg"]
    png = (folder / "curve.png").read_bytes()
    assert png[:4] == b"\x89PNG"
    assert struct.unpack(">II", png[16:24]) == (1600, 1000)


def test_axes_that_nothing_is_known_of_are_left_out(tmp_path: Path) -> None:
    draw_curve([{"step": step, "loss": 1 / step} for step in (1, 2, 3)], tmp_path / "curve")
    assert not {"tokens", "bits per byte", "validation"} & set(words(tmp_path))
    draw_curve([{"step": 5, "val_loss": 3.0}], tmp_path / "curve")
    assert "best 3.000 at step 5" in words(tmp_path)
    assert "training" not in words(tmp_path)


def test_what_is_no_number_is_not_drawn(tmp_path: Path) -> None:
    draw_curve([*run_of(20), {"step": 21, "loss": None}, {"step": 21, "val_loss": None}], tmp_path / "curve")
    assert "best 2.100 at step 20" in words(tmp_path)
    draw_curve([{"step": 1, "sample": "text"}], tmp_path / "other")
    assert not (tmp_path / "other.svg").exists()


def test_the_same_records_give_the_same_file(tmp_path: Path) -> None:
    pictures = set()
    for _ in range(2):
        draw_curve(run_of(30), tmp_path / "curve")
        pictures.add((tmp_path / "curve.svg").read_bytes())
    assert len(pictures) == 1


def test_a_long_run_gives_no_larger_picture(tmp_path: Path) -> None:
    for n, name in ((2_000, "short"), (20_000, "long")):
        draw_curve([r for r in run_of(n) if "loss" in r], tmp_path / name)
    short, long = ((tmp_path / f"{name}.svg").stat().st_size for name in ("short", "long"))
    assert long < 1.2 * short


def test_the_picture_of_before_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_curve(run_of(10), tmp_path / "curve")
    before = (tmp_path / "curve.svg").read_bytes()

    def half(figure: Figure, path: Path, **options: Any) -> None:
        path.write_bytes(b"<svg")
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="No space"):
        draw_curve(run_of(20), tmp_path / "curve")
    assert (tmp_path / "curve.svg").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "curve.svg"]


def test_the_steep_beginning_may_leave_the_picture(tmp_path: Path) -> None:
    """A loss of 11 at step 1 does not press the rest of the run to the bottom."""
    records = [{"step": step, "loss": 11.0 if step == 1 else 2.0 + 1 / step} for step in range(1, 201)]
    draw_curve(records, tmp_path / "curve")
    heights = [float(word) for word in words(tmp_path) if re.fullmatch(r"\d+\.\d+", word)]
    assert max(heights) < 5


def test_smoothing_by_hand() -> None:
    assert smoothed([10, 20, 30, 40], [1.0, 2.0, 6.0, 4.0], 0) == [1, 2, 6, 4]
    assert smoothed([98, 99, 100, 101], [1.0, 2.0, 6.0, 4.0], 1) == [1.5, 3.0, 4.0, 5.0]
    assert smoothed([1, 2, 3], [9.0, 3.0, 1.0], 2) == [9, 3, 1]  # near the start no further than a tenth of the step
    assert smoothed([], [], 1) == []
