"""What a run settles before its first step: here, that tokens made before are taken as they are."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from cutaway import load
from cutaway.data import Windows, prepare
from cutaway.data.shards import is_prepared
from cutaway.data.vocabulary import Sample, train_tokenizer
from cutaway.errors import DataError, TrainingError
from cutaway.train.run import train
from cutaway.train.settle import _has_compiler

TINY: dict[str, Any] = {
    "n_layers": 1,
    "n_heads": 2,
    "d_model": 16,
    "n_ctx": 8,
    "batch_size": 2,
    "sample_every": 0,
    "compile": "off",
    "steps": 2,
}
BYTES, _ = train_tokenizer("bytes", Sample())


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cutaway.train.watch.draw_curve", lambda records, stem: None)
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(4):
        (folder / f"{n}.txt").write_text(f"{n} bottles hang on the wall, take one down.\n" * 5)
    return folder


def test_parts_made_on_several_machines_are_trained_on_together(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [prepare(texts, tokenizer=BYTES, folder=tmp_path / "tokens", shard=(i, 2)) for i in range(2)]
    n_tokens = sum(len(part.train) for part in parts)
    assert is_prepared(tmp_path / "tokens")
    assert is_prepared(tmp_path / "tokens" / "shard-0-of-2")
    seen: list[int] = []
    counted = lambda n, n_ctx, seed: (seen.append(n), Windows(n, n_ctx, seed))[1]  # noqa: E731
    monkeypatch.setattr("cutaway.train.loop.Windows", counted)
    monkeypatch.chdir(tmp_path)
    train("tokens", out="run", **TINY)
    monkeypatch.chdir(texts)  # a resumed run finds them from anywhere
    assert train(out=tmp_path / "run", resume=True, steps=3).step == 3
    assert seen == [n_tokens, n_tokens]
    assert load(tmp_path / "run").encode("abc") == [97, 98, 99]


def test_a_part_that_is_missing_is_named(texts: Path, tmp_path: Path) -> None:
    prepare(texts, tokenizer=BYTES, folder=tmp_path / "tokens", shard=(1, 2))
    with pytest.raises(DataError, match="lacks 1 of 2 parts: prepare number 0 first"):
        train(tmp_path / "tokens", out=tmp_path / "run", **TINY)


def test_texts_beside_a_file_of_that_name_are_texts(texts: Path, tmp_path: Path) -> None:
    (texts / "meta.json").write_text('{"author": "nobody"}')
    assert not is_prepared(texts)
    assert train(texts, out=tmp_path / "run", **TINY, tokenizer="bytes").step == 2


def test_what_was_settled_with_the_tokens_is_not_asked_for_again(texts: Path, tmp_path: Path) -> None:
    prepare(texts, tokenizer="chars", folder=tmp_path / "tokens")
    with pytest.raises(DataError, match=r"tokenizer, val_fraction: settled when the tokens in .* were made"):
        train(tmp_path / "tokens", out=tmp_path / "run", **TINY, tokenizer="bytes", val_fraction=0.2)


def test_tokens_of_another_tokenizer_are_no_text_for_a_model(texts: Path, tmp_path: Path) -> None:
    """T9: of the same size or not, each checkpoint has its own tokenizer."""
    prepare(texts, tokenizer="chars", folder=tmp_path / "tokens")
    train(tmp_path / "tokens", out=tmp_path / "first", **TINY)
    more: dict[str, Any] = {"from_model": str(tmp_path / "first"), "steps": 1, "batch_size": 2, "compile": "off"}
    assert train(tmp_path / "tokens", out=tmp_path / "second", **more).step == 1
    shutil.rmtree(tmp_path / "tokens")
    for path in texts.iterdir():
        path.write_text(path.read_text().replace("b", "B"))
    prepare(texts, tokenizer="chars", folder=tmp_path / "tokens")
    with pytest.raises(TrainingError, match="was made with another tokenizer than"):
        train(tmp_path / "tokens", out=tmp_path / "third", **more)


def test_tokens_are_not_read_as_text(texts: Path, tmp_path: Path) -> None:
    """Neither parts that are named one by one, nor tokens that lie among texts."""
    for i in range(2):
        prepare(texts, tokenizer="bytes", folder=tmp_path / "tokens", shard=(i, 2))
    one, two = sorted((tmp_path / "tokens").glob("shard-*"))
    for given in ([one, two], [tmp_path / "tokens" / "shard-*"], [texts, one], [tmp_path]):
        with pytest.raises(DataError, match=r"tokens/shard-0-of-2 holds tokens, not text: name it alone"):
            train(given, out=tmp_path / "run", **TINY)
    assert train(one, out=tmp_path / "run", **TINY).step == 2


def test_tokens_that_were_damaged_are_made_again(texts: Path, tmp_path: Path) -> None:
    train(texts, out=tmp_path / "run", **TINY, tokenizer="bytes")
    (file,) = (tmp_path / "cache" / "tokens").glob("*/train-*.bin")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    assert train(out=tmp_path / "run", resume=True, steps=3).step == 3
    assert file.read_bytes() == content


def test_a_run_is_a_model_to_take_the_tokenizer_of(texts: Path, tmp_path: Path) -> None:
    run = train(texts, out=tmp_path / "run", **TINY, tokenizer="chars").folder
    assert prepare(texts, tokenizer=run).tokenizer.backend_state() == load(run).tokenizer.backend_state()


def test_a_compiled_run_without_a_compiler_is_refused_before_it_leaves_anything(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(TrainingError, match=r"finds no C\+\+ compiler here: install g\+\+ .*--compile off"):
        train(texts, out=tmp_path / "run", tokenizer="bytes", **TINY | {"compile": "on"})
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_compiled_elsewhere_is_not_resumed_without_a_compiler(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(texts, out=tmp_path / "run", tokenizer="bytes", **TINY)
    path = tmp_path / "run" / "run.json"
    content = json.loads(path.read_text())
    content["settled"]["compiled"] = True
    path.write_text(json.dumps(content))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(TrainingError, match="compiled"):
        train(out=tmp_path / "run", resume=True, steps=3)


@pytest.mark.skipif(sys.platform != "linux", reason="torch looks for another compiler there")
def test_a_compiler_that_torch_does_not_look_for_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, found in (("c++", False), ("clang++", False), ("g++", True)):
        (tmp_path / name).touch(mode=0o755)
        assert _has_compiler() is found, name
