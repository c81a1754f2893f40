"""The command line, one file per verb. Nothing heavy is imported before a verb starts to work."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code.

    0: done. 1: a CutawayError, told in one line. 2: options that cannot be read. 130: Ctrl-C. 141: nobody reads
    the output any more.
    """
    _prepare_streams()
    _prepare_threads()
    try:
        from typer.main import get_command

        from cutaway.cli.app import app

        get_command(app).main(args=None if argv is None else list(argv), prog_name="cutaway")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        return 130
    return 0


def _prepare_threads() -> None:
    """On a busy machine torch's waiting threads sleep instead of spinning: spinning, they hold the core that the
    thread they wait for needs. Must be said before torch is loaded."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _prepare_streams() -> None:
    """UTF-8 wherever the reader is not a terminal, no character that could stop the output, and no stream absent."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # whoever started the process has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")
