"""Tokenizer files that are not what they say: one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.errors import CheckpointError, DamagedFileError
from cutaway.text.tokenizer import Tokenizer
from support.tokenizer_folders import load, write, write_legacy
from support.vocabularies import byte_level, gpt2

transformers.logging.set_verbosity_error()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "version https://git-lfs.github.com/spec/v1",
        "[" * 100_000,
        "{}",
        '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 9223372036854775808}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": "b"}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]],'
        ' "continuing_subword_prefix": "##"}}',
    ],
)
def test_a_damaged_tokenizer_json_is_named(tmp_path: Path, text: str):
    """One named error in one line, also where the library would panic."""
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError) as error:
        Tokenizer.from_folder(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_begin_token_without_an_id_is_named(tmp_path: Path):
    """The library reads such a rule and fails only where it is applied."""
    template = {"type": "TemplateProcessing", "special_tokens": {}}
    template |= {kind: [{"SpecialToken": {"id": "<s>", "type_id": 0}}] for kind in ("single", "pair")}
    state = json.loads(byte_level({}, special=("<s>",)).to_str()) | {"post_processor": template}
    with pytest.raises(DamagedFileError, match="<s>"):
        Tokenizer.from_folder(write(tmp_path, tokenizer=state))


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": []},
        {"tokenizer_config": {"bos_token": 5}},
        {"tokenizer_config": {"bos_token": {"content": []}}},
        {"tokenizer_config": {"added_tokens_decoder": {"-1": {"content": "<a>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"9" * 30: {"content": "<a>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"9" * 5000: {"content": "<a>"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"256": {"content": "\ud800"}}}},
        {"tokenizer_config": {"added_tokens_decoder": {"256": 5}}},
        {"tokenizer_config": {"bos_token": "\ud800"}},
        {"tokenizer_config": {"additional_special_tokens": ["\ud800"]}},
        {"tokenizer_config": {"additional_special_tokens": [5]}},
        {"special_tokens_map": 3},
        {"generation_config": {"eos_token_id": "2"}},
        {"generation_config": {"eos_token_id": [2**63]}},
        {"config": {"eos_token_id": True}},
        {"added_tokens": {"<a>": -1}},
        {"added_tokens": {"\ud800": 256}},
    ],
)
def test_damaged_companions_are_named(tmp_path: Path, files: dict[str, Any]):
    with pytest.raises(DamagedFileError) as error:
        Tokenizer.from_folder(write(tmp_path, gpt2(), **files))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [-1, 2**63, 1.5, "0", None, 2**22])
def test_a_damaged_vocabulary_is_named(tmp_path: Path, bad: object):
    folder = write_legacy(tmp_path)
    (folder / "vocab.json").write_text(json.dumps({"a": bad}), encoding="utf-8")
    with pytest.raises(DamagedFileError, match="'a'"):
        Tokenizer.from_folder(folder)


def test_bytes_that_are_no_utf8_are_named(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_bytes(b'{"\xff')
    with pytest.raises(DamagedFileError, match="byte 2"):
        Tokenizer.from_folder(tmp_path)


def test_a_huge_file_is_not_read(tmp_path: Path):
    """Ten gigabytes that take no room on the disk; reading them would."""
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(DamagedFileError, match="limit"):
        Tokenizer.from_folder(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("bos_token", "eos_token", "pad_token", "add_bos_token", "added_tokens_decoder", "additional_special_tokens")


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from((*FIELDS, "chat_template")), JSON), JSON, JSON)
def test_any_json_is_read_or_named(tmp_path: Path, config: dict[str, Any], generation: Any, model: Any):
    folder = write(tmp_path, None if (tmp_path / "tokenizer.json").exists() else gpt2())
    write(folder, tokenizer_config=config, generation_config=generation, config={"eos_token_id": model})
    try:
        tokenizer = load(folder)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        assert tokenizer.decode(tokenizer.encode("a ?", bos=False)) == "a ?"


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["model", "decoder", "normalizer", "pre_tokenizer", "post_processor", "added_tokens"]), JSON)
def test_any_tokenizer_json_is_read_or_named(tmp_path: Path, part: str, value: Any):
    state = json.loads(byte_level({}, special=("<s>",)).to_str()) | {part: value}
    try:
        tokenizer = load(write(tmp_path, tokenizer=state))
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:  # the library takes some strange values for a part
        assert max(tokenizer.encode("a"), default=0) < tokenizer.d_vocab
