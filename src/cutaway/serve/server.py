"""The process around the app: its socket, its address, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from cutaway.errors import ServeError
from cutaway.language_model import LanguageModel
from cutaway.serve.app import build_inner, guarded
from cutaway.serve.connection import MAX_CONNECTIONS, Connection
from cutaway.serve.limits import Limits
from cutaway.serve.service import Service
from cutaway.serve.views import Exhibits

PORT = 8000
N_PORTS = 20  # tried where none was asked for
KEY = "CUTAWAY_API_KEY"


class Server(uvicorn.Server):
    """Takes requests until a signal comes, then lets running texts end, for a while."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.service = service
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """New texts are refused at once; those that do not end in time end with an error, and so do their streams."""
        scheduler, limits = self.service.scheduler, self.service.limits
        scheduler.refuse()
        ending = asyncio.ensure_future(super().shutdown(sockets))
        await asyncio.wait({ending}, timeout=limits.stop_seconds)
        await asyncio.to_thread(scheduler.stop)
        await ending


def serve(
    model: LanguageModel,
    name: str,
    listening: socket.socket,
    *,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
    exhibits: Exhibits | None = None,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a model until SIGTERM or Ctrl-C.

    Args:
        name: what clients call it.
        listening: from `listen` with the same host; closed at the end.
        exhibits: what the page shows beside the model.
        started: is called with the address once it answers.
    """
    service = Service(model=model, name=name, limits=limits or Limits())
    config = uvicorn.Config(
        guarded(build_inner(service, exhibits), host=host, key=api_key()),
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(service.limits.stop_seconds) + 5,
    )
    address = address_of(host, listening.getsockname()[1])
    with contextlib.closing(listening), _ended_by_sigterm():
        Server(config, service, lambda: started(address)).run([listening])


def api_key() -> str | None:
    """What clients must know, if anything."""
    return os.environ.get(KEY) or None


def served_name(name: str) -> str:
    """What a model is called by clients: the last part of a path, so that none tells where files are."""
    path = Path(name)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port; None takes the first free one from PORT on.

    Raises:
        ServeError: an address that others can reach, and no key that keeps them out; no such address here; no free
            port.
    """
    if api_key() is None and not is_loopback(host):
        raise ServeError(f"host = {host}: other machines could use the model; set {KEY} first, or leave --host out")
    tried = range(PORT, PORT + N_PORTS) if port is None else [port]
    reason = ""
    for one in tried:
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(host, one, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError, OverflowError) as error:
            raise ServeError(f"host = {host}: {_reason(error)}; use an address of this machine") from error
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(128)  # from here on nobody else can take it
        except (OSError, OverflowError) as error:
            listening.close()
            if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
                raise ServeError(f"host = {host}: {_reason(error)}; use an address of this machine") from error
            reason = _reason(error)
        else:
            return listening
    ports = f"port = {port}" if port is not None else f"ports {PORT} to {PORT + N_PORTS - 1}"
    raise ServeError(f"{ports}: {reason}; use another --port")


def address_of(host: str, port: int) -> str:
    """What to open in a browser."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """uvicorn passes the signal on once it has ended: there, SIGTERM has done its work."""
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: None)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
