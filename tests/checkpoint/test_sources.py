"""Names become files: paths, names and aliases, and the list of them. No test reaches the network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.checkpoint.aliases import ALIASES, MODEL_TYPES
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.sources import bundled_models, cache_folder, default_model, known_models, resolve
from cutaway.errors import SourceError
from support.sources import (
    DOWNLOAD,
    GGUF,
    child_environment,
    kept,
    model_folder,
    refusal,
)

pytestmark = pytest.mark.usefixtures("apart")


# Local paths


def test_a_folder_and_a_gguf_file_are_themselves(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "home" / "mine")
    (folder / "x.gguf").write_bytes(GGUF)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve(folder) == resolve(str(folder)) == resolve("~/mine") == folder
    assert resolve(folder / "x.gguf") == resolve("~/mine/x.gguf") == folder / "x.gguf"
    monkeypatch.chdir(folder.parent)
    assert resolve("mine") == Path("mine")


def test_a_local_model_comes_before_an_alias_but_any_other_folder_does_not(hub):
    Path("gpt2").mkdir()
    assert resolve("gpt2") == hub.folder
    Path("gpt2/config.json").write_text("{}")
    assert resolve("gpt2") == Path("gpt2")


def test_a_missing_path_names_its_nearest_parent_and_what_is_like_it(tmp_path):
    model_folder(tmp_path / "models" / "gpt-small")
    said = refusal(tmp_path / "models" / "gpt-smal" / "last")
    assert f"nearest existing parent is '{tmp_path / 'models'}', which holds 'gpt-small'" in said
    assert "holds nothing like 'zzz'" in refusal(str(tmp_path / "zzz"))
    assert "'absent.gguf' does not exist" in refusal("absent.gguf")
    assert "'./absent' does not exist" in refusal("./absent")
    Path("runs").mkdir()
    assert "nearest existing parent is 'runs'" in refusal("runs/one")  # not taken for a Hub id


def test_a_path_that_is_no_model_says_what_to_give(tmp_path):
    Path("plain").mkdir()
    assert "no config.json: give one that has" in refusal("plain")
    Path("plain/a.gguf").write_bytes(GGUF)
    assert "name its file 'a.gguf'" in refusal("plain")
    Path("model.safetensors").write_bytes(b"")
    assert "give that, or the folder that holds config.json" in refusal("model.safetensors")
    assert "File name too long" in refusal("x" * 5000)
    assert len(refusal("x/" * 5000)) < 1000


def test_a_revision_is_for_the_hub(tmp_path):
    assert "leave it out" in refusal(model_folder(tmp_path / "m"), revision="main")


# Names


def test_a_typo_is_answered_with_the_nearest_name(tmp_path):
    assert "did you mean 'smollm2'" in refusal("smolm2")
    assert "did you mean 'pythia-70m'" in refusal("Pythia70m")
    model_folder(tmp_path / "bundled" / "bard")
    assert "did you mean 'bard'" in refusal("brad")


@pytest.mark.parametrize(
    "name",
    ["", "a b", "https://example.org/a/b", "org/", "org/a--b", "org/a:b", "org/" + "a" * 99, "o/é", "a\0"],
)
def test_what_is_outside_the_id_grammar_is_no_hub_id(name, hub):
    assert "no model named" in refusal(name)
    assert hub.downloads == []


@pytest.mark.parametrize("name", ["../../etc", "org/..", "org/x:../../y.gguf", "org/x:/etc/y.gguf", "./../x/.."])
def test_no_name_climbs_out_of_a_folder(name, hub):
    refusal(name)
    assert hub.downloads == []


@settings(max_examples=200)
@given(st.text(max_size=40) | st.text("./:~ab-gu\\f", max_size=24))
def test_any_text_is_a_model_or_one_line(name):
    try:
        resolve(name)
    except SourceError as error:
        assert str(error).isprintable()


def test_bundled_models_are_found_by_listing_and_come_first(tmp_path, monkeypatch):
    assert bundled_models() == {} and default_model() == "smollm2"
    bard = model_folder(tmp_path / "bundled" / "bard")
    (tmp_path / "bundled" / "notes").mkdir()
    assert bundled_models() == {"bard": bard} and default_model() == "bard"
    Path("bard").mkdir()
    assert resolve("bard") == resolve("Bard") == bard
    monkeypatch.setenv("CUTAWAY_MODEL", "gpt2")
    assert default_model() == "gpt2"


def test_the_cache_follows_the_platform(monkeypatch):
    monkeypatch.setenv("CUTAWAY_CACHE", "~/c")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder() == Path("/h/c")
    monkeypatch.delenv("CUTAWAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/cutaway")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/h/.cache/cutaway")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path("/h/Library/Caches/cutaway")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/l")
    assert cache_folder() == Path("/l/cutaway")


def test_a_local_name_imports_neither_torch_nor_the_hub(tmp_path):
    folder = model_folder(tmp_path / "m")
    code = (
        "import sys; from cutaway.checkpoint.sources import resolve; resolve(sys.argv[1]);"
        "sys.exit(len({'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, folder], env=child_environment()).returncode == 0


def test_the_list_of_families_is_that_of_the_families():
    assert set(FAMILIES) == MODEL_TYPES


# The list


@pytest.fixture
def hub_cache(tmp_path: Path) -> Iterator[Path]:
    """huggingface_hub's cache: a gpt2, one with a GGUF file too, and three that are not to be listed."""
    root = tmp_path / "hub"
    for repo, files in {
        "openai-community/gpt2": {"config.json": '{"model_type": "gpt2"}', "model.safetensors": "12345678"},
        "org/both": {"config.json": '{"model_type": "llama"}', "model.safetensors": "1", "q/a.gguf": "123"},
        "org/foreign": {"config.json": '{"model_type": "bert"}', "model.safetensors": "1"},
        "org/half": {"config.json": '{"model_type": "llama"}', "model-00001-of-00002.safetensors": "1"},
        "org/broken": {"config.json": "{", "model.safetensors": "1"},
    }.items():
        folder = root / f"models--{repo.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "blobs").mkdir()
        (folder / "refs" / "main").write_text("c" * 40)
        for number, (name, text) in enumerate({**files, "tokenizer.json": "{}"}.items()):
            path = folder / "snapshots" / ("c" * 40) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (folder / "blobs" / str(number)).write_text(text)
            path.symlink_to(folder / "blobs" / str(number))
    return root


def test_the_list_holds_each_model_once(copied, tmp_path, monkeypatch, hub_cache):
    (model_folder(tmp_path / "bundled" / "bard") / "x").write_bytes(bytes(8))
    resolve("smollm2", progress=False)
    listed = {entry.name: entry for entry in known_models()}
    assert [name for name, entry in listed.items() if entry.where == "bundled"] == ["bard"]
    cached = [name for name, entry in listed.items() if entry.where == "cached"]
    assert cached == ["smollm2", "gpt2", "org/both", "org/both:q/a.gguf"]
    assert listed["bard"].n_bytes == 10
    assert listed["smollm2"].n_bytes == len(GGUF) and listed["smollm2"].path == kept()
    assert listed["gpt2"].n_bytes == 32 and listed["gpt2"].licence == "MIT"
    assert listed["org/both"].licence is None and listed["org/both:q/a.gguf"].n_bytes == 3
    assert listed["gemma3-270m"].where == "known" and listed["gemma3-270m"].licence == "Gemma terms, gated"
    assert listed["gemma3-270m"].path is None
    assert len(listed) == len(known_models()) == 1 + 4 + len(ALIASES) - 2
    monkeypatch.setattr(huggingface_hub, "snapshot_download", DOWNLOAD)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert [resolve(name) for name in cached] == [listed[name].path for name in cached]


def test_the_list_needs_no_cache(monkeypatch):
    assert [entry.name for entry in known_models()] == list(ALIASES)
    assert all(entry.where == "known" for entry in known_models())
