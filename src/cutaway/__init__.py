"""Cutaway: a decoder-only transformer with one side cut away.

>>> import cutaway
>>> model = cutaway.load("smollm2")
>>> model.generate("The capital of France is", max_tokens=8, temperature=0).text
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cutaway.errors import (
    CheckpointError,
    ConfigError,
    ContextError,
    CutawayError,
    DamagedFileError,
    GenerationError,
    NumericsError,
    SourceError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from cutaway.config import ModelConfig
    from cutaway.language_model import LanguageModel, Output, load
    from cutaway.network import Transformer
    from cutaway.presets import PRESETS

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "CheckpointError",
    "ConfigError",
    "ContextError",
    "CutawayError",
    "DamagedFileError",
    "GenerationError",
    "LanguageModel",
    "ModelConfig",
    "NumericsError",
    "Output",
    "SourceError",
    "TemplateError",
    "TokenizerError",
    "Transformer",
    "UnsupportedError",
    "load",
]

# Loaded when first asked for: importing cutaway imports no torch.
_LAZY = {
    "PRESETS": "cutaway.presets",
    "LanguageModel": "cutaway.language_model",
    "ModelConfig": "cutaway.config",
    "Output": "cutaway.language_model",
    "Transformer": "cutaway.network",
    "load": "cutaway.language_model",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cutaway' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
