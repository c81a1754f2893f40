"""From what a user names to the config that is accounted for: a preset, a config.json, or a model's own."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Protocol, runtime_checkable

from cutaway.checked import short
from cutaway.config import ModelConfig
from cutaway.errors import SourceError
from cutaway.presets import PRESETS


@runtime_checkable
class HasConfig(Protocol):
    """A language model, or a network."""

    config: ModelConfig


def config_of(model: str | Path | ModelConfig | HasConfig) -> tuple[str, ModelConfig]:
    """What it is called, and its config.

    Args:
        model: a config; something that has one; the name of a preset; a config.json of transformers or of
            `ModelConfig.to_dict`; a model by any name that `cutaway.load` takes. Of a model on the Hub only its
            config.json is fetched.
    Raises:
        SourceError: there is no such thing.
        ConfigError, CheckpointError: it cannot be read.
    """
    if isinstance(model, ModelConfig):
        return "this config", model
    if not isinstance(model, str | Path):
        if isinstance(model, HasConfig) and isinstance(model.config, ModelConfig):
            return "this model", model.config
        raise SourceError(f"{short(model)}: give a preset, a config.json, a model's name or a ModelConfig")
    name = str(model)
    if isinstance(model, str) and name.lower() in PRESETS:
        return name.lower(), PRESETS[name.lower()]
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return name, read_config(path)
    return name, _of_model(model)


def read_config(path: Path) -> ModelConfig:
    """The config in a JSON file, of a `transformers` family or as `ModelConfig.to_dict` gives it."""
    from cutaway.checkpoint.fields import Fields
    from cutaway.checkpoint.files import read_json
    from cutaway.checkpoint.folder import family_of

    data = read_json(path)
    if "n_layers" in data and "d_model" in data and "model_type" not in data:
        return ModelConfig.from_dict(data)
    return family_of(data, str(path)).read(Fields(data, str(path)))


def _of_model(name: str | Path) -> ModelConfig:
    """The config of a model here or elsewhere."""
    from cutaway.checkpoint.sources import resolve

    repo = _repository(str(name))
    if repo is not None:
        from cutaway.checkpoint import hub

        found = hub.cached(repo, file="config.json") or hub.download(repo, file="config.json", progress=False)
        return read_config(found)
    try:
        path = resolve(name)
    except SourceError as error:
        close = difflib.get_close_matches(str(name).lower(), PRESETS, n=2)
        if not close:
            raise
        raise SourceError(f"{error}; among presets there is {' or '.join(close)}") from error
    if path.is_dir():
        return read_config(path / "config.json")
    from cutaway.checkpoint.gguf import GGUFFile
    from cutaway.checkpoint.gguf_config import read_config as read_gguf

    with GGUFFile(path) as file:
        return read_gguf(file).config


def _repository(name: str) -> str | None:
    """The Hub repository that a name stands for, where fetching the config alone saves fetching the weights."""
    from cutaway.checkpoint.aliases import ALIASES
    from cutaway.checkpoint.sources import bundled_models

    if name.lower() in bundled_models() or Path(name).expanduser().exists():
        return None
    alias = ALIASES.get(name.lower())
    if alias is not None:
        return None if alias.wheel else alias.repo
    parts = name.split("/")
    return name if len(parts) == 2 and all(parts) and ":" not in name and not name.startswith((".", "~")) else None
