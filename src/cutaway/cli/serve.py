"""cutaway serve: one local address, a page for people and an API for programs."""

from __future__ import annotations

import importlib.util
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.common import model_name, open_model, reported
from cutaway.cli.options import Debug, Device, Dtype, Model
from cutaway.errors import ServeError
from cutaway.show.terminal import Screen


@reported
def serve(
    model: Model = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; others than this machine's own need an API key.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Where to listen.", show_default="8000, or the next free"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    cache_gib: Annotated[
        float, typer.Option(metavar="GIB", min=0.001, max=1e6, help="Memory for the keys and values of all texts.")
    ] = 2.0,
    beside: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME", help="Another model that the page compares with; may be repeated."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A training run that the page shows, also while it runs.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Serve a page and an OpenAI-compatible API.

    Requests need `Authorization: Bearer KEY` where CUTAWAY_API_KEY is set to a key. Ctrl-C ends the server; texts
    that are being generated have five seconds to end.
    """
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ServeError(f"{' and '.join(missing)} not installed: pip install 'cutaway[serve]'")
    from cutaway.serve.limits import GIB, Limits
    from cutaway.serve.server import listen, served_name
    from cutaway.serve.server import serve as run_server
    from cutaway.serve.views import Exhibits

    if run is not None and not run.is_dir():
        raise ServeError(f"run = {run}: no such folder; give the one that cutaway train writes to")
    names = {one: served_name(one) for one in beside or ()}
    twice = next((called for called in names.values() if list(names.values()).count(called) > 1), None)
    if twice is not None:
        raise ServeError(f"with = {', '.join(names)}: the page would call several of them {twice}; rename a folder")
    listening = listen(host, port)  # before the model is loaded: an address that cannot be had is told at once
    name = model_name(model)
    loaded = open_model(name, dtype, device)
    exhibits = Exhibits(others={called: open_model(one, dtype, device) for one, called in names.items()}, run=run)
    screen = Screen()

    def started(address: str) -> None:
        screen.write(f"{served_name(name)} at {address}  (API: {address}v1; Ctrl-C ends it)\n")
        if open_page:
            webbrowser.open(address)

    limits = Limits(cache_bytes=int(cache_gib * GIB))
    run_server(loaded, served_name(name), listening, host=host, limits=limits, exhibits=exhibits, started=started)
