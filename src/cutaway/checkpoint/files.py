"""Small files of a model's folder: read within bounds, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cutaway.errors import CheckpointError, DamagedFileError

MAX_CONFIG_BYTES = 16 << 20


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size.

    Raises:
        DamagedFileError: too large, not UTF-8, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise DamagedFileError(f"{path}: {path.stat().st_size} bytes; a config has at most {MAX_CONFIG_BYTES}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing: a model folder needs it") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path}: not JSON ({error}): fetch it again") from error
    if not isinstance(data, dict):
        raise DamagedFileError(f"{path}: holds {type(data).__name__}, not an object: fetch it again")
    return data


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Whatever keeps a folder from being written, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # the library has its own error for a disk that is full
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{folder}: cannot be written ({reason}): give another folder, or make room and rights there"
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder that takes the place of `path` once it is whole and on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
