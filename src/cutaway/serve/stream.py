"""From the scheduler's thread to a client: texts as they grow, server-sent events, and noticing that a client left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cutaway.errors import CutawayError
from cutaway.generate.decoding import Generation, Piece
from cutaway.generate.stopping import FinishReason
from cutaway.serve.reply import error_of
from cutaway.serve.scheduler import Progress, Scheduler

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Text i of a request grew by a piece, or ended."""

    i: int
    piece: Piece | None
    finish_reason: FinishReason | None


class Texts:
    """The texts of one request. Leaving the `with` block ends what is still running.

    Raises:
        ServeError, BusyError: as `Scheduler.submit`.
    """

    def __init__(self, scheduler: Scheduler, generations: Sequence[Generation]) -> None:
        self.generations = list(generations)
        self._scheduler = scheduler
        self._queue: asyncio.Queue[Progress] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(progress: Progress) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, progress)

        wanted = [i for i, g in enumerate(self.generations) if g.finish_reason is None]
        tickets = scheduler.submit([self.generations[i] for i in wanted], deliver) if wanted else []
        self._places = dict(zip(tickets, wanted, strict=True))

    @property
    def n_known(self) -> dict[int, int]:
        """Prompt tokens that had been read for an earlier text, by text."""
        return {i: ticket.n_known for ticket, i in self._places.items()}

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Everything that happens.

        Raises:
            CutawayError: one of the texts failed.
        """
        for i, generation in enumerate(self.generations):
            if i not in self._places.values():  # nothing is to be generated
                yield Event(i=i, piece=None, finish_reason=generation.finish_reason)
        n_open = len(self._places)
        while n_open:
            progress = await self._queue.get()
            if progress.error is not None:
                raise progress.error
            n_open -= progress.is_last
            yield Event(i=self._places[progress.ticket], piece=progress.piece, finish_reason=progress.finish_reason)

    def cancel(self) -> None:
        """End what still runs."""
        self._scheduler.cancel(self._places)

    def __enter__(self) -> Texts:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.cancel()


class EventStream(Response):
    """Server-sent events, one JSON object each, then [DONE]. When the client leaves, the texts end."""

    media_type = "text/event-stream"

    def __init__(self, texts: Texts, chunks: AsyncIterator[dict[str, Any]]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.texts = texts
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.texts:
            await unless_left(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self.chunks:
                await self._event(send, chunk)
        except CutawayError as error:
            await self._event(send, error_of(error)[1])
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _event(self, send: Send, data: dict[str, Any]) -> None:
        body = f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})


class ClientLeftError(Exception):
    """There is nobody to answer."""


async def unless_left(receive: Receive, work: Coroutine[Any, Any, R]) -> R | None:
    """What the work gives; None, and the work ended, once the client has gone."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_until_left(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await _settled(working, watching)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _settled(*tasks: Awaitable[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
