"""The HTML file in a real browser: seen, read, moved through by keyboard, and left alone by every other host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutaway.show import html
from support.answers import WORDS, Answer, causal, every_kind, heads, pattern

Open = Callable[..., Any]

HEAT = ".figure.heatmap"


def reading(page: Any, of: str = HEAT) -> str:
    return page.locator(f"{of} .reading").first.inner_text()


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_everything_that_an_answer_says_is_there_as_text(open_file: Open) -> None:
    page = open_file().page
    text = page.inner_text("body")
    for words in (
        "In short",
        "It is <b>not</b> a previous-token head.",
        "·😸",
        "30325",
        "What did most",
        "2.718",
        "sink",
    ):
        assert words in text
    assert page.title() == "Cutaway: 2 answers"
    assert page.locator(".prose b").count() == 0  # words stay words
    assert page.locator("nav.contents a").all_inner_texts() == [one.heading for one in every_kind()]
    page.locator("nav.contents a").nth(1).click()
    assert page.evaluate("document.activeElement.textContent") == "lens and contributions"


def test_a_heat_map_is_read_by_keyboard(open_file: Open) -> None:
    """Values by eye: rows of a tiny map hold known numbers."""
    page = open_file().page
    page.locator(f"{HEAT} .view").first.focus()
    assert page.locator(f"{HEAT} .hint").first.is_visible()
    press(page, "Control+Home")
    assert reading(page) == "query ‘The’(0) looks at key ‘The’(0): 1.00"
    press(page, "ArrowRight")
    assert reading(page) == "query ‘The’(0) looks at key ‘·cat’(1): masked"
    values = causal(1, len(WORDS))[0]
    press(page, "ArrowDown", "ArrowDown")
    assert reading(page).startswith("query ‘·sat’(2) looks at key ‘·cat’(1): ")
    assert float(reading(page).rsplit(" ", 1)[1]) == pytest.approx(values[2, 1], rel=5e-3)
    press(page, "End", "Enter")
    assert f"key ‘{WORDS[int(np.nanargmax(values[2]))]}’" in reading(page)
    press(page, "Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"  # one stop, and out again


def test_a_heat_map_is_read_by_pointer_and_zoomed(open_file: Open, tmp_path: Path) -> None:
    values = np.arange(12, dtype=float).reshape(3, 4) / 12
    path = tmp_path / "small.html"
    html.write(path, [Answer("small", [pattern(values, WORDS[:4], rows=WORDS[:3])])])
    page = open_file(path).page
    box = page.locator(".view").bounding_box()
    corner = page.evaluate(
        "(() => { const r = document.querySelector('.room'); return [r.offsetWidth, r.offsetHeight]; })()"
    )
    page.mouse.move(box["x"] + corner[0] - 15, box["y"] + corner[1] - 15)
    assert reading(page) == "query ‘·sat’(2) looks at key ‘·on’(3): 0.917"
    page.mouse.move(box["x"] + corner[0] - 15, box["y"] + 3)  # the names of the columns are no cell
    assert reading(page) == "query ‘·sat’(2) looks at key ‘·on’(3): 0.917"
    page.locator(".view").focus()
    press(page, "ArrowLeft", "+")
    assert reading(page) == "query ‘·sat’(2) looks at key ‘·sat’(2): 0.833"
    assert page.evaluate("document.querySelector('.room').offsetWidth") > corner[0]
    page.get_by_role("button", name="Fit the width").click()
    assert page.evaluate("document.querySelector('.room').offsetWidth") == corner[0]


def test_cells_have_their_colour(open_file: Open, tmp_path: Path) -> None:
    """Nothing is white, all is dark blue, and the two signs are blue and vermilion."""
    signed = pattern(np.array([[-2.0, 0.0, 2.0]]), WORDS[:3], rows=WORDS[:1], scale="signed")
    share = pattern(np.array([[0.0, 1.0, np.nan]]), WORDS[:3], rows=WORDS[:1])
    path = tmp_path / "colours.html"
    html.write(path, [Answer("colours", [signed, share])])
    page = open_file(path).page
    seen = page.evaluate(
        """() => [...document.querySelectorAll(".view")].map((view) => {
          const canvas = view.querySelector("canvas");
          const [w, h] = [canvas.width, canvas.height];
          const cell = Math.round(document.querySelector(".room").offsetHeight - 32);
          return [2, 1, 0].map((c) => [...canvas.getContext("2d").getImageData(w - c * cell - 8, h - 8, 1, 1).data]);
        })"""
    )
    (less, none, more), (nothing, all_, absent) = [[pixel[:3] for pixel in row] for row in seen]
    assert less[0] > less[2] and more[2] > more[0] and min(none) > 235
    assert min(nothing) > 235 and max(all_) < 100 and abs(absent[0] - absent[2]) < 12


def test_a_heat_map_is_also_a_table_and_words(open_file: Open) -> None:
    page = open_file().page
    page.locator(f"{HEAT} summary").first.click()
    rows = page.locator(f"{HEAT} details").first.locator("tbody tr")
    rows.first.wait_for()  # a `toggle` event comes after the click, not within it
    assert rows.count() == len(WORDS)
    assert rows.nth(0).inner_text().split("\t")[:3] == ["The(0)", "1.00", "masked"]
    words = page.locator(f"{HEAT} details").first.locator("ol li")
    assert words.first.inner_text() == "query ‘The’(0) looks at key ‘The’(0): 1.00"


def test_a_large_map_is_told_row_by_row(open_file: Open, tmp_path: Path) -> None:
    labels = [f"·w{i}" for i in range(64)]
    values = causal(1, 64)[0]
    path = tmp_path / "large.html"
    html.write(path, [Answer("large", [pattern(values, labels)])])
    page = open_file(path).page
    page.locator("summary").click()
    page.locator("select").select_option("7")
    order = np.argsort(-np.nan_to_num(values[7], nan=-1), kind="stable")
    first = page.locator(".words li").first.inner_text()
    assert first.startswith(f"query ‘·w7’(7) looks at key ‘·w{order[0]}’({order[0]}): ")
    assert page.locator("details tbody tr").count() == 8
    assert "56 more: masked." in page.inner_text("details")


def test_a_head_opens_by_keyboard_and_by_click(open_file: Open) -> None:
    page = open_file().page
    page.locator(".grid button").first.focus()
    press(page, "ArrowDown", "ArrowRight", "ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 1, head 2"
    press(page, "Enter")
    page.wait_for_selector(".open h4:text('layer 1, head 2')")
    values = causal(12, len(WORDS))[5]
    key = int(np.nanargmax(values[-1]))
    said = reading(page, ".open")
    assert said.startswith("query ‘↵’(9) looks at key ")
    page.locator(".open .view").focus()
    press(page, "Enter")
    assert f"({key}): " in reading(page, ".open")
    page.get_by_role("button", name="layer 3, head 0").click()
    page.wait_for_selector(".open h4:text('layer 3, head 0')")
    assert page.locator(".grid button[aria-pressed=true]").count() == 1
    assert f"({key}): " in reading(page, ".open")  # the same cell, to compare


def test_numbers_of_a_head_can_come_from_elsewhere(open_file: Open, tmp_path: Path) -> None:
    """`draw` with a hook of its own, as a page of a server has it."""
    page = open_file().page
    figure = heads(2, 2, WORDS, causal(4, len(WORDS), seed=9))
    script = (Path(html.__file__).parent / "web" / "figures.js").read_text(encoding="utf-8")
    script += "\nwindow.drawn = draw;"
    context = page.context.browser.new_context(bypass_csp=True)
    try:
        other = context.new_page()
        other.set_content("<div id=here></div>")
        other.add_script_tag(content=script, type="module")
        other.wait_for_function("() => Boolean(window.drawn)")
        maps = {name: html.map_parts(figure, name) for name in figure.names}
        other.evaluate(
            """([figure, maps]) => {
              window.asked = [];
              const fetchMap = async (name) => (window.asked.push(name), maps[name]);
              window.drawn(figure, document.getElementById("here"), { fetchMap });
            }""",
            [html.parts(figure), maps],
        )
        other.wait_for_selector(".open .reading")
        other.get_by_role("button", name="layer 1, head 0").click()
        other.wait_for_selector(".open h4:text('layer 1, head 0')")
        assert other.evaluate("window.asked") == ["0.0", "1.0"]
    finally:
        context.close()


def test_lines_bars_and_tables(open_file: Open) -> None:
    page = open_file().page
    plot = page.locator(".plot")
    plot.focus()
    press(page, "Home")
    assert reading(page, ".lines") == "layer 1: ·mat 9000, ·floor 700"
    press(page, *["ArrowRight"] * 4)
    assert reading(page, ".lines") == "layer 5: ·mat 400, ·floor –"
    dashes = page.evaluate(
        "[...document.querySelectorAll('.plot .line')].map((e) => e.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == 2 and page.locator(".plot .direct").all_text_contents() == ["·floor", "·mat"]
    first = page.locator(".bars tbody tr").first
    assert first.inner_text().split() == ["head", "3.5", "2.718"]
    widths = [page.locator(".bar").nth(i).bounding_box()["width"] for i in range(2)]
    assert widths[0] / widths[1] == pytest.approx(2.71828 / 1.25, rel=0.02)
    sort = page.get_by_role("button", name="entropy")
    column = "[...document.querySelectorAll('.table tbody tr td:nth-child(2)')].map((e) => e.textContent)"
    sort.click()
    assert page.evaluate(column) == ["2.000", "1.250", "0.512"]
    sort.click()
    assert page.evaluate(column) == ["0.512", "1.250", "2.000"]
    assert page.locator("th[aria-sort=ascending]").inner_text().strip() == "entropy"


def test_light_and_dark(open_file: Open) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page = open_file(color_scheme="dark").page
    dark = page.evaluate(background)
    page.get_by_role("button", name="Show in light colours").click()
    light = page.evaluate(background)
    assert sum(eval(light[3:])) > 700 and sum(eval(dark[3:])) < 100
    page.get_by_role("button", name="Show in dark colours").click()
    assert page.evaluate(background) == dark
    assert open_file().page.evaluate(background) == light
    pixel = "[...document.querySelector('.view canvas').getContext('2d').getImageData(2, 2, 1, 1).data.slice(0, 3)]"
    assert sum(page.evaluate(pixel)) < 150  # the drawing turned with it


@pytest.mark.parametrize("width", [320, 375])
def test_a_narrow_screen_scrolls_down_only(open_file: Open, width: int) -> None:
    page = open_file(viewport={"width": width, "height": 700}, has_touch=True).page
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator(".view").first.tap(position={"x": 100, "y": 100})
    assert "looks at" in reading(page)


def test_nothing_is_asked_of_anyone(open_file: Open, written: Path) -> None:
    opened = open_file()
    opened.page.locator(".grid button").nth(4).click()
    opened.page.wait_for_timeout(200)
    assert [url for url in opened.requests if not url.startswith("data:")] == [written.as_uri()]
    refused = opened.page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
          new Image().src = "http://127.0.0.1:9/x.png";
          setTimeout(done, 3000, "nothing was refused");
        })"""
    )
    assert refused == "img-src"
    opened.complaints.clear()  # that was asked for


def test_words_cannot_become_markup(open_file: Open, tmp_path: Path) -> None:
    bad = "</script><script>document.title = 'owned'</script><!--<img src=x onerror=alert(1)>\u2028\ud800{row}{value}"
    path = tmp_path / "bad.html"
    figure = pattern(np.eye(2), [bad, "b"], title=bad, note=bad, says=bad, absent=bad, unit=bad, row_axis=bad)
    html.write(path, [Answer(bad, [figure, heads(1, 2, [bad, bad], causal(2, 2))])])
    page = open_file(path).page
    assert page.title().startswith("</script>") and page.locator("img").count() == 0
    assert page.locator("h1").inner_text().startswith("</script><script>document.title")


def test_a_notebook_has_several_cells(open_file: Open, tmp_path: Path, browser: Any) -> None:
    path = tmp_path / "notebook.html"
    cells = [html.fragment([one]) for one in every_kind()]
    path.write_text("<!doctype html><body>" + "".join(cells), encoding="utf-8")
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    for i, answer in enumerate(every_kind()):
        frame = page.frame_locator("iframe").nth(i)
        frame.locator(".reading").first.wait_for()
        assert frame.locator("h1").inner_text() == answer.heading
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "none" and complaints == []
    page.close()


def test_270_heads_at_256_tokens_open_at_once(open_file: Open, tmp_path: Path) -> None:
    labels = [f"·w{i}" for i in range(256)]
    path = tmp_path / "many.html"
    html.write(path, [Answer("many", [heads(30, 9, labels, np.tile(causal(9, 256), (30, 1, 1)))])])
    page = open_file(path).page
    assert page.locator(".grid button").count() == 270
    page.wait_for_selector(".open .reading")
    took = page.evaluate(
        """async () => {
          const began = performance.now();
          document.querySelectorAll(".grid button")[140].click();
          const late = () => performance.now() - began > 5000;
          const heading = () => document.querySelector(".open h3")?.textContent;
          while (heading() !== "layer 15, head 5" && !late()) await new Promise(requestAnimationFrame);
          return performance.now() - began;
        }"""
    )
    assert took < 2000  # 0.2 s and less on a quiet machine


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 375, "height": 800}}])
def test_no_barrier_that_axe_finds(open_file: Open, options: dict[str, Any]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = open_file(**options).page
    for summary in page.locator("summary").all():
        summary.click()
    found = axe.Axe().run(page).response["violations"]
    assert [
        (one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")
    ] == []
