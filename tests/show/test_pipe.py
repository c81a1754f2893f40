"""A drawing through a pipe is plain text."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_escapes_through_a_pipe() -> None:
    code = (
        "from cutaway.figures import Bars\n"
        "from cutaway.show.figures import drawing\n"
        "from cutaway.show.terminal import console\n"
        "console().print(drawing(Bars(title='t', labels=['a\\x1b[31m'] * 2, values=[1.0, -1.0])))\n"
    )
    env = {"PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color"}
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env)
    seen = made.stdout.decode("utf-8")
    assert "\x1b" not in seen and seen.split("\n")[1].startswith("a␛[31m   1.00")
