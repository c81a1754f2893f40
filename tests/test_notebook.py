"""The notebook says what is so: its cells run in order, and show what is stored below them, to rounding.

    python tests/test_notebook.py --update        runs it and stores what its cells show

Stored is the text of every output, which any viewer shows; whoever runs it sees figures in its place.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "inside.ipynb"
NUMBER = re.compile(r"−?\d+\.?\d*(?:e−?\d+)?")


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run(source: str, names: dict[str, object]) -> tuple[str, str]:
    """What a cell prints, and the text of its last expression, as a notebook has it."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval", dont_inherit=True), names)
    return printed.getvalue(), "" if value is None else _text(value)


def _text(value: Any) -> str:
    bundle = getattr(value, "_repr_mimebundle_", None)
    return repr(value) if bundle is None else bundle()["text/plain"]


def outputs(printed: str, shown: str, count: int) -> list[dict[str, Any]]:
    """As the format of notebooks has them."""
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if shown:
        data = {"text/plain": shown.splitlines(keepends=True)}
        found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def stored(cell: dict[str, Any]) -> tuple[str, str]:
    printed = "".join("".join(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")
    return printed, "".join("".join(one["data"]["text/plain"]) for one in cell["outputs"] if "data" in one)


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    """All but the numbers, and but the marks whose number may lie next to a threshold."""
    return NUMBER.sub("#", re.sub(r"[▏▎▍▌▋▊▉█▐░▒▓≡═─╌│⠀-⣿ ]+", " ", text)).split()


def test_every_cell_shows_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for i, cell in enumerate(cells(), start=1):
        assert cell["execution_count"] == i
        for now, before in zip(run("".join(cell["source"]), names), stored(cell), strict=True):
            assert words(now) == words(before), f"cell {i}"
            assert numbers(now) == pytest.approx(numbers(before), rel=0.02, abs=1e-3), f"cell {i}"


def test_the_notebook_is_small_and_shows_something() -> None:
    assert NOTEBOOK.stat().st_size < 60_000
    assert sum(bool(cell["outputs"]) for cell in cells()) >= 8


def test_a_changed_output_is_seen() -> None:
    printed, shown = run("print('to be', 0.5)\n[1.25, 'a']", {})
    assert (printed, shown) == ("to be 0.5\n", "[1.25, 'a']")
    assert words("head 3.5 ███ 0.5") == words("head 4.1 █ 0.25") != words("ff 3.5 0.5")
    assert numbers("−0.5 and 1e−3, 12") == [-0.5, 0.001, 12]


def update() -> None:
    """Run every cell and store what it shows."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    count = 0
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = outputs(*run("".join(cell["source"]), names), count)
    NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python tests/test_notebook.py --update")
    update()
