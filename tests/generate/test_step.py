"""The recorded step: the same numbers as the forward it was recorded from, and never used where it would not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from cutaway.config import ModelConfig
from cutaway.generate.decoding import next_scores
from cutaway.generate.step import Step
from cutaway.network import Transformer
from cutaway.nn.block import Block
from cutaway.nn.cache import Cache
from cutaway.nn.tape import Tape
from support.tiny import OURS, distance, random_network, random_tokens

RECORDED = ["grouped", "windows", "longrope", "no positions in layer 2"]
PLAIN = ["classic", "capped sandwich", "parallel"]  # LayerNorm, GELU or a soft cap: torch operations that compute


@pytest.fixture
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def start(network: Transformer, tokens: Tensor, lengths: list[int]) -> tuple[Cache, Step]:
    cache = Cache(network.config, len(tokens), network.embed.weight)
    next_scores(network, [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)], cache)
    return cache, Step(network, cache)


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RECORDED + PLAIN)
def test_every_step_equals_the_forward_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    """Two rows of different lengths; the buffers grow twice on the way."""
    network = random_network(OURS[name]).to(dtype)
    tokens = random_tokens(2, 30)
    cache, step = start(network, tokens, [3, 2])
    other, _ = start(network, tokens, [3, 2])
    for i in range(9):
        column = torch.stack([tokens[0, 3 + i], tokens[1, 2 + i]])[:, None]
        found = step.scores(column)
        assert torch.equal(found, network(column, other)[:, 0])
    assert cache.lengths == other.lengths == [12, 11]
    assert step._records == (name in RECORDED)


@pytest.mark.usefixtures("inference")
def test_steps_equal_the_whole_text() -> None:
    """Contract 2 through the tape."""
    network = random_network(OURS["windows"])
    tokens = random_tokens(1, 20)
    _, step = start(network, tokens, [5])
    found = torch.stack([step.scores(tokens[:, i : i + 1])[0] for i in range(5, 20)])
    assert distance(found, network(tokens)[0, 5:]) <= 1e-5


@pytest.mark.usefixtures("inference")
def test_biases_and_odd_widths_are_recorded_too() -> None:
    data = OURS["grouped"].to_dict() | {"d_model": 33, "d_head": 6, "d_ff": 47}
    data["attention"] |= {"qkv_bias": True, "out_bias": True, "qk_norm": "head"}
    network = random_network(ModelConfig.from_dict(data))
    tokens = random_tokens(1, 12)
    _, step = start(network, tokens, [4])
    found = torch.stack([step.scores(tokens[:, i : i + 1])[0] for i in range(4, 12)])
    assert distance(found, network(tokens)[0, 4:]) <= 1e-5
    assert step._tape is not None


@pytest.mark.usefixtures("inference")
def test_the_tape_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first step the blocks' forward is not entered again, until the buffers grow."""
    network = random_network(OURS["grouped"])
    entered: list[int] = []
    original = network.pass_blocks
    monkeypatch.setattr(network, "pass_blocks", lambda *a: entered.append(1) or original(*a))
    tokens = random_tokens(1, 20)
    _, step = start(network, tokens, [4])
    entered.clear()
    for i in range(4, 8):  # slots 4 … 7 of 8
        step.scores(tokens[:, i : i + 1])
    assert len(entered) == 1
    step.scores(tokens[:, 8:9])
    assert len(entered) == 2


@pytest.mark.usefixtures("inference")
def test_another_number_of_threads_makes_another_tape() -> None:
    network = random_network(OURS["grouped"])
    tokens = random_tokens(1, 20)
    _, step = start(network, tokens, [5])
    expected = network(tokens)[0]
    before = torch.get_num_threads()
    try:
        for i in range(5, 10):
            torch.set_num_threads(1 + i % 2)
            assert distance(step.scores(tokens[:, i : i + 1])[0], expected[i]) <= 1e-5
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("inference")
def test_what_a_step_returned_stays_when_the_next_one_runs() -> None:
    network = random_network(OURS["grouped"])
    tokens = random_tokens(1, 20)
    _, step = start(network, tokens, [4])
    first = step.scores(tokens[:, 4:5])
    kept = first.clone()
    step.scores(tokens[:, 5:6])
    step.scores(tokens[:, 6:7])
    assert torch.equal(first, kept)


def test_the_public_face_runs_on_the_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called with gradients on, as a user does."""
    from cutaway.checkpoint.load import LoadReport
    from cutaway.language_model import LanguageModel
    from cutaway.text.ids import IdTokenizer

    ran: list[int] = []
    original = Tape.run
    monkeypatch.setattr(Tape, "run", lambda tape: ran.append(1) or original(tape))
    network = random_network(OURS["grouped"])
    report = LoadReport(family="llama", source="test", stored="float32")
    model = LanguageModel(network, IdTokenizer(network.config.d_vocab), report, frozenset())
    assert torch.is_grad_enabled()
    recorded = model.generate([1, 2, 3], max_tokens=20, temperature=0)
    assert len(ran) == 18  # all but the prompt's pass and the recorded one
    assert recorded.tokens == model.generate([1, 2, 3], max_tokens=20, temperature=0, cache=False).tokens


class Wrapped(nn.Module):
    """A block inside somebody's own module."""

    def __init__(self, block: nn.Module, note: Callable[..., None]) -> None:
        super().__init__()
        self.block, self.note = block, note

    def forward(self, *args: Any) -> Tensor:
        self.note()
        return self.block(*args)


def noting_forward(block: nn.Module, note: Callable[..., None]) -> Callable[..., Tensor]:
    original = block.forward
    return lambda *args: note() or original(*args)


@pytest.mark.usefixtures("inference")
@pytest.mark.parametrize("put_in", ["hook", "global hook", "forward", "forward of the class", "module"])
def test_somebodys_own_python_runs_at_every_step(put_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a network is not recorded."""
    network = random_network(OURS["grouped"])
    block = network.blocks[1]
    seen: list[int] = []

    def note(*module: Any) -> None:
        if not module or module[0] is block:
            seen.append(1)

    with ExitStack() as stack:
        if put_in == "hook":
            block.register_forward_hook(note)
        elif put_in == "global hook":
            stack.callback(register_module_forward_hook(note).remove)
        elif put_in == "forward":
            block.forward = noting_forward(block, note)
        elif put_in == "forward of the class":
            original = Block.forward
            monkeypatch.setattr(Block, "forward", lambda self, *args: note(self) or original(self, *args))
        else:
            network.blocks[1] = Wrapped(block, note)
        tokens = random_tokens(1, 10)
        _, step = start(network, tokens, [4])
        seen.clear()
        for i in range(4, 8):
            step.scores(tokens[:, i : i + 1])
        assert len(seen) == 4


@pytest.mark.usefixtures("inference")
def test_weights_replaced_on_the_way_never_make_garbage() -> None:
    """The tape keeps what it reads alive: the text goes on with the weights it began with."""
    network = random_network(OURS["grouped"])
    other = random_network(OURS["grouped"], seed=1)
    tokens = random_tokens(1, 12)
    expected = network(tokens)[0]
    _, step = start(network, tokens, [4])
    step.scores(tokens[:, 4:5])
    before = {name: p.clone() for name, p in network.named_parameters()}
    network.load_state_dict(other.state_dict(), assign=True)
    assert any(not torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert torch.isfinite(step.scores(tokens[:, 5:6])).all()
    assert expected.isfinite().all()


@pytest.mark.usefixtures("inference")
def test_who_counts_operations_sees_them_all() -> None:
    """Under a mode that follows torch's operations the loops stand back."""
    from torch.utils.flop_counter import FlopCounterMode

    network = random_network(OURS["grouped"])
    tokens = random_tokens(1, 10)
    _, step = start(network, tokens, [4])
    step.scores(tokens[:, 4:5])
    with FlopCounterMode(display=False) as counter:
        step.scores(tokens[:, 5:6])
    assert counter.get_total_flops() > 0


def test_a_pass_that_computes_with_torch_is_no_tape() -> None:
    """The record must never leave out a part of the step."""
    x = torch.ones(1, 1, 4)
    with torch.inference_mode(), Tape.recording() as tape:
        x + x
    assert not tape.complete
    assert tape.calls == []


@pytest.mark.usefixtures("inference")
def test_two_threads_record_apart() -> None:
    """Another thread's loops never land on this one's tape."""
    import threading

    network = random_network(OURS["grouped"])
    tokens = random_tokens(2, 20)
    expected = network(tokens)
    wrong: list[float] = []

    def work(row: int) -> None:
        with torch.inference_mode():
            _, step = start(network, tokens[row : row + 1], [4])
            for i in range(4, 16):
                wrong.append(distance(step.scores(tokens[row : row + 1, i : i + 1])[0], expected[row, i]))

    threads = [threading.Thread(target=work, args=(row,)) for row in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 24
    assert max(wrong) <= 1e-5
