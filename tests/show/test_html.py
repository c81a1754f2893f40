"""The HTML file as text: whole, sealed, safe, and its numbers those of the figures."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutaway.figures import Prose, Scale, Table
from cutaway.show import html
from cutaway.show.packed import extent, packed, pooled
from support.answers import WORDS, Answer, causal, every_kind, heads, pattern


def unpacked(sent: dict[str, Any]) -> np.ndarray:
    """What figures.js reads out of a packed array, written again from its description."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(sent["data"])), np.uint8).reshape(sent["width"], -1)
    cells = sum(plane.astype(np.int64) << (8 * i) for i, plane in enumerate(planes))
    values = (cells - 1 + sent["least"]) / 10.0 ** sent["digits"]
    return np.where(cells == 0, np.nan, values).reshape(sent["shape"])


class Elements(HTMLParser):
    """The elements of a page with what is in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, before = self.found[-1]
            self.found[-1] = (tag, attributes, before + data)

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


@pytest.mark.parametrize(
    ("scale", "values", "digits"),
    [
        ("share", [[0.12345678, 1.0, np.nan]], 6),
        ("share", [[0.00001234, 0.0, np.nan]], 11),
        ("signed", [[-123.456, np.nan, 7.0]], 4),
        ("size", [[1.0, 49151.0, 300.0]], 0),
        ("size", [[2e9, 5e12, 1e11]], -6),
        ("signed", [[-np.inf, np.inf, 1.5]], 6),
        ("share", [[np.nan, np.nan, np.nan]], 6),
        ("signed", [[0.0, 0.0, -0.0]], 0),
        ("size", [[1e-30, 3e-31, 1e-30]], 36),
    ],
)
def test_numbers_arrive_as_they_were_sent(scale: Scale, values: list[list[float]], digits: int) -> None:
    array = np.array(values)
    sent = packed(array, scale)
    assert sent["digits"] == digits and sent["shape"] == [1, 3]
    expected = np.where(np.isfinite(array), array, np.nan)
    np.testing.assert_allclose(unpacked(sent), expected, rtol=0, atol=0.5000001 * 10.0**-digits)


def test_many_numbers_keep_three_digits_after_the_point() -> None:
    values = causal(2, 400)
    figure = heads(1, 2, [str(i) for i in range(400)], values)
    sent = html.map_parts(figure, "0.1")
    assert sent["digits"] == 3 and sent["width"] == 2
    np.testing.assert_allclose(unpacked(sent), values[1], atol=0.0005000001)


def test_a_small_picture_loses_no_peak() -> None:
    values = np.zeros((100, 50))
    values[37, 41], values[99, 0] = 0.9, -0.95
    values[:10, 40:] = np.nan
    small = pooled(values, "share")
    assert small.shape == (24, 24) and np.nanmax(small) == 0.9 and np.isnan(small[0, -1])
    assert divmod(int(np.nanargmax(small)), 24) == (9, 20)  # row 37 begins patch 9, column 41 patch 20
    assert pooled(values, "signed")[23, 0] == -0.95 and pooled(values, "share")[23, 0] == 0.0
    np.testing.assert_array_equal(pooled(np.eye(3), "share"), np.eye(3))
    assert extent(values) == (-0.95, 0.9) and extent(np.full((1, 2), np.nan)) == (0.0, 0.0)


def test_the_page_is_sealed() -> None:
    """Nothing may be loaded, and only this style and this script may act."""
    page = Elements(html.document(every_kind(), "two"))
    ((_, style),), scripts = page.of("style"), page.of("script")
    (policy,) = [a["content"] for a, _ in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:; ")
    (script,) = [text for attributes, text in scripts if attributes["type"] == "module"]
    for name, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert {a["type"] for a, _ in scripts} == {"module", "application/json"}
    assert not re.search(r"\b(?:src|href)=\"(?!data:,)", html.document(every_kind(), "two"))
    assert "import" not in re.findall(r"^\w+", script, re.M) and "url(" not in style


def test_maps_of_heads_stand_at_the_end() -> None:
    page = Elements(html.document(every_kind(), "two"))
    scripts = [(a.get("id"), text) for a, text in page.of("script")]
    data = json.loads(scripts[0][1])
    sent = next(f for r in data["results"] for f in r["figures"] if f["kind"] == "heatmaps")
    assert "values" not in sent and sent["names"][4] == "1.1"
    assert [name for name, _ in scripts] == ["data", None, *(f"{sent['id']}-{i}" for i in range(12))]
    one = json.loads(dict(scripts)[f"{sent['id']}-4"])
    np.testing.assert_allclose(unpacked(one), causal(12, len(WORDS))[4], atol=1e-6)
    np.testing.assert_allclose(unpacked(sent["small"])[4], causal(12, len(WORDS))[4], atol=1e-3)


@pytest.mark.parametrize("bad", ["</script><b>", "<!--<script>", "a\u2028b", "\ud800", "{data}{title}", '"&amp;'])
def test_words_stay_words(bad: str, tmp_path: Path) -> None:
    figure = pattern(np.eye(2), [bad, "b"], title=bad)
    path = tmp_path / "page.html"
    html.write(
        path, [Answer(bad, [figure, Prose(title=bad, lines=[bad]), Table(title="t", columns=[bad], rows=[[bad]])])]
    )
    page = Elements(path.read_text(encoding="utf-8"))
    (text,) = [text for a, text in page.of("script") if a.get("id") == "data"]
    assert text.isascii() and not {"<", ">", "&"} & set(text)
    found = json.loads(text)["results"][0]
    assert found["heading"] == bad and found["figures"][0]["rows"] == [bad, "b"]
    assert len(page.of("script")) == 2 and not page.of("b")


def test_numbers_of_numpy_and_none_are_sent() -> None:
    rows = [[np.float32(0.5), np.int64(3), None, float("nan"), np.float64("inf")]]
    text = html.document([Answer("t", [Table(title="t", columns=list("abcde"), rows=rows)])], "t")
    assert '"rows":[[0.5,3,null,null,null]]' in text


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    class Broken(Answer):
        def figures(self) -> list[Any]:
            raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        html.write(path, [Broken("b", [])])
    assert path.read_text() == "before"
    with pytest.raises(FileNotFoundError):
        html.write(tmp_path / "nowhere" / "page.html", every_kind())
    every_kind()[0].to_html(path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_a_notebook_gets_a_frame_of_its_own() -> None:
    """The page is an attribute of the frame, which may run scripts and nothing else."""
    result = every_kind()[0]
    frame = Elements(result._repr_html_())
    assert [tag for tag, _, _ in frame.found] == ["iframe"]
    ((attributes, _),) = frame.of("iframe")
    assert attributes["sandbox"] == "allow-scripts" and attributes["srcdoc"] == html.document([result], result.heading)


def test_270_heads_of_512_tokens_take_less_than_20_mb() -> None:
    """One map is packed and stands for all; random patterns are the hardest to pack."""
    values = causal(3, 512, seed=4)
    sizes = [len(packed(one, "share", 4)["data"]) for one in values]
    assert 90 * sum(sizes) < 20e6
