"""The models that the commands are tried on, and a way to call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import Commands, save_ids_model, save_model


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads and writes bytes, has a chat template and a begin token, never ends by itself."""
    return save_model(tmp_path_factory.mktemp("models") / "talker")


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has no tokenizer."""
    return save_ids_model(tmp_path_factory.mktemp("models") / "counter")


@pytest.fixture
def cutaway(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The command line."""
    return Commands(capsys, monkeypatch)
