"""Claims 2, 3 and 4: rows and products checked by hand, and embeddings and scores that are not what they should be."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from cutaway.claims import context, dot, names
from cutaway.claims.lab import Lab
from cutaway.nn.kernel import Fused
from support.breaks import ByLength, blocks, embedding, kernels, output_projection
from support.trials import fresh, measured


def test_renumbering_a_saved_model_renumbers_its_scores() -> None:
    """The criterion, done once more with weights that are really moved."""
    model, other = fresh("windows"), fresh("windows")  # untied: two tables
    order = torch.randperm(67, generator=torch.Generator().manual_seed(5))
    for name in ("embed.weight", "head.weight"):
        parameter = other.network.get_parameter(name)
        parameter.data = parameter.data[order]
    ids = [5, 9, 2, 60]
    renumbered = order.argsort()[ids].tolist()
    assert renumbered != ids
    with torch.no_grad():
        plain, found = model.network(torch.tensor([ids])), other.network(torch.tensor([renumbered]))
    assert torch.allclose(found, plain[..., order], atol=1e-5)
    assert measured(names.CLAIM, model).figures["change of the scores when ids are renumbered"] <= 1e-5


@pytest.mark.parametrize("what", ["classic", "capped sandwich"])
def test_an_embedding_that_uses_the_number_fails(what: str) -> None:
    model = embedding(fresh(what), lambda ids, rows: rows + ids[..., None] / 67 * torch.arange(32) / 8)
    found = measured(names.CLAIM, model)
    assert not found.holds
    assert found.figures["change of the scores when ids are renumbered"] > 0.01
    assert found.figures["one-hot times table, less the lookup"] > 0.01


def test_an_embedding_that_reads_the_wrong_rows_fails() -> None:
    """As another table would: the scores are still the same under other numbers, the lookup is not."""
    model = embedding(fresh("grouped"), lambda ids, rows: rows.roll(1, dims=-1))
    found = measured(names.CLAIM, model)
    assert found.figures["change of the scores when ids are renumbered"] <= 1e-5
    assert not found.holds


def test_rows_that_move() -> None:
    assert names.rows_that_move(fresh("grouped").network, [5, 9, 5, 2]) == {2, 5, 9}


def test_the_stream_of_a_token_by_hand() -> None:
    """The cosine after the last block, from hooks on the blocks alone."""
    model = fresh("classic")
    ids = Lab(model=model).ids(25)
    streams: list[torch.Tensor] = []
    hook = blocks(model)[-1].register_forward_hook(lambda module, args, out: streams.append(out[0, -1]))
    with torch.no_grad():
        for before in (ids[:12], ids[12:24]):
            model.network(torch.tensor([[*before, ids[-1]]]))
    hook.remove()
    expected = 1 - float(F.cosine_similarity(streams[0].double(), streams[1].double(), dim=0))
    assert measured(context.CLAIM, model).figures["1 − cosine after the last block"] == pytest.approx(expected, 1e-4)


def test_without_what_attention_adds_a_row_stays_without_context() -> None:
    model = fresh("grouped")
    for layer in range(3):
        output_projection(model, torch.zeros_like, layer)
    found = measured(context.CLAIM, model)
    assert not found.holds
    assert found.figures["1 − cosine after the last block"] < 1e-12


def test_an_embedding_that_reads_its_neighbours_fails() -> None:
    model = embedding(fresh("grouped"), lambda ids, rows: rows + 0.1 * rows.mean(dim=1, keepdim=True))
    assert not measured(context.CLAIM, model).holds


@pytest.mark.parametrize("width", [2, 3, 64])
def test_vectors_at_known_angles(width: int) -> None:
    angles = torch.tensor([0, 60, 90, 120, 180], dtype=torch.float64).deg2rad()
    found = dot.dots_at(angles, width, seed=3)
    assert found.tolist() == pytest.approx([2.1, 1.05, 0, -1.05, -2.1])


def test_scores_are_products_of_queries_and_keys() -> None:
    error, by_cosine, by_distance = dot.queries_and_keys(Lab(model=fresh("grouped")), dot.with_direction)
    assert error < 1e-6
    assert 0 < by_cosine < 1
    assert 0 < by_distance < 1


def test_attention_that_ignores_the_direction_fails() -> None:
    model = kernels(fresh("grouped"), lambda attention: ByLength(8**-0.5, None))
    found = measured(dot.CLAIM, model)
    assert not found.holds
    assert found.figures["largest error on the model's queries and keys, of ‖q‖‖k‖"] > 0.5
    assert math.isclose(found.figures["dot product at 0 degrees"], 2.1)
    assert isinstance(blocks(fresh("grouped"))[0].attn.kernel, Fused)  # the others are left alone
