"""docs/cli.md is the live help, word for word. `python tests/contract/test_help.py --update` writes it anew."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from cutaway.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
VERBS = (
    "run",
    "chat",
    "look",
    "train",
    "eval",
    "cost",
    "claims",
    "quiz",
    "serve",
    "models",
    "verify",
    "convert",
)
WIDTH = "80"

INTRODUCTION = """\
# The command line

What each command says about itself with `--help`; this page is written from it.

Exit codes: 0 done, 1 an error that is told in one line on standard error (`--debug` adds the traceback),
2 options that cannot be read, 130 Ctrl-C, 141 the reader of the output has gone.
"""


def live_help(*argv: str) -> str:
    """What a command prints on a terminal 80 characters wide."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with mock.patch.dict("os.environ", {"COLUMNS": WIDTH}), redirect_stdout(out):
        assert main([*argv, "--help"]) == 0
    return bytes(out.buffer.getvalue()).decode()  # type: ignore[attr-defined]


def page() -> str:
    """The whole of docs/cli.md."""
    sections = [INTRODUCTION]
    for argv in ((), *((verb,) for verb in VERBS)):
        sections.append(f"## {' '.join(('cutaway', *argv))}\n\n```text\n{live_help(*argv).strip()}\n```\n")
    return "\n".join(sections)


def test_the_page_is_the_live_help() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/contract/test_help.py --update`"


def test_every_verb_is_listed_and_every_option_explained() -> None:
    assert {line.split()[0] for line in live_help().split("Commands:\n")[1].splitlines()} == set(VERBS)
    for verb in VERBS:
        _, _, options = live_help(verb).partition("Options:\n")
        entries = [line for line in options.splitlines() if line.startswith("  -")]
        assert len(entries) >= 3
        for entry in entries:
            assert len(entry.strip().split("  ")) > 1, f"{verb}: {entry} has no explanation"


@pytest.mark.parametrize("argv", [[], ["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)])
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    heavy = ("torch", "transformers", "tokenizers", "huggingface_hub", "numpy", "numba", "rich", "pydantic")
    code = f"import sys; from cutaway.cli import main; main({argv}); print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_help_is_there_at_once() -> None:
    """The aim is under 0.3 s; what is asserted leaves room for a machine that is busy with other tests."""

    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "cutaway", "run", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.6


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python tests/contract/test_help.py --update")
    PAGE.write_text(page(), encoding="utf-8")
