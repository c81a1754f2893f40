"""What all verbs share: how every end is told, and streams that never stop the output."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from cutaway.cli import common
from cutaway.cli.common import as_text, leaving_at_once, reported
from cutaway.errors import ConfigError, TokenizerError
from cutaway.show.terminal import count, size
from support.commands import Commands, save_model


def raising(error: BaseException) -> Callable[..., None]:
    @reported
    def verb(debug: bool = False) -> None:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("n = 0:\n  too small"), 1, "error: n = 0: too small\n"),
        (ConfigError("a file's \x1b]0;words\x07"), 1, "error: a file's ␛]0;words␇\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x.json"), 1, "error: Permission denied: x.json\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_end_has_its_code_and_at_most_one_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end:
        raising(error)()
    assert (end.value.exit_code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize("error", [ConfigError("n = 0"), OSError(1, "no")])
def test_debug_lets_errors_through(error: Exception) -> None:
    with pytest.raises(type(error)):
        raising(error)(debug=True)


def test_what_is_no_users_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())()


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @reported
    def verb() -> None:
        warnings.simplefilter("always")
        warnings.warn("first\nsecond", stacklevel=1)

    verb()
    assert capsys.readouterr().err == "warning: first second\n"


@pytest.mark.parametrize(
    ("line", "text"), [(b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b"", ""), ("é😸".encode(), "é😸")]
)
def test_a_line_loses_one_newline(line: bytes, text: str) -> None:
    assert as_text(line) == text


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(TokenizerError, match="byte 1 is 0x80"):
        as_text(b"a\x80")


def test_what_loading_notices_goes_to_standard_error(cutaway: Commands, tmp_path: Path) -> None:
    """C4: a config without theta says which default is used."""
    folder = save_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for field in ("rope_theta", "rope_parameters"):
        config.pop(field, None)
    (folder / "config.json").write_text(json.dumps(config))
    code, out, err = cutaway("run", "-m", folder, "--max-tokens", "1", "--json", "x")
    assert code == 0
    assert json.loads(out)["passes"] == 1
    assert err.startswith("note: no rope_theta in the config: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--dtype", "float8"), "dtype = 'float8': use float32, bfloat16 or float16"),
        (("--device", "abacus"), "device = 'abacus' cannot be used here"),
    ],
)
def test_a_wrong_type_or_device_is_told_before_a_model_is_looked_for(
    cutaway: Commands, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str], says: str
) -> None:
    monkeypatch.setattr("cutaway.checkpoint.sources.resolve", lambda name: pytest.fail(f"{name} was looked for"))
    assert says in cutaway.error("run", "-m", "smollm2", *option, "x")


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0"), (999, "999"), (1000, "1 K"), (999_949, "999.9 K"), (999_950, "1 M"), (134_515_008, "134.5 M")],
)
def test_numbers_are_short(n: int, text: str) -> None:
    assert count(n) == text


def test_sizes_are_short_and_unknown_ones_blank() -> None:
    assert (size(98_362_432), size(3 * 10**15), size(None), count(None)) == ("98.4 MB", "3000 TB", "", "")


@pytest.mark.parametrize(("redirections", "code"), [("> /dev/full", 1), (">&-", 0), ("2>&- <&-", 0)])
def test_streams_that_are_full_or_closed_cause_no_traceback(redirections: str, code: int) -> None:
    command = f"{sys.executable} -m cutaway models {redirections}"
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert found.returncode == code
    assert found.stderr == ("error: No space left on device\n" if code else "")


INTERRUPTED = """
import os, signal, sys, time

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except KeyboardInterrupt:
                pass  # as a library on the way may do

sys.meta_path.insert(0, Interrupting())
from cutaway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_ends_it_silently_while_libraries_are_imported(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    command = [sys.executable, "-c", INTERRUPTED, "run", "-m", str(folder), "--max-tokens", "1", "x"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_ctrl_c_is_an_exception_again_once_the_model_is_there() -> None:
    before = signal.getsignal(signal.SIGINT)
    with leaving_at_once():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with leaving_at_once():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_of_several_processes_those_that_do_not_speak_end_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the launcher would end the one that speaks before it has."""
    waited: list[float] = []
    monkeypatch.setattr(common.time, "sleep", waited.append)
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        common.tell("error", "as it was")
    assert (capsys.readouterr().err, waited) == ("error: as it was\n", [common.HEAD_START])
