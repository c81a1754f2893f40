"""The whole account of a model: from any name, in plain data and in figures, by call and by command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cutaway
from cutaway.account.cost import cost
from cutaway.account.models import config_of
from cutaway.cli import main
from cutaway.errors import ConfigError, CutawayError, SourceError
from cutaway.figures import Bars, Lines, Prose, Table
from cutaway.presets import PRESETS
from support.tiny import OURS, reference_folder


def test_gpt3_in_plain_data() -> None:
    found = cutaway.cost("gpt3", context=2048)
    assert found.to_dict()["parameters"]["total"] == 174_604_259_328
    assert isinstance(found.to_dict()["parameters"]["total"], int)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["flops"]["squares_overtake_feedforward"] == 49_152
    assert plain["memory"]["weights"]["bfloat16"] == 2 * 174_604_259_328
    assert plain["memory"]["kv_cache"] == 2 * 96 * 12_288 * 2048 * 2
    assert plain["time"] is None and plain["hardware"] is None and plain["scale"] == [] and plain["measured"] == []
    assert "causal half is not cut" in plain["flops"]["convention"]


def test_its_figures() -> None:
    found = cost("gpt2", hardware="a100", gpus=8, train_tokens=10**10)
    kinds = [type(figure) for figure in found.figures()]
    assert set(kinds) == {Prose, Table, Bars, Lines}
    titles = [figure.title for figure in found.figures()]
    assert any("A100" in title for title in titles)
    lines = next(figure for figure in found.figures() if isinstance(figure, Lines))
    squares, feedforward = lines.series[:2]
    assert [round(b / a) for a, b in zip(squares.y[:5], squares.y[1:6], strict=True)] == [4] * 5
    assert [round(b / a) for a, b in zip(feedforward.y[:5], feedforward.y[1:6], strict=True)] == [2] * 5
    table = next(figure for figure in found.figures() if isinstance(figure, Table))
    assert table.rows[-1][4] == "124,439,808"
    assert any("causal half is not cut" in figure.note for figure in found.figures())
    for figure in found.figures():
        json.dumps(figure.to_dict(), allow_nan=False)


def test_a_step_of_training_moves_what_its_optimizer_keeps() -> None:
    adamw, muon = (
        cost("gpt2", hardware="a100", optimizer=name).to_dict()["time"]["training_step"]["n_bytes"]
        for name in ("adamw", "muon")
    )
    assert adamw == 2 * 4 * 4 * 124_439_808  # weights, gradients and two numbers more, read and written
    assert adamw - muon == 2 * 4 * 12 * 12 * 768**2  # Muon: one number less for each weight of a block's matrices


@pytest.mark.parametrize(("context", "is_told"), [(1024, True), (526, True), (525, False)])
def test_more_tokens_than_the_model_reads_are_told(context: int, is_told: bool) -> None:
    """500 new tokens after 525: the last one is written and not read, so 1,024 are."""
    found = cost("gpt2", context=context, tokens=500)
    work = next(figure for figure in found.figures() if figure.title.startswith("Work [FLOP]"))
    assert isinstance(work, Table)
    assert ("The model reads 1,024 tokens at most" in work.note) == is_told
    if context == 526:
        assert "1 fewer than 500 new ones take" in work.note


def test_what_fits_is_told_at_the_top() -> None:
    """Llama 2 7B on 80 GB: 13.48 GB of weights, 524,288 bytes a token of keys and values."""
    found = cost("llama2-7b", hardware="a100", gpus=8, batch=4, recompute=True)
    fits = found.fits
    assert fits is not None and found.to_dict()["fits"] == fits
    assert (fits["running"], fits["training"]) == (True, False)
    assert fits["cached_tokens"] == (80 * 10**9 - 2 * 6_738_415_616) // 524_288 == 126_882
    assert fits["training_bytes"] == found.scales[0].n_bytes
    prose = found.figures()[0]
    assert isinstance(prose, Prose)
    assert "takes 23.96 GB and fits; beside the weights there is room for keys and values of 126,882" in prose.lines[-2]
    assert (
        "takes 134.4 GB and does not fit; fully sharded over 8 it takes 29.56 GB of each and fits." in prose.lines[-1]
    )
    notes = [figure.note for figure in found.figures() if isinstance(figure, Table)]
    assert any("FLOP without what is recomputed; 4 × 4,096 tokens a GPU" in note for note in notes)
    assert any(note.startswith("4 × 4,096 tokens. The longer of computing") for note in notes)
    small = cost("llama3-8b", hardware="v100", dtype="float32")
    assert small.fits is not None and small.fits["cached_tokens"] == 0 and not small.fits["running"]
    assert "leave no room" in small.figures()[0].lines[-2]  # type: ignore[attr-defined]
    assert cost("gpt2").fits is None


def test_another_type_is_named_where_the_rate_of_this_one_is_unknown() -> None:
    (table,) = [figure for figure in cost("gpt2", hardware="v100").figures() if figure.title.startswith("Time at best")]
    assert isinstance(table, Table)
    assert "Its rate is published for float32 and float16: give --dtype." in table.note


def test_time_is_unknown_without_hardware() -> None:
    prose = cost("gpt2").figures()[0]
    assert isinstance(prose, Prose)
    assert any(line.startswith("Time: unknown") for line in prose.lines)
    unknown = next(figure for figure in cost("gpt2", hardware="t4").figures() if "Time" in figure.title)
    assert isinstance(unknown, Table)
    assert {row[3] for row in unknown.rows} == {"unknown"}  # a T4 has no products in bfloat16


def test_measured_beside_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutaway.account.measure.SPENT", 0.0001)
    monkeypatch.setattr("cutaway.account.machine.matrix_peak", lambda dtype, device: 1e11)
    monkeypatch.setattr("cutaway.account.machine.memory_bandwidth", lambda device: 1e10)
    found = cost(OURS["classic"], measure=True)
    assert found.asked.dtype == "float32"
    assert found.hardware is not None and found.hardware.source.startswith("measured here")
    table = found.figures()[1]
    assert isinstance(table, Table)
    n = f"{67 * 32 + 64 * 32 + 3 * (12 * 32**2 + 9 * 32 + 4 * 32) + 2 * 32:,}"  # tables, blocks, final norm
    assert ["parameters", n, n, "exact", ""] in [list(row) for row in table.rows]
    assert json.loads(json.dumps(found.to_dict()))["measured"][0]["error"] == 0


# --- what may be named -------------------------------------------------------------------------------------


def test_a_config_in_a_file(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs"
    for name, config in OURS.items():
        ours.write_text(json.dumps(config.to_dict()))
        assert config_of(ours) == (str(ours), config), name
    model = reference_folder(theirs, "llama")
    n = sum(parameter.numel() for parameter in model.parameters())
    for path in (theirs, theirs / "config.json", str(theirs / "config.json")):
        assert cost(path).to_dict()["parameters"]["total"] == n


def test_a_loaded_model_a_config_a_preset_and_a_bundled_name(tmp_path: Path) -> None:
    model = cutaway.load("bard")
    n = sum(parameter.numel() for parameter in model.network.parameters())
    for named in (model, model.network, model.config, "bard"):
        assert cost(named).to_dict()["parameters"]["total"] == n
    assert config_of("GPT2") == ("gpt2", PRESETS["gpt2"])


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"model": "gtp3"}, "among presets there is gpt3"),
        ({"model": 7}, "7: give a preset, a config.json"),
        ({"context": 1025}, "context = 1025: the model reads 1024 tokens at most"),
        ({"context": 0}, "context = 0: it must be a whole number from 1 to 1024"),
        ({"batch": 0}, "batch = 0"),
        ({"tokens": 0}, "tokens = 0"),
        ({"tokens": 1.5}, "tokens = 1.5: it must be a whole number"),
        ({"dtype": "fp8"}, "dtype = 'fp8': use float32 or bfloat16 or float16"),
        ({"optimizer": "sgd"}, "optimizer = 'sgd': use adamw or muon"),
        ({"hardware": "h10"}, "did you mean h100"),
        ({"gpus": 8}, "gpus = 8: of which kind"),
        ({"train_tokens": 10**9}, "train_tokens = 1000000000: on which kind"),
        ({"share": "all"}, "share = 'all'"),
        ({"hardware": 3}, "hardware = 3: it must be a name"),
        ({"gpus": 0, "hardware": "h100"}, "gpus = 0"),
        ({"share": 0.0}, "share = 0.0"),
    ],
)
def test_what_does_not_fit_is_told(wrong: dict[str, Any], message: str) -> None:
    choices: dict[str, Any] = {"model": "gpt2", **wrong}
    with pytest.raises(CutawayError, match=message):
        cost(**choices)
    kind = SourceError if "model" in wrong else ConfigError
    with pytest.raises(kind):
        cost(**choices)


# --- the command -------------------------------------------------------------------------------------------


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "cost.html"
    assert main(["cost", "gpt3", "--context", "2048", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "174,604,259,328" in printed and "4d²" in printed and "49,152" in printed
    assert "174,604,259,328" in page.read_text(encoding="utf-8")
    assert main(["cost", "gpt3", "--json", "--tokens", "2k", "--hardware", "h100", "--train-tokens", "300B"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["flops"]["generation"]["tokens"] == 2000
    assert plain["scale"][0]["n_tokens"] == 300 * 10**9
    assert main(["cost", "gpt3", "--tokens", "many"]) == 2
    assert main(["cost", "gtp3"]) == 1
    assert main(["cost", "gpt3", "-m", "gpt2"]) == 2


def test_a_preset_needs_no_torch() -> None:
    code = (
        "import sys, cutaway; cutaway.cost('gpt3').to_dict(); cutaway.cost('gpt3', hardware='h100', gpus=8).figures();"
        "print([m for m in ('torch', 'transformers', 'huggingface_hub', 'numba') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
