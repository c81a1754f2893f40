"""The house keeps its order: imports run one way, names are public once, nothing heavy loads before work starts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway

SOURCE = Path(cutaway.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = Path(__file__).parents[1]
TEST_FILES = sorted(TESTS.rglob("*.py"))

# Every room may import from the floors below it and from itself.
FLOORS = [
    {"errors", "pages", "rooms"},
    {"checked"},
    {"config", "figures"},
    {"presets", "nn", "text"},
    {"network"},
    {"checkpoint", "generate"},
    {"inside", "account"},
    {"language_model", "data"},
    {"train"},
    {"claims", "show"},
    {"serve"},
    {"cli"},
    {"__main__"},
]


# A result draws itself: the one look upward, taken when it is asked to.
DOORS = {("figures.py", "show")}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: imports are absolute"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_imports_upward(path: Path) -> None:
    here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if here == "__init__":
        return  # the public face names everything, lazily
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    assert here in floor, f"{here} has no floor"
    for module in imports(path):
        if module.startswith("cutaway.") and room(module) in floor and room(module) != here:
            if (path.relative_to(SOURCE).as_posix(), room(module)) in DOORS:
                continue
            assert floor[room(module)] < floor[here], f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_fits_in_a_head(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda p: str(p.relative_to(TESTS)))
def test_a_test_file_fits_in_a_head_too(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_forwards_fit_on_a_screen() -> None:
    """About 30 lines and 2 ifs."""
    n_forwards = 0
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in ("forward", "residual", "__call__"):
                n_forwards += 1
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno <= 32, f"{path}: {node.name}"
                ifs = [n for n in ast.walk(node) if isinstance(n, ast.If | ast.IfExp)]
                assert len(ifs) <= 2, f"{path}: {node.name}"
    assert n_forwards > 10


def test_public_names_are_sorted_and_real() -> None:
    plain = sorted(cutaway.__all__, key=lambda name: (not name.isupper(), name))
    upper = [name for name in plain if name.isupper()]
    assert cutaway.__all__ == upper + sorted(name for name in plain if name not in upper)
    for name in cutaway.__all__:
        assert name in upper or getattr(cutaway, name).__name__.rpartition(".")[2] == name  # a room can be called
    assert set(cutaway.__all__) <= set(dir(cutaway))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cutaway.nonsense  # noqa: B018


@pytest.mark.parametrize("command", ["import cutaway", "import cutaway.config, cutaway.presets, cutaway.cli"])
def test_nothing_heavy_is_imported_before_work_starts(command: str) -> None:
    heavy = ("torch", "transformers", "tokenizers", "huggingface_hub", "numba", "numpy", "gguf", "safetensors")
    code = f"import sys; {command}; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_errors_are_one_tree_drawn_at_its_top() -> None:
    import cutaway.errors as errors

    drawing = (errors.__doc__ or "").splitlines()
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.CutawayError)
        (line,) = [line for line in drawing if line.lstrip("│├└─ ").split(" ")[0] == name]
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        assert depth == len([base for base in kind.__mro__ if issubclass(base, errors.CutawayError)]) - 1
