"""Folders written: what is in them, what they replace, and what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import GenerationConfig

from cutaway.checkpoint.folder import load_folder, native_family, save_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.config import ModelConfig, NoPositionConfig
from cutaway.errors import CheckpointError, ConfigError, DamagedFileError, UnsupportedError
from cutaway.language_model import LanguageModel, load
from support.folders import bytes_tokenizer, edit_config, language_model, logits
from support.tiny import OURS, random_network


def test_a_family_is_found_for_a_network_that_has_none(tmp_path: Path) -> None:
    for name, expected in {"classic": "gpt2", "parallel": "gpt_neox", "grouped": "llama"}.items():
        config = OURS[name]
        if name == "parallel":  # GPT-NeoX has biases
            config = ModelConfig.from_dict(config.to_dict() | {"attention": OURS["classic"].to_dict()["attention"]})
        assert native_family(config)[0].model_type == expected


def test_an_architecture_of_our_own_is_refused(tmp_path: Path) -> None:
    config = ModelConfig.from_dict(OURS["classic"].to_dict() | {"position": {"kind": "NoPositionConfig"}})
    assert isinstance(config.positions[0], NoPositionConfig)
    with pytest.raises(UnsupportedError, match="no transformers family"):
        save_folder(random_network(config), tmp_path / "out")


def test_a_save_that_fails_leaves_what_was_there(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = load_folder(llama)
    before = {path.name: path.read_bytes() for path in llama.iterdir()}

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cutaway.checkpoint.folder.save_file", full_disk)
    with pytest.raises(CheckpointError, match="No space left"):
        save_folder(network, llama)
    assert {path.name: path.read_bytes() for path in llama.iterdir()} == before


def test_a_full_disk_is_one_line_in_the_librarys_words_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing:\nNo space left on device")

    monkeypatch.setattr("cutaway.checkpoint.folder.save_file", full_disk)
    with pytest.raises(CheckpointError, match=r"serializing: No space left on device.*another folder"):
        save_folder(random_network(OURS["classic"]), tmp_path / "out")


STALE = ["chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"]


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_saving_over_another_model_leaves_nothing_of_it(tmp_path: Path, has_tokenizer: bool) -> None:
    """Its shards and index would lie there for nothing, its tokenizer and template be read; other files stay."""
    folder = tmp_path / "model"
    old = language_model(tokenizer=bytes_tokenizer("old"), ends=[99])
    old.save(folder)
    save_folder(old.network, folder, preferred="llama", shard_bytes=10_000)
    assert not (folder / "model.safetensors").exists()
    for name in [*STALE, "notes.txt", "other.safetensors"]:
        (folder / name).write_text("{}")
    new = language_model(tokenizer=bytes_tokenizer("new") if has_tokenizer else None, ends=[3, 5, 300])
    new.save(folder)
    tokenizer_files = {"tokenizer.json", "tokenizer_config.json"} if has_tokenizer else set()
    assert {path.name for path in folder.iterdir()} == tokenizer_files | {
        *("config.json", "generation_config.json", "model.safetensors", "notes.txt", "other.safetensors"),
    }
    again = load(folder, device="cpu")
    assert torch.equal(again.network.embed.weight, new.network.embed.weight)
    assert again.end_ids == ({3, 5, 257} if has_tokenizer else {3, 5})
    assert getattr(again.tokenizer, "chat_template", None) == ("new" if has_tokenizer else None)


def test_the_ids_are_in_generation_config(tmp_path: Path) -> None:
    """An id that the vocabulary does not have is left out alone."""
    language_model(tokenizer=bytes_tokenizer(), ends=[3, 5, 300]).save(tmp_path / "model")
    found = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert found == {"bos_token_id": 256, "eos_token_id": [3, 5], "pad_token_id": None}
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id == [3, 5]


def test_sampling_defaults_and_ids_survive_a_save(llama: Path, tmp_path: Path) -> None:
    """Without a tokenizer, whose BOS and pad are the folder's own; G11: an empty prompt begins with BOS."""
    edit_config(llama, bos_token_id=7, pad_token_id=99)
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    stated = sampling | {"eos_token_id": [1, 5], "pad_token_id": 0}
    (llama / "generation_config.json").write_text(json.dumps(stated))
    model = load(llama, device="cpu")
    assert (
        model.generate("", max_tokens=4, temperature=0).tokens
        == model.generate("7", max_tokens=4, temperature=0).tokens
    )
    model.save(tmp_path / "again")
    ids = {"bos_token_id": 7, "eos_token_id": [1, 5], "pad_token_id": 0}
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text()) == sampling | ids
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: config[name] for name in ids} == ids
    again = load(tmp_path / "again", device="cpu").tokenizer
    assert (again.bos_id, again.pad_id) == (7, 0)


def test_an_id_past_the_vocabulary_is_no_bos(llama: Path) -> None:
    (llama / "generation_config.json").unlink()
    edit_config(llama, bos_token_id=1000)
    assert load(llama, device="cpu").tokenizer.bos_id is None


def test_ids_that_only_the_config_names_survive_beside_a_tokenizer(tmp_path: Path) -> None:
    """A pad that no tokenizer file knows."""
    language_model(tokenizer=bytes_tokenizer()).save(tmp_path / "model")
    edit_config(tmp_path / "model", pad_token_id=3)
    load(tmp_path / "model", device="cpu").save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["pad_token_id"] == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", torch.bfloat16])
def test_weights_are_saved_in_the_type_asked_for(tmp_path: Path, dtype: Any) -> None:
    language_model().save(tmp_path / "model", dtype=dtype)
    assert {t.dtype for t in load_file(tmp_path / "model" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["float64", torch.float64, torch.int8, 5])
def test_a_type_that_cannot_be_loaded_is_not_saved(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(ConfigError, match=r"dtype = .*: use float32, bfloat16 or float16"):
        language_model().save(tmp_path / "model", dtype=dtype)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("device", ["meta", "nonsense", torch.device("meta"), 1.5])
def test_a_device_that_holds_no_numbers_is_refused(llama: Path, device: Any) -> None:
    with pytest.raises(ConfigError, match="device = ") as error:
        load(llama, device=device)
    assert "\n" not in str(error.value)


def test_what_no_family_can_express_writes_nothing(tmp_path: Path) -> None:
    config = ModelConfig.from_dict(OURS["classic"].to_dict() | {"position": {"kind": "NoPositionConfig"}})
    report = LoadReport(family="llama", source="test", stored="float32")
    model = LanguageModel(random_network(config), bytes_tokenizer(), report, frozenset())
    with pytest.raises(UnsupportedError):
        model.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("blocked", ["tokenizer.json", "generation_config.json", "merges.txt"])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, blocked: str) -> None:
    (tmp_path / "out" / blocked / "inside").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"cannot be written .*another folder") as error:
        language_model(tokenizer=bytes_tokenizer()).save(tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_a_folder_may_be_named_like_a_file_and_a_file_in_capitals(tmp_path: Path) -> None:
    language_model().save(tmp_path / "x.gguf")
    assert load(tmp_path / "x.gguf", device="cpu").config.d_vocab == 260
    (tmp_path / "M.GGUF").write_bytes(b"GGUF")
    with pytest.raises(DamagedFileError, match=r"M\.GGUF"):
        load(tmp_path / "M.GGUF")


def test_saving_over_the_loaded_folder_is_safe(llama: Path) -> None:
    expected = logits(llama)
    network, _ = load_folder(llama)
    save_folder(network, llama, preferred="llama")
    assert torch.equal(logits(llama), expected)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_folder(random_network(OURS["classic"]), tmp_path / "file")
