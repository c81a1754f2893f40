"""cutaway verify: what a checkpoint holds, and whether its numbers hold."""

from __future__ import annotations

from typing import Annotated

import typer

from cutaway.cli.common import model_name, open_model, print_json, reported
from cutaway.cli.options import Debug, Device, Dtype, Json, Model


@reported
def verify(
    name: Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")] = None,
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a checkpoint holds, and check its numbers.

    The checks compute in float32: the cache, batches, both attention kernels and a saved copy must give the same
    logits, and so must transformers where it is installed. Exit code 1 if one fails.
    """
    if name is not None and model is not None:
        raise typer.BadParameter("name the model once, with --model or without")
    loaded = open_model(model_name(name or model), dtype, device)
    from cutaway.checkpoint.verify import verify as verification_of
    from cutaway.show.terminal import waiting
    from cutaway.show.verification import print_verification

    with waiting("checking") as show:
        result = verification_of(
            loaded.network,
            loaded.tokenizer,
            loaded.report,
            loaded.end_ids,
            progress=lambda check: show(f"checking: {check}"),
        )
    if json:
        print_json(result.to_dict())
    else:
        print_verification(result)
    if not result.passed:
        raise typer.Exit(1)
