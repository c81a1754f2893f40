"""Servers on a socket of this machine, in a thread of the test, and what to ask them with."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from cutaway.language_model import LanguageModel
from cutaway.serve.app import build_inner, guarded
from cutaway.serve.connection import Connection
from cutaway.serve.limits import Limits
from cutaway.serve.server import Server, listen
from cutaway.serve.service import Service
from cutaway.serve.views import Exhibits


@dataclass
class Live:
    """A running server and a client of it."""

    service: Service
    client: httpx.Client
    url: str

    @property
    def model(self) -> LanguageModel:
        return self.service.model

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def ok(self, path: str, **body: Any) -> Any:
        """The answer of a request that must succeed."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def error(self, path: str, status: int = 400, **body: Any) -> Any:
        """The error of a request that must fail, in the shape that clients know."""
        return error_of(self.post(path, **body), status)

    def idle(self, seconds: float = 10.0) -> bool:
        """Whether nothing runs or waits any more, within the time."""
        return eventually(lambda: self.service.scheduler.n_running + self.service.scheduler.n_waiting == 0, seconds)


def error_of(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert {"param", "code"} <= error.keys()
    return error


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it becomes true within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.005)
    return true()


@contextlib.contextmanager
def serving(
    model: LanguageModel,
    *,
    name: str = "talker",
    key: str | None = None,
    limits: Limits | None = None,
    exhibits: Exhibits | None = None,
) -> Iterator[Live]:
    """A server in a thread."""
    service = Service(model=model, name=name, limits=limits or Limits())
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    app = guarded(build_inner(service, exhibits), host="127.0.0.1", key=key)
    ready = threading.Event()
    config = uvicorn.Config(app, http=Connection, ws="none", log_level="warning", access_log=False)
    server = Server(config, service, ready.set)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    assert ready.wait(20)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Live(service, client, url)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def lines_of(live: Live, name: str, **body: Any) -> list[Any]:
    """What a long question tells, line by line."""
    response = live.post(f"/page/api/ask/{name}", **body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]
