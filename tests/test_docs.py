"""The pages say what is so: their Python prints what they show, their commands parse, their links lead somewhere."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from typer.main import get_command

from cutaway.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
PICTURE = ROOT / "docs" / "session.svg"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its blocks."""
    return FENCE.sub("", text_of(page))


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of each `cutaway …` on a page, in a shell block, after a prompt, or within a sentence."""
    lines = re.findall(r"`(cutaway [^`]+)`", prose_of(page))
    for kind, block in FENCE.findall(text_of(page).replace("\\\n", "")):
        if kind == "sh":
            lines += block.splitlines()
        elif kind == "console":
            lines += [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, "|"]:
            if set(word) <= set("|&;<>"):
                if command[:1] == ["cutaway"]:
                    yield command[1:]
                command = []
            else:
                command.append(word)


@pytest.mark.parametrize("page", [page for page in PAGES if SNIPPET.search(text_of(page))], ids=name)
def test_python_prints_what_the_page_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for found in SNIPPET.finditer(text_of(page)):
        line = text_of(page).count("\n", 0, found.start(1))
        code = compile(
            "\n" * line + found[1], str(page), "exec", dont_inherit=True
        )  # a traceback names the page's line
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(code, names)
        shown = [line.rstrip() for line in printed.getvalue().rstrip().splitlines()]
        assert shown == (found[2] or "").rstrip().splitlines(), f"{name(page)}, line {line + 1}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_parses(page: Path) -> None:
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    for verb, *rest in commands_of(page):
        if not verb.startswith("-"):
            verbs[verb].make_context(verb, [word for word in rest if word != "--help"])  # reads, but does not run


def test_commands_are_found_and_wrong_ones_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`cutaway models`\n\n```console\n$ echo hi | cutaway run --top 3 > out  # why\nhi\n```\n")
    assert list(commands_of(page)) == [["models"], ["run", "--top", "3"]]
    with pytest.raises(Exception, match="No such option: --top"):
        test_every_command_parses(page)
    assert sum(len(list(commands_of(page))) for page in PAGES) > 10


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{name(page)} links to {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", prose_of(there), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_make_target_and_every_file_named_exists(page: Path) -> None:
    makefile = text_of(ROOT / "Makefile")
    for target in re.findall(r"^make (\w+)|`make (\w+)`", text_of(page), re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, re.MULTILINE), f"{name(page)}: make {target}"
    for file in re.findall(r"`([\w/]+\.py)`", prose_of(page)):
        assert any((folder / file).is_file() for folder in (ROOT, ROOT / "src" / "cutaway")), f"{name(page)}: {file}"


def test_every_page_is_linked_from_the_readme() -> None:
    for page in PAGES[1:]:
        assert f"]({name(page)})" in text_of(ROOT / "README.md")


def test_the_picture_is_small_and_fetches_nothing() -> None:
    drawing = text_of(PICTURE)
    assert len(drawing) < 200_000
    assert set(re.findall(r"\w+://[^\"]*", drawing)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|@font-face|<script|href", drawing)
