"""Tiny models put on trial, and the small ones that a claim trains, trained once for all tests."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from cutaway.checkpoint.folder import load_folder
from cutaway.checkpoint.load import LoadReport
from cutaway.claims.claim import Claim, Evidence, Finding
from cutaway.claims.lab import Lab, Small
from cutaway.claims.run import CLAIMS
from cutaway.config import ModelConfig
from cutaway.language_model import LanguageModel
from cutaway.network import Transformer
from cutaway.text.ids import IdTokenizer
from support.tiny import OURS, random_network, reference_folder

TRAINED: dict[ModelConfig, Small] = {}


def fresh(what: str | ModelConfig | Transformer, kind: type[LanguageModel] = LanguageModel) -> LanguageModel:
    """A model of one of OURS, of a foreign family, of a config, or around a network. It has no tokenizer."""
    if isinstance(what, Transformer):
        network = what
    elif isinstance(what, ModelConfig) or what in OURS:
        network = random_network(what if isinstance(what, ModelConfig) else OURS[what])
    else:
        with tempfile.TemporaryDirectory() as folder:
            reference_folder(Path(folder), what)
            network, _ = load_folder(Path(folder))
    report = LoadReport(family="llama", source="test", stored="float32")
    return kind(network, IdTokenizer(network.config.d_vocab), report, frozenset())


def tried(claim: Claim, model: LanguageModel, seed: int = 0) -> Finding:
    """What comes out of a claim's experiment on that model."""
    return claim.test(replace(Lab(model=model, seed=seed), _small=TRAINED))


def measured(claim: Claim, model: LanguageModel) -> Evidence:
    """What is measured on that model, without the control."""
    return claim.measure(replace(Lab(model=model), _small=TRAINED), False)


@functools.cache
def found_on_grouped(number: int) -> Finding:
    """A claim's finding on a plain model."""
    return tried(CLAIMS[number - 1], fresh("grouped"))
