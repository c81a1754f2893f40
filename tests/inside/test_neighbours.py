"""Neighbours: nearest rows by cosine and by dot product, of a row and of vectors of a pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
import torch

from cutaway.errors import InsideError
from cutaway.figures import Bars, Table
from cutaway.inside.neighbours import neighbours
from cutaway.language_model import LanguageModel, load
from support.tiny import FAMILIES, OURS, random_network, random_tokens

Build = Callable[..., LanguageModel]
TEXT = random_tokens(1, 12)[0].tolist()


@pytest.fixture
def by_hand(build: Build) -> LanguageModel:
    """Rows in a plane: 1 points where 0 points and is longer, 2 is at 45°, 3 is across, 4 points the other way."""
    network = random_network(OURS["windows"])  # untied
    with torch.no_grad():
        network.embed.weight.zero_()
        rows = [(1.0, 0.0), (4.0, 0.0), (2.0, 2.0), (0.0, 1.0), (-1.0, 0.0)]
        network.embed.weight[:5, :2] = torch.tensor(rows)
    return build(network)


def test_by_eye(by_hand: LanguageModel) -> None:
    found = neighbours(by_hand, 0, k=3)
    assert [one.token for one in found.nearest][:2] == [1, 2]
    assert [one.cosine for one in found.nearest] == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert [one.dot for one in found.nearest] == [4, 2, 0]
    assert (found.own.token, found.own.rank, found.own.cosine) == (0, 1, 1.0)
    assert found.norm == 1
    assert found.mean_cosine == pytest.approx((1 + 1 + 0.5**0.5 - 1) / 67)  # rows of zeros are near to nothing
    by_dot = neighbours(by_hand, "0", by="dot", k=66)
    assert [one.token for one in by_dot.nearest][:2] == [1, 2]
    assert by_dot.own.rank == 3 and 0 not in [one.token for one in by_dot.nearest]
    assert by_dot.nearest[-1].token == 4 and by_dot.nearest[-1].rank == 67
    assert [one.rank for one in by_dot.nearest][:3] == [1, 2, 4]  # it is left out, its rank stays its own


def test_the_embedding_of_a_prompt_is_its_row(by_hand: LanguageModel) -> None:
    found = neighbours(by_hand, [9, 2, 0], name="embed", position=1, k=5)
    assert found.own.token == 2 and found.own.rank == 1
    assert found.nearest[0].token == 2  # what stands there is one among others
    assert (found.position, found.tokens, found.heading) == (
        1,
        (9, 2, 0),
        "Tokens nearest to embed at 2 (1), by cosine in the embedding",
    )
    bars, table, _ = found.figures()
    assert isinstance(bars, Bars) and bars.labels[0] == "2 (stands there)"
    assert isinstance(table, Table) and table.rows[0][:3] == [1, "2 (stands there)", 2]


@pytest.mark.parametrize("name", [*OURS, *FAMILIES])
def test_the_normed_stream_by_dot_product_with_the_head_is_the_logits(name: str, build: Build) -> None:
    model = build(name)
    found = neighbours(model, TEXT, name="final_norm", by="dot", space="unembedding", position=5, k=66)
    logits = model.logits(TEXT)[5].double()
    if (cap := model.config.logit_soft_cap) is not None:
        logits = cap * torch.atanh(logits / cap)
    dots = torch.tensor([one.dot for one in found.nearest]).double()
    at = [one.token for one in found.nearest]
    assert float((dots - logits[at]).abs().max()) <= 1e-4 * max(1, float(logits.abs().max()))  # atanh is steep
    assert (dots.diff() <= 0).all()


@pytest.mark.parametrize("name", ["blocks.1.resid_mid", "blocks.2.ff.out", "blocks.0.attn.head_out[head 5]"])
def test_any_vector_of_width_d(name: str, build: Build) -> None:
    model = build("grouped")
    found = neighbours(model, TEXT, name=name, k=4)
    vector = model.trace(TEXT, keep=name)[name].reshape(-1, 12, 32)[0, -1]
    table = model.network.embed.weight.detach()
    expected = torch.nn.functional.cosine_similarity(table, vector[None]).sort(descending=True)
    assert [one.token for one in found.nearest] == expected.indices[:4].tolist()
    assert [one.cosine for one in found.nearest] == pytest.approx(expected.values[:4].tolist(), abs=1e-6)
    assert found.own.token == TEXT[-1]
    assert found.mean_cosine == pytest.approx(float(expected.values.mean()), abs=1e-6)


def test_a_large_table_is_read_in_parts(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("grouped")
    whole = neighbours(model, 3, k=66)
    monkeypatch.setattr(sys.modules["cutaway.inside.neighbours"], "AT_ONCE", 10 * 32)
    parts = neighbours(model, 3, k=66)
    assert [one.token for one in parts.nearest] == [one.token for one in whole.nearest]
    assert [one.dot for one in parts.nearest] == pytest.approx([one.dot for one in whole.nearest], abs=1e-5)


def test_words_of_a_real_tokenizer() -> None:
    model = load("bard", dtype="float32")
    found = neighbours(model, " king")
    assert {"·queen", "·King", "·prince"} <= {one.label for one in found.nearest}
    assert "·king" not in {one.label for one in found.nearest}
    bars, table, _ = found.figures()
    assert isinstance(bars, Bars) and len(bars.labels) == 10
    assert isinstance(table, Table) and table.rows[0][1] == "·king (itself)" and len(table.rows) == 11
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["kind"] == "neighbours" and data["own"]["label"] == "·king" and len(data["nearest"]) == 10
    tied = neighbours(model, " king", space="unembedding")
    assert [one.token for one in tied.nearest] == [one.token for one in found.nearest]


def test_what_does_not_fit_is_refused(build: Build) -> None:
    model = build("grouped")
    for what, options, message in (
        (67, {}, "what = 67 is outside the vocabulary"),
        (3, {"by": "angle"}, "by = 'angle': it must be cosine or dot"),
        (3, {"space": "head"}, "space = 'head': it must be embedding or unembedding"),
        (3, {"k": 67}, "k = 67: it must be from 1 to 66"),
        (TEXT, {"name": "blocks.9.resid_post"}, "layer 9 is outside 0 to 2"),
        (TEXT, {"name": "blocks.*.resid_post"}, "name one value of width 32"),
        (TEXT, {"name": "blocks.1.attn.z"}, "name one value of width 32"),
        (
            TEXT,
            {"name": "blocks.1.attn.head_out"},
            r"holds 8 vectors: pick one, as in blocks.1.attn.head_out\[head 0\]",
        ),
        (TEXT, {"name": "blocks.1.resid_post[position 3]"}, "give the position as position="),
        (TEXT, {"name": "blocks.1.attn.head_out[head 8]"}, "head 8 is outside 0 to 7"),
        (TEXT, {"name": "embed", "position": -13}, "the prompt has positions -12 to 11"),
    ):
        with pytest.raises(InsideError, match=message):
            neighbours(model, what, **options)
