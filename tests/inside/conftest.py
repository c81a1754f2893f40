"""Tiny models to look inside: one of ours for each kind of part, one of every foreign family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cutaway.checkpoint.folder import load_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from support.tiny import D_VOCAB, FAMILIES, OURS, random_network, reference_folder

Build = Callable[..., LanguageModel]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """A model of one of OURS or FAMILIES by name, or around a network."""

    def make(what: str | Transformer, *, end: int | None = None) -> LanguageModel:
        network = what
        if isinstance(what, str) and what in OURS:
            network = random_network(OURS[what])
        elif isinstance(what, str):
            assert what in FAMILIES
            reference_folder(tmp_path / what, what)
            network, _ = load_folder(tmp_path / what)
        assert isinstance(network, Transformer)
        report = LoadReport(family="llama", source="test", stored="float32")
        return LanguageModel(network, IdTokenizer(D_VOCAB), report, frozenset() if end is None else frozenset({end}))

    return make
