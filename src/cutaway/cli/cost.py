"""cutaway cost: what a model holds, does and takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.common import check_page, leaving_at_once, model_name, print_json, reported
from cutaway.cli.options import Debug, Json, Model

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([kmbt]?)", re.IGNORECASE)


def _tokens(text: str | int) -> int:
    """A count of tokens: 500, 300e9, 2T."""
    found = NUMBER.fullmatch(str(text).replace(",", "").replace("_", ""))
    if found is None:
        raise typer.BadParameter(f"{text}: a number of tokens is 500, 300e9, 300B or 2T")
    return round(float(found[1]) * SUFFIXES[found[2].lower()])


@reported
def cost(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A preset such as gpt3, a config.json, or the same as --model."),
    ] = None,
    model: Model = None,
    context: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of a text, a prompt, a training window.", show_default="the model's"),
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Texts at once; windows at once on one GPU.")] = 1,
    tokens: Annotated[int, typer.Option(metavar="N", parser=_tokens, help="Tokens to generate after a prompt.")] = 500,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", help="float32, bfloat16 or float16.", show_default="bfloat16; float32 with --measure"
        ),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as h100, a100, rtx4090, m2-ultra; here: this machine.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="Train on so many of them.")] = None,
    train_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=_tokens, help="Tokens to train on, such as 2T.", show_default="20 a parameter"
        ),
    ] = None,
    share: Annotated[float, typer.Option(metavar="F", help="Share of the matrix peak that training reaches.")] = 0.4,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="adamw or muon.")] = "adamw",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Train without keeping activations inside blocks.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run it here too, on 256 tokens or --context, and compare.")
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="To measure on.", show_default="cpu")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML file.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Work out what a model costs: parameters, FLOPs, memory, time.

    Presets: see the page docs/account.md. Nothing is downloaded but the config of a model that is not here.
    """
    if name is not None and model is not None:
        raise typer.BadParameter("name the model once, with --model or without")
    check_page(html)
    from cutaway.account.cost import cost as cost_of
    from cutaway.show.terminal import console, waiting

    with waiting("working it out") as show, leaving_at_once():
        result = cost_of(
            model_name(name or model),
            context=context,
            batch=batch,
            tokens=tokens,
            dtype=dtype,
            hardware=hardware,
            gpus=gpus,
            train_tokens=train_tokens,
            share=share,
            optimizer=optimizer,  # type: ignore[arg-type]  # checked where it is used
            recompute=recompute,
            measure=measure,
            device=device,
            progress=show,
        )
    if html is not None:
        result.to_html(html)
    if json:
        print_json(result.to_dict())
    else:
        console().print(result)
