"""What to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cutaway.data.files import extra, find_sources
from cutaway.errors import DataError


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")


def names(*paths: Path | str) -> list[str]:
    return [source.name for source in find_sources(list(paths))[0]]


def test_a_folder_is_read_whole_and_sorted(tmp_path: Path):
    write(tmp_path, "b.txt", "a/z.py", "a/b/c", ".git/config", "a/.hidden", "c.md")
    assert names(tmp_path) == ["a/b/c", "a/z.py", "b.txt", "c.md"]


def test_kinds_go_by_name(tmp_path: Path):
    write(tmp_path, "a.jsonl", "b.JSONL.gz", "c.parquet.zst", "d.txt.gz", "e.json", "f")
    found = [(source.kind, source.packing) for source in find_sources(tmp_path)[0]]
    assert found == [("jsonl", ""), ("jsonl", ".gz"), ("parquet", ".zst"), ("text", ".gz"), ("text", ""), ("text", "")]


def test_binary_kinds_in_a_folder_are_left_out_and_counted(tmp_path: Path):
    write(tmp_path, "a.txt", "b.png", "c.PNG", "d/e.tar.gz", "f.safetensors")
    sources, notes = find_sources(tmp_path)
    assert [source.name for source in sources] == ["a.txt"]
    assert notes == ["files of binary kinds left out: 2 .png, 1 .safetensors, 1 .tar"]


def test_a_file_the_user_names_is_read_whatever_its_kind(tmp_path: Path):
    write(tmp_path, "b.png")
    assert names(tmp_path / "b.png") == ["b.png"]
    with pytest.raises(DataError, match=r"holds no text files \(binary kinds are not read: 1 \.png\)"):
        find_sources(tmp_path)


def test_globs(tmp_path: Path):
    write(tmp_path, "x/a.txt", "x/b.md", "y/c.txt", "y/deep/d.txt", "z.txt")
    assert names(tmp_path / "*" / "*.txt") == ["x/a.txt", "y/c.txt"]
    assert names(str(tmp_path / "**" / "*.txt")) == ["x/a.txt", "y/c.txt", "y/deep/d.txt", "z.txt"]
    assert names(tmp_path / "y*") == ["y/c.txt", "y/deep/d.txt"], "a folder that matches is read"


def test_a_name_with_brackets_is_a_name_where_it_exists(tmp_path: Path):
    write(tmp_path, "[a].txt", "a.txt")
    assert names(tmp_path / "[a].txt") == ["[a].txt"]


def test_a_file_reached_twice_is_read_once(tmp_path: Path):
    write(tmp_path, "a.txt", "b.txt")
    assert names(tmp_path / "b.txt", tmp_path, tmp_path) == ["b.txt", "a.txt"]


def test_a_link_to_a_folder_is_followed(tmp_path: Path):
    write(tmp_path, "in/a.txt", "elsewhere/b.txt")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "in") == ["a.txt", "link/b.txt"]


def test_a_link_around_the_folder_ends(tmp_path: Path):
    write(tmp_path, "a.txt", "other/b.txt")
    (tmp_path / "other" / "up").symlink_to(tmp_path)
    assert names(tmp_path) == ["a.txt", "other/b.txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.txt", r"none\.txt does not exist: check the path"),
        ("*.none", r"no file matches .*\*\.none: check the pattern"),
        ("empty", r"empty holds no text files: give a folder or files of text"),
    ],
)
def test_a_path_without_text_is_one_line(tmp_path: Path, path: str, message: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message) as error:
        find_sources(tmp_path / path)
    assert "\n" not in str(error.value)


def test_a_pipe_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="no regular file"):
        find_sources(tmp_path / "pipe")


def test_no_paths(tmp_path: Path):
    with pytest.raises(DataError, match="no paths were given"):
        find_sources([])


def test_a_missing_package_is_named():
    with pytest.raises(DataError, match=r"a\.zst needs the package no_such: pip install 'cutaway\[train\]'"):
        extra("no_such.module", "a.zst")
