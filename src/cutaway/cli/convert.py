"""cutaway convert: write a checkpoint as a folder for transformers, or as a GGUF file for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cutaway.cli.common import dtype_name, open_model, print_json, reported, tell
from cutaway.cli.options import Debug, Json
from cutaway.errors import CheckpointError

if TYPE_CHECKING:
    from cutaway.language_model import LanguageModel


@reported
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="What to read, named as for --model.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder or the .gguf file to write.")],
    to: Annotated[
        Literal["folder", "gguf"] | None,
        typer.Option(help="What to write.", show_default="gguf if OUT ends in .gguf, else folder"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="float32, bfloat16 or float16 in a folder; f32, f16 or q8_0 in a GGUF file.",
            show_default="as stored; float32 if quantised",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write into a folder that already holds files, or over a file.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model as a transformers folder or a GGUF file.

    A folder loads as its native class, without remote code, tokenizer included. A GGUF file holds the tokenizer too; it
    is written for what llama.cpp calls gpt2 and llama. Without --dtype no number changes; quantised weights become
    float32.
    """
    if not out:
        raise CheckpointError("OUT is empty: name a folder or a .gguf file, or . for the current folder")
    if to == "gguf" or (to is None and out.endswith(".gguf")):
        _write_file(source, out, dtype, force, json)
    else:
        _write_folder(source, out, dtype, force, json)


def _write_folder(source: str, out: str, dtype: str | None, force: bool, json: bool) -> None:
    folder = Path(out)
    before = _files(folder)
    if before and not force:
        raise CheckpointError(f"{out} already holds {len(before)} files: name another folder, or add --force")
    model = _open(source, out, dtype)
    from cutaway.show.terminal import print_written, waiting

    with waiting(f"writing {out}"):
        model.save(folder)
    written = {name: n_bytes for name, (n_bytes, time) in _files(folder).items() if before.get(name) != (n_bytes, time)}
    if json:
        print_json({"source": source, "folder": out, "dtype": dtype_name(model), "files": written})
    else:
        print_written(out, written, dtype_name(model))


def _write_file(source: str, out: str, dtype: str | None, force: bool, json: bool) -> None:
    from cutaway.checkpoint.gguf_write import gguf_dtype, save_gguf
    from cutaway.show.terminal import size, waiting

    if dtype is not None:
        gguf_dtype(dtype)  # a wrong one is told before anything is read
    path = Path(out)
    if path.is_dir():
        raise CheckpointError(f"{out} is a folder: name a file")
    if path.exists() and not force:
        raise CheckpointError(f"{out} already exists: name another file, or add --force")
    model = _open(source, out, None)
    with waiting(f"writing {out}"):
        origin = Path(model.report.source)
        written = save_gguf(model.network, path, tokenizer=model.tokenizer, dtype=dtype, source=origin)
    for note in written.notes:
        tell("note", note)
    n_bytes = path.stat().st_size
    if json:
        print_json({"source": source, "file": out, "dtype": written.dtype, "files": {path.name: n_bytes}})
    else:
        print(f"{out}: {size(n_bytes)}, weights in {written.dtype}")


def _open(source: str, out: str, dtype: str | None) -> LanguageModel:
    model = open_model(source, dtype, "cpu")
    if Path(out).resolve() == Path(model.report.source).resolve():
        raise CheckpointError(f"{out} is what is being read: name another")
    return model


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file in a folder, if it exists.

    Raises:
        CheckpointError: it is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: name a folder")
    stats = {path.name: path.stat() for path in sorted(folder.glob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
