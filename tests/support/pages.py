"""The page of a server in a real browser: opened, waited for, and whatever it complains of noted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutaway.language_model import LanguageModel
from cutaway.serve.views import Exhibits
from support.serving import serving

PROMPT = "ROMEO: what light"


@contextlib.contextmanager
def visiting(model: LanguageModel, run: Path | None = None, *, key: str | None = None) -> Iterator[str]:
    """The address of a server, which has the model a second time to compare with."""
    with serving(model, name="bard", key=key, exhibits=Exhibits(others={"the same": model}, run=run)) as live:
        yield f"{live.url}/"


def ready(page: Any) -> None:
    """Until the page has its model and shows a view."""
    page.wait_for_selector("body[data-ready]")


def settled(page: Any) -> None:
    """Until nothing is being worked on."""
    page.wait_for_selector("body:not(:has([aria-busy=true])):not(:has(.status button))")


@dataclass
class Visit:
    """An open page, with what went wrong in it and what it asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # what the server answered with an error

    @classmethod
    def of(cls, browser: Any, address: str, place: str = "", **options: Any) -> Visit:
        """A view in a context of its own."""
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        visit = cls(context.new_page())
        page = visit.page
        page.on("console", lambda message: message.type in ("error", "warning") and visit.complain(message.text))
        page.on("pageerror", lambda error: visit.complain(str(error)))
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("response", lambda answer: answer.status >= 400 and visit.refused.append(answer.url))
        page.goto(address + place)
        ready(page)
        return visit

    def complain(self, text: str) -> None:
        """An answer that is an error is no error of the page."""
        if "the server responded with a status of 4" not in text:
            self.complaints.append(text)


def complaints_of(visits: Sequence[Visit]) -> list[str]:
    """What all of them complained of; their contexts are closed."""
    for visit in visits:
        visit.page.context.close()
    return [text for visit in visits for text in visit.complaints]
