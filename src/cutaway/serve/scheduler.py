"""The one thread that owns the network: who is read, who gets the next token, who has to wait.

A turn of its loop reads a piece of one new prompt, then gives every running text one token. A text joins the others
once its prompt is read, and leaves the moment it is finished or nobody wants it any more, so that passes are always as
full as there are texts. Each keeps its own sampler and its own row of keys: it gets the tokens that it would get alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from cutaway.errors import BusyError, CutawayError, ServeError
from cutaway.generate.decoding import Batch, Generation, Piece, bytes_per_token, slots_for
from cutaway.generate.stopping import FinishReason
from cutaway.network import Transformer
from cutaway.serve.limits import Limits
from cutaway.serve.metrics import Metrics
from cutaway.serve.prefixes import Prefixes, common

R = TypeVar("R")
SHARED = 16  # tokens that two texts begin with alike from which the second waits until the first has read them
STOPPING = "the server is stopping: send the request to another one, or again later"

log = logging.getLogger("cutaway.serve")


class PassError(ServeError):
    """A pass that failed, through no fault of the request."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What happened to one text: a token, an error, or the end; `finish_reason` comes with the last token."""

    ticket: Ticket
    piece: Piece | None = None
    finish_reason: FinishReason | None = None
    error: CutawayError | None = None

    @property
    def is_last(self) -> bool:
        return self.error is not None or self.finish_reason is not None


@dataclass(kw_only=True, eq=False)
class Ticket:
    """One text on its way through the server. `n_known` prompt tokens were read for an earlier one."""

    generation: Generation
    deliver: Callable[[Progress], None]  # called by the scheduler's thread
    created: float = field(default_factory=time.monotonic)
    n_known: int = 0
    cancelled: bool = False


class Scheduler:
    """Continuous batching over one network. Everything but the queues is touched by its own thread alone."""

    def __init__(self, network: Transformer, limits: Limits, metrics: Metrics) -> None:
        self.network = network
        self.limits = limits
        self.metrics = metrics
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._looks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._accepts = True
        self._ends = False
        self._running = Batch(network)
        self._reading: Batch | None = None
        self._piece = limits.piece
        self._tickets: dict[Generation, Ticket] = {}
        self._prefixes = Prefixes(network, limits.prefix_bytes)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests get answers."""
        return self._thread.is_alive()

    @property
    def n_running(self) -> int:
        """Texts that get tokens, or whose prompt is being read."""
        return len(self._tickets)

    @property
    def n_waiting(self) -> int:
        """Texts that wait for their turn."""
        return len(self._waiting)

    @property
    def cache_bytes(self) -> int:
        """Keys and values held now [B]."""
        return self._running.cache.n_bytes + self._prefixes.n_bytes

    def submit(self, generations: Sequence[Generation], deliver: Callable[[Progress], None]) -> list[Ticket]:
        """Queue texts; their progress goes to `deliver`, from another thread.

        Raises:
            ServeError: a text that could never run here, or more texts than can ever wait.
            BusyError: no room in the queue, or the server is stopping. Nothing was queued then.
        """
        n, room = len(generations), self.limits.n_waiting
        self.check_count(n)
        for generation in generations:
            self._check(generation)
        tickets = [Ticket(generation=generation, deliver=deliver) for generation in generations]
        with self._changed:
            self._refuse_when_stopping()
            if n + len(self._waiting) > room:
                raise BusyError(f"{len(self._waiting)} texts wait already, the limit is {room}: try again later")
            self._waiting.extend(tickets)
            self._changed.notify()
        return tickets

    def check_count(self, n: int) -> None:
        """Whether so many texts may be asked for in one request.

        Raises:
            ServeError: more than can ever wait.
        """
        if n > self.limits.n_waiting:
            raise ServeError(f"the request asks for {n} texts, the limit is {self.limits.n_waiting}: split it")

    def look(self, work: Callable[[], R], *, begun: bool = False) -> Future[R]:
        """Let the thread run something on the network, between two passes.

        Args:
            begun: the next part of what was let in before, which is not turned away half done.
        Raises:
            BusyError: too many wait already, or the server is stopping.
        """
        future: Future[R] = Future()
        with self._changed:
            self._refuse_when_stopping()
            if not begun and len(self._looks) >= self.limits.n_looks:
                raise BusyError(f"{len(self._looks)} looks inside wait already, which is the limit: try again later")
            self._looks.append((future, work))
            self._changed.notify()
        return future

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Nobody waits for these any more."""
        with self._changed:
            for ticket in tickets:
                ticket.cancelled = True
            self._changed.notify()

    def refuse(self) -> None:
        """Take nothing new; what has been taken goes on."""
        with self._changed:
            self._accepts = False

    def stop(self) -> None:
        """End every text where it is, with an error, and the thread."""
        with self._changed:
            self._accepts, self._ends = False, True
            self._changed.notify()
        self._thread.join()

    def _check(self, generation: Generation) -> None:
        n_slots = slots_for(generation.request, self.network.config.n_ctx)
        needed = 2 * n_slots * bytes_per_token(self.network)  # being read, and among the others
        if needed > self.limits.text_bytes:
            raise ServeError(
                f"prompt and max_tokens are {n_slots} tokens, whose keys and values may take {needed} bytes; the limit "
                f"is {self.limits.text_bytes}: ask for fewer tokens, or start the server with a larger --cache-gib"
            )

    def _refuse_when_stopping(self) -> None:
        if not self._accepts or not self.alive:
            raise BusyError(STOPPING)

    # From here on, the scheduler's own thread.

    def _run(self) -> None:
        with torch.inference_mode():
            while self._wait_for_work():
                try:
                    self._turn()
                except Exception as error:  # a pass that failed, such as for want of memory, must not end the server
                    log.exception("a pass failed")
                    self._fail_all(PassError(f"the pass failed: {type(error).__name__}: {error}"))
            self._fail_all(BusyError(STOPPING))

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not (self._ends or self._waiting or self._looks or self._tickets):
                self._changed.wait()
            return not self._ends

    def _turn(self) -> None:
        self._drop_cancelled()
        self._look()
        self._read()
        self._step()
        self.metrics.cache_bytes = self.cache_bytes

    def _drop_cancelled(self) -> None:
        with self._changed:
            n_before = len(self._waiting)
            self._waiting = deque(ticket for ticket in self._waiting if not ticket.cancelled)
            self.metrics.cancelled += n_before - len(self._waiting)
        gone = [g for g, ticket in self._tickets.items() if ticket.cancelled]
        for generation in gone:
            self._forget(generation)
            self.metrics.cancelled += 1
        if self._reading is not None and self._reading.generations[0] in gone:  # several are read within one turn
            self._reading = None
        self._leave(gone)

    def _look(self) -> None:
        """One look a turn, so that texts go on between two of them."""
        with self._changed:
            if not self._looks:
                return
            future, work = self._looks.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            with torch.inference_mode(False):  # what comes of it may be computed with elsewhere
                future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    def _read(self) -> None:
        """A piece of the prompt that is being read, or the next prompts, as many short ones as make up a piece."""
        n_most = self._piece if self._running.generations else self.limits.long_piece
        batch = self._reading = self._reading or self._begin(n_most)
        if batch is None:
            return
        before, several = time.monotonic(), len(batch.generations) > 1
        if not several and not batch.read(n_most):
            self._fit_piece(n_most, time.monotonic() - before)
            return
        n_read = len(batch.generations) * max(map(len, batch.unread))
        scores = batch.scores()
        if several:
            self._fit_piece(n_read, time.monotonic() - before)
        self._reading = None
        for i, (generation, row) in enumerate(zip(batch.generations, scores, strict=True)):
            self._prefixes.add(generation.tokens, batch.cache, i)
            self._take(generation, row)
        rows = [i for i, generation in enumerate(batch.generations) if generation in self._tickets]
        if rows:
            batch.keep(rows)
            self._running.join(batch)

    def _begin(self, n_most: int) -> Batch | None:
        """The texts that have waited longest: one, or several with few tokens to read, padded at most `n_most`."""
        batch: Batch | None = None
        while ticket := self._next(batch, n_most):
            generation = ticket.generation
            known = self._prefixes.start(generation.tokens)
            if known is not None:
                if not generation.choices:
                    ticket.n_known = known.lengths[0]
                    self.metrics.known_tokens += ticket.n_known
                known.resize(1, len(generation.tokens))
            one = Batch(self.network, [generation], known)
            if batch is None:
                batch = one
            else:
                batch.join(one)
        return batch

    def _next(self, batch: Batch | None, n_most: int) -> Ticket | None:
        """The text that has waited longest, if there is room for it, also among those about to be read."""
        with self._changed:
            if not self._waiting or len(self._tickets) >= self.limits.n_running:
                return None
            generation = self._waiting[0].generation
            if not (self._has_room(generation, batch) and self._reads_with(generation, batch, n_most)):
                return None
            ticket = self._waiting.popleft()
            self._tickets[generation] = ticket
        return ticket

    def _has_room(self, generation: Generation, batch: Batch | None) -> bool:
        if not self._tickets:
            return True  # alone it fits: `submit` has checked
        others = [] if batch is None else [g.request for g in batch.generations]
        reading = (batch or Batch(self.network)).n_bytes_with([generation.request])
        return self._running.n_bytes_with([*others, generation.request]) + reading <= self.limits.text_bytes

    def _reads_with(self, generation: Generation, batch: Batch | None, n_most: int) -> bool:
        """Whether it may be read in one pass with these: short, and not what is about to be known anyway."""
        if batch is None:
            return True
        n_known = self._prefixes.n_known(generation.tokens)
        tokens = np.array(generation.tokens)
        if any(common(np.array(g.tokens), tokens) > n_known + SHARED for g in batch.generations):
            return False
        widest = max(*map(len, batch.unread), len(tokens) - n_known)
        return widest * (len(batch.generations) + 1) <= n_most

    def _fit_piece(self, n_read: int, seconds: float) -> None:
        """Halve or double the piece towards what running texts may wait for."""
        limits = self.limits
        if n_read >= self._piece and seconds < limits.stall_seconds / 2:
            self._piece = min(2 * self._piece, limits.long_piece)
        elif n_read <= self._piece and seconds > limits.stall_seconds:
            self._piece = max(self._piece // 2, limits.piece)

    def _step(self) -> None:
        """One token for every running text."""
        generations = self._running.generations
        if not generations:
            return
        scores = self._running.scores()
        self.metrics.passes += 1
        for generation, row in zip(generations, scores, strict=True):
            self._take(generation, row)
        self._leave([g for g in generations if g not in self._tickets])
        self._leave([self._reread(self._running.generations[row]) for row in self._running.stale()])

    def _reread(self, generation: Generation) -> Generation:
        """A text that has outgrown the rotation of its keys is read anew, before those that wait."""
        ticket = self._tickets.pop(generation)
        with self._changed:
            self._waiting.appendleft(ticket)
        return generation

    def _take(self, generation: Generation, row: torch.Tensor) -> None:
        ticket = self._tickets[generation]
        try:
            piece = generation.take(row)
        except CutawayError as error:  # logits that are not numbers: this text's own affair
            self._forget(generation)
            self._tell(Progress(ticket=ticket, error=error))
            return
        if len(generation.choices) == 1:
            self.metrics.first(ticket.created, len(generation.request.prompt))
        self.metrics.new_tokens += 1
        if generation.finish_reason is not None:
            self._forget(generation)
            self.metrics.ended(ticket.created)
        self._tell(Progress(ticket=ticket, piece=piece, finish_reason=generation.finish_reason))

    def _leave(self, gone: Sequence[Generation]) -> None:
        """Take texts out of the running batch, and remember what was read of them."""
        batch, leaving = self._running, set(gone)
        rows = [row for row, g in enumerate(batch.generations) if g not in leaving]
        if len(rows) == len(batch.generations):
            return
        for row, generation in enumerate(batch.generations):
            if generation in leaving:
                self._prefixes.add(generation.tokens, batch.cache, row)
        if rows:
            batch.keep(moved_together(rows))
        else:
            self._running = Batch(self.network)  # and its memory is free

    def _forget(self, generation: Generation) -> None:
        del self._tickets[generation]

    def _fail_all(self, error: CutawayError) -> None:
        with self._changed:
            waiting = list(self._waiting) if self._ends else []
            looks = list(self._looks) if self._ends else []
            for queue in (self._waiting, self._looks) if self._ends else ():
                queue.clear()
        tickets = [*self._tickets.values(), *waiting]
        self._tickets.clear()
        self._running, self._reading = Batch(self.network), None
        self._prefixes = Prefixes(self.network, self.limits.prefix_bytes)
        for ticket in tickets:
            self._tell(Progress(ticket=ticket, error=error))
        for future, _ in looks:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _tell(self, progress: Progress) -> None:
        with suppress(RuntimeError):  # whoever asked has gone, its event loop with it
            progress.ticket.deliver(progress)


def moved_together(rows: Sequence[int]) -> list[int]:
    """The same rows in an order in which as few as possible move: the last fill the holes."""
    kept = set(rows)
    tail = [row for row in rows if row >= len(rows)]
    return [row if row in kept else tail.pop() for row in range(len(rows))]
