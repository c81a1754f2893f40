"""S1: a client that leaves, streamed or not, stops its generation within a few tokens, fifty times; one that never
comes to the point is not waited for."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

import pytest

from cutaway.serve.connection import Connection
from support.serving import Live, eventually

N_TIMES = 50


def send(live: Live, path: str, **body: Any) -> socket.socket:
    """A request on a bare socket, so that it can be left at any moment."""
    data = json.dumps(body).encode()
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_not_generated_for(talker: Live, stream: bool) -> None:
    scheduler, metrics = talker.service.scheduler, talker.service.metrics
    before = metrics.cancelled
    for i in range(N_TIMES):
        connection = send(talker, "/v1/completions", prompt=f"leave {i % 3}", max_tokens=50_000, stream=stream)
        if stream:
            seen = b""
            while seen.count(b"data: ") < 5:
                seen += connection.recv(65536)
        else:
            assert eventually(lambda: scheduler.n_running > 0)
        n_before = metrics.new_tokens
        connection.close()
        assert eventually(lambda: scheduler.n_running == 0), f"the {i}th still runs"
        assert metrics.new_tokens - n_before < 500
        if i % 10 == 0:
            assert talker.ok("/v1/completions", prompt="next", max_tokens=1)
    assert eventually(lambda: metrics.cancelled == before + N_TIMES)
    assert talker.client.get("/health").json()["running"] == 0
    assert eventually(lambda: scheduler._running.cache.n_bytes == 0)


def test_who_leaves_while_waiting_is_forgotten(talker: Live) -> None:
    scheduler = talker.service.scheduler
    running = [send(talker, "/v1/completions", prompt="a", n=16, max_tokens=2_000) for _ in range(1)]
    waiting = [send(talker, "/v1/chat/completions", messages=[{"role": "user", "content": "b"}]) for _ in range(4)]
    assert eventually(lambda: scheduler.n_running == 16 and scheduler.n_waiting == 4)
    for connection in waiting:
        connection.close()
    assert eventually(lambda: scheduler.n_waiting == 0)
    for connection in running:
        connection.close()
    assert eventually(lambda: scheduler.n_running == 0)


def test_a_body_that_never_ends_is_given_up(talker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a body, then nothing: told after a while, and other requests do not wait for it."""
    object.__setattr__(talker.service.limits, "body_seconds", 0.3)
    host, port = talker.url.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert talker.ok("/v1/completions", prompt="other", max_tokens=1)
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")
    finally:
        object.__setattr__(talker.service.limits, "body_seconds", 30.0)


@pytest.mark.parametrize("path", ["/v1/completions", "/page/api/ask/exact"])
def test_who_leaves_within_a_body_leaves_no_trace(talker: Live, caplog: pytest.LogCaptureFixture, path: str) -> None:
    answers = talker.service.metrics.answers
    before = sum(answers.values())
    with socket.create_connection(tuple(talker.url.removeprefix("http://").split(":")), timeout=30) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.1)
    assert eventually(lambda: sum(answers.values()) > before)
    assert caplog.records == []


@pytest.mark.parametrize("begun", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: 127"])
def test_who_asks_for_nothing_is_not_waited_for(talker: Live, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Open connections are counted: without a deadline, who opens enough of them would keep everyone else out."""
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    host, port = talker.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(begun)
        assert connection.recv(100) == b""


def test_a_head_that_drips_is_given_up(talker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    host, port = talker.url.removeprefix("http://").split(":")
    end = time.monotonic() + 10
    with (
        socket.create_connection((host, int(port)), timeout=10) as connection,
        pytest.raises(OSError, match=r"reset|pipe|abort"),
    ):
        while time.monotonic() < end:
            connection.sendall(b"G")
            time.sleep(0.02)


def test_a_long_answer_is_not_given_up(talker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.1)
    with talker.client.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 300, "stream": True}) as r:
        began = time.monotonic()
        assert list(r.iter_lines())[-2] == "data: [DONE]"
    assert time.monotonic() > began + 0.1


def test_connections_past_the_bound_are_closed_unheard(talker: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutaway.serve.connection.MAX_OPEN", 3)
    host, port = talker.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection((host, int(port)), timeout=5)) for _ in range(6)]
        with contextlib.suppress(ConnectionResetError):
            assert opened[-1].recv(1) == b""
