"""The Hugging Face Hub, through huggingface_hub: its cache, its revisions, its progress bar.

A copy that is cached and whole is used as it is, without asking the Hub whether there is a newer one
(`hf download REPO` fetches that). Weights come as safetensors or GGUF only; pickles are never asked for.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutaway.checkpoint.aliases import MODEL_TYPES
from cutaway.errors import SourceError

__all__ = ["cached", "cached_models", "download"]

TOKENIZER_FILES = ["tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"]
FILES = [
    "config.json",
    "generation_config.json",
    "chat_template*",
    "*.safetensors",
    "*.safetensors.index.json",
]
# Sub-folders hold other formats of the same weights, and `consolidated` files hold them all once more.
NOT_FILES = ["*/*", "consolidated*"]


def cached(repo: str, *, revision: str | None = None, file: str | None = None) -> Path | None:
    """The model in huggingface_hub's cache, or None if it is absent or not whole."""
    try:
        path = _snapshot(repo, revision, file, local_files_only=True)
    except Exception:  # absent, however this version of the library says so
        return None
    if file is not None:
        return path if path.is_file() else None
    return path if _is_whole(path) else None


def download(repo: str, *, revision: str | None = None, file: str | None = None, progress: bool = True) -> Path:
    """The folder of a repository, or one GGUF file of it, fetched into huggingface_hub's cache.

    Raises:
        SourceError: gated, absent, offline, unreachable, or without weights that Cutaway reads.
    """
    try:
        with _bars(shown=progress):
            path = _snapshot(repo, revision, file, local_files_only=False)
    except Exception as error:  # the library lets its HTTP client's errors through, and that client has changed
        raise SourceError(_explain(error, repo, revision)) from error
    page = f"https://huggingface.co/{repo}/tree/{revision or 'main'}"
    if file is not None and not path.is_file():
        raise SourceError(f"{repo} has no file {file!r} (revision {revision or 'main'}): choose one from {page}")
    if file is None and not _is_whole(path):
        raise SourceError(
            f"{repo} (revision {revision or 'main'}) has no config.json with all its safetensors: try again "
            f"online, or for a repository of GGUF files name one, '{repo}:FILE.gguf', from {page}"
        )
    return path


def cached_models() -> Iterator[tuple[str, Path, int]]:
    """Name, path and size [bytes] of each model in huggingface_hub's cache that Cutaway can load."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        cache = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, OSError, ValueError):
        return
    for repo in sorted(cache.repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model" or not repo.revisions:
            continue
        revision = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
        if _is_supported(revision.snapshot_path):
            yield repo.repo_id, revision.snapshot_path, revision.size_on_disk
        for file in sorted(revision.files, key=lambda file: file.file_path):
            if file.file_path.suffix == ".gguf":
                name = file.file_path.relative_to(revision.snapshot_path).as_posix()
                yield f"{repo.repo_id}:{name}", file.file_path, file.size_on_disk


def _snapshot(repo: str, revision: str | None, file: str | None, *, local_files_only: bool) -> Path:
    """The snapshot folder, or the path `file` has in it."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        repo,
        revision=revision,
        allow_patterns=FILES + TOKENIZER_FILES if file is None else [file],
        ignore_patterns=NOT_FILES if file is None else None,
        local_files_only=local_files_only,
    )
    return Path(folder) if file is None else Path(folder, file)


def _is_whole(folder: Path) -> bool:
    """Whether there is a config.json and every shard that the shards' names announce (…-00001-of-00003)."""
    names = [path.name for path in folder.glob("*.safetensors")]
    totals = [int(shard[1]) for name in names if (shard := re.search(r"-of-(\d{5})\.safetensors$", name))]
    return (folder / "config.json").is_file() and bool(names) and all(n == len(totals) for n in totals)


def _is_supported(folder: Path) -> bool:
    """Whether a folder is whole and of a family that Cutaway implements."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") in MODEL_TYPES and _is_whole(folder)


@contextmanager
def _bars(*, shown: bool) -> Iterator[None]:
    """The library's progress bars, switched off for the length of a call."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _explain(error: Exception, repo: str, revision: str | None) -> str:
    """Why a download failed, and what to do, on one line."""
    from huggingface_hub import constants, errors

    match error:
        case errors.GatedRepoError():
            return f"{repo} is gated: accept its licence on https://huggingface.co/{repo}, then `hf auth login`"
        case errors.RepositoryNotFoundError():
            return f"{repo} is not on the Hub, or is private: check the spelling, or run `hf auth login`"
        case errors.RevisionNotFoundError():
            return f"{repo} has no revision {revision!r}: see https://huggingface.co/{repo}/refs"
        case _ if constants.HF_HUB_OFFLINE:
            return f"{repo} is not in the Hub's cache and HF_HUB_OFFLINE is set: unset it, or give a local path"
        case OSError(errno=errno.ENOSPC | errno.EACCES | errno.EPERM | errno.EROFS):
            where, why = constants.HF_HUB_CACHE, error.strerror
            return f"{repo} cannot be kept in {where} ({why}): free some space, or set HF_HOME to another folder"
        case _:
            cause = error.__cause__ or error
            said = " ".join(str(cause).split())[:200]
            return (
                f"{repo} could not be fetched from {constants.ENDPOINT} ({type(cause).__name__}: {said}): "
                "check the connection, or give a local folder or .gguf file"
            )
