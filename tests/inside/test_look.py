"""The one screen: its numbers are those of the pass, of the lens, and of the contributions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutaway.errors import InsideError
from cutaway.inside.contributions import contributions
from cutaway.inside.lens import lens
from cutaway.inside.look import look
from cutaway.language_model import LanguageModel
from support.tiny import FAMILIES

Build = Callable[..., LanguageModel]
PROMPT = [5, 9, 2, 9, 30]


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_those_of_the_pass(build: Build, family: str) -> None:
    model = build(family)
    seen, told = look(model, PROMPT, k=4), lens(model, PROMPT, k=4)
    best = model.logits(PROMPT)[-1].softmax(-1).topk(4)
    assert [i for i, _, _ in seen.next] == best.indices.tolist()
    assert [p for *_, p in seen.next] == pytest.approx(best.values.tolist(), rel=1e-4)
    assert [step.after for step in seen.path] == list(told.rows)
    assert [step.rank for step in seen.path] == told.rank[:, -1].tolist()
    assert [step.probability for step in seen.path] == pytest.approx(told.top_probability[:, -1, 0].tolist(), rel=1e-4)
    assert seen.path[-1].rank == 1


def test_the_parts_shown_are_the_largest(build: Build) -> None:
    model = build("llama")
    seen, parts = look(model, PROMPT), contributions(model, PROMPT).parts
    heads = sorted((value for name, value in parts.items() if name.startswith("head")), reverse=True)[:5]
    assert [value for *_, value in seen.heads] == pytest.approx(heads)
    layer, head, value = seen.heads[0]
    assert parts[f"head {layer}.{head}"] == pytest.approx(value)
    assert [value for _, value in seen.feed_forwards] == sorted((parts[f"ff {i}"] for i in range(3)), reverse=True)
    questions = seen.figures()[-1].to_dict()["lines"]
    assert questions[0].startswith(f"--attention {layer}.{head} ")


def test_one_token_is_a_prompt_too(build: Build) -> None:
    seen = look(build("gpt2"), [3], k=1)
    assert len(seen.next) == 1
    assert seen.to_dict()["labels"] == ["3"]
    assert [figure.kind for figure in seen.figures()] == ["tokens", "bars", "table", "table", "prose"]


def test_more_than_the_vocabulary_cannot_be_shown(build: Build) -> None:
    with pytest.raises(InsideError, match="k = 68: it must be from 1 to 67"):
        look(build("gpt2"), PROMPT, k=68)
