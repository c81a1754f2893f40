"""The page: how soon it is there, and how long each of its views takes to answer, for SmolLM2.

Every view is held against 1 s at 256 tokens; at 1,024, the longest that the page shows, its time says whether it can be
used. Of a view that takes longer there are two times: to the first answer, and to the last. Each is asked over
loopback, figures and all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from statistics import median

import httpx
import torch

import cutaway
from benchmarks import machine
from benchmarks.serve import ours

N_ROUNDS = 5
LENGTHS = (256, 1024)
NAMED = re.compile(r"""["'](?:/assets/|\./)([\w-]+\.(?:js|css|svg))["']""")
VIEWS: dict[str, dict[str, object]] = {
    "next": {},
    "ask/look": {},
    "ask/tower": {},
    "ask/head": {"head": "3.5"},
    "ask/neurons": {"layer": 12},
    "ask/lens": {},
    "ask/contributions": {},
}
MANY: dict[str, dict[str, object]] = {
    "ask/lens": {},
    "ask/exact": {},
    "ask/effects": {"estimate": True},
    "ask/experiment": {"heads": ["3.5"]},
    "ask/compare": {"other": "smollm2"},
}


def main() -> None:
    """Print the seconds of each view, beside those of a plain pass."""
    print(f"page: SmolLM2-135M in fp32, seconds to the answer of each view, median of {N_ROUNDS} rounds")
    plain = passes()
    options = ("--dtype", "float32", "--with", "smollm2")
    with ours("smollm2", *options) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        print(f"  the page itself and all it loads: {median(loads(client) for _ in range(N_ROUNDS)):.3f} s")
        for length in LENGTHS:
            prompt = list(range(1000, 1000 + length))
            found = {name: seconds(client, name, body | {"prompt": prompt}) for name, body in VIEWS.items()}
            said = "   ".join(f"{name.removeprefix('ask/')} {value:.2f}" for name, value in found.items())
            print(f"  {length:5} tokens: {said}   (a plain pass {plain[length]:.2f})")
        prompt = list(range(1000, 1000 + LENGTHS[0]))
        pairs = {name: first_and_last(client, name, body | {"prompt": prompt}) for name, body in MANY.items()}
        said = "   ".join(f"{name.removeprefix('ask/')} {a:.2f}, {b:.2f}" for name, (a, b) in pairs.items())
        print(f"  which take longer, {LENGTHS[0]} tokens, first answer and last: {said}")
    print()


def passes() -> dict[int, float]:
    """Seconds of a pass over texts of each length, logits of every position."""
    network = cutaway.load("smollm2", dtype="float32").network

    @torch.inference_mode()
    def one(length: int) -> object:
        return network(torch.arange(1000, 1000 + length)[None])

    return {length: timed(lambda n=length: one(n)) for length in LENGTHS}  # type: ignore[misc]


def timed(work: Callable[[], object]) -> float:
    """The median after one call that is not counted [s]."""
    work()
    return median(machine.seconds(work) for _ in range(N_ROUNDS))


def seconds(client: httpx.Client, name: str, body: dict[str, object]) -> float:
    """Until the whole answer is there. The prompt's first token changes, so that no text is remembered."""
    rounds = iter(range(2000, 3000))

    def ask() -> None:
        prompt = [next(rounds), *body["prompt"][1:]]  # type: ignore[index]
        client.post(f"/page/api/{name}", json=body | {"prompt": prompt}).raise_for_status()

    return timed(ask)


def first_and_last(client: httpx.Client, name: str, body: dict[str, object]) -> tuple[float, float]:
    """Until something of the answer is there, and until all of it is [s]: the medians."""
    times = []
    for _ in range(1 + N_ROUNDS):
        start = time.perf_counter()
        with client.stream("POST", f"/page/api/{name}", json=body) as response:
            found = [time.perf_counter() - start for line in response.iter_lines() if '"figures":' in line]
        times.append((found[0], found[-1]))
    return median(a for a, _ in times[1:]), median(b for _, b in times[1:])


def loads(client: httpx.Client) -> float:
    """Seconds for the page, and for all that it and its scripts name [s]."""
    start = time.perf_counter()
    waiting, seen = ["/"], set[str]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            text = client.get(path).raise_for_status().text
            waiting += [f"/assets/{name}" for name in NAMED.findall(text)]
    return time.perf_counter() - start
