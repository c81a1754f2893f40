"""S1: a client that leaves, streamed or not, stops its generation within a few tokens, fifty times."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

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
