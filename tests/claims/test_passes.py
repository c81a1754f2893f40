"""Claims 1 and 14: passes counted by hand, and loops that take another number of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cutaway.claims import long, passes
from cutaway.language_model import LanguageModel
from cutaway.nn.cache import LayerCache
from cutaway.nn.tap import IDLE
from support.breaks import WasteAPass, blocks
from support.trials import found_on_grouped, fresh, measured

CLAIMS = [passes.CLAIM, long.CLAIM]


def test_the_tokens_are_those_of_a_loop_written_out() -> None:
    model = fresh("grouped")
    counter, text = passes.Counter(model), [5, 9, 2]
    with torch.no_grad():
        for _ in range(6):
            text.append(int(model.network(torch.tensor([text]))[0, -1].argmax()))
    assert counter.greedy([5, 9, 2], 6, cache=False) == text[3:]
    assert counter.widths == [3, 4, 5, 6, 7, 8]
    assert counter.blocks == 6 * 3
    assert counter.greedy([5, 9, 2], 6) == text[3:]
    assert counter.widths == [3, 1, 1, 1, 1, 1]
    assert model.generate([5, 9, 2], max_tokens=6, temperature=0).passes == 6  # type: ignore[union-attr]


def test_the_figures_are_counts() -> None:
    found = found_on_grouped(1)
    assert found.found.figures["passes for 30 tokens"] == 30  # as many as the context of 64 has room for, in tens
    assert found.found.figures["passes for 3 tokens"] == 3
    assert found.control.figures["passes for 30 tokens"] == 15
    answer = found_on_grouped(14)
    assert answer.found.figures["positions computed for 32 tokens, re-run"] == sum(range(8, 40))
    assert answer.found.figures["positions computed for 32 tokens, cached"] == 8 + 31


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_loop_that_reads_the_prompt_once_more_fails(claim: Any) -> None:
    assert not measured(claim, fresh("grouped", WasteAPass)).holds


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_layer_that_runs_twice_in_a_pass_fails(claim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("grouped")
    enter = model.network.enter

    def through_layer_0_already(tokens: Tensor, memory: Any, *rest: Any) -> Any:
        x, shared = enter(tokens, memory, *rest)
        return blocks(model)[0](x, shared.rotations[0], shared.masks[0], memory.layer(0), IDLE), shared

    monkeypatch.setattr(model.network, "enter", through_layer_0_already)
    assert not measured(claim, model).holds


def test_a_cache_that_gives_old_keys_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    append = LayerCache.append

    def stale(self: LayerCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (t.clone() for t in append(self, k, v))
        keys[:, :, -1], values[:, :, -1] = keys[:, :, 0], values[:, :, 0]  # the new token's are the first one's
        return keys, values

    monkeypatch.setattr(LayerCache, "append", stale)
    found = measured(passes.CLAIM, fresh("grouped"))
    assert not found.holds
    assert found.figures["passes for 30 tokens"] == 30  # it is the text that is another


def test_a_cache_that_is_never_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("grouped", ReRuns)
    assert measured(passes.CLAIM, model).holds  # as many passes
    assert not measured(long.CLAIM, model).holds  # of more positions


class ReRuns(LanguageModel):
    """A model that has no cache, whatever it is told."""

    def run(self, prompts: Any, /, **options: Any) -> Any:
        return super().run(prompts, **{**options, "cache": False})
