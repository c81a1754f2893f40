"""cutaway verify: what was loaded is shown, green is 0 and red is 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.commands import Commands, save_model


def test_a_sound_model_is_green(cutaway: Commands, talker: Path) -> None:
    code, out, err = cutaway("verify", talker)
    assert (code, err) == (0, "")
    for said in (
        f"source     {talker}",
        "family     llama",
        "float32 now, float32 in the file",
        "0 unused",
        "rotary, theta 10000, 8 of 8 coordinates turn; layers 0–2",
        "causal; layers 0–2",
        "tied to the embedding",
        "258 ids, begin 256, end none, with a chat template",
        "all 7 checks passed",
    ):
        assert said in out
    assert cutaway("verify", "-m", talker)[0] == 0


def test_json_has_all_of_it(cutaway: Commands, counter: Path) -> None:
    code, out, _ = cutaway("verify", counter, "--dtype", "bf16", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["passed"] is True
    assert (found["stored"], found["dtype"]) == ("float32", "bfloat16")
    assert found["tokenizer"] is None
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert states.pop("tokenizer round trip") == "skipped"
    assert set(states.values()) == {"passed"}
    assert "transformers" in states


def test_a_name_in_a_file_cannot_drive_the_terminal(cutaway: Commands, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "odd")
    weights = load_file(folder / "model.safetensors") | {"\x1b[2Jgone\r": torch.ones(1)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    code, out, err = cutaway("verify", folder)
    assert code == 0
    for said in (out, err):
        assert "␛[2Jgone" in said
        assert "\x1b" not in said
        assert "\r" not in said


def test_a_broken_model_is_red(cutaway: Commands, tmp_path: Path) -> None:
    """Weights that are no numbers: `run` stops with an error that leads here, and here it is seen."""
    folder = save_model(tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "NaN" in cutaway.error("run", "-m", folder, "x")
    code, out, _ = cutaway("verify", folder)
    assert code == 1
    assert "FAILED" in out
    assert "checks failed" in out
    code, out, _ = cutaway("verify", folder, "--json")
    assert code == 1
    [cached] = [check for check in json.loads(out)["checks"] if check["name"] == "cached = full"]
    assert (cached["state"], cached["error"]) == ("failed", None)


def test_a_model_named_twice_is_exit_code_2(cutaway: Commands, talker: Path) -> None:
    code, _, err = cutaway("verify", talker, "-m", talker)
    assert code == 2
    assert "name the model once" in err


@pytest.mark.parametrize("damage", [b"", b"{"])
def test_files_that_cannot_be_loaded_are_one_line(damage: bytes, cutaway: Commands, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "damaged")
    (folder / "config.json").write_bytes(damage)
    assert "config.json" in cutaway.error("verify", folder)
