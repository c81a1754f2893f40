"""What every verb does alike: load a model, read standard input, tell an error, print JSON."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO

import typer

from cutaway.errors import ConfigError, CutawayError, TokenizerError
from cutaway.show.terminal import CONTROLS

if TYPE_CHECKING:
    from cutaway.language_model import LanguageModel

P = ParamSpec("P")


def reported(verb: Callable[P, None]) -> Callable[P, None]:
    """A verb whose every end is told the way the command line promises; `cutaway.cli.main` lists the exit codes.

    Where the verb's own argument `debug` is true, an error keeps its traceback.
    """

    @functools.wraps(verb)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        with warnings.catch_warnings():
            warnings.showwarning = _tell_warning
            try:
                verb(*args, **kwargs)
                sys.stdout.flush()
            except CutawayError as error:
                if kwargs.get("debug"):
                    raise
                tell("error", str(error))
                raise typer.Exit(1) from error
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            except BrokenPipeError:
                _drop_output()
                raise typer.Exit(141) from None
            except OSError as error:
                if kwargs.get("debug"):
                    raise
                _drop_output()
                tell("error", f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror))
                raise typer.Exit(1) from error

    return told


def _drop_output() -> None:
    """Python flushes once more at its exit: let that go nowhere instead of failing again."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


HEAD_START = 3  # that the process which speaks has before others of its machine end with an error [s]


def tell(kind: str, message: str) -> None:
    """One line on standard error, whatever the message holds: a file's own words may hold control characters.

    Of many processes a machine's first speaks for all.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{kind}: {' '.join(message.split()).translate(CONTROLS)}", file=sys.stderr, flush=True)
    elif kind == "error":
        time.sleep(HEAD_START)  # the launcher ends all as soon as one has failed, also the one that speaks


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    tell("warning", str(message))


def model_name(given: str | None) -> str:
    """The model asked for, or the default one."""
    from cutaway.checkpoint.sources import default_model

    return default_model() if given is None else given


def open_model(name: str, dtype: str | None, device: str | None) -> LanguageModel:
    """Find and load a model; what the user should know about it goes to standard error."""
    from cutaway.checkpoint.sources import resolve
    from cutaway.show.terminal import waiting

    if dtype is not None or device is not None:
        with waiting(f"loading {name}"), leaving_at_once():
            from cutaway.nn.devices import as_device, as_dtype

            as_dtype(dtype)  # a wrong one is told before anything is fetched
            as_device(device)
    path = resolve(name)  # before the spinner: a download shows its own progress
    with waiting(f"loading {name}"), leaving_at_once():
        from cutaway.language_model import LoadNote, load
        from cutaway.nn import few_rows

        warnings.simplefilter("ignore", LoadNote)  # told below; `reported` puts the filters back
        model = load(path, dtype=dtype, device=device)
        if model.device.type == "cpu":
            few_rows.prepare(model.dtype)  # the very first time this compiles for some seconds
    for note in model.report.notes:
        tell("note", note)
    return model


@contextlib.contextmanager
def leaving_at_once() -> Iterator[None]:
    """Ctrl-C ends the process on the spot, where nothing is to be saved.

    Libraries that are being imported, or compile, may swallow the exception or break on it in words of their own.
    """
    asked = signal.getsignal(signal.SIGINT)
    if asked is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, asked)


def _leave(*_: object) -> None:
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # nobody reads, being written just now, closed
        sys.stdout.flush()
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\r\x1b[2K\x1b[?25h")  # the spinner's line goes, the cursor it hid returns
    os._exit(130)


def dtype_name(model: LanguageModel) -> str:
    """What the weights are held in, such as "bfloat16"."""
    return str(model.dtype).removeprefix("torch.")


def read_stdin() -> str:
    """Standard input as text, without the newline that shells put at its end.

    Raises:
        TokenizerError: bytes that are not UTF-8.
    """
    return without_mark(as_text(sys.stdin.buffer.read()))


def as_text(line: bytes) -> str:
    """UTF-8 bytes as text, without one newline at the end.

    Raises:
        TokenizerError: bytes that are not UTF-8.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise TokenizerError(
            f"standard input: byte {error.start} is 0x{byte:02x}, which is not UTF-8: convert the text first"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def as_given(text: str) -> str:
    """A text as it was given on the command line.

    Raises:
        TokenizerError: bytes that are not UTF-8, which Python keeps as halves of surrogate pairs.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(f"the prompt: character {error.start} is not UTF-8: convert the text first") from error
    return text


def without_mark(text: str) -> str:
    """A text without the byte order mark that some editors and shells put at its start."""
    return text.removeprefix("\ufeff")


def check_page(path: Path | None) -> None:
    """Check, before work that takes minutes, that a page can be put there.

    Raises:
        ConfigError: its folder is not there, or it is one itself.
    """
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}: make it first")
    if path is not None and path.is_dir():
        raise ConfigError(f"{path}: a folder: name a file, such as {path / 'page.html'}")


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Plain data on standard output; `indent` None keeps it on one line."""
    print(json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False), flush=True)
