"""Numbers and lines of code in a page are those of the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.figures import Figure, Prose, Result, Table


@dataclass(frozen=True, eq=False)
class Mixed(Result):
    """A share among counts, and code with a margin."""

    @property
    def heading(self) -> str:
        return "mixed"

    def figures(self) -> list[Figure]:
        rows = [["weights", 262_144], ["share", 0.984], ["quarter", 0.25], ["lost", 1e-9], ["none", 0]]
        return [
            Table(title="figures", columns=("figure", ">bard"), rows=rows),
            Prose(title="code", lines=["for n in (4, 8):", "    print(n)"]),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "mixed"}


def test_a_share_among_counts_keeps_its_digits_and_code_its_margin(browser: Any, tmp_path: Path) -> None:
    Mixed().to_html(tmp_path / "mixed.html")
    page = browser.new_page()
    page.goto((tmp_path / "mixed.html").as_uri())
    cells = page.locator("td").all_inner_texts()
    assert cells[1::2] == ["262\u202f144", "0.984", "0.250", "1.00e−9", "0"]
    assert page.locator(".prose p").nth(1).inner_text() == "    print(n)"
    page.close()
