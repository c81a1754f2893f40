"""`cutaway serve` as a process: the official client unchanged, its address, `/health` while it works, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import cutaway
from cutaway.errors import ServeError
from cutaway.serve.server import address_of, is_loopback, listen, served_name
from support.commands import Commands, save_model, start
from support.serving import eventually

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "talker")


@contextmanager
def running(folder: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its address."""
    process = start("serve", "-m", folder, *argv)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line, process.communicate()[1].decode()
        name, _, rest = line.partition(" at ")
        assert name == "talker"
        yield process, rest.split()[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with running(folder, "--port", "0") as (_, found):
        yield found


@pytest.fixture
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}v1", api_key="none", max_retries=0)


def test_the_official_client_runs_unchanged(client: openai.OpenAI, folder: Path) -> None:
    model = cutaway.load(folder, progress=False)
    assert [entry.id for entry in client.models.list()] == ["talker"]
    assert client.models.retrieve("talker").owned_by == "cutaway"

    ids = model.tokenizer.chat(HELLO)
    out: Any = model.generate(ids, max_tokens=9, temperature=0)
    options: Any = {"model": "talker", "max_tokens": 9, "temperature": 0}
    chat = client.chat.completions.create(messages=HELLO, **options, logprobs=True, top_logprobs=2)
    assert chat.choices[0].message.content == out.text
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 9
    assert chat.choices[0].logprobs is not None
    assert len(chat.choices[0].logprobs.content or []) == 9

    chunks = list(
        client.chat.completions.create(messages=HELLO, **options, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == out.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9

    again = [*HELLO, chat.choices[0].message, {"role": "user", "content": "?"}]
    assert client.chat.completions.create(messages=again, **options).choices[0].message.content

    text = client.completions.create(prompt=["a", "b"], n=2, logprobs=1, echo=True, seed=1, **options)
    assert len(text.choices) == 4
    assert text.choices[0].text.startswith("a")
    parts = list(client.completions.create(prompt=model.encode("a"), stream=True, **options))
    assert "".join(p.choices[0].text for p in parts) == model.generate("a", max_tokens=9, temperature=0).text  # type: ignore[union-attr]

    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.chat.completions.create(messages=HELLO, model="talker", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="talker"):
        client.chat.completions.create(messages=HELLO, model="gpt-4o")


def test_the_async_client_and_many_at_once(address: str, folder: Path) -> None:
    model = cutaway.load(folder, progress=False)
    prompts = [f"prompt {i}" * (1 + i % 3) for i in range(24)]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.completions.create(model="talker", prompt=p, max_tokens=20, temperature=0) for p in prompts)
            )
        return [answer.choices[0].text for answer in answers]

    assert asyncio.run(ask()) == [model.generate(p, max_tokens=20, temperature=0).text for p in prompts]  # type: ignore[union-attr]


def test_health_answers_while_texts_are_generated(client: openai.OpenAI, address: str) -> None:
    """X23: half of the polls within 100 ms, and all within what a machine busy with other tests allows."""
    stop = threading.Event()

    def generate(i: int) -> None:
        while not stop.is_set():
            client.completions.create(model="talker", prompt=f"{i}" * 1500, max_tokens=30)

    threads = [threading.Thread(target=generate, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    try:
        with httpx.Client(base_url=address, timeout=30) as polling:
            assert eventually(lambda: sum(polling.get("/health").json()[k] for k in ("running", "waiting")) >= 5)
            waits = []
            for _ in range(60):
                before = time.perf_counter()
                assert polling.get("/health").status_code == 200
                waits.append(time.perf_counter() - before)
                time.sleep(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sorted(waits)[30] < 0.1
    assert max(waits) < 1.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_short_texts_end_and_ends_the_others(folder: Path, number: signal.Signals) -> None:
    """A stream that is cut short says so and is closed properly; the exit code is that of the command line."""
    with running(folder, "--port", "0") as (process, address):
        ends: dict[str, str] = {}

        def read(name: str, n: int) -> None:
            body = {"prompt": name, "max_tokens": n, "stream": True}
            with httpx.stream("POST", f"{address}v1/completions", json=body, timeout=60) as response:
                ends[name] = "".join(response.iter_text())

        threads = [threading.Thread(target=read, args=args) for args in (("short", 300), ("endless", 90_000))]
        for thread in threads:
            thread.start()
        assert eventually(lambda: httpx.get(f"{address}health").json()["running"] == 2)
        process.send_signal(number)
        for thread in threads:
            thread.join(60)
        assert process.wait(30) == (0 if number == signal.SIGTERM else 130)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert '"finish_reason": "length"' in ends["short"]
    assert "the server is stopping" in ends["endless"]
    assert all(text.endswith("data: [DONE]\n\n") for text in ends.values())


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


def test_the_next_free_port_is_taken_unless_one_was_asked_for(command: Commands, folder: Path) -> None:
    first, second = listen("127.0.0.1", None), listen("127.0.0.1", None)
    with first, second:
        one, other = first.getsockname()[1], second.getsockname()[1]
        assert 8000 <= one < other < 8020
        error = command.error("serve", "-m", folder, "--port", str(one))
        assert error == f"port = {one}: address already in use; use another --port"


def test_other_machines_need_a_key(command: Commands, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (None, ""):
        if key is not None:
            monkeypatch.setenv("CUTAWAY_API_KEY", key)
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            assert "CUTAWAY_API_KEY" in command.error("serve", "-m", folder, "--host", host)
    monkeypatch.setenv("CUTAWAY_API_KEY", "secret")
    error = command.error("serve", "-m", folder, "--host", "192.0.2.1", "--port", "0")  # no address of this machine
    assert error.startswith("host = 192.0.2.1: ")


def test_what_cannot_be_served_is_told_before_a_model_is_loaded(command: Commands, folder: Path) -> None:
    for name in ("a", "b"):
        (folder.parent / name / "final").mkdir(parents=True, exist_ok=True)
    beside = [part for name in "ab" for part in ("--with", str(folder.parent / name / "final"))]
    assert "the page would call several of them final" in command.error("serve", "-m", "no such model", *beside)
    assert "run = " in command.error("serve", "-m", "no such model", "--run", folder.parent / "nowhere")
    code, _, err = command("serve", "-m", folder, "--cache-gib", "1e300")
    assert code == 2 and "--cache-gib" in err


def test_a_server_with_a_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_API_KEY", "secret")
    with running(folder, "--port", "0", "--host", "0.0.0.0") as (_, address):
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(openai.AuthenticationError, match="API key"):
            openai.OpenAI(base_url=f"{address}v1", api_key="wrong", max_retries=0).models.list()
        assert openai.OpenAI(base_url=f"{address}v1", api_key="secret").models.list().data[0].id == "talker"


def test_addresses() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.nip.io")] == [
        False
    ] * 5
    assert address_of("0.0.0.0", 80) == "http://127.0.0.1:80/"
    assert address_of("::1", 80) == "http://[::1]:80/"
    for host, port in (("no such host.invalid", 0), ("a" * 300, 0)):
        with pytest.raises(ServeError), pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUTAWAY_API_KEY", "secret")
            listen(host, port)


def test_the_name_tells_nothing_of_where_files_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served_name(str(folder)) == "talker"
    monkeypatch.chdir(folder)
    assert served_name(".") == "talker"
    (tmp_path / "small.q8_0.gguf").touch()
    assert served_name(str(tmp_path / "small.q8_0.gguf")) == "small.q8_0"
    assert served_name("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"


def test_without_the_extra_it_says_what_to_install(folder: Path) -> None:
    code = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('fastapi', 'uvicorn') else find(name, *a)\n"
        f"from cutaway.cli import main; sys.exit(main(['serve', '-m', {str(folder)!r}]))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == "error: fastapi and uvicorn not installed: pip install 'cutaway[serve]'\n"


def test_nothing_calls_home(folder: Path) -> None:
    """Whatever the environment asks of the libraries below: while requests are served, no connection goes out."""
    code = (
        "import asyncio, socket, sys, httpx, cutaway\n"
        "from cutaway.serve.app import build_inner\n"
        "from cutaway.serve.service import Service\n"
        "def no(*_): raise SystemExit('a connection goes out')\n"
        f"app = build_inner(Service(model=cutaway.load({str(folder)!r}), name='talker'))\n"
        "socket.socket.connect = socket.socket.connect_ex = no\n"
        "async def ask():\n"
        "    async with app.router.lifespan_context(app):\n"
        "        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url='http://x') as client:\n"
        "            for _ in range(3):\n"
        "                (await client.post('/v1/completions', json={'prompt': 'a'})).raise_for_status()\n"
        "asyncio.run(ask())\n"
    )
    asked = {"FASTAPI_OTEL_AUTO_CONFIGURE": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    environment = os.environ | asked | {"OTEL_METRIC_EXPORT_INTERVAL": "10"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
