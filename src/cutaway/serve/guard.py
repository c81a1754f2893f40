"""Who may ask, from where, and how much: checked before anything of a request is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import itertools
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cutaway.serve.limits import Limits
from cutaway.serve.metrics import Metrics
from cutaway.serve.reply import Refusal, refusal_response

OPEN = ("/", "/health", "/favicon.ico")  # without a key: what a browser asks for before it could send one
OPEN_BELOW = "/assets/"
BEARER = {"WWW-Authenticate": "Bearer"}
CLOSE = {"Connection": "close"}  # what is left of the body is not read
HEARD, HEARD_SECONDS = 8, 2.0  # times the bound of a body, and for how long, what is too large is taken in and dropped
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
}


class Guard:
    """Around the whole app. A web page of another origin gets nothing: no answer names it as allowed.

    Args:
        host: the name or address the server was bound to.
        key: what `Authorization: Bearer …` must hold; None lets everyone in who can reach the address.
    """

    def __init__(self, app: ASGIApp, *, host: str, key: str | None, limits: Limits, metrics: Metrics) -> None:
        self.app = app
        self.key = None if key is None else key.encode()
        self.names = {host.lower(), "localhost", socket.gethostname().lower()}
        self.limits = limits
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                self.metrics.answers[self._path(scope), message["status"]] += 1
            await send(message)

        body = Body(receive, self.limits)
        try:
            self._check(scope)
            await self.app(scope, body.receive, sending)
        except Refusal as refusal:
            if refusal.status == 413 and "expect" not in Headers(scope=scope):
                await body.hear_out()
            await refusal_response(refusal)(scope, receive, sending)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # uvicorn bounds what it has to wait for alone: a head that comes at once may be as long as what a socket reads
        n_bytes = sum(map(len, (scope["raw_path"], scope["query_string"], *itertools.chain(*headers.raw))))
        if n_bytes > self.limits.head_bytes:
            raise Refusal(431, f"the head is larger than {self.limits.head_bytes} bytes, which is the limit: send less")
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise Refusal(421, f"Host is {host[:80]!r}, which is not this server: use its address")
        origin = headers.get("origin")
        if origin is not None and not _same(origin, host):
            raise Refusal(403, f"Origin is {origin[:80]!r}: other web pages may not use this server")
        if self.key is not None and not (scope["path"] in OPEN or scope["path"].startswith(OPEN_BELOW)):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), self.key)  # as long, whatever is wrong
            if scheme.lower() != "bearer" or not right:
                raise Refusal(401, "the API key is missing or wrong: send Authorization: Bearer KEY", BEARER)
        length = headers.get("content-length", "0")
        if not (length.isdigit() and len(length) < 16 and int(length) <= self.limits.body_bytes):
            raise Refusal(413, too_large(self.limits.body_bytes), CLOSE)

    def _is_ours(self, host: str) -> bool:
        """A name that an attacker's DNS could point here is not; a numeric address has no DNS to be rebound."""
        name = _name(host)
        if name in self.names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    @staticmethod
    def _path(scope: Scope) -> str:
        """The route's own path, so that what clients make up is not counted one by one."""
        route = scope.get("route")
        return getattr(route, "path", "other")


class Body:
    """The body of a request as it comes, with its bounds."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._n_bytes = 0
        self._complete = False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """The next part of it; after the last one this waits until the client leaves."""
        if self._complete:
            return await self._receive()
        loop = asyncio.get_running_loop()
        self._deadline = self._deadline or loop.time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise Refusal(408, f"the body took longer than {self._limits.body_seconds:g} s", CLOSE) from error
        self._n_bytes += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._n_bytes > self._limits.body_bytes:
            raise Refusal(413, too_large(self._limits.body_bytes), CLOSE)
        return message

    async def hear_out(self) -> None:
        """Throw away the rest of a body, within bounds: a client that sends before it listens would else see its
        connection reset, and not the answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_SECONDS):
                while not self._complete and self._n_bytes <= HEARD * self._limits.body_bytes:
                    message = await self._receive()
                    self._n_bytes += len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)


def too_large(limit: int) -> str:
    """What to say about a body past the limit."""
    return f"the body is larger than {limit} bytes, which is the limit: send less"


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _same(origin: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and found.netloc.lower() == host.lower()
