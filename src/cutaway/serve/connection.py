"""One connection: whoever opens it has to ask for something soon, and there are only so many."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512  # past it requests are told to come back
MAX_OPEN = MAX_CONNECTIONS + 64  # past it connections are closed unheard


class Connection(H11Protocol):
    """uvicorn's, which by itself waits for a request's head for ever.

    Attributes:
        head_seconds: until the head of a request must be whole, from the first byte or the opening on [s].
    """

    head_seconds: ClassVar[float] = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > MAX_OPEN:
            transport.abort()
        else:
            self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_asked:
            self._disarm()
        elif self._deadline is None:  # the next head, or what is left of a body that nobody reads
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    @property
    def _is_asked(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.head_seconds, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if not self._is_asked:
            self.transport.close()
