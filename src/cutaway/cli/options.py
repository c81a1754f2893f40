"""The options that several verbs share, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A name from `cutaway models`, a folder, a .gguf file, or a Hub id.",
        show_default="$CUTAWAY_MODEL, else a bundled model, else smollm2",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="float32, bfloat16 or float16.",
        show_default="as stored; float32 if quantised",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, mps …", show_default="a GPU if there is one"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

MaxTokens = Annotated[int, typer.Option(metavar="N", help="New tokens at most.")]
Temperature = Annotated[float, typer.Option(metavar="T", help="Flatter above 1; 0 always takes the likeliest token.")]
TopK = Annotated[int | None, typer.Option(metavar="K", help="Draw from the K likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(metavar="P", help="Draw from the fewest tokens that together reach P.")]
MinP = Annotated[
    float | None, typer.Option(metavar="P", help="Draw from tokens at least P times as likely as the best.")
]
RepetitionPenalty = Annotated[
    float, typer.Option(metavar="R", help="Above 1: tokens already in the text become less likely.")
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given several times.")
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Makes the run repeatable.", show_default="drawn, and shown")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Re-run the whole text for every token.")]
