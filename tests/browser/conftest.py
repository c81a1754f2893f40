"""A real browser that opens what was written, and notes whatever it complains of and every request it makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutaway.show import html
from support.answers import every_kind

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need the playwright package")


class Opened:
    """A page, with what went wrong in it and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium: install Debian's package of that name")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file with a figure of every kind."""
    path = tmp_path_factory.mktemp("html") / "answer.html"
    html.write(path, every_kind())
    return path


@pytest.fixture
def open_file(browser: Any, written: Path) -> Iterator[Open]:
    """Opens that file, or the results given; whatever the browser complains of fails the test."""
    contexts: list[Any] = []
    opened: list[Opened] = []

    def go(path: Path = written, **options: Any) -> Opened:
        context = browser.new_context(**({"viewport": {"width": 1200, "height": 900}} | options))
        contexts.append(context)
        found = Opened(context.new_page())
        opened.append(found)
        found.page.goto(path.as_uri())
        found.page.wait_for_selector(".reading")
        return found

    yield go
    for context in contexts:
        context.close()
    assert [one.complaints for one in opened] == [[]] * len(opened)
