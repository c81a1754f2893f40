"""A model that is served, and its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway
from cutaway.language_model import LanguageModel
from support.commands import save_model
from support.serving import Live, serving


@pytest.fixture(scope="session")
def talker_model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """Reads and writes bytes, has a chat template and a begin token, never ends by itself."""
    return cutaway.load(save_model(tmp_path_factory.mktemp("served") / "talker"), progress=False)


@pytest.fixture(scope="session")
def talker(talker_model: LanguageModel) -> Iterator[Live]:
    """A server of that model."""
    with serving(talker_model) as live:
        yield live


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"
