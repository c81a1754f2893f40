"""cutaway convert: write a checkpoint as a folder for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.common import dtype_name, open_model, print_json, reported
from cutaway.cli.options import Debug, Dtype, Json
from cutaway.errors import CheckpointError


@reported
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="What to read, named as for --model.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder to write.")],
    dtype: Dtype = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that already holds files.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a model as a folder for transformers.

    It loads there as the native class, without remote code, tokenizer included. Without --dtype no number changes;
    quantised weights become float32.
    """
    folder = Path(out)
    before = _files(folder)
    if before and not force:
        raise CheckpointError(f"{out} already holds {len(before)} files: name another folder, or add --force")
    model = open_model(source, dtype, "cpu")
    if folder.resolve() == Path(model.report.source).resolve():
        raise CheckpointError(f"{out} is what is being read: name another folder")
    from cutaway.show.terminal import print_written, waiting

    with waiting(f"writing {out}"):
        model.save(folder)
    written = {name: n_bytes for name, (n_bytes, time) in _files(folder).items() if before.get(name) != (n_bytes, time)}
    if json:
        print_json({"source": source, "folder": out, "dtype": dtype_name(model), "files": written})
    else:
        print_written(out, written, dtype_name(model))


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each file in a folder, if it exists.

    Raises:
        CheckpointError: it is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: name a folder")
    stats = {path.name: path.stat() for path in sorted(folder.glob("*"))}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
