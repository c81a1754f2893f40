"""Where a model's files are: a local path, a name this package knows, or a repository on the Hub.

`smollm2` is taken from the first of: the user's cache, huggingface_hub's cache, a wheel on the package
index, the Hub. The wheel comes before the Hub because it is a third of the size and pinned to the byte, and
because a machine that reaches only an index would otherwise wait for the Hub. With a `revision`,
only the Hub has it.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cutaway.checkpoint import hub, wheel
from cutaway.checkpoint.aliases import ALIASES, Alias
from cutaway.checkpoint.files import read_json
from cutaway.errors import SourceError

__all__ = ["ModelEntry", "bundled_models", "cache_folder", "default_model", "known_models", "resolve"]

BUNDLED = Path(__file__).parent.parent / "models"
WORD = r"\w(?:[\w.-]*\w)?"
HUB_ID = re.compile(rf"(?P<repo>{WORD}/{WORD})(?::(?P<file>(?:{WORD}/)*\w[\w.+-]*\.gguf))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One line of `cutaway models`."""

    name: str  # what `resolve` takes
    where: Literal["bundled", "cached", "known"]
    n_parameters: int | None = None
    n_bytes: int | None = None  # on disk
    licence: str | None = None
    source: str
    path: Path | None = None


def resolve(name: str | Path, *, revision: str | None = None, progress: bool = True) -> Path:
    """The model folder or .gguf file that a name stands for, downloaded if the name needs it.

    Args:
        name: a folder with a config.json, a training run's folder, a .gguf file, a bundled name, an alias,
            a Hub id `org/name`, or one file of it, `org/name:file.gguf`.
        revision: branch, tag or commit on the Hub.
        progress: show downloads on stderr.
    Raises:
        SourceError: there is no such model, or it cannot be fetched.
        DamagedFileError: a download that is not the file it should be.
    """
    text = str(name)
    try:
        local = _local(text, is_path=isinstance(name, Path) or _looks_like_path(text))
    except (OSError, RuntimeError) as error:
        raise SourceError(f"{_shown(text)} cannot be read ({_reason(error)}): check the path") from error
    local = local or bundled_models().get(text.lower())
    if local is not None:
        if revision is not None:
            raise SourceError(f"revision {revision!r} is for the Hub, but {_shown(text)} is local: leave it out")
        return local
    if alias := ALIASES.get(text.lower()):
        return _resolve_alias(text.lower(), alias, revision=revision, progress=progress)
    if hub_id := _parse_hub_id(text):
        repo, file = hub_id
        found = hub.cached(repo, revision=revision, file=file)
        return found or hub.download(repo, revision=revision, file=file, progress=progress)
    close = _close(text.lower(), [*bundled_models(), *ALIASES])
    meant = f"did you mean {close}? Otherwise " if close else ""
    raise SourceError(
        f"no model named {_shown(text)}: {meant}give a folder with a config.json, a .gguf file, a Hub id "
        "'org/name', or a name that `cutaway models` lists"
    )


def default_model() -> str:
    """The model when none is named: CUTAWAY_MODEL, else a bundled one, else `smollm2`."""
    return os.environ.get("CUTAWAY_MODEL") or next(iter(bundled_models()), "smollm2")


def bundled_models() -> dict[str, Path]:
    """Name → folder of the models that came with the package, in alphabetical order."""
    return {config.parent.name: config.parent for config in sorted(BUNDLED.glob("*/config.json"))}


def known_models() -> list[ModelEntry]:
    """Bundled, cached and downloadable models, in this order; each name once. No network."""
    entries = [
        ModelEntry(
            name=name,
            where="bundled",
            n_bytes=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
            licence="Apache-2.0",
            source="this package",
            path=path,
        )
        for name, path in bundled_models().items()
    ]
    for name, alias in ALIASES.items():
        if alias.wheel and (kept := wheel.cached(alias.wheel, _wheel_folder(name))):
            entries.append(_entry(name, "cached", path=kept, n_bytes=kept.stat().st_size))
    aliases = {alias.repo: name for name, alias in ALIASES.items()}
    for repo, path, n_bytes in hub.cached_models():
        # The repository of an alias whose wheel is here too goes by its own name: the alias means the wheel.
        alias_is_taken = aliases.get(repo) in {entry.name for entry in entries}
        name = repo if alias_is_taken else aliases.get(repo, repo)
        entries.append(_entry(name, "cached", path=path, n_bytes=n_bytes))
    listed = {entry.name for entry in entries}
    return entries + [_entry(name, "known") for name in ALIASES if name not in listed]


def cache_folder() -> Path:
    """CUTAWAY_CACHE, or `cutaway` in the platform's cache folder."""
    if chosen := os.environ.get("CUTAWAY_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "cutaway"


def _local(text: str, *, is_path: bool) -> Path | None:
    """The local model, or None if there is none and the name need not be a path."""
    path = Path(text).expanduser()
    if text and ((path / "config.json").is_file() or (path.suffix.lower() == ".gguf" and path.is_file())):
        return path
    if text and (path / "run.json").is_file():
        return _checkpoint_of(path)
    if not is_path:
        return None
    if path.is_dir():
        held = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"name its file {held[0]!r}" if held else "give one that has, or a .gguf file"
        raise SourceError(f"the folder {_shown(text)} has no config.json: {hint}")
    if path.exists():
        raise SourceError(f"{_shown(text)} is not a .gguf file: give that, or the folder that holds config.json")
    missing, parent = path, path.parent
    while not parent.exists():
        missing, parent = parent, parent.parent
    close = _close(missing.name, [entry.name for entry in parent.iterdir()] if parent.is_dir() else [])
    holds = f"which holds {close}" if close else f"which holds nothing like {_shown(missing.name)}"
    raise SourceError(f"{_shown(text)} does not exist: the nearest existing parent is {_shown(str(parent))}, {holds}")


def _checkpoint_of(run: Path) -> Path:
    """The best checkpoint of a training run by validation, or its newest."""
    newest = max(run.glob("step-*/state.json"), default=None)
    if newest is None:
        raise SourceError(f"the run {_shown(str(run))} has saved no model yet: wait for its first checkpoint")
    position = read_json(newest).get("position")
    best = position.get("best_step") if isinstance(position, dict) else None
    folder = run / f"step-{best:08d}" if isinstance(best, int) else newest.parent
    return folder if (folder / "config.json").is_file() else newest.parent


def _looks_like_path(text: str) -> bool:
    """Whether a name can only be meant as a path, so that it is looked for nowhere else."""
    path = Path(text)
    return (
        text.startswith((".", "~", "/"))
        or path.is_absolute()
        or (len(path.parts) > 1 and path.parent.exists())
        or (text.lower().endswith(".gguf") and _parse_hub_id(text) is None)
        or (text != "" and text.lower() not in {*bundled_models(), *ALIASES} and path.exists())
    )


def _parse_hub_id(text: str) -> tuple[str, str | None] | None:
    """Repository and file of `org/name` or `org/name:file.gguf`; None for anything else."""
    match = HUB_ID.fullmatch(text)
    if match is None or len(match["repo"]) > 96 or "--" in match["repo"] or ".." in text:
        return None
    return match["repo"], match["file"]


def _resolve_alias(name: str, alias: Alias, *, revision: str | None, progress: bool) -> Path:
    """An alias from its cheapest source."""
    pinned = alias.wheel if revision is None else None
    if pinned and (kept := wheel.cached(pinned, _wheel_folder(name))):
        return kept
    if found := hub.cached(alias.repo, revision=revision):
        return found
    if pinned is None:
        return hub.download(alias.repo, revision=revision, progress=progress)
    folder = _wheel_folder(name)
    try:
        return wheel.fetch(pinned, folder, progress=progress)
    except SourceError as error:
        from_index = str(error)
        if progress:
            print(f"{pinned.requirement} is out of reach ({from_index}): trying the Hub …", file=sys.stderr)
    except (OSError, NotImplementedError) as error:  # the second: a file system without locks
        raise SourceError(
            f"{name} cannot be kept in {folder} ({_reason(error)}): free some space there, "
            "or set CUTAWAY_CACHE to another folder"
        ) from error
    try:
        return hub.download(alias.repo, progress=progress)
    except SourceError as error:
        raise SourceError(f"{pinned.requirement} is out of reach ({from_index}), and {error}") from error


def _wheel_folder(name: str) -> Path:
    return cache_folder() / "models" / name


def _entry(
    name: str, where: Literal["cached", "known"], *, path: Path | None = None, n_bytes: int | None = None
) -> ModelEntry:
    """The entry of an alias, or of a repository that has none."""
    alias = ALIASES.get(name)
    if alias is None:
        return ModelEntry(name=name, where=where, n_bytes=n_bytes, source=f"Hub {name}", path=path)
    index = f"package index {alias.wheel.requirement}, " if alias.wheel else ""
    return ModelEntry(
        name=name,
        where=where,
        n_parameters=alias.n_parameters,
        n_bytes=n_bytes,
        licence=alias.licence + (", gated" if alias.gated else ""),
        source=f"{index}Hub {alias.repo}",
        path=path,
    )


def _close(text: str, names: Iterable[str]) -> str:
    """The names most like `text`, quoted and joined; empty if none is."""
    return " or ".join(map(_shown, difflib.get_close_matches(text, names, n=3)))


def _shown(text: str) -> str:
    """A name as it may stand in a one-line message."""
    return repr(text if len(text) <= 200 else text[:200] + "…")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
