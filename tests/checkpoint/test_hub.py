"""Models of the Hub: what is fetched, what is used again, what is refused. No test reaches the network."""

from __future__ import annotations

from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from cutaway.checkpoint.sources import resolve
from support.sources import (
    DOWNLOAD,
    REPO,
    WANTED,
    refusal,
)

pytestmark = pytest.mark.usefixtures("apart")


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
    assert "no config.json with all its safetensors" in refusal(REPO)
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
    assert "org/tiny has no file 'absent.gguf'" in refusal(f"{REPO}:absent.gguf")
    hub.files = ["a.gguf", "b.gguf"]
    assert "name one, 'org/tiny:FILE.gguf'" in refusal(REPO)


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
    assert said in refusal(REPO, revision="v9")


def test_offline_is_honoured_by_the_library_itself(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", DOWNLOAD)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set: unset it" in refusal("org/never-downloaded")


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
