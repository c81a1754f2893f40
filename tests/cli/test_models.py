"""cutaway models: every model by name, with size and licence, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutaway.checkpoint import hub, sources
from cutaway.checkpoint.aliases import ALIASES
from support.commands import Commands


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One bundled model of 12 bytes, one cached repository of 1.5 GB, nothing else on this machine."""
    bundled = tmp_path / "models" / "bard"
    bundled.mkdir(parents=True)
    (bundled / "config.json").write_text("{}")
    (bundled / "x").write_text("0123456789")
    monkeypatch.setattr(sources, "BUNDLED", tmp_path / "models")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "cached_models", lambda: iter([("some/[red]model", Path("/there"), 1_500_000_000)]))


def test_json_lists_bundled_cached_and_known_models(cutaway: Commands) -> None:
    code, out, err = cutaway("models", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [(entry["name"], entry["where"]) for entry in found[:2]] == [
        ("bard", "bundled"),
        ("some/[red]model", "cached"),
    ]
    assert found[0]["n_bytes"] == 12
    assert found[1]["path"] == "/there"
    known = {entry["name"]: entry for entry in found[2:]}
    assert known.keys() == ALIASES.keys()
    assert {entry["where"] for entry in known.values()} == {"known"}
    assert known["smollm2"]["n_parameters"] == 134_515_008
    assert known["smollm2"]["licence"] == "Apache-2.0"
    assert "gated" in known["llama3.2-1b"]["licence"]


def test_the_table_has_one_line_for_each_and_takes_names_as_they_are(cutaway: Commands) -> None:
    code, out, _ = cutaway("models")
    assert code == 0
    header, rule, *rows = out.rstrip().splitlines()
    assert header.split() == ["name", "where", "parameters", "on", "disk", "licence"]
    assert set(rule) == {"─"}
    assert len(rows) == 2 + len(ALIASES)
    assert rows[1].split() == ["some/[red]model", "cached", "1.5", "GB"]
    smollm2 = next(row for row in rows if row.startswith("smollm2"))
    assert "134.5 M" in smollm2
    assert "Apache-2.0" in smollm2
