"""Scores of some positions alone: the head runs for them, and the numbers are those of the whole pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cutaway.errors import InsideError
from cutaway.inside.edits import Add, Mean, Resample
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from support.tiny import OURS, distance

Build = Callable[..., LanguageModel]

TEXTS = [[5, 35, 8, 9, 7, 9, 3, 2, 38], [3, 14, 15, 9, 26], [11]]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many positions the head ran, pass by pass."""
    found: list[int] = []
    whole = Transformer.unembed

    def counting(self: Transformer, x: Tensor, *taps: object) -> Tensor:
        found.append(x.shape[1])
        return whole(self, x, *taps)  # type: ignore[arg-type]

    monkeypatch.setattr(Transformer, "unembed", counting)
    return found


@pytest.mark.parametrize("name", OURS)
def test_the_named_positions_alone(name: str, build: Build) -> None:
    model = build(name)
    whole = model.trace(TEXTS[0], keep="final_norm")
    part = model.trace(TEXTS[0], keep=["logits[position 4:7]", "final_norm[position 5]", "blocks.0.resid_post"])
    assert part.tokens == TEXTS[0]
    assert part.logits.shape == (3, model.config.d_vocab)
    assert distance(part.logits, whole.logits[4:7]) <= 1e-5
    assert distance(part["final_norm[position 5]"], whole["final_norm"][:, 5:6]) <= 1e-5
    assert part["blocks.0.resid_post"].shape[1] == len(TEXTS[0])


def test_the_head_runs_from_the_first_position_that_is_wanted(build: Build, scored: list[int]) -> None:
    model = build("grouped")
    model.trace(TEXTS[0], keep="logits[position -1]")
    model.trace(TEXTS[0], keep=["logits[position -1]", "final_norm[position 3]"])
    model.trace(TEXTS[0], keep=["logits[position -1]", "final_norm"])
    model.trace(TEXTS[0], keep="*[position -1]")  # a wildcard names what is there: the logits are kept as always
    assert scored == [1, 6, 9, 9]


def test_a_generation_runs_the_head_over_the_prompt_only_if_that_is_wanted(build: Build, scored: list[int]) -> None:
    model = build("grouped")
    model.trace(TEXTS[0], keep="logits[position -1:]", generate=2, temperature=0)
    model.generate(TEXTS[0], max_tokens=2, temperature=0, edits=Add("blocks.0.ff.out", torch.tensor(1.0)))
    model.trace(TEXTS[0], keep="logits[position 3]", generate=2, temperature=0)
    assert scored == [1, 1, 1, 1, 9, 1, 1]


def test_texts_of_several_lengths(build: Build) -> None:
    model = build("grouped")
    together = model.trace(TEXTS, keep="logits[position -1]")
    for text, trace in zip(TEXTS, together, strict=True):
        assert trace.tokens == text
        assert distance(trace.logits, model.logits(text)[-1:]) <= 1e-5


def test_an_edit_behind_the_last_block_counts_where_it_is_seen(build: Build) -> None:
    model = build("grouped")
    edits = [Add("final_norm", torch.ones(model.config.d_model)), Add("logits[position 0]", torch.tensor(7.0))]
    whole = model.trace(TEXTS[0], keep=(), edits=edits)
    part = model.trace(TEXTS[0], keep="logits[position -2:]", edits=edits)
    assert distance(part.logits, whole.logits[-2:]) <= 1e-5


def test_an_edit_behind_may_read_or_span_all_positions(build: Build) -> None:
    model = build("grouped")
    n, d = len(TEXTS[0]), model.config.d_model
    for edit in (Mean("final_norm"), Resample("final_norm"), Add("final_norm", torch.arange(n * d).view(n, d) / 100)):
        whole = model.trace(TEXTS[0], keep=(), edits=edit)
        part = model.trace(TEXTS[0], keep="logits[position -1]", edits=edit)
        assert distance(part.logits, whole.logits[-1:]) <= 1e-5


def test_a_generation_that_ends_before_what_is_named(build: Build) -> None:
    (first, *_) = build("grouped").trace(TEXTS[1], keep=(), generate=1, temperature=0).new_tokens
    trace = build("grouped", end=first).trace(TEXTS[1], keep="logits[position 8]", generate=6, temperature=0)
    with pytest.raises(InsideError, match="no logits were kept: the text ended after 5 positions"):
        _ = trace.logits


def test_of_a_generation(build: Build) -> None:
    model = build("grouped")
    whole = model.trace(TEXTS[1], keep=(), generate=4, temperature=0)
    part = model.trace(TEXTS[1], keep="logits[position -1:]", generate=4, temperature=0)
    assert part.tokens == whole.tokens
    assert distance(part.logits, whole.logits[len(TEXTS[1]) - 1 :]) <= 1e-5


def test_with_gradients(build: Build) -> None:
    model = build("grouped")
    part = model.trace(TEXTS[1], keep=["logits[position -1]", "embed"], grad=True)
    whole = model.trace(TEXTS[1], keep="embed", grad=True)
    assert part.grad is not None
    assert whole.grad is not None
    assert distance(part.grad["embed"], whole.grad["embed"]) <= 1e-5


def test_several_parts_have_no_one_name(build: Build) -> None:
    trace = build("grouped").trace(TEXTS[0], keep=["logits[position 1]", "logits[position 4]"])
    assert trace["logits[position 4]"].shape[1] == 1
    with pytest.raises(InsideError, match=r"2 parts: read them by name, such as logits\[position 1\]"):
        _ = trace.logits
