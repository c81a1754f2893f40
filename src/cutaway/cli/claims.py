"""cutaway claims: the lecture's fourteen claims, put to the test on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.common import check_page, leaving_at_once, model_name, open_model, print_json, reported
from cutaway.cli.options import Debug, Json, Model

Seed = Annotated[int, typer.Option(metavar="N", help="Of all that is drawn at random.")]


@reported
def claims(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="N", help="Some of them, shown in full.", show_default="all fourteen")
    ] = None,
    model: Model = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything to one HTML file.")] = None,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Put the lecture's fourteen claims to the test on a model.

    Each is measured on the model and on a control that is broken on purpose and must come out the other way. The
    model is held in float32 on the CPU. Exit code 1 if a claim fails.
    """
    check_page(html)
    name = model_name(model)
    loaded = open_model(name, "float32", "cpu")
    from cutaway.claims.run import claims as findings_of
    from cutaway.show.terminal import console, waiting

    with waiting("beginning") as show, leaving_at_once():
        result = findings_of(loaded, numbers or (), seed=seed, name=name, progress=show)
    if html is not None:
        result.to_html(html)
    if json:
        print_json(result.to_dict()["findings"])
    else:
        screen = console()
        screen.print(result)
        for finding in result.findings if numbers else ():
            screen.print()
            screen.print(finding)
    if not result.hold:
        raise typer.Exit(1)
