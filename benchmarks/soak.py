"""Ten minutes of a server's life: everything that clients do to it at once, faults included.

Run as `python -m benchmarks.soak [SECONDS] [MODEL]`. Six clients pick at random what comes next, from a fixed seed:
streams, several texts, long prompts, looks inside, clients that leave, requests that are wrong, too large or torn off.
One text is asked for again and again, and must stay the same in any company; `/health` is asked twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

import httpx

from benchmarks.serve import MIB, Running, ours, resident

N_CLIENTS = 6
FIXED = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


class Soak:
    """What the clients do, and what they saw."""

    def __init__(self, server: Running, seconds: float) -> None:
        self.server = server
        self.end = time.monotonic() + seconds
        self.random = random.Random(0)
        self.client = httpx.AsyncClient(base_url=server.url, timeout=120)
        self.seen: Counter[str] = Counter()
        self.texts: set[str] = set()
        self.health: list[float] = []
        self.memory: list[int] = []
        self.does: list[Callable[[], Awaitable[str]]] = [
            *(self.fixed, self.streamed, self.several, self.long, self.drawn),
            *(self.lens, self.trace, self.page, self.leaves, self.wrong, self.large, self.torn),
        ]

    async def run(self) -> None:
        """All clients until the time is over."""
        async with self.client:
            await asyncio.gather(self.watch(), *(self.client_of() for _ in range(N_CLIENTS)))
            for _ in range(100):  # what was asked for last is given its time
                health = (await self.client.get("/health")).json()
                if not (health["running"] or health["waiting"]):
                    break
                await asyncio.sleep(0.1)
            self.seen["left running at the end"] = health["running"] + health["waiting"]

    async def client_of(self) -> None:
        while time.monotonic() < self.end:
            does = self.random.choice(self.does)
            try:
                self.seen[f"{does.__name__}: {await does()}"] += 1
            except httpx.HTTPError as error:
                self.seen[f"{does.__name__}: {type(error).__name__}"] += 1

    async def watch(self) -> None:
        while time.monotonic() < self.end:
            start = time.perf_counter()
            (await self.client.get("/health")).raise_for_status()
            self.health.append(time.perf_counter() - start)
            self.memory.append(resident(self.server.pid))
            await asyncio.sleep(0.5)

    async def post(self, path: str, **body: object) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def fixed(self) -> str:
        answer = await self.post("/v1/completions", **FIXED)
        if answer.status_code == 200:
            self.texts.add(answer.json()["choices"][0]["text"])
        return str(answer.status_code)

    async def streamed(self) -> str:
        messages = [{"role": "user", "content": f"Say {self.random.randrange(1000)} in words."}]
        body = {"messages": messages, "max_tokens": 40, "stream": True}
        last = ""
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                last = line or last
        return f"{response.status_code} {last}"

    async def several(self) -> str:
        body = {"prompt": ["One", "Two two two", "Three"], "n": 2, "max_tokens": 12, "logprobs": 2, "echo": True}
        return str((await self.post("/v1/completions", **body)).status_code)

    async def long(self) -> str:
        prompt = " ".join(str(self.random.randrange(100)) for _ in range(300))
        return str((await self.post("/v1/completions", prompt=prompt, max_tokens=8)).status_code)

    async def drawn(self) -> str:
        body = {"prompt": "The", "max_tokens": 20, "temperature": 1.2, "top_p": 0.9, "seed": self.random.randrange(9)}
        return str((await self.post("/v1/completions", **body)).status_code)

    async def lens(self) -> str:
        return str((await self.post("/v1/lens", prompt="The river bank was wide", k=3)).status_code)

    async def trace(self) -> str:
        keep = ["blocks.1.attn.pattern[head 0]"]
        return str((await self.post("/v1/trace", prompt="The river bank was wide", keep=keep)).status_code)

    async def page(self) -> str:
        return str((await self.post("/page/api/ask/contributions", prompt="The river bank was wide")).status_code)

    async def leaves(self) -> str:
        body = {"prompt": "A long story:", "max_tokens": 400, "stream": True}
        async with self.client.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line:
                    break
        return f"{response.status_code} and gone"

    async def wrong(self) -> str:
        body = self.random.choice(
            ({"prompt": [10**9]}, {"prompt": "x", "temperature": -1}, {"prompt": "x", "max_tokens": "all"}, {})
        )
        return str((await self.post("/v1/completions", **body)).status_code)

    async def large(self) -> str:
        return str((await self.client.post("/v1/completions", content=b'{"prompt": "' + b"x" * 5 * MIB)).status_code)

    async def torn(self) -> str:
        """A body that promises more than comes."""
        port = httpx.URL(self.server.url).port
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return "gone"


def main(seconds: float, model: str) -> None:
    """Print what came of every kind of request, the health's times, and memory from the first minute to the last."""
    with ours(model, "--cache-gib", "0.2") as server:
        soak = Soak(server, seconds)
        asyncio.run(soak.run())
        print(f"{seconds:.0f} s of {model}, {N_CLIENTS} clients, {sum(soak.seen.values())} requests")
        for what, n in sorted(soak.seen.items()):
            print(f"  {n:6} {what}")
        print(f"  the fixed text came in {len(soak.texts)} version(s)")
        p99 = quantiles(soak.health, n=100)[-1]
        print(
            f"  /health {len(soak.health)} times: median {median(soak.health) * 1e3:.0f} ms, "
            f"99 % under {p99 * 1e3:.0f} ms, longest {max(soak.health) * 1e3:.0f} ms"
        )
        tenth = max(len(soak.memory) // 10, 1)
        steps = [max(soak.memory[i : i + tenth]) / MIB for i in range(0, len(soak.memory), tenth)]
        print(f"  resident memory by tenths of the time [MiB]: {' '.join(f'{step:.0f}' for step in steps)}")
        start = time.perf_counter()
    print(f"  stopped in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    seconds, model = [*sys.argv[1:], *["600", "smollm2"][len(sys.argv) - 1 :]]
    main(float(seconds), model)
