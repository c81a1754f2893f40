"""The next token with and without an edit, and edits in words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch

from cutaway.errors import InsideError
from cutaway.inside.edited import edit, edited, in_words
from cutaway.inside.edits import Add, KnockOut, Mean, Scale, Zero
from cutaway.language_model import LanguageModel

Build = Callable[..., LanguageModel]
PROMPT = [5, 9, 2, 9, 30]


def test_numbers_are_those_of_two_passes(build: Build) -> None:
    model = build("llama")
    cut = Zero("blocks.1.attn.z[head 5]")
    result = edited(model, PROMPT, [cut], k=3)
    before, after = (
        model.logits(PROMPT)[-1].softmax(-1),
        model.trace(PROMPT, keep=(), edits=[cut]).logits[-1].softmax(-1),
    )
    assert {t.id for t in result.tokens} == {*before.topk(3).indices.tolist(), *after.topk(3).indices.tolist()}
    for token in result.tokens:
        assert token.before == pytest.approx(float(before[token.id]), rel=1e-5)
        assert token.after == pytest.approx(float(after[token.id]), rel=1e-5)
    assert [t.before for t in result.tokens] == sorted((t.before for t in result.tokens), reverse=True)
    assert result.kl == pytest.approx(float((after * (after / before).log()).sum()), rel=1e-3, abs=1e-7)
    assert result.kl > 0
    assert result.moved[0] == 0  # the edit is in the block after
    assert result.moved[1] > 0 and result.moved[2] > 0
    assert [figure.kind for figure in result.figures()] == ["tokens", "table", "lines"]
    assert result.to_dict()["edits"] == ["zero blocks.1.attn.z[head 5]"]


def test_an_edit_that_changes_nothing_shows_nothing(build: Build) -> None:
    result = edited(build("gpt2"), PROMPT, ["scale blocks.0.ff.out 1"])
    assert result.kl == 0 and not any(result.moved)
    assert all(token.before == token.after for token in result.tokens)


def test_a_pass_without_numbers_is_plain_data_too(build: Build) -> None:
    result = edited(build("gpt2"), PROMPT, [Add("blocks.1.resid_post", torch.full((32,), math.nan))])
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["kl"] is None and data["moved"] == [0.0, None, None]
    assert data["next"][0]["after"] is None and data["next"][0]["before"] > 0
    note = result.figures()[1].note
    assert "nan" not in note and "ends in NaN" in note


def test_one_edit_needs_no_list(build: Build) -> None:
    model, words = build("llama"), "zero blocks.1.attn.z[head 5]"
    expected = edited(model, PROMPT, [words]).to_dict()
    assert edited(model, PROMPT, words).to_dict() == edited(model, PROMPT, edit(words)).to_dict() == expected


def test_what_is_never_given_counts_nothing(build: Build) -> None:
    model = build("gpt2")
    result = edited(model, PROMPT, [Add("logits", torch.tensor([-math.inf] + [0.0] * 66))])
    share = float(model.logits(PROMPT)[-1].softmax(-1)[0])
    assert result.kl == pytest.approx(-math.log1p(-share), rel=1e-4)


@pytest.mark.parametrize(
    "one",
    [
        Zero("blocks.3.attn.z[head 5]"),
        Mean("blocks.*.ff.out"),
        Scale("blocks.*.ff.post[neuron 7, 9, position 2:6]", -0.5),
        KnockOut("blocks.3.attn.masked[head 5, query 7, key 2]"),
    ],
)
def test_an_edit_can_be_said_in_words(one: object) -> None:
    assert vars(edit(in_words(one))) == vars(one)  # type: ignore[arg-type]
    assert type(edit(in_words(one))) is type(one)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "is no edit: write one of zero, mean"),
        ("zero", "is no edit: write one of"),
        ("zeo blocks.3.ff.out", "did you mean zero?"),
        ("scale blocks.3.ff.out", "scale takes a factor"),
        ("scale blocks.3.ff.out much", "must be a number"),
        ("scale blocks.3.ff.out nan", "must be a number"),
        ("zero blocks.3.ff.out 2", "zero takes no '2'"),
    ],
)
def test_words_that_are_no_edit(words: str, said: str) -> None:
    with pytest.raises(InsideError, match=said.replace("?", r"\?")):
        edit(words)


def test_edits_that_do_not_fit(build: Build) -> None:
    model = build("gpt2")
    with pytest.raises(InsideError, match="no edits"):
        edited(model, PROMPT, [])
    with pytest.raises(InsideError, match="did you mean"):
        edited(model, PROMPT, ["zero blocks.0.attn.zz"])
    with pytest.raises(InsideError, match="k = 0"):
        edited(model, PROMPT, ["zero blocks.0.ff.out"], k=0)
