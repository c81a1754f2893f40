"""cutaway eval: how well a model predicts a text."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.common import open_model, print_json, reported
from cutaway.cli.options import Debug, Device, Dtype, Json


@reported
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to score, named as for --model.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXTS", help="Files, folders or globs of text.")],
    n_ctx: Annotated[
        int | None,
        typer.Option("--n-ctx", metavar="N", help="Tokens of a window.", show_default="the context, 1024 at most"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens by which the window slides.", show_default="half a window"),
    ] = None,
    lenient: Annotated[bool, typer.Option("--lenient", help="Replace bytes that are no text.")] = False,
    text_field: Annotated[str, typer.Option(metavar="NAME", help="Field of .jsonl, column of .parquet.")] = "text",
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a text: loss, perplexity, bits per byte.

    Every token is scored from what stands before it in its document; past the context a window slides.
    """
    from cutaway.data.files import find_sources

    find_sources(texts)  # told before a model is loaded
    opened = open_model(model, dtype, device)
    from cutaway.show.evaluation import print_evaluation, scoring
    from cutaway.train.evaluate import evaluate as score

    with scoring() as progress:
        result = score(
            opened, texts, n_ctx=n_ctx, stride=stride, lenient=lenient, text_field=text_field, progress=progress
        )
    if json:
        print_json({"model": model, **result.to_dict()})
    else:
        print_evaluation(result)
