"""Continuous batching: whatever company a text has, and whenever it joins, it gets the tokens it would get alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from cutaway.checkpoint.load import LoadReport
from cutaway.errors import BusyError, NumericsError, ServeError
from cutaway.generate.decoding import Generation
from cutaway.language_model import LanguageModel
from cutaway.serve.limits import Limits
from cutaway.serve.metrics import Metrics
from cutaway.serve.scheduler import PassError, Progress, Scheduler, Ticket, moved_together
from cutaway.text.ids import IdTokenizer
from support.serving import eventually
from support.tiny import D_VOCAB, OURS, random_network, random_tokens

PROMPTS = [random_tokens(1, n, seed=n)[0].tolist() for n in (3, 9, 1, 14, 5, 7, 2, 11)]


def build(name: str = "grouped", n_ctx: int = 64) -> LanguageModel:
    network = random_network(replace(OURS[name], n_ctx=n_ctx))
    report = LoadReport(family="llama", source="test", stored="float32")
    return LanguageModel(network, IdTokenizer(D_VOCAB), report, frozenset())


class Room:
    """A running scheduler, and everything that it has delivered."""

    def __init__(self, model: LanguageModel, limits: Limits) -> None:
        self.model = model
        self.scheduler = Scheduler(model.network, limits, Metrics())
        self.delivered: list[Progress] = []
        self.came = threading.Condition()

    def deliver(self, progress: Progress) -> None:
        with self.came:
            self.delivered.append(progress)
            self.came.notify_all()

    def ask(self, prompt: list[int], n: int = 12, **options: Any) -> Ticket:
        generations = self.model.generations([prompt], max_tokens=n, **{"temperature": 0, **options})
        return self.scheduler.submit(generations, self.deliver)[0]

    def of(self, ticket: Ticket) -> list[Progress]:
        return [progress for progress in list(self.delivered) if progress.ticket is ticket]

    def end(self, *tickets: Ticket) -> list[Progress]:
        """The last that is heard of each."""
        with self.came:
            assert self.came.wait_for(lambda: all(p and p[-1].is_last for p in map(self.of, tickets)), 60)
        return [self.of(ticket)[-1] for ticket in tickets]

    def tokens(self, ticket: Ticket) -> list[int]:
        self.end(ticket)
        found = [progress.piece.choice.token for progress in self.of(ticket) if progress.piece]
        assert found == ticket.generation.tokens[len(ticket.generation.request.prompt) :]
        return found

    def solo(self, prompt: list[int], n: int = 12, **options: Any) -> list[int]:
        out: Any = self.model.generate(prompt, max_tokens=n, **{"temperature": 0, **options})
        return out.tokens


@contextmanager
def room(model: LanguageModel, **limits: Any) -> Iterator[Room]:
    here = Room(model, Limits(**limits))
    here.scheduler.start()
    try:
        yield here
    finally:
        here.scheduler.stop()


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("piece", [3, 512])
def test_every_answer_equals_its_solo_run(name: str, piece: int) -> None:
    """S2, contract 3: 8 requests of different lengths, prompts read whole or in pieces, also where the rotation
    depends on the length and keys go stale on the way."""
    model = build(name)
    with room(model, piece=piece, long_piece=piece) as here:
        tickets = [here.ask(prompt, 3 + 3 * i) for i, prompt in enumerate(PROMPTS)]
        for i, (ticket, prompt) in enumerate(zip(tickets, PROMPTS, strict=True)):
            assert here.tokens(ticket) == here.solo(prompt, 3 + 3 * i)
        assert here.scheduler.n_running == 0


def test_two_at_once_and_one_that_is_cancelled_half_way() -> None:
    """S2."""
    model = build(n_ctx=5000)
    with room(model) as here:
        leaving, staying = here.ask(PROMPTS[0], 4000), here.ask(PROMPTS[1], 200)
        assert eventually(lambda: len(here.of(leaving)) > 20)
        here.scheduler.cancel([leaving])
        n_seen = len(here.of(leaving))
        assert here.tokens(staying) == here.solo(PROMPTS[1], 200)
        assert len(here.of(leaving)) <= n_seen + 2
        assert here.scheduler.n_running == 0
        assert here.scheduler.metrics.cancelled == 1
        assert here.tokens(here.ask(PROMPTS[2])) == here.solo(PROMPTS[2])


def test_texts_that_join_and_leave_one_by_one() -> None:
    """More texts than rows, each of another length: rows are taken over all the time."""
    model = build(n_ctx=200)
    with room(model, n_running=3) as here:
        tickets = [here.ask(PROMPTS[i % 8], 3 + 7 * i % 40) for i in range(24)]
        for i, ticket in enumerate(tickets):
            assert here.tokens(ticket) == here.solo(PROMPTS[i % 8], 3 + 7 * i % 40)


def test_a_seed_reproduces_in_any_company() -> None:
    """G13: alone, with an unseeded one, twice at once; unseeded ones differ; the global generator is untouched."""
    model = build()
    options = {"temperature": 1.5, "n": 20}
    alone = model.generate(PROMPTS[1], max_tokens=20, temperature=1.5, seed=42).tokens  # type: ignore[union-attr]
    before = torch.random.get_rng_state()
    with room(model) as here:
        first = here.ask(PROMPTS[1], seed=42, **options)
        assert here.tokens(first) == alone
        company = [here.ask(PROMPTS[1], **options) for _ in range(2)]
        twice = [here.ask(PROMPTS[1], seed=42, **options) for _ in range(2)]
        assert [here.tokens(ticket) for ticket in twice] == [alone, alone]
        assert here.tokens(company[0]) != here.tokens(company[1])
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("name", ["grouped", "windows", "dynamic", "longrope"])
def test_what_has_been_read_is_not_read_again(name: str) -> None:
    """A text that begins like an earlier one starts where they part; where a rotation depends on lengths, if it may."""
    model = build(name)
    with room(model) as here:
        first = here.tokens(here.ask(PROMPTS[1], 20))
        assert here.scheduler.metrics.known_tokens == 0
        turn = [*PROMPTS[1], *first, 5, 6]
        again, longer, other = here.ask(PROMPTS[1], 20), here.ask(turn, 20), here.ask([*PROMPTS[1][:4], 60, 61], 20)
        assert here.tokens(again) == first
        assert here.tokens(longer) == here.solo(turn, 20)
        assert here.tokens(other) == here.solo([*PROMPTS[1][:4], 60, 61], 20)
        if name in ("grouped", "windows"):
            assert [t.n_known for t in (again, longer, other)] == [8, 28, 4]


def test_what_is_remembered_is_bounded() -> None:
    """The last used stay."""
    model = build(n_ctx=100)
    per_token = 2 * 3 * 2 * 8 * 4  # k and v · layers · kv heads · d_head · 4 B
    with room(model, cache_bytes=4 * 150 * per_token) as here:
        for i in range(10):
            here.tokens(here.ask([i] * 30, 21))  # 50 tokens are read of each
        prefixes = here.scheduler._prefixes
        assert eventually(lambda: prefixes.n_bytes == 150 * per_token)
        late, early = here.ask([9] * 30, 1), here.ask([1] * 30, 1)
        here.end(late, early)
        assert (late.n_known, early.n_known) == (29, 0)


def test_caches_stay_within_their_bound() -> None:
    """Texts wait where their keys would not fit, and one that could never fit is refused at once."""
    model = build(n_ctx=2000)
    per_token = 2 * 3 * 2 * 8 * 4
    limits = {"cache_bytes": 4 * 1000 * per_token}  # 3,000 tokens for texts
    with room(model, **limits) as here:
        with pytest.raises(ServeError, match=r"1600 tokens.*--cache-gib"):
            here.ask([1] * 100, 1501)
        most = 0

        def measuring(original: Any = here.scheduler._turn) -> None:
            nonlocal most
            original()
            reading = here.scheduler._reading
            most = max(most, here.scheduler.cache_bytes + (reading.cache.n_bytes if reading else 0))

        here.scheduler._turn = measuring  # type: ignore[method-assign]
        tickets = [here.ask([i] * (50 + 40 * i), 100 + 30 * i) for i in range(8)]
        for i, ticket in enumerate(tickets):
            assert len(here.tokens(ticket)) == 100 + 30 * i
        assert 1500 * per_token < most <= 4000 * per_token
        assert eventually(lambda: here.scheduler._running.cache.n_bytes == 0)


def test_a_long_prompt_does_not_stop_the_others() -> None:
    """While it is read in pieces, running texts get a token after each."""
    model = build(n_ctx=3000)
    with room(model, piece=10, long_piece=10) as here:
        running = here.ask(PROMPTS[0], 2900)
        assert eventually(lambda: len(here.of(running)) > 5)
        before = len(here.of(running))
        long = here.ask([7] * 500, 5)
        assert here.tokens(long) == here.solo([7] * 500, 5)
        first = next(i for i, p in enumerate(here.delivered) if p.ticket is long)
        between = sum(p.ticket is running for p in here.delivered[:first]) - before
        assert between >= 49
        here.scheduler.cancel([running])


def test_a_full_queue_is_told() -> None:
    model = build(n_ctx=100_000)
    with room(model, n_running=1, n_waiting=3) as here:
        running = here.ask(PROMPTS[0], 90_000)
        assert eventually(lambda: bool(here.of(running)))
        waiting = [here.ask(PROMPTS[0]) for _ in range(3)]
        with pytest.raises(BusyError, match="3 texts wait"):
            here.ask(PROMPTS[0])
        with pytest.raises(ServeError, match="split it"):
            here.scheduler.submit(model.generations([PROMPTS[0]] * 4), here.deliver)
        here.scheduler.cancel([running, waiting[0]])
        here.end(*waiting[1:])
        assert here.of(waiting[0]) == []


def test_one_text_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in the logits of one row is that row's affair, and leaves nothing behind for the next text in its place."""
    model = build()
    take = Generation.take

    def poisoned(self: Generation, logits: torch.Tensor) -> Any:
        return take(self, logits * float("nan") if self.request.seed == 13 and len(self.choices) == 3 else logits)

    monkeypatch.setattr(Generation, "take", poisoned)
    with room(model) as here:
        bad, good = here.ask(PROMPTS[0], seed=13), here.ask(PROMPTS[1])
        assert isinstance(here.end(bad)[0].error, NumericsError)
        assert here.tokens(good) == here.solo(PROMPTS[1])
        assert here.scheduler.n_running == 0


def test_a_pass_that_fails_ends_its_texts_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    with room(model) as here:
        monkeypatch.setattr(model.network, "pass_blocks", lambda *args: 1 / 0)
        failed = [here.ask(PROMPTS[0]), here.ask(PROMPTS[1])]
        for progress in here.end(*failed):
            assert isinstance(progress.error, PassError)
            assert "ZeroDivisionError" in str(progress.error)
        monkeypatch.undo()
        assert here.tokens(here.ask(PROMPTS[1])) == here.solo(PROMPTS[1])


def test_looks_take_turns_with_tokens() -> None:
    model = build(n_ctx=100_000)
    with room(model, n_looks=2) as here:
        running = here.ask(PROMPTS[0], 50_000)
        assert eventually(lambda: bool(here.of(running)))
        assert torch.equal(here.scheduler.look(lambda: model.logits(PROMPTS[1])).result(30), model.logits(PROMPTS[1]))  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            here.scheduler.look(lambda: 1 / 0).result(30)
        gate = threading.Event()
        looks = [here.scheduler.look(gate.wait)]
        time.sleep(0.05)
        looks += [here.scheduler.look(gate.wait) for _ in range(2)]
        with pytest.raises(BusyError, match="2 looks"):
            here.scheduler.look(gate.wait)
        looks.append(here.scheduler.look(gate.wait, begun=True))  # it was let in before
        gate.set()
        assert [look.result(30) for look in looks] == [True] * 4
        here.scheduler.cancel([running])


def test_the_end_is_told_to_everybody() -> None:
    model = build(n_ctx=100_000)
    here = Room(model, Limits(n_running=1))
    here.scheduler.start()
    tickets = [here.ask(PROMPTS[0], 50_000), here.ask(PROMPTS[1])]
    assert eventually(lambda: bool(here.of(tickets[0])))
    here.scheduler.stop()
    assert all(isinstance(here.of(ticket)[-1].error, BusyError) for ticket in tickets)
    assert not here.scheduler.alive
    for ask in (lambda: here.ask(PROMPTS[0]), lambda: here.scheduler.look(lambda: 1)):
        with pytest.raises(BusyError, match="stopping"):
            ask()


def test_rows_that_stay_move_as_little_as_can_be() -> None:
    assert moved_together([0, 2, 3, 5, 6]) == [0, 6, 2, 3, 5]
    assert moved_together([0, 1, 2]) == [0, 1, 2]
    assert moved_together([4]) == [4]
