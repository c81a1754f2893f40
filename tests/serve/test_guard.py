"""Who may ask: this machine's own address alone, no other web page, nothing without the key where there is one."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from cutaway.language_model import LanguageModel
from cutaway.serve.limits import Limits
from support.serving import Live, error_of, serving

KEY = "geheim-ключ"
BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture(scope="module")
def locked(talker_model: LanguageModel) -> Iterator[Live]:
    """A server that asks for a key and takes small bodies."""
    with serving(talker_model, key=KEY, limits=Limits(body_bytes=1000)) as live:
        yield live


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("127.0.0.1:8000", 200), ("localhost:5", 200), ("LOCALHOST", 200), ("[::1]:8000", 200)),
        *(("192.168.1.7:8000", 200), ("localhost.", 200)),
        *(("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.nip.io", 421), ("", 421), ("[::", 421)),
        *(("127.0.0.1@evil.example", 421), ("a b", 421)),
    ],
)
def test_a_name_that_somebody_elses_dns_could_point_here_is_not_ours(talker: Live, host: str, status: int) -> None:
    """Rebinding: the page of evil.example, whose name has become 127.0.0.1, sends its own name as Host."""
    response = talker.client.get("/health", headers={"Host": host})
    assert response.status_code == status
    if status != 200:
        error_of(response, status)


def test_other_web_pages_get_nothing(talker: Live) -> None:
    """S8: off by default; no origin is ever named as allowed, on answers, streams, errors or pre-flights."""
    own = talker.url
    for origin, status in ((own, 200), ("http://evil.example", 403), ("null", 403), ("http://localhost:1", 403)):
        for body in (BODY, BODY | {"stream": True}, {"prompt": 5}):
            response = talker.client.post("/v1/completions", json=body, headers={"Origin": origin})
            assert response.status_code == (status if status == 403 or body["prompt"] == "a" else 400)
            assert not [name for name in response.headers if name.startswith("access-control")]
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    response = talker.client.options("/v1/completions", headers={"Origin": "http://evil.example", **asked})
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]
    # what a page could send without a pre-flight is no JSON request
    plain = talker.client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": "text/plain"})
    error_of(plain, 400)


def test_the_key(locked: Live) -> None:
    raw = [(b"authorization", b"Bearer " + KEY.encode())]
    assert locked.client.post("/v1/completions", json=BODY, headers=raw).status_code == 200
    for wrong in (None, "Bearer", "Bearer wrong", f"Basic {KEY}".encode(), b"Bearer " + KEY.encode()[:-1]):
        headers = {} if wrong is None else {"Authorization": wrong}
        for response in (
            locked.client.post("/v1/completions", json=BODY, headers=headers),
            locked.client.get("/v1/models", headers=headers),
            locked.client.get("/metrics", headers=headers),
            locked.client.get("/openapi.json", headers=headers),
            locked.client.get("/page/anything", headers=headers),
        ):
            assert error_of(response, 401)["type"] == "authentication_error"
            assert response.headers["www-authenticate"] == "Bearer"
            assert KEY not in response.text
    assert locked.client.get("/health").status_code == 200


def test_sizes_are_bounded_before_anything_is_parsed(locked: Live) -> None:
    """Announced, or sent in chunks without saying how much will come."""
    raw = [(b"authorization", b"Bearer " + KEY.encode()), (b"content-type", b"application/json")]
    big = b'{"prompt": "' + b"a" * 2000 + b'"}'
    error_of(locked.client.post("/v1/completions", content=big, headers=raw), 413)
    error_of(locked.client.post("/v1/completions", content=iter([big[:900], big[900:]]), headers=raw), 413)
    assert locked.client.post("/v1/completions", json=BODY, headers=raw[:1]).status_code == 200


def test_a_head_is_bounded_also_when_it_comes_at_once(talker: Live) -> None:
    for path, headers in (
        ("/health", {"X-Long": "a" * 17_000}),
        (f"/health?{'a' * 17_000}", {}),
        ("/" + "a" * 17_000, {}),
    ):
        error_of(talker.client.get(path, headers=headers), 431)
    assert talker.client.get("/health", headers={"X-Long": "a" * 15_000}).status_code == 200


def test_a_client_that_sends_before_it_listens_hears_why_it_was_refused(talker_model: LanguageModel) -> None:
    """More than a socket's buffers hold: a server that answers and closes would reset the connection meanwhile."""
    with serving(talker_model, limits=Limits(body_bytes=2**20)) as live:
        at = httpx.URL(live.url)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {at.host}\r\nContent-Length: {6 * 2**20}\r\n\r\n"
        with socket.create_connection((at.host, at.port or 80), timeout=20) as client:
            client.sendall(head.encode())
            for _ in range(6 * 16):  # not so fast that it is all on its way before the answer is
                client.sendall(b"a" * 2**16)
                time.sleep(0.002)
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
        big = b'{"prompt": "' + b"a" * 6 * 2**20 + b'"}'
        sent = []

        def endless() -> Iterator[bytes]:
            for i in range(100):
                sent.append(i)
                yield big

        with suppress(httpx.TransportError):  # past any patience: whether the answer is still read is chance
            error_of(live.client.post("/v1/completions", content=endless()), 413)
        assert len(sent) < 8


def test_every_answer_has_the_headers_that_keep_browsers_careful(talker: Live) -> None:
    for response in (
        talker.client.get("/health"),
        talker.client.get("/nothing"),
        talker.client.get("/health", headers={"Host": "evil.example"}),
        talker.post("/v1/completions", **BODY, stream=True),
    ):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert "server" not in response.headers or "uvicorn" in response.headers["server"]


@pytest.mark.parametrize(
    "path", ["/assets/../../../../etc/passwd", "/assets/%2e%2e/%2e%2e/pyproject.toml", "/v1/models/../../etc/passwd"]
)
def test_no_path_of_a_client_reaches_the_disk(talker: Live, path: str) -> None:
    response = httpx.get(httpx.URL(talker.url, raw_path=path.encode()))
    assert response.status_code in (400, 404, 405)
    assert "root:" not in response.text
