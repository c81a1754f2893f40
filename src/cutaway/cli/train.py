"""cutaway train: text in, a model out."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any

import typer

from cutaway.cli.common import leaving_at_once, print_json, reported
from cutaway.cli.options import Debug, Device, Json

TEXT, MODEL, STEPS, WATCH = "The text", "The model", "The steps", "Watching and keeping"


def _option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


@reported
def train(
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help="Files, folders or globs of text.")] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FOLDER", help="Where the run is kept.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder.")] = None,
    from_model: Annotated[str | None, _option(MODEL, "Start from this model.", "--from", metavar="MODEL")] = None,
    arch: Annotated[str | None, _option(MODEL, "gpt2 (the lecture's) or llama. [gpt2]", metavar="KIND")] = None,
    size: Annotated[
        str | None, _option(MODEL, "nano, mini, small, medium, base, or a preset. [mini]", metavar="NAME")
    ] = None,
    n_layers: Annotated[int | None, _option(MODEL, "Layers.", metavar="N")] = None,
    n_heads: Annotated[int | None, _option(MODEL, "Heads.", metavar="N")] = None,
    n_kv_heads: Annotated[int | None, _option(MODEL, "Key/value heads; llama only. [half]", metavar="N")] = None,
    d_model: Annotated[int | None, _option(MODEL, "Width of the residual stream.", metavar="N")] = None,
    d_ff: Annotated[int | None, _option(MODEL, "Width of the feed-forward.", metavar="N")] = None,
    n_ctx: Annotated[int | None, _option(MODEL, "Tokens of a window. [256]", "--n-ctx", metavar="N")] = None,
    dropout: Annotated[
        float | None, _option(MODEL, "Share of what a sub-layer adds that is dropped. [0]", metavar="F")
    ] = None,
    tokenizer: Annotated[
        str | None, _option(TEXT, "bpe, chars, bytes, or a model or tokenizer.json. [bpe]", metavar="KIND")
    ] = None,
    vocab_size: Annotated[
        int | None, _option(TEXT, "Ids of a trained tokenizer. [by the text's size]", metavar="N")
    ] = None,
    val_fraction: Annotated[float | None, _option(TEXT, "Held out for validation. [0.1]", metavar="F")] = None,
    text_field: Annotated[
        str | None, _option(TEXT, "Field of .jsonl, column of .parquet. [text]", metavar="NAME")
    ] = None,
    lenient: Annotated[
        bool | None, _option(TEXT, "Replace bytes that are no text, and count them.", "--lenient")
    ] = None,
    shard: Annotated[
        str | None,
        _option(
            TEXT, "Only write tokens: part I of N, from 0, to the folder --out. TEXTS of a later run.", metavar="I/N"
        ),
    ] = None,
    steps: Annotated[int | None, _option(STEPS, "Steps. [1000]", metavar="N")] = None,
    batch_size: Annotated[int | None, _option(STEPS, "Windows a step. [16]", metavar="N")] = None,
    accumulate: Annotated[int | None, _option(STEPS, "Parts of a step, one after another. [1]", metavar="N")] = None,
    optimizer: Annotated[str | None, _option(STEPS, "muon or adamw. [muon]", metavar="NAME")] = None,
    lr: Annotated[float | None, _option(STEPS, "Highest learning rate. [muon 0.006, adamw 0.001]", metavar="R")] = None,
    weight_decay: Annotated[float | None, _option(STEPS, "Decay of matrices. [0.1]", metavar="W")] = None,
    schedule: Annotated[str | None, _option(STEPS, "cosine or wsd. [cosine]", metavar="NAME")] = None,
    warmup: Annotated[int | None, _option(STEPS, "Steps of rising rate. [50]", metavar="N")] = None,
    final_lr: Annotated[
        float | None, _option(STEPS, "Last rate, as a share of the highest. [0.05]", metavar="F")
    ] = None,
    clip: Annotated[float | None, _option(STEPS, "Highest norm of the gradient. [1]", metavar="N")] = None,
    precision: Annotated[str | None, _option(STEPS, "auto, fp32 or bf16. [auto]", metavar="TYPE")] = None,
    compile: Annotated[str | None, _option(STEPS, "auto, on or off. [auto]", metavar="WHEN")] = None,
    parallel: Annotated[
        str | None, _option(STEPS, "Of many processes: auto, data or sharded. [auto]", metavar="KIND")
    ] = None,
    seed: Annotated[int | None, _option(STEPS, "Seed of everything drawn. [0]", metavar="N")] = None,
    eval_every: Annotated[int | None, _option(WATCH, "Steps between evaluations. [100]", metavar="N")] = None,
    eval_windows: Annotated[int | None, _option(WATCH, "Windows of an evaluation; 0: all. [256]", metavar="N")] = None,
    sample_every: Annotated[int | None, _option(WATCH, "Steps between samples; 0: none. [500]", metavar="N")] = None,
    save_every: Annotated[int | None, _option(WATCH, "Steps between checkpoints. [500]", metavar="N")] = None,
    keep: Annotated[int | None, _option(WATCH, "Newest checkpoints kept, beside the best. [2]", metavar="N")] = None,
    patience: Annotated[
        int | None, _option(WATCH, "Evaluations without a better one, then stop; 0: never. [0]", metavar="N")
    ] = None,
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on your own text.

    The run's folder can be used as a model at any time: its best checkpoint is one. Ctrl-C saves first; --resume
    goes on as if nothing had happened.
    """
    choices = {name: value for name, value in locals().items() if value is not None}
    for name in ("texts", "out", "resume", "shard", "device", "json", "debug"):
        choices.pop(name, None)
    if (out is None) == (resume is None) or (resume is not None and texts):
        raise typer.BadParameter("give TEXTS and --out FOLDER, or --resume FOLDER alone")

    if shard is not None:
        _write_part(shard, texts or [], out or "", choices, json)
        return
    with leaving_at_once():
        from cutaway.show.terminal import console
        from cutaway.show.training import TrainingDisplay, print_trained
        from cutaway.train.run import train as start

    folder = resume or out or ""
    with TrainingDisplay(0, console(stderr=json), quiet=json) as shown:
        result = start(texts or (), out=folder, resume=resume is not None, device=device, display=shown, **choices)
    if shown.closed:
        raise BrokenPipeError
    if os.environ.get("RANK", "0") == "0":  # of many processes the first speaks for all
        if json:
            print_json(result.to_dict())
        else:
            print_trained(result)
    if result.end == "stopped":
        raise typer.Exit(130)


def _write_part(shard: str, texts: list[str], out: str, choices: dict[str, Any], json: bool) -> None:
    """One machine's part of the tokens."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    unfit = sorted(set(choices) - {"tokenizer", "seed", "val_fraction", "lenient", "text_field"})
    if found is None:
        raise typer.BadParameter(f"--shard {shard}: a part is I/N, such as 0/4")
    if unfit:
        raise typer.BadParameter(f"--shard takes options of the text alone, not {', '.join(unfit)}")
    from cutaway.data.preparing import prepare

    prepared = prepare(texts, folder=out, shard=(int(found[1]), int(found[2])), **choices)
    written = {"folder": str(prepared.folder), "tokens": len(prepared.train), "documents": prepared.n_documents}
    if json:
        print_json(written)
    else:
        print(f"{prepared.folder}: {len(prepared.train)} tokens of {prepared.n_documents} documents to train on")
