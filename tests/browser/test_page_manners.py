"""The page for everyone: by keyboard alone, in the dark, on a narrow screen, without other hosts, behind a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cutaway
from cutaway.language_model import LanguageModel
from support.pages import PROMPT, Visit, complaints_of, ready, settled, visiting

expect = pytest.importorskip("playwright.sync_api").expect
Go = Callable[..., Visit]

VIEWS = {
    "write": f"#/write?text={PROMPT}&top_k=3",
    "tower": f"#/tower?text={PROMPT}&part=1.2",
    "look": "#/look",
    "lens": f"#/lens?text={PROMPT}",
    "contributions": "#/contributions",
    "senses": "#/senses?run=1",
    "neighbours": "#/neighbours",
    "effects": f"#/effects?text={PROMPT}&run=1",
    "experiment": f"#/experiment?text={PROMPT}&heads=1.2&without=scale&n_new=2&run=1",
    "compare": f"#/compare?text={PROMPT}&run=1",
    "exact": "#/exact",
    "claims": "#/claims?claim=3&run=1",
    "quiz": "#/quiz?seed=3&at=2",
    "cost": "#/cost",
    "training": "#/training",
}


@pytest.fixture(scope="module")
def bard() -> LanguageModel:
    return cutaway.load("bard")


@pytest.fixture(scope="module")
def address(bard: LanguageModel) -> Iterator[str]:
    with visiting(bard) as found:
        yield found


@pytest.fixture
def go(browser: Any, address: str) -> Iterator[Go]:
    """Opens a view; whatever the browser complains of fails the test."""
    visits: list[Visit] = []

    def to(place: str = "", **options: Any) -> Visit:
        visits.append(Visit.of(browser, address, place, **options))
        visits[-1].page.wait_for_timeout(200)  # what is asked for at once is on its way
        settled(visits[-1].page)
        return visits[-1]

    yield to
    assert complaints_of(visits) == []


def focused(page: Any) -> str:
    """What a key would go to, as it is called."""
    name: str = page.evaluate(
        "() => { const e = document.activeElement; return e.getAttribute('aria-label') ?? e.textContent; }"
    )
    return name.strip()


def tab_to(page: Any, name: str, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page).startswith(name):
            return
    raise AssertionError(f"{name} is not reached by Tab")


def test_by_keyboard_alone(go: Go) -> None:
    page = go(f"#/write?text={PROMPT}").page
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the view"
    tab_to(page, "Step")
    page.wait_for_selector(".chip")
    n = page.locator(".chip").count()
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_have_count(n + 1)
    assert focused(page) == "Step"
    page.keyboard.press("Shift+Tab")
    tab_to(page, "Undo")
    page.keyboard.press("Enter")
    expect(page.locator(".chip")).to_have_count(n)
    page.evaluate("() => document.querySelector('.brand').focus()")
    tab_to(page, "Tower")
    page.keyboard.press("Enter")
    page.wait_for_selector("button.head")
    assert focused(page) == "Tower"  # the heading, so that what follows is the view
    tab_to(page, "residual stream")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert focused(page) == "layer 1, head 0"
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Head 1.0')")
    assert focused(page) == "layer 1, head 0"
    tab_to(page, "softmax in head 1.0")
    page.keyboard.press("Home")
    assert "key ‘RO’(0)" in page.locator(".stage .reading").inner_text()


def test_who_reads_what_is_found_so_far_is_not_sent_away(go: Go) -> None:
    page = go(f"#/experiment?text={PROMPT}&ff=1&n_new=20").page
    page.get_by_role("button", name="Run").click()
    page.locator(".so-far").get_by_role("button", name="Save as a file").focus()
    page.wait_for_selector(".answered")
    assert page.locator(".answered h2").evaluate("(title) => title === document.activeElement")


def test_dark_and_light(go: Go) -> None:
    background = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    visit = go("#/tower", color_scheme="dark")
    page = visit.page
    picture = "() => [...document.querySelector('.head canvas').getContext('2d').getImageData(0, 0, 1, 1).data]"
    dark, painted = page.evaluate(background), page.evaluate(picture)
    page.get_by_role("button", name="Show in light colours").click()
    page.wait_for_timeout(100)
    light = page.evaluate(background)
    assert sum(dark) < 100 and sum(light) > 700
    assert page.evaluate(picture) != painted  # the small pictures turn with it
    visit.complaints.clear()  # the browser minds that its canvas was read twice


@pytest.mark.parametrize("view", VIEWS)
def test_a_narrow_screen_scrolls_down_only(go: Go, view: str) -> None:
    page = go(VIEWS[view], viewport={"width": 375, "height": 800}, has_touch=True).page
    assert page.evaluate("() => document.documentElement.scrollWidth") == 375
    assert page.locator("h1").bounding_box()["x"] >= 8


def test_nothing_is_asked_of_anyone_else(go: Go, address: str) -> None:
    visit = go(VIEWS["write"])
    for view in list(VIEWS)[1:6]:
        visit.page.locator(f".views a[href^='#/{view}']").click()
        visit.page.wait_for_timeout(150)
        settled(visit.page)
    assert len(visit.requests) > 15
    assert {url for url in visit.requests if not url.startswith((address, "data:", "blob:"))} == set()
    refused = visit.page.evaluate(
        """() => new Promise((done) => {
          document.addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
          fetch("http://127.0.0.1:9/").catch(() => {});
        })"""
    )
    assert refused == "connect-src"
    visit.complaints.clear()  # that was asked for


def test_without_motion_nothing_moves(go: Go) -> None:
    page = go(VIEWS["tower"], reduced_motion="reduce", viewport={"width": 800, "height": 700}).page
    assert page.evaluate("() => document.getAnimations().length") == 0


def test_behind_a_key(browser: Any, bard: LanguageModel) -> None:
    with visiting(bard, key="open sesame") as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        for key in ("wrong", "open sesame"):
            page.get_by_label("API key of this server").fill(key)
            page.get_by_role("button", name="Go on").click()
        ready(page)
        page.wait_for_selector(".candidate")
        assert page.evaluate("() => [localStorage.length, document.cookie]") == [0, ""]
        context.close()


def test_words_cannot_become_markup(go: Go) -> None:
    page = go("#/write?text=%3Cimg src=x onerror=%22document.title='owned'%22%3E%3Cscript%3Ealert(1)%3C/script%3E").page
    page.get_by_role("button", name="Step").click()
    page.wait_for_selector(".chip.new")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "Write · bard · Cutaway"


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}], ids=["light", "dark"])
def test_no_barrier_that_axe_finds(go: Go, view: str, options: dict[str, Any]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = go(VIEWS[view], **options).page
    for summary in page.locator("summary").all()[:6]:
        summary.click()
    found = axe.Axe().run(page).response["violations"]
    assert [
        (one["id"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ] == []
