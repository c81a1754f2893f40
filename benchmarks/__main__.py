"""Run the benchmarks named on the command line, or all of them."""

from __future__ import annotations

import importlib
import sys

from benchmarks import machine

ALL = ("load", "decode", "prompt", "inside", "train", "serve", "page")


def main(names: list[str]) -> None:
    """Ratios, never bare times: the machine's own measured limits are printed first."""
    unknown = set(names) - set(ALL)
    if unknown:
        raise SystemExit(f"no benchmark named {', '.join(sorted(unknown))}: there are {', '.join(ALL)}")
    machine.introduce()
    for name in names or ALL:
        importlib.import_module(f"benchmarks.{name}").main()


main(sys.argv[1:])
