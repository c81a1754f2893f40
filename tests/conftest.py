"""The signatures' shapes are checked while the tests run."""

from __future__ import annotations

from jaxtyping import install_import_hook

install_import_hook(["cutaway.nn", "cutaway.network", "cutaway.generate"], "beartype.beartype")
