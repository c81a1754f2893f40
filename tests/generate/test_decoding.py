"""A running batch: texts join and leave between passes, prompts are read in pieces, and the scores stay those alone."""

from __future__ import annotations

import pytest
import torch

from cutaway.generate.decoding import Batch, Generation, Request, bytes_per_token, decode, rows_for, slots_for
from cutaway.generate.sampling import SamplingConfig
from cutaway.generate.stopping import StopStrings
from cutaway.network import Transformer
from cutaway.text.ids import IdStream
from support.tiny import OURS, distance, random_network, random_tokens

PROMPTS = [random_tokens(1, n, seed=n)[0].tolist() for n in (9, 3, 14, 1)]


def generation(prompt: list[int], n: int = 20) -> Generation:
    request = Request(
        prompt=tuple(prompt),
        max_tokens=n,
        sampling=SamplingConfig(temperature=0),
        stops=StopStrings(),
        end_ids=frozenset(),
    )
    return Generation(request, IdStream(), 64)


def advance(network: Transformer, batch: Batch, n: int = 1) -> None:
    """A few passes, whose every score is compared with the whole text's own."""
    for _ in range(n):
        for text, row in zip(list(batch.generations), batch.scores(), strict=True):
            with torch.inference_mode():
                assert distance(row, network(torch.tensor([text.tokens]))[0, -1]) <= 1e-5
            text.take(row)


@pytest.mark.parametrize("name", OURS)
def test_scores_equal_those_of_each_text_alone(name: str) -> None:
    """Contracts 2 and 3, also where a rotation changes on the way."""
    network = random_network(OURS[name])
    texts = [generation(prompt) for prompt in PROMPTS]
    batch = Batch(network, texts[:1])
    advance(network, batch, 2)
    for text in texts[1:3]:
        joining = Batch(network, [text])
        while not joining.read(4):
            pass
        advance(network, joining)
        batch.join(joining)
        advance(network, batch, 2)
    batch.keep([2, 1])
    assert batch.generations == [texts[2], texts[1]]
    advance(network, batch, 3)
    batch.keep([])
    batch.join(Batch(network, texts[3:]))
    advance(network, batch, 2)


@pytest.mark.parametrize("name", ["grouped", "dynamic", "longrope"])
def test_a_prompt_is_read_in_pieces_where_that_is_the_same(name: str) -> None:
    """Where the rotation of a piece would not be that of the text, the text is read whole when its scores are due."""
    network = random_network(OURS[name])
    text = generation(random_tokens(1, 20)[0].tolist())
    batch = Batch(network, [text])
    seen = [batch.read(6)]
    while not seen[-1]:
        seen.append(batch.read(6))
    whole = OURS[name] is not OURS["grouped"]
    assert batch.cache.lengths == [0 if whole else 19]
    assert seen == ([True] if whole else [False, False, False, True])
    advance(network, batch, 3)


def test_room_is_for_what_the_texts_ask_for() -> None:
    network = random_network(OURS["grouped"])
    batch = Batch(network, [generation([1] * 10, 3)])
    assert batch.cache.n_slots == 12
    assert batch.n_bytes_with([generation([1] * 30, 30).request]) == 2 * 59 * bytes_per_token(network)
    long = Batch(network, [generation([1] * 30, 30)])
    long.scores()
    batch.scores()
    batch.join(long)
    assert (batch.cache.n_rows, batch.cache.n_slots) == (2, 59)
    batch.keep([0])
    assert batch.cache.n_slots == 12
    assert batch.cache.n_bytes == batch.cache.n_rows * 12 * bytes_per_token(network)


def test_counts() -> None:
    assert [slots_for(generation([1] * n, m).request, 64) for n, m in ((5, 1), (5, 0), (5, 3), (60, 30), (64, 9))] == [
        *(5, 5, 7, 64, 64)
    ]
    assert [rows_for(n) for n in (0, 1, 2, 3, 4, 5, 9)] == [0, 1, 2, 4, 4, 8, 16]


def test_a_text_that_is_over_is_not_read() -> None:
    network = random_network(OURS["grouped"])
    done, going = generation([1, 2], 0), generation([3], 2)
    assert [text for text, _ in decode(network, [done, going])] == [going, going]
