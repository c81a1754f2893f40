"""Serving: what continuous batching gains, against transformers' own server, and memory over many requests.

One stream reads every weight for each of its tokens; eight streams share the reading. So the total of eight should be
well above that of one, and the ratio does not depend on the machine's speed of the day: the numbers of streams take
turns, round by round.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

import cutaway

N_TOKENS = 64
N_ROUNDS = 3
STREAMS = (1, 4, 8, 16)
N_REQUESTS, N_LEAVING = 500, 50
SMALL = "0.1"  # GiB of keys and values: what is remembered of earlier texts fills its share before the count begins
MIB = 2**20


def main() -> None:
    """Print total tokens a second by streams, the time to the first token, both beside the peer's, and memory."""
    print(f"serve: SmolLM2-135M in fp32, {N_TOKENS} tokens a stream, greedy, median of {N_ROUNDS} rounds")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "smollm2"
        cutaway.load("smollm2", dtype="float32").save(model)
        with ours(model) as server:
            compare("cutaway", server.url, "smollm2")
        try:
            with theirs(model) as server:
                compare("transformers serve", server.url, str(model))
        except (RuntimeError, httpx.HTTPError, KeyError) as error:
            print(f"  transformers serve: no figures, {type(error).__name__}: {str(error)[:200]}")
    memory()
    print()


def compare(name: str, url: str, model: str) -> None:
    """The lines of one server."""
    asyncio.run(together(url, model, 1))
    rounds = [[asyncio.run(together(url, model, n)) for n in STREAMS] for _ in range(N_ROUNDS)]
    for i, n in enumerate(STREAMS):
        speed = median(one[i][0] for one in rounds)
        gain = median(one[i][0] / one[0][0] for one in rounds)
        first = median(one[i][1] for one in rounds)
        print(f"  {name:19}{n:3} streams {speed:7.1f} tokens/s   {gain:5.2f} × one   first token {first:6.3f} s")


async def together(url: str, model: str, n: int) -> tuple[float, float]:
    """Tokens a second of n streams that start at once, and the median time to a first token [s]."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=n)) as client:
        start = time.perf_counter()
        found = await asyncio.gather(*(stream(client, model, f"Tell me a story about {i} ships.") for i in range(n)))
        seconds = time.perf_counter() - start
    return sum(n_tokens for n_tokens, _ in found) / seconds, median(first for _, first in found)


async def stream(client: httpx.AsyncClient, model: str, prompt: str) -> tuple[int, float]:
    """How many tokens came, and when the first did [s]."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": N_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first, n_chunks, n_tokens = time.perf_counter(), 0.0, 0, None
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()[:200]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = first or time.perf_counter() - start
                n_chunks += 1
            if usage := chunk.get("usage"):
                n_tokens = usage["completion_tokens"]
    return n_tokens or n_chunks, first


def memory() -> None:
    """Resident memory of a server of the bundled model after many requests, some of whose clients leave."""
    with ours("bard", "--cache-gib", SMALL) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        after: dict[int, int] = {}
        for i in range(N_REQUESTS):
            body = {"prompt": f"Scene {i % 40}:", "max_tokens": 40, "stream": True}
            if i % (N_REQUESTS // N_LEAVING) == 0:
                with client.stream("POST", "/v1/completions", json=body | {"max_tokens": 200}) as response:
                    next(response.iter_lines())
            else:
                client.post("/v1/completions", json=body).raise_for_status()
            if i + 1 in (N_REQUESTS // 5, N_REQUESTS):
                after[i + 1] = resident(server.pid)
        health = client.get("/health").json()
    early, late = after.values()
    print(
        f"  memory: {late / MIB:.0f} MiB after {N_REQUESTS} requests, {N_LEAVING} of whose clients left, "
        f"{(late - early) / MIB:+.1f} MiB since the {N_REQUESTS // 5}th; {health['running']} still running"
    )


def resident(pid: int) -> int:
    """Memory of a process [B]; Linux only."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server: where it answers, and its process."""

    url: str
    pid: int


def ours(model: Path | str, *options: str) -> AbstractContextManager[Running]:
    """`cutaway serve`."""
    return started([sys.executable, "-m", "cutaway", "serve", "-m", str(model), *options])


def theirs(model: Path) -> AbstractContextManager[Running]:
    """`transformers serve` with its continuous batching."""
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--continuous-batching"]
    return started([*command, "--dtype", "float32", "--device", "cpu"])


@contextmanager
def started(command: Sequence[str]) -> Iterator[Running]:
    """A server at a free port, once it is healthy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 300
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(command[:4])} … does not start")
            time.sleep(0.2)
        yield Running(url=url, pid=process.pid)
    finally:
        process.terminate()
        process.wait(60)


def healthy(url: str) -> bool:
    """Whether the server answers."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
