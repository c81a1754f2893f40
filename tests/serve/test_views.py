"""What the page asks of the server: numbers held against the pass itself, bounds, turns, and what is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cutaway.errors import InsideError, ServeError
from cutaway.figures import Figure, Prose, Result
from cutaway.inside.attention import Attention, HeadAttention, attention
from cutaway.inside.edits import Zero
from cutaway.inside.effects import effects
from cutaway.language_model import LanguageModel
from cutaway.serve.experiment import experiment
from cutaway.serve.kept import Answer, Kept
from cutaway.serve.neurons import neurons
from cutaway.serve.questions import MOST, MOST_HELD, MOST_SWEPT, QUESTIONS
from cutaway.serve.reply import Refusal
from cutaway.serve.runlog import read_run
from cutaway.serve.staged import STAGES, staged
from cutaway.serve.tower import Tower, tower
from cutaway.serve.views import Exhibits
from cutaway.serve.written import explained, next_of
from support.serving import Live, error_of, lines_of, serving

TEXT = "to be or not to be"
API = "/page/api"


@pytest.fixture(scope="module")
def live(talker_model: LanguageModel) -> Iterator[Live]:
    with serving(talker_model, exhibits=Exhibits(others={"the same": talker_model})) as found:
        yield found


# ---- the numbers


def test_the_next_token_as_each_step_of_sampling_leaves_it(talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT)
    generation = explained(talker_model, ids, {"temperature": 0.5, "top_k": 4, "min_p": 0.9, "seed": 1})
    logits = talker_model.logits(ids)
    assert isinstance(logits, torch.Tensor)
    piece = generation.take(logits[-1])
    found = next_of(talker_model, generation)
    model, heated = (logits[-1].double() / t for t in (1.0, 0.5))
    best = model.argsort(descending=True)
    assert [c.id for c in found.candidates[:3]] == best[:3].tolist() and len(found.candidates) == 12
    first = found.candidates[0]
    assert first.model == pytest.approx(float(model.softmax(-1).max()), rel=1e-5)
    assert first.heated == pytest.approx(float(heated.softmax(-1).max()), rel=1e-5)
    kept = [c for c in found.candidates if c.removed_by is None]
    assert sum(c.final for c in kept) == pytest.approx(1) and found.picked == piece.choice.token
    assert all(c.final == 0 for c in found.candidates if c.removed_by)
    assert {c.removed_by for c in found.candidates[4:]} == {"top_k"}
    assert found.bytes[1] == "74" and found.text.endswith(TEXT)  # a begin token stands before it


def test_at_temperature_zero_all_of_it_goes_to_the_highest(talker_model: LanguageModel) -> None:
    generation = explained(talker_model, talker_model.encode(TEXT), {"temperature": 0})
    generation.take(torch.arange(talker_model.config.d_vocab).float())
    found = next_of(talker_model, generation)
    assert [c.final for c in found.candidates] == [1.0, *[0.0] * 11]
    assert found.candidates[0].id == found.picked


def test_the_tower_is_the_model(talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT)
    found, heads = tower(talker_model, ids), attention(talker_model, ids)
    assert isinstance(heads, Attention)
    assert sum(part.n_parameters for part in found.parts) == sum(p.numel() for p in talker_model.network.parameters())
    np.testing.assert_allclose(found.pictures, heads.patterns, atol=1e-6)  # shorter than a picture: nothing is pooled
    for name, scores in heads.scores.items():
        np.testing.assert_allclose(found.kinds[name], scores, atol=1e-6, err_msg=name)
    trace = talker_model.trace(ids, keep="blocks.*.resid_post")
    last = [float(value[0, -1].double().norm()) for name, value in trace.items() if name.endswith("resid_post")]  # type: ignore[union-attr]
    assert found.stream[1:] == pytest.approx(last, rel=1e-6)
    assert len(found.stream) == talker_model.config.n_layers + 1


def test_a_cell_through_all_stages(talker_model: LanguageModel) -> None:
    found = staged(talker_model, talker_model.encode(TEXT), "1.0")
    head = found.found
    assert isinstance(head, HeadAttention)
    chain, products = found.cell(-1, 2)
    numbers = {row[0]: row[1] for row in chain.rows}  # type: ignore[attr-defined]
    assert numbers["q · k"] == pytest.approx(head.scores[-1, 2]) and numbers["softmax"] == pytest.approx(
        head.pattern[-1, 2]
    )
    assert float(found.q[-1] @ found.k[2]) == pytest.approx(head.scores[-1, 2], rel=1e-4)
    assert sum(row[3] for row in products.rows) == pytest.approx(float(head.scores[-1, 2]), rel=1e-3)  # type: ignore[attr-defined]
    hidden = {row[0]: row[1:] for row in found.cell(0, 5)[0].rows}  # type: ignore[attr-defined]
    assert hidden["mask"] == [None, "hidden: −∞"] and hidden["softmax"][0] is None
    assert len(found.figures()) > len(STAGES)
    with pytest.raises(InsideError, match="position"):
        found.cell(0, 99)


def test_neurons_are_those_of_the_pass(talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT)
    value = talker_model.trace(ids, keep="blocks.1.ff.post")["blocks.1.ff.post"][0, -1]  # type: ignore[index]
    assert neurons(talker_model, ids, 1, -1).values == pytest.approx(value.numpy())
    with pytest.raises(InsideError, match="layer = 9"):
        neurons(talker_model, ids, 9, -1)


def test_an_experiment_is_two_runs(talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT)
    found = experiment(talker_model, ids, heads=[(0, 1)], n_new=4)
    edits = [Zero("blocks.0.attn.z[head 1]")]
    logits = talker_model.trace(ids, edits=edits).logits  # type: ignore[union-attr]
    assert found.changed.next == pytest.approx(logits[-1].double().softmax(-1).numpy(), rel=1e-4)
    losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
    assert found.changed.losses == pytest.approx(losses.numpy(), rel=1e-5)
    plain = talker_model.generate(ids, max_tokens=4, temperature=0)
    assert found.plain.text == plain.text and found.kl > 0  # type: ignore[union-attr]
    with pytest.raises(InsideError, match="nothing is changed"):
        experiment(talker_model, ids)


def test_an_experiment_tells_its_numbers_before_its_texts(talker_model: LanguageModel) -> None:
    ids, told = talker_model.encode(TEXT), []
    found = experiment(talker_model, ids, heads=[(0, 1)], n_new=3, progress=lambda *said: told.append(said))
    assert [said[0] for said in told] == [0, 0, 1, 2, 3, 3, 4, 5, 6] and all(said[1] == 6 for said in told)
    alone = told.pop(0)[2]
    assert (alone.changed, alone.kl) == (None, None) and alone.plain.loss == found.plain.loss
    assert [figure.kind for figure in alone.figures()] == ["table", "table", "lines"]
    json.dumps([alone.to_dict(), *(figure.to_dict() for figure in alone.figures())], allow_nan=False)
    first = told[0][2]
    assert first.kl == found.kl and first.plain.text is first.changed.text is None
    assert told[3][2].plain.text == found.plain.text and told[-1][2].changed.text == found.changed.text
    n_prose = [sum(figure.kind == "prose" for figure in one.figures()) for one in (first, told[3][2], found)]
    assert n_prose == [0, 1, 2]
    assert experiment(talker_model, ids, heads=[(0, 1)], n_new=0).plain.text is None


def test_what_is_found_so_far_is_an_answer_under_the_same_name(live: Live) -> None:
    lines = lines_of(live, "experiment", prompt=TEXT, heads=["0.1"], n_new=2)
    parts = [line["so_far"] for line in lines if "so_far" in line]
    answer = lines[-1]["answer"]
    assert len(parts) == 4 and {one["id"] for one in parts} == {answer["id"]}  # both passes, the first text twice
    assert [len(one["figures"]) for one in (*parts, answer)] == [3, 3, 4, 4, 5]
    assert live.client.get(f"{API}/answers/{answer['id']}/figures/4").status_code == 200
    lines = lines_of(live, "exact", prompt=TEXT)
    assert [len(line["so_far"]["figures"][0]["rows"]) for line in lines[:-1]] == [1, 2, 3, 4, 5, 6, 7]


def test_an_experiment_on_one_token_has_no_loss(live: Live) -> None:
    answer = lines_of(live, "experiment", prompt=[5], heads=["0.1"], n_new=2)[-1]["answer"]
    assert [figure["kind"] for figure in answer["figures"]] == ["prose", "prose", "table", "table"]
    assert answer["figures"][3]["rows"][0][1:] == [None, None, None]


def test_an_experiment_takes_each_part_once_and_is_refused_before_its_first_pass(talker_model: LanguageModel) -> None:
    ids, told = talker_model.encode(TEXT), []
    once = experiment(talker_model, ids, heads=[(0, 1)], feed_forwards=[1], how="mean", n_new=2)
    often = experiment(talker_model, ids, heads=[(0, 1)] * 3, feed_forwards=[1] * 3, how="mean", n_new=2)
    assert often.changes == once.changes and often.kl == once.kl
    for layer in (-1, 9, 10**30):
        with pytest.raises(InsideError, match=f"feed_forwards has {layer}: the model has 0 to"):
            experiment(talker_model, ids, feed_forwards=[layer], progress=lambda *done: told.append(done))
    assert told == []


def test_without_the_mask_later_tokens_are_seen(talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT)
    one, other = (experiment(talker_model, text, without=["mask"], n_new=2) for text in (ids, [*ids[:-1], ids[0]]))
    assert one.plain.losses[0] == pytest.approx(other.plain.losses[0])
    assert one.changed.losses[0] != pytest.approx(other.changed.losses[0], abs=1e-4)


def test_a_log_with_half_a_line(tmp_path: Path) -> None:
    records = [{"step": 1, "loss": 4.0}, {"step": 2, "loss": None}, {"step": 2, "val_loss": 3.5, "sample": "hm"}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + '[1]\n{"step": 3, "lo')
    found = read_run(tmp_path)
    assert found.losses == ([1], [4.0]) and found.val_losses == ([2], [3.5]) and found.samples == ((2, "hm"),)
    with pytest.raises(ServeError, match="cannot be read"):
        read_run(tmp_path / "none")


def test_estimated_effects_of_a_longer_text_come_without_progress(live: Live, talker_model: LanguageModel) -> None:
    ids = talker_model.encode(TEXT) * 9
    [line] = lines_of(live, "effects", prompt=ids, what="ff", estimate=True)
    assert len(ids) > MOST_SWEPT
    assert line["answer"]["heading"] == effects(talker_model, ids, what="ff", estimate=True).heading
    heat = next(figure for figure in line["answer"]["figures"] if figure["kind"] == "heatmap")
    assert heat["values"]["shape"] == [3, len(ids)]


def test_effects_are_estimated_before_they_are_run(live: Live) -> None:
    first, *rest = lines_of(live, "effects", prompt=TEXT)
    answer = rest[-1]["answer"]
    assert ", estimated: " in first["so_far"]["heading"] and ", estimated" not in answer["heading"]
    assert first["so_far"]["id"] == answer["id"]
    assert all("so_far" not in line for line in rest)


# ---- what a client may ask


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("look", {"prompt": [5] * (MOST + 1)}, "tokens"),
        ("look", {"prompt": "a" * 3_000_000}, "3000000 characters: this looks at 1024 tokens"),  # not even encoded
        ("look", {"promt": "a"}, "did you mean prompt"),
        ("head", {"prompt": TEXT, "head": "9.9"}, "outside"),
        ("contributions", {"prompt": TEXT, "target": {"a": 1}}, "token ="),
        ("contributions", {"prompt": TEXT, "position": 10**9}, "position"),
        ("neurons", {"prompt": TEXT, "layer": -1}, "layer = -1"),
        ("neighbours", {"token": ""}, "token = None"),
        ("neighbours", {"token": "#999999"}, "token = 999999"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(live: Live, name: str, body: dict[str, Any], words: str) -> None:
    message = live.error(f"{API}/ask/{name}", **body)["message"]
    assert words in message and "\n" not in message


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("compare", {"prompt": TEXT, "other": "/etc/passwd"}, "was started with the same"),
        ("cost", {"of": "../../etc/passwd"}, "one of gpt2"),
        ("cost", {"context": 10**8}, "context = "),
        ("effects", {"prompt": [5] * 200}, "128 at most; shorten it, or only estimate"),
        ("effects", {"prompt": [5] * (MOST_HELD + 1), "estimate": True}, "256 at most; shorten it"),
        ("exact", {"prompt": [5] * (MOST_HELD + 1)}, "256 at most"),
        ("compare", {"prompt": [5] * (MOST_HELD + 1), "other": "the same"}, "256 at most"),
        ("growing", {"prompt": TEXT, "head": "0.0"}, "no run is shown"),
        ("experiment", {"prompt": TEXT, "heads": ["7.7"]}, "outside"),
    ],
)
def test_long_questions_tell_what_is_wrong_as_their_last_line(
    live: Live, name: str, body: dict[str, Any], words: str
) -> None:
    response = live.post(f"{API}/ask/{name}", **body)
    error = json.loads(response.text.splitlines()[-1])["error"]
    assert words in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [600, 900, 10_000])
def test_what_is_nested_without_end_is_refused(live: Live, depth: int) -> None:
    """Also by what walks through the strings of a body, which gives up before the parser does."""
    body = '{"prompt": "\\u0041", "x": ' + "[" * depth + "]" * depth + "}"
    for path in (f"{API}/ask/look", f"{API}/next", "/v1/completions"):
        response = live.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert "nested too deeply" in error_of(response, 400)["message"]


def test_there_is_no_such_thing(live: Live) -> None:
    for path in ("answers/abc/figures/0", "answers/abc/html", "run"):
        error_of(live.client.get(f"{API}/{path}"), 404)
    assert "is no question" in live.error(f"{API}/ask/nonsense", 404)["message"]
    for name in ("..%2fviews.py", "%2e%2e/views.py", "views.py", "nonsense.js"):
        assert live.client.get(f"/assets/{name}").status_code == 404
    error_of(live.client.get(f"{API}/quiz/-1"), 400)


def test_every_question_names_its_fields(live: Live) -> None:
    for name in QUESTIONS:
        response = live.post(f"{API}/ask/{name}", nonsense=1)
        assert response.status_code == 400 and "nonsense is no field" in response.text


def test_figures_of_an_answer_come_when_they_are_asked_for(live: Live) -> None:
    answer = live.ok(f"{API}/ask/head", prompt=[5, 6, 7] * 70, head="0.0")
    assert answer["figures"][1] == {"kind": "heatmap", "title": "÷ √d in head 0.0", "later": True}
    whole = live.client.get(f"{API}/answers/{answer['id']}/figures/1").json()
    assert whole["values"]["shape"] == [210, 210]
    error_of(live.client.get(f"{API}/answers/{answer['id']}/figures/99"), 404)
    error_of(live.client.get(f"{API}/answers/{answer['id']}/figures/1/0.0"), 404)
    page = live.client.get(f"{API}/answers/{answer['id']}/html")
    assert page.text.startswith("<!doctype html>") and "attachment" in page.headers["content-disposition"]


def test_figures_are_not_made_by_the_event_loop(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    makers, make = [], Tower.figures

    def figures(self: Tower) -> list[Figure]:
        makers.append(threading.current_thread().name)
        return make(self)

    monkeypatch.setattr(Tower, "figures", figures)
    for _ in range(2):
        lines_of(live, "tower", prompt=TEXT)
    assert len(makers) == 2 and all(name.startswith("asyncio_") for name in makers)


# ---- what is kept


class Big(Result):
    """An answer with so many numbers."""

    heading = "big"

    def __init__(self, n_bytes: int) -> None:
        self.numbers = np.zeros(n_bytes, np.uint8)

    def figures(self) -> list[Any]:
        return [Prose(title="", lines=[])]

    def to_dict(self) -> dict[str, Any]:
        return {}


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    kept = Kept(n_kept=3, n_bytes=1000)
    answers = [Answer(Big(n)) for n in (300, 300, 300, 600, 5000)]
    for answer in answers[:3]:
        kept.add(answer)
    kept.get(answers[0].id)
    kept.add(answers[3])
    assert kept.n_bytes == 900 and kept.get(answers[0].id) is answers[0]
    with pytest.raises(Refusal, match="ask again"):
        kept.get(answers[1].id)
    kept.add(Answer(Big(300), answers[3].id))  # in the place of what was found so far: now the newest
    kept.add(Answer(Big(500)))
    assert kept.get(answers[3].id).n_bytes == 300
    kept.add(answers[4])
    assert kept.get(answers[4].id) is answers[4] and kept.n_bytes == 5000
