"""Every error a user can cause or meet, one tree.

CutawayError                  one line: the value, the limit, what to do next
├── ConfigError               a model configuration that cannot be built
├── CheckpointError           a file or folder of weights that cannot be used as it is
│   ├── SourceError           no such model: path, alias or Hub id
│   ├── UnsupportedError      a readable file of a kind Cutaway does not implement
│   └── DamagedFileError      truncated, mislabelled or hostile bytes
├── TokenizerError            text or ids the tokenizer cannot take
│   └── TemplateError         a chat template that failed, overran its limits, or reached outside its sandbox
├── GenerationError           a request for tokens that cannot be served
│   ├── ContextError          prompt, or prompt + new tokens, past the model's context
│   └── NumericsError         logits that are not numbers
├── InsideError               a look inside that asks for what is not there, or for more than it may hold
├── DataError                 texts that cannot be read, or are too few
├── ServeError                a server that cannot start, or a request that it does not take
│   └── BusyError             no room just now: come back later
└── TrainingError             a run that cannot start, go on, or be resumed
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "ContextError",
    "CutawayError",
    "DamagedFileError",
    "DataError",
    "GenerationError",
    "InsideError",
    "NumericsError",
    "ServeError",
    "SourceError",
    "TemplateError",
    "TokenizerError",
    "TrainingError",
    "UnsupportedError",
]


class CutawayError(Exception):
    """Base of all: its message is one line that names the value, the limit and the next step."""


class ConfigError(CutawayError, ValueError):
    """A model configuration that cannot be built."""


class CheckpointError(CutawayError):
    """A file or folder of weights that cannot be used as it is."""


class SourceError(CheckpointError):
    """No model under this path, alias or Hub id."""


class UnsupportedError(CheckpointError):
    """A readable file of a kind Cutaway does not implement."""


class DamagedFileError(CheckpointError):
    """Truncated, mislabelled or hostile bytes."""


class TokenizerError(CutawayError, ValueError):
    """Text or ids the tokenizer cannot take."""


class TemplateError(TokenizerError):
    """A chat template that failed, overran its limits, or reached outside its sandbox."""


class GenerationError(CutawayError, ValueError):
    """A request for tokens that cannot be served."""


class ContextError(GenerationError):
    """Prompt, or prompt plus new tokens, past the model's context."""


class NumericsError(GenerationError):
    """Logits that are not numbers."""


class InsideError(CutawayError, ValueError):
    """A look inside that asks for what is not there, or for more than it may hold."""


class DataError(CutawayError):
    """Texts that cannot be read, or are too few."""


class ServeError(CutawayError, ValueError):
    """A server that cannot start, or a request that it does not take."""


class BusyError(ServeError):
    """No room just now: come back later."""


class TrainingError(CutawayError):
    """A run that cannot start, go on, or be resumed."""
