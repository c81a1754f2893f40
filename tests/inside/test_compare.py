"""Two models side by side, and what is wrong with one: against numbers by hand and faults put in on purpose."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cutaway.errors import InsideError
from cutaway.figures import HeatMap, Prose, Table
from cutaway.inside.compare import compare, jensen_shannon
from cutaway.inside.findings import Findings, collapsed, findings, losses_of, spikes
from cutaway.language_model import LanguageModel
from cutaway.text.ids import IdTokenizer
from support.tiny import OURS, random_network, random_tokens

Build = Callable[..., LanguageModel]
TEXT, SHORT = random_tokens(1, 24)[0].tolist(), [5, 35, 8]


@pytest.fixture
def model(build: Build) -> LanguageModel:
    return build("grouped")


def changed(model: LanguageModel, name: str, factor: float) -> LanguageModel:
    """The same model with one weight times a factor."""
    other = copy.copy(model)
    other.network = copy.deepcopy(model.network)
    with torch.no_grad():
        other.network.get_parameter(name).mul_(factor)
    return other


def test_a_model_equals_itself(model: LanguageModel) -> None:
    found = compare(model, copy.copy(model), [TEXT, SHORT], names=("before", "after"))
    assert found.notes == ()
    assert found.loss[0] == found.loss[1]
    assert found.kl == pytest.approx(0, abs=1e-9)
    assert found.winner == 1
    assert found.heads is not None
    assert found.lens_winner is not None
    assert found.heads.shape == (3, 8)
    assert np.abs(found.heads).max() <= 1e-6
    assert found.lens_winner.tolist() == [1, 1, 1]
    assert all(part.change == 0 for part in found.weights)
    assert found.n_tokens == (25, 25)
    assert found.heading == "before and after on 25 predicted tokens"


def test_every_number_is_what_it_says(model: LanguageModel) -> None:
    """Loss, KL, divergence of a head, lens and change, each from the models' own logits and traces."""
    other = changed(model, "blocks.1.attn.qkv.weight", 1.5)
    found = compare(model, other, [TEXT, SHORT])
    logs = [[m.logits(text).double().log_softmax(-1) for text in (TEXT, SHORT)] for m in (model, other)]
    for i, rows in enumerate(logs):
        total = -sum(
            float(row[t, token])
            for row, text in zip(rows, (TEXT, SHORT), strict=True)
            for t, token in enumerate(text[1:])
        )
        assert found.loss[i] == pytest.approx(total / 25, abs=1e-5)
    pairs = list(zip(*logs, strict=True))
    kl = sum(float((p.exp() * (p - q)).sum()) for p, q in pairs) / 27
    assert found.kl == pytest.approx(kl, rel=1e-4)
    assert found.winner == sum(int((p.argmax(-1) == q.argmax(-1)).sum()) for p, q in pairs) / 27
    assert found.lens_kl is not None
    assert found.heads is not None
    assert found.lens_kl[0] == pytest.approx(0, abs=1e-7)
    assert found.lens_kl[1] > 1e-4
    assert found.lens_kl[-1] == pytest.approx(found.kl, rel=1e-4)
    end = sum(float((p.exp() * (p - q))[-4:].sum()) for p, q in pairs) / 7
    assert compare(model, other, [TEXT, SHORT], last=4).lens_kl[-1] == pytest.approx(end, rel=1e-4)  # type: ignore[index]
    assert found.heads[0].max() <= 1e-6
    total = 0.0
    for text in (TEXT, SHORT):
        p, q = (
            m.trace(text, keep="blocks.1.attn.pattern")["blocks.1.attn.pattern"][0, 5].double() for m in (model, other)
        )
        middle = (p + q) / 2
        for t in range(1, len(text)):
            seen = slice(0, t + 1)
            a, b, m = p[t, seen], q[t, seen], middle[t, seen]
            total += float((a * (a / m).log() + b * (b / m).log()).sum()) / 2
    assert found.heads[1, 5] == pytest.approx(total / 25, rel=1e-3)
    moved = {part.name: part.change for part in found.weights if part.change}
    assert moved == {"blocks.1.attn.qkv.weight": pytest.approx(0.5, rel=1e-5)}
    table, change = found.figures()[0], found.figures()[-1]
    assert isinstance(table, Table)
    assert [row[1] for row in table.rows] == list(found.loss)
    assert isinstance(change, HeatMap)
    assert change.values[1, list(change.columns).index("attn.qkv.weight")] == pytest.approx(0.5, rel=1e-5)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["heads"][1][5] == pytest.approx(found.heads[1, 5], rel=1e-5)


def test_what_two_passes_tell_comes_first(model: LanguageModel) -> None:
    """The losses and heads of the first text, then the lens, layer by layer of each."""
    other, told = changed(model, "blocks.1.attn.qkv.weight", 1.5), []
    found = compare(model, other, [TEXT, SHORT], progress=lambda *said: told.append(said))
    alone, first = told[0][2], told[1][2]
    assert alone is not None
    assert alone.loss[0] == compare(model, other, TEXT).loss[0]
    assert math.isnan(alone.loss[1])
    json.dumps([alone.to_dict(), *(figure.to_dict() for figure in alone.figures())], allow_nan=False)
    assert first is not None
    assert first.heads is not None
    assert (first.lens_kl, first.weights) == (None, ())
    assert first.loss == compare(model, other, TEXT).loss
    assert [figure.kind for figure in first.figures()] == ["table", "heatmap"]
    json.dumps(first.to_dict(), allow_nan=False)
    assert [said[0] for said in told] == [0, 0, 1, 2, 3, 3, 3, 4, 5, 6]
    assert all(said[1] == 6 and said[2] is None for said in told[2:])
    assert found.lens_kl is not None


def test_divergence_is_symmetric_and_bounded_by_ln_2() -> None:
    p, q = torch.tensor([1.0, 0, 0]), torch.tensor([0, 0.5, 0.5])
    assert float(jensen_shannon(p, q)) == pytest.approx(math.log(2), abs=1e-6)
    assert float(jensen_shannon(q, p)) == pytest.approx(math.log(2), abs=1e-6)
    assert float(jensen_shannon(q, q)) == 0


def test_what_two_models_do_not_share_is_left_out_and_said(build: Build) -> None:
    model = build("grouped")
    shallow = build(random_network(replace(OURS["grouped"], n_layers=2)))
    found = compare(model, shallow, TEXT)
    assert found.lens_kl is None
    assert found.heads is None
    assert found.kl is not None
    assert found.notes[0] == "lens and heads, layer by layer: 3 layers and 2"
    assert any(note.endswith("only in one model, or of another shape") for note in found.notes)
    assert {part.norm_b for part in found.weights if part.name.startswith("blocks.2.")} == {None}
    fewer = build(random_network(replace(OURS["grouped"], n_heads=4)))
    found = compare(model, fewer, TEXT)
    assert found.heads is None
    assert found.lens_kl is not None
    assert "heads: 8 a layer and 4" in found.notes
    assert any(part.norm_b is not None and part.change is None for part in found.weights)
    other = build(random_network(replace(OURS["grouped"], d_vocab=70)))
    other.tokenizer = IdTokenizer(70)
    found = compare(model, other, TEXT)
    assert found.kl is found.heads is found.lens_kl is None
    assert "vocabularies of 67 and 70 tokens" in found.notes[0]
    assert isinstance(found.figures()[-1], Prose)
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(InsideError, match="a text of two tokens or more"):
        compare(model, other, [[3], [4]])


# --- findings ----------------------------------------------------------------------------------------------


def of_kind(found: Findings, kind: str) -> dict[str, float]:
    return {finding.where: finding.value for finding in found.found if finding.kind == kind}


def test_faults_that_were_put_in_are_found_and_no_others(model: LanguageModel) -> None:
    """A head whose W_O is zero, and one whose W_O is so small that no prediction tells."""
    assert {finding.kind for finding in findings(model, TEXT).found} <= {"repetition"}  # the weights are random
    with torch.no_grad():
        attention = model.network.blocks[1].attn
        attention.out.weight[:, 3 * 8 : 4 * 8] = 0
        attention.out.weight[:, 5 * 8 : 6 * 8] *= 1e-3  # too little to change a prediction, not too short to see
    found = findings(model, [TEXT, SHORT])
    dead = of_kind(found, "dead head")
    assert set(dead) == {"1.3", "1.5"}
    assert {finding.kind for finding in found.found} <= {"dead head", "repetition"}
    assert dead["1.3"] == 0
    assert found.n_tokens == 24  # a text too short to speak is left out
    assert found.size[1, 3] == 0
    assert found.effect[1, 3] == 0
    assert found.effect.shape == (3, 8)
    assert np.isfinite(found.effect).all()
    assert found.effect[1, 4] > 1e-4
    says = next(finding.says for finding in found.found if finding.where == "1.3")
    assert says.startswith("Head 1.3 is dead on this text: what it adds is 0 of the stream's length (threshold 0.0001")


def test_the_effect_of_a_head_is_that_of_its_ablation(model: LanguageModel) -> None:
    found = findings(model, TEXT)
    plain = model.logits(TEXT).double().log_softmax(-1)
    weight = model.network.blocks[2].attn.out.weight
    with torch.no_grad():
        weight[:, 6 * 8 : 7 * 8] = 0
    cut = model.logits(TEXT).double().log_softmax(-1)
    assert found.effect[2, 6] == pytest.approx(float((plain.exp() * (plain - cut)).sum(-1).mean()), rel=1e-3)


def test_collapsed_attention_is_told_from_a_sink(build: Build) -> None:
    model = build("grouped")
    heads = model.config.n_heads * model.config.d_head
    with torch.no_grad():
        model.network.blocks[0].attn.qkv.weight[:heads] *= 3000  # scores so large that a softmax picks one key
    found = findings(model, TEXT)
    still = of_kind(found, "collapsed attention")
    assert set(still) == {f"0.{head}" for head in range(8)}
    assert max(found.entropy[0]) < 0.01 < min(found.entropy[1])
    assert max(still.values()) < 0.01
    assert found.heading == f"Findings on 24 tokens: {len(found.found)} findings"
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_head_on_the_first_position_is_said_to_be_there() -> None:
    first = np.zeros((3, 8))
    first[2, 7] = 0.995
    spread = np.full((3, 8), 0.005)
    spread[0] = 1.0
    found = {finding.where: finding.says for finding in collapsed(spread, first)}
    assert "only at the first position: 99.50% of its attention (threshold 99%" in found["2.7"]
    assert "looks at one key for every query: entropy 0.005 nats" in found["1.0"]
    assert len(found) == 16


def log(folder: Path, losses: list[float | None]) -> Path:
    lines = [json.dumps({"step": 10 * i + 10, "loss": loss}) for i, loss in enumerate(losses)]
    lines[5:5] = [json.dumps({"step": 50, "val_loss": 3.0}), json.dumps({"step": 50, "sample": "loss"})]
    (folder / "log.jsonl").write_text("\n".join(lines) + '\n{"step": 99')
    return folder


def test_spikes_of_a_run_are_found_by_its_own_noise(model: LanguageModel, tmp_path: Path) -> None:
    """A falling, noisy loss has none; one jump of three records is one finding, at its highest."""
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist()
    losses = [2 + 2.5 * math.exp(-i / 30) + 0.05 * x for i, x in enumerate(noise)]
    assert spikes(range(200), losses) == []
    jumped = [*losses[:120], losses[120] + 1.0, losses[121] + 1.5, losses[122] + 0.8, *losses[123:]]
    (spike,) = spikes(range(200), jumped)
    assert spike.where == "step 121"
    assert spike.value > 8
    assert f"{jumped[121]:.3g} where" in spike.says
    assert spikes(range(200), [losses[0], 9.0, *losses[2:]])[0].where == "step 1"
    assert spikes(range(60), [8.35, 8.36, 8.2, 7.9, *(7.0 + x / 50 for x in noise[4:60])]) == []  # fell, then rested

    found = findings(model, TEXT, run=log(tmp_path, [*jumped[:150], None, *jumped[151:]]))
    assert of_kind(found, "loss spike").keys() == {"step 1220", "step 1510"}
    assert len(found.losses) == 199
    (tmp_path / "step-00000100").mkdir()
    assert losses_of(tmp_path / "step-00000100")[0][:3] == [10, 20, 30]
    with pytest.raises(InsideError, match=r"has no log\.jsonl: give the folder of a run"):
        findings(model, TEXT, run=tmp_path / "step-00000100" / "state")


def test_a_model_in_a_circle_repeats_itself(model: LanguageModel) -> None:
    """Without attention and feed-forwards each token has one follower, so a greedy text must run in a circle."""
    assert findings(model, TEXT).repeated is not None
    with torch.no_grad():
        for block in model.network.blocks:
            block.attn.out.weight.zero_()
            block.ff.down.weight.zero_()
    found = findings(model, TEXT)
    room = max(model.config.n_ctx - 96, model.config.n_ctx // 2)
    new = model.generate(TEXT[-room:], max_tokens=96, temperature=0).tokens
    grams = [tuple(new[i : i + 4]) for i in range(len(new) - 3)]
    assert found.repeated == pytest.approx(1 - len(set(grams)) / len(grams))
    assert of_kind(found, "repetition") == {"continuation": found.repeated}
    assert len(of_kind(found, "dead head")) == 24
    with pytest.raises(InsideError, match="at least 8 tokens"):
        findings(model, SHORT)
