"""The lens: every row with its own statistics of the final norm, the last row the model's own logits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cutaway.errors import InsideError
from cutaway.figures import Bars, HeatMap, Lines, Table
from cutaway.inside.edits import Zero
from cutaway.inside.lens import Lens, lens
from cutaway.language_model import LanguageModel, load
from support.tiny import D_VOCAB, FAMILIES, OURS, distance, random_network, random_tokens, reference_folder

Build = Callable[..., LanguageModel]
TEXT = random_tokens(1, 12)[0].tolist()


def log_probabilities(found: Lens) -> torch.Tensor:
    """All of them [state, position, V], from a lens that holds the whole vocabulary in each cell."""
    rows = torch.from_numpy(np.log(found.top_probability))
    return torch.empty_like(rows).scatter_(-1, torch.from_numpy(found.top), rows)


@pytest.mark.parametrize("name", [*OURS, *FAMILIES])
def test_every_row_is_the_stream_through_final_norm_head_and_cap(name: str, build: Build) -> None:
    model = build(name)
    found = lens(model, TEXT, target=7, k=D_VOCAB, sublayers=True)
    trace = model.trace(TEXT)
    n_layers = model.config.n_layers
    assert found.rows == ("embed", *(f"{layer} {part}" for layer in range(n_layers) for part in ("attn", "ff")))
    logits = []
    with torch.no_grad():
        for state in found.states:
            logits.append(model.network.unembed(trace[state])[0])
    expected = torch.stack(logits)
    assert distance(torch.from_numpy(found.logit), expected[:, :, 7]) <= 1e-5
    assert distance(log_probabilities(found), expected.log_softmax(-1)) <= 1e-5
    order = expected.argsort(-1, descending=True)
    assert (torch.from_numpy(found.rank) - 1 == (order == 7).int().argmax(-1)).all()
    assert found.top[..., 0].tolist() == expected.argmax(-1).tolist()
    distribution = torch.distributions.Categorical(logits=expected)
    final = torch.distributions.Categorical(logits=expected[-1:])
    assert distance(torch.from_numpy(found.entropy), distribution.entropy()) <= 1e-5
    assert distance(torch.from_numpy(found.kl), torch.distributions.kl_divergence(final, distribution)) <= 1e-5
    assert (found.kl[-1] == 0).all()
    assert distance(log_probabilities(found)[-1], model.logits(TEXT).log_softmax(-1)) <= 1e-5


def test_case_i2_own_statistics_and_no_second_norm(build: Build) -> None:
    """I2: two layers, norm weights far from 1; each row is normed by itself, the last row equals the logits."""
    network = random_network(replace(OURS["grouped"], n_layers=2))
    with torch.no_grad():
        network.final_norm.weight.copy_(torch.linspace(-2, 3, network.config.d_model))
        network.blocks[1].ff.down.weight.mul_(20)  # the last stream is long, so its statistics are no one else's
    model = build(network)
    found = lens(model, TEXT, target=3, k=D_VOCAB)
    logits = model.logits(TEXT)
    assert np.abs(found.logit[-1] - logits[:, 3].numpy()).max() < 1e-5 * max(1, float(logits.abs().max()))
    trace = model.trace(TEXT)
    x, weight = trace["blocks.0.resid_post"][0], network.final_norm.weight.detach()
    u = network.head.weight.detach()[3]
    own = (x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight) @ u
    last = trace["blocks.1.resid_post"][0]
    others = (x / (last.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight) @ u
    assert distance(torch.from_numpy(found.logit[1]), own) <= 1e-5
    assert distance(others, own) > 0.1
    with torch.no_grad():
        twice = network.unembed(trace["final_norm"])[0, :, 3]
    assert distance(torch.from_numpy(found.logit[-1]), twice) > 0.1


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "gemma2"])
def test_rows_equal_what_transformers_makes_of_its_hidden_states(model_type: str, tmp_path: Path) -> None:
    theirs: Any = reference_folder(tmp_path, model_type)
    found = lens(load(tmp_path), TEXT, target=5, k=D_VOCAB)
    with torch.inference_mode():
        out = theirs(torch.tensor([TEXT]), output_hidden_states=True, use_cache=False)
        norm = theirs.transformer.ln_f if model_type == "gpt2" else theirs.model.norm
        rows = [theirs.lm_head(norm(state))[0] for state in out.hidden_states[:-1]]  # the last is normed already
        if cap := getattr(theirs.config, "final_logit_softcapping", None):
            rows = [cap * torch.tanh(row / cap) for row in rows]
    expected = torch.stack([*rows, out.logits[0]])
    assert distance(torch.from_numpy(found.logit), expected[..., 5]) <= 1e-5
    assert distance(log_probabilities(found), expected.log_softmax(-1)) <= 1e-5


def test_the_target_is_the_winner_a_token_or_what_follows(build: Build) -> None:
    model = build("classic")
    winner = int(model.logits(TEXT)[-1].argmax())
    assert lens(model, TEXT).targets == (winner,) * 12
    assert lens(model, TEXT).rank[-1, -1] == 1
    assert lens(model, TEXT, target=4).targets == (4,) * 12
    following = lens(model, TEXT, actual=True)
    assert following.targets == (*TEXT[1:], winner)
    assert lens(model, TEXT, actual=True, target=4).targets[-1] == 4
    log_p = model.logits(TEXT).log_softmax(-1)
    expected = [float(log_p[i, token].exp()) for i, token in enumerate(following.targets)]
    assert following.probability[-1].tolist() == pytest.approx(expected, rel=1e-5)


def test_a_stretch_of_positions_at_a_time(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers × positions × vocabulary is never held; nor are all positions, where the vocabulary is large."""
    model = build("capped sandwich")
    whole = lens(model, TEXT, k=3)
    monkeypatch.setattr(sys.modules["cutaway.inside.lens"], "AT_ONCE", 5 * D_VOCAB)
    seen, head = [], model.network.head.forward
    monkeypatch.setattr(model.network.head, "forward", lambda x: seen.append(x.shape[1]) or head(x))
    parts = lens(model, TEXT, k=3)
    # The end of the pass itself, then four rows of each stretch: of the last eight positions, and of those before.
    assert seen == [1] + 4 * [5] + 4 * [3] + 4 * [4]
    assert (parts.top == whole.top).all()
    for name in ("logit", "probability", "rank", "entropy", "kl", "top_probability"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), atol=1e-5)


def test_the_last_eight_positions_come_first(build: Build) -> None:
    model, told, short = build("grouped"), [], []
    whole = lens(model, TEXT, progress=lambda *said: told.append(said))
    [(n_read, n_cells, first)] = [said for said in told if said[2] is not None]
    assert (n_read, n_cells, first.first) == (8 * 4, 12 * 4, 4)
    assert [said[0] for said in told] == sorted(said[0] for said in told)
    assert told[-1][0] == n_cells
    for name in ("top", "rank", "kl"):
        assert (getattr(first, name) == getattr(whole, name)[:, 4:]).all()
    assert list(first.figures()[0].columns) == list(whole.labels[4:])
    lens(model, TEXT[:8], progress=lambda *said: short.append(said))
    assert all(said[2] is None for said in short)


def test_the_last_positions_alone(build: Build) -> None:
    """The same numbers as of the whole text, under the same positions; more than there are is all."""
    model = build("grouped")
    whole, part = lens(model, TEXT, actual=True), lens(model, TEXT, actual=True, last=3)
    assert (part.first, part.targets, part.labels) == (9, whole.targets[9:], whole.labels)
    assert part.states == whole.states
    for name in ("top", "top_probability", "logit", "probability", "rank", "entropy", "kl"):
        np.testing.assert_allclose(getattr(part, name), getattr(whole, name)[:, 9:], atol=1e-6)
    assert part.path(10).title == whole.path(10).title
    assert part.path().rows[-1][1] == whole.path().rows[-1][1]
    says = part.figures()[0]
    assert isinstance(says, HeatMap)
    assert list(says.columns) == list(whole.labels[9:])
    assert part.to_dict()["first"] == 9
    assert lens(model, TEXT, last=99).first == 0
    with pytest.raises(InsideError, match="position = 8: this lens has the positions from 9 on"):
        part.path(8)
    with pytest.raises(InsideError, match="last = 0"):
        lens(model, TEXT, last=0)


def test_edits_are_seen(build: Build) -> None:
    model = build("grouped")
    plain, edited = lens(model, TEXT), lens(model, TEXT, target=0, edits=[Zero("blocks.1.ff.out")])
    same = lens(model, TEXT, target=0)
    assert (edited.logit[:2] == same.logit[:2]).all()
    assert np.abs(edited.logit[2] - same.logit[2]).max() > 0.01
    assert (lens(model, TEXT).logit == plain.logit).all()


@pytest.mark.parametrize("at", ["final_norm", "logits[position -1]", "l*"])
def test_an_edit_that_no_row_could_show_is_refused(at: str, build: Build) -> None:
    """The last row is what the model says: with such an edit it would not be."""
    with pytest.raises(InsideError, match=r"(final_norm|logits).* cannot be edited for the lens"):
        lens(build("grouped"), TEXT, edits=[Zero(at)])


def test_what_does_not_fit_is_refused(build: Build) -> None:
    model = build("grouped")
    with pytest.raises(InsideError, match="target = 67 is outside the vocabulary: 0 to 66"):
        lens(model, TEXT, target=67)
    with pytest.raises(InsideError, match="k = 68: it must be from 1 to 67"):
        lens(model, TEXT, k=68)
    with pytest.raises(InsideError, match="the limit is 1000"):
        lens(model, TEXT, limit=1000)
    with pytest.raises(InsideError, match="position = 12: the prompt has positions -12 to 11"):
        lens(model, TEXT).path(12)


def test_figures_show_its_numbers(build: Build) -> None:
    model = build("windows")
    found = lens(model, TEXT, actual=True, target=9)
    says, actual, rank, bars, nats, path, _ = found.figures()
    assert isinstance(says, HeatMap) and isinstance(actual, HeatMap)
    assert says.rows == ("embed", "0", "1", "2")
    assert says.cells is not None and says.cells[2][3] == str(found.top[2, 3, 0])
    assert says.values[2, 3] == found.top_probability[2, 3, 0]
    assert actual.cells is not None and actual.cells[1][0] == str(found.rank[1, 0])
    assert isinstance(rank, Lines) and list(rank.series[0].y) == found.rank[:, -1].tolist()
    assert isinstance(nats, Lines) and [one.name for one in nats.series] == ["entropy", "KL"]
    probabilities = model.logits(TEXT)[-1].softmax(-1).sort(descending=True)
    assert isinstance(bars, Bars) and list(bars.labels) == [str(int(i)) for i in probabilities.indices[:5]]
    assert list(bars.values) == pytest.approx(probabilities.values[:5].tolist(), rel=1e-5)
    assert isinstance(path, Table) and [row[3] for row in path.rows] == found.rank[:, -1].tolist()
    assert all(len(row) == len(path.columns) for row in path.rows)
    for one in found.figures():
        json.dumps(one.to_dict(), allow_nan=False)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["kind"] == "lens" and data["tokens"] == TEXT and data["top"] == found.top.tolist()
    assert data["probability"][0][0] == pytest.approx(found.probability[0, 0], rel=1e-5)
    assert len(lens(model, TEXT).figures()) == 6


def test_words_of_a_real_tokenizer() -> None:
    """Bard is of bf16 on disk; the lens needs no more than its text."""
    found = lens(load("bard", dtype="float32"), "To be, or not to", target=" be")
    assert found.labels == ("To", "·be", ",", "·or", "·not", "·to")
    assert found.words[found.targets[-1]] == "·be"
    assert found.rank[-1, -1] <= 3 and found.rank[0, -1] > found.rank[-1, -1]
    assert "·be" in found.heading
