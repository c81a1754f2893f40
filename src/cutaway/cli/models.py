"""cutaway models: what can be loaded by name."""

from __future__ import annotations

from dataclasses import asdict

from cutaway.cli.common import print_json, reported
from cutaway.cli.options import Debug, Json


@reported
def models(json: Json = False, debug: Debug = False) -> None:
    """List the models that are bundled, cached, or known by name."""
    from cutaway.checkpoint.sources import known_models
    from cutaway.show.terminal import print_models

    entries = known_models()
    if json:
        print_json([asdict(entry) | {"path": entry.path and str(entry.path)} for entry in entries])
    else:
        print_models(entries)
