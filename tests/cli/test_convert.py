"""cutaway convert: a folder or a file that others load with equal logits, and nothing overwritten by surprise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import cutaway as library
from support.commands import Commands
from support.gguf_files import write_gguf
from support.tiny import distance, random_tokens, reference_folder, reference_model


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_a_folder_goes_round_without_loss(family: str, cutaway: Commands, tmp_path: Path) -> None:
    theirs = reference_folder(tmp_path / "in", family)
    code, out, err = cutaway("convert", tmp_path / "in", tmp_path / "out")
    assert code == 0, err
    assert out.splitlines()[0] == f"{tmp_path / 'out'}: 3 files, {out.split(', ')[1]}, weights in float32"
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert type(again) is type(theirs)
    state = theirs.state_dict()
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, state[name]), name
    tokens = random_tokens(1, 12)
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, theirs(tokens).logits)


def test_a_gguf_file_becomes_a_folder(cutaway: Commands, tmp_path: Path) -> None:
    """C2: with 8 query and 2 key heads, the rows that GGUF reorders are back in their places."""
    theirs = reference_model("llama", intermediate_size=64)
    file = write_gguf(tmp_path / "tiny.gguf", theirs)
    code, out, err = cutaway("convert", file, tmp_path / "out")
    assert code == 0, err
    assert "weights in float32" in out
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokens = random_tokens(1, 12)
    with torch.inference_mode():
        assert torch.equal(again(tokens).logits, theirs(tokens).logits)
    quantised = write_gguf(tmp_path / "small.gguf", theirs, kind="Q8_0")
    assert cutaway("convert", quantised, tmp_path / "half", "--dtype", "bf16")[0] == 0
    direct = library.load(quantised, dtype="bf16").network.state_dict()
    for name, weight in library.load(tmp_path / "half").network.state_dict().items():
        assert torch.equal(weight, direct[name]), name


def test_a_folder_becomes_a_gguf_file(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "talker.gguf"
    code, out, err = cutaway("convert", talker, file)
    assert (code, out) == (0, f"{file}: {file.stat().st_size / 1e3:.1f} kB, weights in f32\n"), err
    assert err == ("note: the tokenizer has no end token, a GGUF file cannot say so: llama.cpp ends texts at id 11\n")
    before, after = library.load(talker), library.load(file)
    ids = before.encode("naïve 😸\n42")
    assert after.encode("naïve 😸\n42") == ids
    assert after.tokenizer.chat_template == before.tokenizer.chat_template
    assert torch.equal(after.logits(ids), before.logits(ids))


def test_to_says_what_to_write_whatever_the_name(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    file = tmp_path / "talker"
    code, out, _ = cutaway("convert", talker, file, "--to", "gguf", "--dtype", "Q8_0", "--json")
    assert code == 0
    assert json.loads(out) == {
        "source": str(talker), "file": str(file), "dtype": "q8_0", "files": {"talker": file.stat().st_size},
    }  # fmt: skip
    assert file.read_bytes()[:4] == b"GGUF"
    assert cutaway("convert", talker, tmp_path / "folder.gguf", "--to", "folder")[0] == 0
    assert (tmp_path / "folder.gguf" / "config.json").is_file()
    assert cutaway("convert", talker, tmp_path / "x", "--to", "onnx")[0] == 2


def test_a_file_in_the_way_stops_it_unless_forced(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    file = tmp_path / "talker.gguf"
    file.write_text("mine")
    assert "already exists: name another file, or add --force" in cutaway.error("convert", talker, file)
    assert file.read_text() == "mine"
    assert cutaway("convert", talker, file, "--force")[0] == 0
    before = file.read_bytes()
    assert "is what is being read" in cutaway.error("convert", file, file, "--force")
    assert "is a folder: name a file" in cutaway.error("convert", talker, tmp_path, "--to", "gguf")
    assert "is a folder: name a file" in cutaway.error("convert", talker, tmp_path, "--to", "gguf", "--force")
    assert [path.name for path in tmp_path.iterdir()] == ["talker.gguf"]
    assert file.read_bytes() == before


def test_each_kind_of_output_has_its_types(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    wrong = cutaway.error("convert", talker, tmp_path / "x.gguf", "--dtype", "bfloat16")
    assert wrong == "dtype = 'bfloat16': a GGUF file is written in f32, f16 or q8_0"
    assert "use float32, bfloat16 or float16" in cutaway.error("convert", talker, tmp_path / "x", "--dtype", "q8_0")
    assert not list(tmp_path.iterdir())


def test_what_llama_cpp_does_not_have_is_refused(cutaway: Commands, tmp_path: Path) -> None:
    reference_folder(tmp_path / "in", "qwen3")
    code, _, err = cutaway("convert", tmp_path / "in", tmp_path / "x.gguf")
    assert (code, err.splitlines()[-1]) == (
        1,
        "error: attention.qk_norm = head: llama.cpp's llama has None, and GGUF is written for its gpt2 and "
        "llama alone: convert to a folder instead",
    )
    assert not (tmp_path / "x.gguf").exists()


def test_the_tokenizer_goes_along(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    assert cutaway("convert", talker, tmp_path / "out")[0] == 0
    text = "naïve 😸"
    ids = library.load(talker).encode(text, bos=False)
    assert library.load(tmp_path / "out").encode(text, bos=False) == ids
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode(text, add_special_tokens=False) == ids


def test_dtype_is_what_gets_written(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "half"
    code, said, _ = cutaway("convert", talker, out, "--dtype", "bfloat16", "--json")
    assert code == 0
    told = json.loads(said)
    assert (told["source"], told["folder"], told["dtype"]) == (str(talker), str(out), "bfloat16")
    assert told["files"] == {path.name: path.stat().st_size for path in out.iterdir()}
    with safe_open(out / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    half, whole = library.load(out, dtype="float32"), library.load(talker)
    assert 0 < distance(half.logits([1, 2, 3]), whole.logits([1, 2, 3])) < 0.1


def test_files_in_the_way_stop_it_unless_forced(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert "already holds 1 file" in cutaway.error("convert", talker, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    code, said, _ = cutaway("convert", talker, out, "--force", "--json")
    assert code == 0
    assert "mine.txt" not in json.loads(said)["files"]
    assert (out / "mine.txt").read_text() == "mine"
    assert library.load(out).config == library.load(talker).config


def test_places_that_cannot_be_written_are_named(cutaway: Commands, talker: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "is a file" in cutaway.error("convert", talker, file)
    assert "is what is being read" in cutaway.error("convert", talker, talker, "--force")
    assert "does not exist" in cutaway.error("convert", tmp_path / "missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["folder", "gguf"])
def test_a_name_that_is_empty_is_not_the_current_folder(
    cutaway: Commands, talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cutaway.error("convert", talker, "", "--to", to)
    assert "OUT is empty: name a folder or a .gguf file" in said
    assert not list(tmp_path.iterdir())
