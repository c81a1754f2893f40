"""Cutaway: a decoder-only transformer with one side cut away.

>>> import cutaway
>>> model = cutaway.load("smollm2")
>>> model.generate("The capital of France is", max_tokens=8, temperature=0).text
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cutaway import pages
from cutaway.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    ContextError,
    CutawayError,
    DamagedFileError,
    DataError,
    GenerationError,
    InsideError,
    NumericsError,
    ServeError,
    SourceError,
    TemplateError,
    TokenizerError,
    TrainingError,
    UnsupportedError,
)

pages.spare()

if TYPE_CHECKING:
    from cutaway.account.cost import cost
    from cutaway.claims.run import claims
    from cutaway.config import ModelConfig
    from cutaway.language_model import LanguageModel, Output, load
    from cutaway.network import Transformer
    from cutaway.presets import PRESETS
    from cutaway.train.evaluate import evaluate
    from cutaway.train.run import train

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "ContextError",
    "CutawayError",
    "DamagedFileError",
    "DataError",
    "GenerationError",
    "InsideError",
    "LanguageModel",
    "ModelConfig",
    "NumericsError",
    "Output",
    "ServeError",
    "SourceError",
    "TemplateError",
    "TokenizerError",
    "TrainingError",
    "Transformer",
    "UnsupportedError",
    "claims",
    "cost",
    "evaluate",
    "load",
    "train",
]

# Loaded when first asked for: importing cutaway imports no torch.
_LAZY = {
    "PRESETS": "cutaway.presets",
    "LanguageModel": "cutaway.language_model",
    "ModelConfig": "cutaway.config",
    "Output": "cutaway.language_model",
    "Transformer": "cutaway.network",
    "cost": "cutaway.account.cost",
    "evaluate": "cutaway.train.evaluate",
    "load": "cutaway.language_model",
}

_ROOMS = {"claims", "train"}  # packages that can be called themselves


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"cutaway.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
