"""What every endpoint works with: the model, its name here, its scheduler and the server's bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import torch
from fastapi import Depends, Request

from cutaway.errors import BusyError, ServeError
from cutaway.language_model import LanguageModel
from cutaway.serve.limits import Limits
from cutaway.serve.metrics import Metrics
from cutaway.serve.reply import NotFoundError
from cutaway.serve.scheduler import Scheduler

R = TypeVar("R")


@dataclass(kw_only=True, eq=False)
class Service:
    """One model, served. Whoever changes the page or adds an endpoint gets it as an argument of type `Served`."""

    model: LanguageModel
    name: str
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.model.network, self.limits, self.metrics)
        self.places = asyncio.Semaphore(self.limits.n_questions)  # of long questions, which hold what they found so far
        self._n_asked = 0

    def check_model(self, name: str | None) -> None:
        """Whether this is the model that was asked for.

        Raises:
            NotFoundError: another one.
        """
        if name not in (None, self.name):
            raise NotFoundError(f"model = {(name or '')[:80]!r} is not served here: use {self.name!r}")

    async def look(self, work: Callable[[], R], *, begun: bool = False) -> R:
        """Run something on the network, in the thread that owns it, between two passes.

        Raises:
            BusyError: too many wait already. What the work raises comes out here.
        """
        return await asyncio.wrap_future(self.scheduler.look(work, begun=begun))

    @asynccontextmanager
    async def question(self) -> AsyncIterator[None]:
        """A place among the long questions that are at work; wait for it in turn.

        Raises:
            BusyError: too many wait already.
        """
        n_waiting = self._n_asked - self.limits.n_questions
        if n_waiting >= self.limits.n_looks:
            raise BusyError(f"{n_waiting} questions wait already, which is the limit: try again later")
        self._n_asked += 1
        try:
            async with self.places:
                yield
        finally:
            self._n_asked -= 1

    async def ids(self, prompt: str | list[int]) -> list[int]:
        """A prompt's ids, checked, worked out away from the event loop."""
        return await asyncio.to_thread(self.model.ids, prompt)

    def check_numbers(self, n: int, what: str) -> None:
        """Whether an answer of so many numbers may be sent.

        Raises:
            ServeError: more than the limit.
        """
        if n > self.limits.n_numbers:
            raise ServeError(f"{what} would be {n} numbers, the limit is {self.limits.n_numbers}: ask for less")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]


@torch.inference_mode()
def prompt_logprobs(model: LanguageModel, ids: list[int], n: int) -> list[tuple[int, float | None, Any]]:
    """Each prompt token, its log-probability given those before it, and the n best there [nats]; the first has none."""
    network = model.network
    x = network.residual(torch.tensor([ids], device=model.device))
    found: list[tuple[int, float | None, Any]] = [(ids[0], None, ())]
    stretch = max(1, (1 << 22) // network.config.d_vocab)
    for first in range(0, len(ids) - 1, stretch):
        stop = min(first + stretch, len(ids) - 1)
        logprobs = network.unembed(x[:, first:stop])[0].double().log_softmax(-1)
        wanted = torch.tensor(ids[first + 1 : stop + 1], device=logprobs.device)
        own = logprobs.gather(-1, wanted[:, None])[:, 0].tolist()
        best, at = logprobs.topk(min(n, logprobs.shape[-1]), dim=-1)
        tops = [tuple(zip(t, p, strict=True)) for t, p in zip(at.tolist(), best.tolist(), strict=True)]
        found += zip(wanted.tolist(), own, tops, strict=True)
    return found
