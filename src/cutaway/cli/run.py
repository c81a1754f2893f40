"""cutaway run: continue a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cutaway.cli.answer import Answer
from cutaway.cli.common import as_given, dtype_name, model_name, open_model, print_json, read_stdin, reported
from cutaway.cli.options import (
    Debug,
    Device,
    Dtype,
    Json,
    MaxTokens,
    MinP,
    Model,
    NoCache,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from cutaway.show.terminal import Screen


@reported
def run(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The text; `-`, or nothing in a pipe: standard input."),
    ] = None,
    model: Model = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = 1.0,
    stop: Stop = None,
    seed: Seed = None,
    no_cache: NoCache = False,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a text, token by token.

    Into a pipe or a file goes the continuation alone. A model without a tokenizer reads and writes token ids,
    such as "12 7 3".
    """
    text = _text(prompt)
    name = model_name(model)
    loaded = open_model(name, dtype, device)
    answer = Answer(
        loaded,
        text,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop or (),
        seed=seed,
        cache=not no_cache,
    )
    if json:
        for _ in answer:
            pass
        print_json({"prompt": text, **answer.to_dict(), "model": name, "dtype": dtype_name(loaded)})
        return
    screen = Screen()
    screen.dim(text, end="")
    try:
        for piece in answer:
            screen.write(piece)
    finally:
        screen.write("\n")  # an interrupted line ends here too
    screen.dim(answer.summary())


def _text(prompt: str | None) -> str:
    """The prompt, read from standard input where it is to come from there."""
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("give a text to continue, or `-` to type it on standard input")
    return read_stdin() if prompt is None or prompt == "-" else as_given(prompt)
