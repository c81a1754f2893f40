"""All verbs under one name."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway import __version__
from cutaway.cli.chat import chat
from cutaway.cli.claims import claims
from cutaway.cli.convert import convert
from cutaway.cli.cost import cost
from cutaway.cli.eval import evaluate
from cutaway.cli.look import look
from cutaway.cli.models import models
from cutaway.cli.quiz import quiz
from cutaway.cli.run import run
from cutaway.cli.serve import serve
from cutaway.cli.train import train
from cutaway.cli.verify import verify

# Plain help: it needs no rich, reads the same everywhere, and goes into the docs as it is.
app = typer.Typer(
    help="A decoder-only transformer with one side cut away.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "default_map": {"help": False},  # else typer loads pydantic to find that no --help is no
    },
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cutaway {__version__}")
        raise typer.Exit


@app.callback()
def _cutaway(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


for verb in (run, chat, look, train, evaluate, cost, claims, quiz, serve, models, verify, convert):
    app.command(None if verb is not evaluate else "eval")(verb)
