"""A question of many passes: it works in turns with the texts that are being generated, tells how far it is, and ends
once nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cutaway.figures import Result
from cutaway.serve.service import Service

TURN = 0.15  # seconds that a question keeps the network, if it can stop by then


@dataclass(frozen=True)
class Said:
    """How far a question is: so many parts of so many, 0 of 0 where that is not known, and what is being done.

    `so_far` is an answer in itself, which the last one will take the place of.
    """

    done: int
    total: int
    words: str
    so_far: Result | None = None


Tell = Callable[[Said], None]


class LeftError(Exception):
    """Nobody waits for the answer any more."""


class Turns:
    """Work in a thread of its own that has the network only while the scheduler's thread stands still for it.

    Each time the work tells how far it is, it may have to hand the network back and wait for its next turn.

    Args:
        work: is given what to tell with; between two tellings it is not interrupted.
        yields: whether others may use the network between two tellings. Not if the work changes weights for a while.
    """

    def __init__(self, service: Service, work: Callable[[Tell], Any], *, yields: bool = True) -> None:
        self._service = service
        self._work = work
        self._yields = yields
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Said] = asyncio.Queue()
        self._may_go, self._rests = threading.Semaphore(0), threading.Semaphore(0)
        self._began = 0.0
        self._left = self._ended = False
        self._answer: Any = None
        self._error: Exception | None = None

    async def run(self) -> AsyncIterator[Said | Any]:
        """What is told on the way, and the answer as the last.

        Raises:
            BusyError: too many questions wait already. What the work raises comes out here.
        """
        if self._service.places.locked():
            yield Said(0, 0, "other questions come first")
        async with self._service.question(), aclosing(self._told()) as told:
            async for one in told:
                yield one

    async def _told(self) -> AsyncGenerator[Said | Any, None]:
        threading.Thread(target=self._thread, name="question", daemon=True).start()
        turn = news = None
        begun = False
        try:
            while not self._ended:
                turn = asyncio.ensure_future(self._service.look(self._turn, begun=begun))
                begun = True
                while not turn.done():
                    news = asyncio.ensure_future(self._news.get())
                    await asyncio.wait({turn, news}, return_when=asyncio.FIRST_COMPLETED)
                    if news.done():
                        yield news.result()
                    news.cancel()
                while not self._news.empty():
                    yield self._news.get_nowait()
                await turn
        finally:
            self._left = True
            self._may_go.release()
            for task in (turn, news):
                if task is not None:
                    task.cancel()  # a turn that still waits is not taken
        if self._error is not None:
            raise self._error
        yield self._answer

    def _turn(self) -> None:
        """In the scheduler's thread: let the work go on until it rests."""
        self._may_go.release()
        self._rests.acquire()

    def _thread(self) -> None:
        self._may_go.acquire()
        self._began = time.monotonic()
        try:
            if not self._left:
                self._answer = self._work(self._tell)
        except LeftError:
            pass
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._rests.release()

    def _tell(self, said: Said) -> None:
        if self._left:
            raise LeftError
        self._loop.call_soon_threadsafe(self._news.put_nowait, said)
        if self._yields and time.monotonic() - self._began > TURN:
            self._rests.release()
            self._may_go.acquire()
            self._began = time.monotonic()
            if self._left:
                raise LeftError
