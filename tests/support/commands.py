"""Small models in folders, and the command line run on them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cutaway.checkpoint.load import LoadReport
from cutaway.cli import main
from cutaway.language_model import LanguageModel
from cutaway.text.ids import IdTokenizer
from cutaway.text.tokenizer import Tokenizer
from support.tiny import OURS, random_network
from support.vocabularies import byte_level

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
BEGIN, END = 256, 257


def save_model(
    folder: Path, *, n_ctx: int = 100_000, begins: bool = True, ends: bool = False, template: str | None = TEMPLATE
) -> Path:
    """A random model that reads and writes bytes, and never ends by itself unless `ends`."""
    backend = byte_level({}, special=("<|begin|>", "<|end|>"))
    tokenizer = Tokenizer(
        backend,
        bos_id=BEGIN if begins else None,
        eos_ids=frozenset({END} if ends else ()),
        add_bos=begins,
        chat_template=template,
    )
    network = random_network(replace(OURS["grouped"], n_ctx=n_ctx, d_vocab=258))
    report = LoadReport(family="llama", source="test", stored="float32")
    LanguageModel(network, tokenizer, report, tokenizer.eos_ids).save(folder)
    return folder


def save_ids_model(folder: Path) -> Path:
    """A random model without a tokenizer."""
    network = random_network(OURS["grouped"])
    report = LoadReport(family="llama", source="test", stored="float32")
    LanguageModel(network, IdTokenizer(network.config.d_vocab), report, frozenset()).save(folder)
    return folder


class Typed(io.TextIOWrapper):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


class Commands:
    """`cutaway …` in this process: its exit code, standard output and standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys = capsys
        self.monkeypatch = monkeypatch

    def __call__(
        self, *argv: str | Path, stdin: bytes = b"", kind: type[io.TextIOWrapper] = io.TextIOWrapper
    ) -> tuple[int, str, str]:
        self.monkeypatch.setattr("sys.stdin", kind(io.BytesIO(stdin)))
        code = main([str(arg) for arg in argv])
        out, err = self.capsys.readouterr()
        return code, out, err

    def error(self, *argv: str | Path, stdin: bytes = b"") -> str:
        """The message of a command that must fail with a named error, in one line and nothing else."""
        code, out, err = self(*argv, stdin=stdin)
        assert (code, out.strip()) == (1, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")


def start(*argv: str | Path, **options: object) -> subprocess.Popen[bytes]:
    """`cutaway …` as a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "cutaway", *map(str, argv)],
        env=environment,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},  # type: ignore[call-overload]
    )
