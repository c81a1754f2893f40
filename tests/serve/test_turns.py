"""Long questions: in turns with texts, so many at once, and no longer than somebody waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cutaway.errors import BusyError
from cutaway.language_model import LanguageModel
from cutaway.serve.limits import Limits
from cutaway.serve.service import Service
from support.serving import Live, lines_of, serving

TEXT = "to be or not to be"
API = "/page/api"


@pytest.fixture(scope="module")
def live(talker_model: LanguageModel) -> Iterator[Live]:
    with serving(talker_model) as found:
        yield found


def test_a_long_question_shares_the_network_and_ends_with_its_client(live: Live) -> None:
    began = threading.Event()

    def ask() -> None:
        body = {"prompt": TEXT, "without": ["mask"], "n_new": 200}
        with live.client.stream("POST", f"{API}/ask/experiment", json=body) as response:
            for _ in response.iter_lines():
                began.set()
                if left.is_set():
                    return

    left = threading.Event()
    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(20)
    text = live.ok("/v1/completions", prompt=TEXT, max_tokens=4, temperature=0)["choices"][0]["text"]
    assert asking.is_alive()  # the text did not wait for the end of the question
    plain = live.model.generate(TEXT, max_tokens=4, temperature=0)
    assert text == plain.text  # type: ignore[union-attr]
    left.set()
    asking.join(20)
    assert ended()


def test_so_many_long_questions_are_at_work_and_others_wait(live: Live) -> None:
    """What each holds is bounded; whoever waits is told, and nobody is turned away half done."""
    counts: list[int] = []

    def ask() -> list[Any]:
        return lines_of(live, "experiment", prompt=TEXT, heads=["0.1"], n_new=40)

    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask) for _ in range(6)]
        while not all(one.done() for one in asking):
            counts.append(sum(thread.name == "question" for thread in threading.enumerate()))
            time.sleep(0.002)
    answers = [one.result() for one in asking]
    assert all("answer" in lines[-1] for lines in answers)
    assert max(counts) <= live.service.limits.n_questions + 1  # one may be on its way out
    waited = [lines[0]["progress"]["words"] == "other questions come first" for lines in answers]
    assert sum(waited) >= 3


def test_past_those_that_may_wait_a_long_question_is_refused(talker_model: LanguageModel) -> None:
    service = Service(model=talker_model, name="talker", limits=Limits(n_questions=1, n_looks=1))

    async def hold(seconds: float) -> None:
        async with service.question():
            await asyncio.sleep(seconds)

    async def ask() -> None:
        working, waiting = (asyncio.create_task(hold(seconds)) for seconds in (0.2, 0))
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError, match="1 questions wait already"):
            await hold(0)
        waiting.cancel()  # its client left: its place is free
        await asyncio.sleep(0.05)
        await asyncio.gather(working, hold(0))

    asyncio.run(asyncio.wait_for(ask(), 5))


def ended(seconds: float = 20.0) -> bool:
    """Whether no question is at work any more, within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(thread.name == "question" for thread in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False
