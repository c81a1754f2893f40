"""Attention as an answer: every number is the pass's, hidden cells are said so, kinds of heads are found."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cutaway.checkpoint.sources import known_models
from cutaway.errors import InsideError
from cutaway.figures import HeatMap, HeatMaps, Prose, Table
from cutaway.inside.attention import NO_REPEATS, Attention, attention
from cutaway.inside.edits import Zero
from cutaway.inside.heads import KINDS, probe
from cutaway.language_model import LanguageModel, load
from support.tiny import FAMILIES, OURS

Build = Callable[..., LanguageModel]
TEXT = [3, 14, 15, 9, 26, 5, 35, 14, 15]
N = len(TEXT)
EVERY = [*OURS, *FAMILIES]
LATER = np.triu(np.ones((N, N), dtype=bool), 1)


@pytest.mark.parametrize("name", EVERY)
def test_patterns_are_those_of_the_pass_and_hidden_cells_have_no_number(name: str, build: Build) -> None:
    model = build(name)
    found = attention(model, TEXT)
    trace = model.trace(TEXT, keep=["blocks.*.attn.pattern", "blocks.*.attn.masked"])
    for layer, patterns in enumerate(found.patterns):
        masked = trace[f"blocks.{layer}.attn.masked"][0].isinf().numpy()
        assert np.array_equal(np.isnan(patterns), masked)
        assert (masked & LATER == np.broadcast_to(LATER, masked.shape)).all()
        expected = trace[f"blocks.{layer}.attn.pattern"][0].numpy()
        assert np.array_equal(np.nan_to_num(patterns), expected)
    previous = np.diagonal(np.nan_to_num(found.patterns), -1, axis1=2, axis2=3).mean(-1)
    assert np.allclose(found.scores["previous"], previous, atol=1e-6)
    terms = found.patterns * np.log(np.where(found.patterns > 0, found.patterns, 1))
    assert np.allclose(found.scores["entropy"], -np.nansum(terms, -1)[..., 1:].mean(-1), atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_a_head_s_stages_are_those_of_the_pass(name: str, build: Build) -> None:
    """What it moves adds up to head_out when the vectors, not their lengths, are summed."""
    model = build(name)
    layer, head, group = 1, 3, model.config.n_heads // model.config.n_kv_heads
    found = attention(model, TEXT, head=f"{layer}.{head}")
    trace = model.trace(TEXT, keep="blocks.1.attn.*")
    value = {key.rpartition(".")[2]: tensor[0] for key, tensor in trace.items()}
    assert np.allclose(found.scores, value["scores"][head].numpy(), atol=1e-5)
    assert np.allclose(found.scaled, value["scaled"][head].numpy(), atol=1e-5)
    assert np.allclose(np.nan_to_num(found.masked, nan=-np.inf), value["masked"][head].numpy(), atol=1e-5)
    assert np.array_equal(np.nan_to_num(found.pattern), value["pattern"][head].numpy())
    w_o = model.network.blocks[layer].attn.W_O[head].detach()
    moves = value["pattern"][head][:, :, None] * (value["v"][head // group] @ w_o)
    assert torch.allclose(moves.sum(1), value["head_out"][head], atol=1e-4)
    lengths = moves.norm(dim=-1).numpy()
    assert np.allclose(np.nan_to_num(found.moved), lengths, atol=1e-5)
    assert np.allclose(np.nan_to_num(found.share), lengths / lengths.sum(-1, keepdims=True), atol=1e-5)
    whole = attention(model, TEXT)
    assert found.kinds == pytest.approx({name: float(whole.scores[name][layer, head]) for name in KINDS}, abs=1e-6)
    assert found.kv_head == head // group
    assert found.shared_with == tuple(h for h in range(model.config.n_heads) if h // group == head // group and h != 3)
    assert found.norm_behind == (model.config.norm_placement != "pre")


def test_what_comes_from_the_first_position_counts_every_query(build: Build) -> None:
    """Behind a window most queries do not see it, and take nothing from there; of no numbers there is no mean."""
    model = build("windows")
    found = attention(model, TEXT, head="0.3")
    assert np.isnan(found.share[1:, 0]).any()
    share = float(np.nan_to_num(found.share[1:, 0]).mean())
    assert f"and {share:.2f} of what it moves is from there" in str(found.figures()[-1]).replace("\n", " ")
    with torch.no_grad():
        model.network.embed.weight.fill_(torch.nan)
    assert "and nan of what it moves" in str(attention(model, TEXT, head="0.3").figures()[-1]).replace("\n", " ")


def test_the_figures_of_all_heads(build: Build) -> None:
    model = build("windows")
    found = attention(model, TEXT)
    tokens, patterns, table, kinds, spread, prose = found.figures()
    assert isinstance(patterns, HeatMaps)
    assert patterns.across == 8
    assert patterns.names[8 * 2 + 5] == "2.5"
    one = patterns.one("2.5")
    assert np.array_equal(one.values, found.patterns[2, 5], equal_nan=True)
    assert one.says.format(row=one.rows[4], column=one.columns[2], value="0.31") == "query ‘26’ looks at key ‘15’: 0.31"
    assert isinstance(table, Table)
    named = {row[0]: (row[1], row[2]) for row in table.rows if row[0]}
    assert list(named) == list(KINDS)
    layer, head = np.unravel_index(found.scores["own"].argmax(), (3, 8))
    assert named["own"] == (f"{layer}.{head}", pytest.approx(found.scores["own"].max()))
    assert isinstance(kinds, HeatMaps)
    assert np.array_equal(kinds.one("first").values, found.scores["first"])
    assert isinstance(spread, HeatMap)
    assert spread.unit == "nats"
    assert isinstance(prose, Prose)
    assert f"{found.scores['first'].mean():.2f} of their attention to the first position" in prose.lines[-1]
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["patterns"][0][5][2][3] is None
    assert data["patterns"][2][5][4][4] == pytest.approx(float(found.patterns[2, 5, 4, 4]), rel=1e-5)
    assert json.dumps([figure.to_dict() for figure in found.figures()], allow_nan=False)
    assert tokens.to_dict()["ids"] == TEXT


def test_a_text_without_repetition_says_so(build: Build) -> None:
    model = build("classic")
    found = attention(model, [1, 2, 3])
    assert found.best("induction") == []
    assert NO_REPEATS in found.figures()[2].note
    assert NO_REPEATS in found.figures()[-1].lines
    assert NO_REPEATS not in attention(model, probe(model, n=5)).figures()[2].note
    alone = attention(model, [4])
    assert alone.figures()
    assert attention(model, [4], head=(0, 1)).figures()
    assert alone.patterns.tolist() == [[[[1.0]]] * 4] * 3


def test_the_figures_of_one_head_and_its_words() -> None:
    model = load("bard")
    found = attention(model, "To be, or not to be", head=(1, 0))
    figures = {figure.title: figure for figure in found.figures()}
    assert [title for title in figures if title in ("scores", "scaled", "masked", "pattern", "moved", "share")]
    for title in ("scores", "scaled", "masked", "pattern", "moved", "share"):
        figure = figures[title]
        assert isinstance(figure, HeatMap)
        assert figure.rows == found.labels
        assert np.isnan(figure.values).any() == (title not in ("scores", "scaled"))
    assert json.dumps(found.to_dict(), allow_nan=False)
    assert json.dumps([figure.to_dict() for figure in found.figures()], allow_nan=False)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("3.1", r"head = 3\.1: layer 3 is outside 0 to 2"),
        ((1, 8), r"head = 1\.8: head 8 is outside 0 to 7"),
        ("3", "write it as layer.head"),
        ("a.b", "write it as layer.head"),
        (5, "write it as layer.head"),
    ],
)
def test_a_head_that_there_is_not(head: object, message: str, build: Build) -> None:
    with pytest.raises(InsideError, match=message):
        attention(build("grouped"), TEXT, head=head)  # type: ignore[call-overload]


def test_more_than_the_limit_is_refused(build: Build) -> None:
    model = build("grouped")
    with pytest.raises(InsideError, match="the limit is 100"):
        attention(model, TEXT, limit=100)
    with pytest.raises(InsideError, match="no kind of head: one of previous, induction"):
        attention(model, TEXT).best("prevoius")


# --- a real model ------------------------------------------------------------------------------------------

CACHED = any(entry.name == "smollm2" and entry.where == "cached" for entry in known_models())
N_HALF = 24


@pytest.fixture(scope="module")
def smollm2() -> LanguageModel:
    return load("smollm2", progress=False)


def loss_on_repeats(model: LanguageModel, texts: list[list[int]], edits: list[Zero]) -> float:
    """Of the second halves [nat/token]."""
    losses = []
    for trace, text in zip(model.trace(texts, keep=(), edits=edits), texts, strict=True):
        log_p = trace.logits[-N_HALF - 1 : -1].log_softmax(-1)
        losses.append(-log_p.gather(-1, torch.tensor(text[-N_HALF:])[:, None]).mean())
    return float(torch.stack(losses).mean())


@pytest.mark.skipif(not CACHED, reason="SmolLM2 is not in the cache: run `cutaway run -m smollm2` once")
def test_an_induction_head_and_a_previous_token_head_in_smollm2(smollm2: LanguageModel) -> None:
    """Found by where they look, confirmed by what fails without them: what repeats is no longer foreseen.

    The best head of a kind alone, and the five best together, against five others.
    """
    texts = [probe(smollm2, n=N_HALF, seed=seed) for seed in (0, 1)]
    found: list[Attention] = [attention(smollm2, text) for text in texts]
    best = {kind: found[0].best(kind, 5) for kind in ("induction", "previous")}
    for kind, heads in best.items():
        layer, head, score = heads[0]
        assert score > 0.7
        assert found[1].scores[kind][layer, head] == pytest.approx(score, abs=0.1)  # on another text too
        assert score > 5 * found[0].scores[kind].mean()

    def without(places: list[tuple[int, ...]]) -> float:
        return loss_on_repeats(smollm2, texts, [Zero(f"blocks.{i}.attn.z[head {h}]") for i, h in places])

    taken = {(layer, head) for heads in best.values() for layer, head, _ in heads}
    others = [place for place in np.ndindex(*found[0].scores["previous"].shape) if place not in taken]
    generator = np.random.default_rng(0)
    drawn = [[others[i] for i in generator.choice(len(others), 5, replace=False)] for _ in range(4)]
    plain = without([])
    assert plain < 4  # what repeats is foreseen; a guess would lose ln 49152 = 10.8
    rises = sorted(without(places) - plain for places in drawn)
    for kind, heads in best.items():
        rise = without([(layer, head) for layer, head, _ in heads]) - plain
        assert rise > 1, kind
        assert rise > 3 * rises[-1], kind
        ((layer, head, _), *_) = heads
        assert without([(layer, head)]) - plain > 3 * rises[-1], kind  # the best alone does more than five others
