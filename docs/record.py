"""The picture in the README: run the commands below in a terminal 100 columns wide, and draw what they print.

    python docs/record.py        writes docs/session.svg

Only the home folder's name is changed, to ~, and long lines break between words. The picture needs nothing from
anywhere else: it has no fonts of its own and takes the reader's.
"""

from __future__ import annotations

import io
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COMMANDS = (
    'cutaway run -m smollm2 --temperature 0 --max-tokens 64 "Once upon a time, a little robot"',
    "cutaway verify smollm2",
)
PICTURE = Path(__file__).with_name("session.svg")
COLUMNS = 100

# Ink on paper, with the colours GitHub uses for text: each stands out on white by 4.5 to 1 or more.
INK, PAPER = (20, 24, 29), (255, 255, 255)
COLOURS = {
    "black": INK,
    "red": (207, 34, 46),
    "green": (26, 127, 55),
    "yellow": (154, 103, 0),
    "blue": (9, 105, 218),
    "magenta": (130, 80, 223),
    "cyan": (27, 124, 131),
    "white": (89, 99, 110),
}
THEME = TerminalTheme(PAPER, INK, list(COLOURS.values()))

# What rich fills in: its own drawing also fetches a font, and has a title bar with buttons.
DRAWING = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}}
{styles}
</style>
<defs>
{lines}
</defs>
<rect x="0.1%" y="0.1%" width="99.8%" height="99.8%" rx="12" fill="#ffffff" stroke="#d1d9e0" stroke-width="1.5"/>
<g transform="translate({terminal_x}, 26)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Record, draw, write."""
    console = Console(record=True, width=COLUMNS + 4, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        printed = printed_by(command).replace(str(Path.home()), "~")
        session = Text.assemble((f"$ {command}\n", "bold"), Text.from_ansi(printed.rstrip()))
        session.highlight_regex(" +", Style(meta={"drawn": False}))  # each word has a place of its own, in any font
        console.print(Padding(session, (0, 2, 1, 2)))
    drawn = console.export_svg(theme=THEME, code_format=DRAWING, font_aspect_ratio=0.602, unique_id="session")
    PICTURE.write_text(drawn, encoding="utf-8")


def printed_by(command: str) -> str:
    """What a command prints on a terminal, colours included."""
    reader, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    argv = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    printed = b""
    while chunk := _read(reader):
        printed += chunk
    os.close(reader)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{command}: exit code {process.returncode}\n{errors.decode()}")
    return printed.decode().replace("\r\n", "\n")


def _read(reader: int) -> bytes:
    """What has come since the last time; nothing at the end, which Linux reports as an error."""
    try:
        return os.read(reader, 1 << 16)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
