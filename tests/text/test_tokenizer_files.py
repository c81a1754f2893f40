"""A tokenizer's folder, read and written, as transformers has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from cutaway.errors import DamagedFileError, UnsupportedError
from cutaway.text.tokenizer import Tokenizer
from support.tokenizer_folders import load, write, write_legacy
from support.vocabularies import BYTES, byte_level, gpt2, llama3, sentencepiece

transformers.logging.set_verbosity_error()


def test_a_folder_without_a_tokenizer_is_none(tmp_path: Path):
    assert Tokenizer.from_folder(tmp_path) is None
    assert Tokenizer.from_folder(tmp_path / "absent") is None
    assert Tokenizer.from_folder(write(tmp_path, config={"model_type": "llama"})) is None


def test_bos_is_what_the_files_say(tmp_path: Path):
    """S10: the post-processor of tokenizer.json, unless `add_bos_token` says otherwise."""
    config = {"bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|eot_id|>", "lstrip": False}}
    plain = load(write(tmp_path / "a", llama3(), tokenizer_config=config))
    assert plain.encode("hello") == [128000, 15339]
    assert (plain.bos_id, plain.eos_id, plain.eos_ids) == (128000, 128009, {128009})
    without = load(write(tmp_path / "b", llama3(), tokenizer_config=config | {"add_bos_token": False}))
    assert without.encode("hello") == [15339]
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    spm = load(write(tmp_path / "c", sentencepiece(), tokenizer_config=names | {"add_bos_token": True}))
    assert spm.encode("he")[0] == 1
    spm = load(write(tmp_path / "d", sentencepiece(), tokenizer_config=names))
    assert spm.encode("he")[0] != 1
    bare = load(write(tmp_path / "e", llama3()))
    assert bare.encode("hello") == [128000, 15339], "a tokenizer.json alone says it too"
    unnamed = load(write(tmp_path / "f", gpt2(), tokenizer_config={"x": 1}, config={"bos_token_id": 50256}))
    assert unnamed.bos_id == 50256, "GPT-2's own files name its BOS only in config.json"
    assert unnamed.encode("a") == [BYTES["a"]]


def test_end_ids_are_a_union(tmp_path: Path):
    """X12: the tokenizer's own, generation_config.json's and config.json's; -1 is how files write none."""
    folder = write(
        tmp_path,
        llama3(),
        tokenizer_config={"eos_token": "<|eot_id|>"},
        generation_config={"eos_token_id": [1, 106]},
        config={"eos_token_id": 7, "bos_token_id": -1},
    )
    assert load(folder).eos_ids == {1, 7, 106, 128009}
    assert load(folder).eos_id == 128009
    folder = write(folder, generation_config={"eos_token_id": -1}, config={})
    assert load(folder).eos_ids == {128009}


def test_tokens_that_only_the_configuration_knows(tmp_path: Path):
    """`added_tokens_decoder` adds tokens and states their flags; a special one is no text any more."""
    added = {
        "256": {"content": "<a>", "special": True, "normalized": False},
        "257": {"content": "<b>", "special": True, "rstrip": True},
        "258": {"content": "<c>", "special": False},
    }
    config = {"added_tokens_decoder": added, "eos_token": "<b>", "additional_special_tokens": ["<b>"]}
    folder = write(tmp_path, byte_level({}, plain=("<a>",)), tokenizer_config=config)
    tokenizer = load(folder)
    a = BYTES["a"]
    assert tokenizer.special_ids == {256, 257}
    assert tokenizer.encode("<a>a<b>  a<c>", special=True) == [256, a, 257, a, 258]
    assert {256, 257}.isdisjoint(tokenizer.encode("<a><b>"))
    added["256"]["content"] = "<z>"
    with pytest.raises(DamagedFileError, match="<z>"):
        load(write(folder, tokenizer_config=config))


def test_clean_up_in_the_configuration_is_not_followed(tmp_path: Path):
    """K2: BPE decodes to what was encoded, also where the configuration asks for less."""
    folder = write(tmp_path, gpt2(), tokenizer_config={"clean_up_tokenization_spaces": True})
    assert load(folder).decode([5633]) == " ?"
    assert load(folder).decode(load(folder).encode("party . . . do n't")) == "party . . . do n't"


def test_special_tokens_map_is_the_older_place(tmp_path: Path):
    folder = write(tmp_path, gpt2(), special_tokens_map={"bos_token": {"content": "<|endoftext|>"}})
    assert load(folder).bos_id == 50256


def test_chat_templates_are_found(tmp_path: Path):
    """A string, a list of named ones, or a file of its own, which wins."""
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    assert load(write(tmp_path, gpt2(), tokenizer_config={"chat_template": "one"})).chat_template == "one"
    assert load(write(tmp_path, tokenizer_config={"chat_template": named})).chat_template == "usual"
    assert load(write(tmp_path, tokenizer_config={"chat_template": named[:1]})).chat_template == "tools"
    (tmp_path / "chat_template.jinja").write_text("file ”", encoding="utf-8")
    assert load(tmp_path).chat_template == "file ”"
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(DamagedFileError, match="chat_template"):
        load(write(tmp_path, tokenizer_config={"chat_template": 7}))


def test_gpt2_files_without_a_tokenizer_json(tmp_path: Path):
    tokenizer = load(write_legacy(tmp_path, "Ġ t", tokenizer_config={"eos_token": "<|endoftext|>"}))
    assert tokenizer.encode("a t") == [BYTES["a"], 256]
    assert tokenizer.eos_ids == {260}
    assert 260 not in tokenizer.encode("<|endoftext|>")
    crlf = write_legacy(tmp_path / "crlf", "Ġ t\r")
    assert load(crlf).encode("a t") == [BYTES["a"], 256]


def test_other_families_need_their_tokenizer_json(tmp_path: Path):
    """Their words are cut by another rule, which these two files do not hold."""
    for files in ({"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}}, {"config": {"model_type": "qwen2"}}):
        with pytest.raises(UnsupportedError, match="convert"):
            load(write_legacy(tmp_path / next(iter(files)), "Ġ t", **files))


def test_a_merge_with_spaces_is_cut_by_the_vocabulary(tmp_path: Path):
    """K4: chosen is to resolve such a line where just one cut makes known tokens, else to name the line."""
    vocabulary = {"a": 0, "b": 1, " ": 2, "b ": 3, "ab ": 4, "a ": 5, " b": 6}
    write(tmp_path, vocab=vocabulary)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b \n", encoding="utf-8")
    assert load(tmp_path).backend.to_str().count('["a","b "]') == 1
    for bad in ("a  b", "a", "x y", "a b"):
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\na b \n{bad}\n", encoding="utf-8")
        with pytest.raises(DamagedFileError, match="line 3"):
            load(tmp_path)


def bpe_file(folder: Path, merges: list[Any]) -> Path:
    vocabulary = {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4, "b c": 5, "ab c": 6, "b ": 7}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges}
    return write(folder, tokenizer={"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": model})


def test_merges_as_strings_and_as_pairs(tmp_path: Path):
    """K4: the same ids from both forms, tokens with spaces from pairs, and pairs are what is saved."""
    strings = load(bpe_file(tmp_path / "strings", ["a b"]))
    pairs = load(bpe_file(tmp_path / "pairs", [["a", "b"]]))
    assert strings.encode("abcab") == pairs.encode("abcab") == [4, 2, 4]
    spaces = load(bpe_file(tmp_path / "spaces", [["b", " "], ["b ", "c"], ["a", "b c"]]))
    assert spaces.encode("ab c") == [6]
    assert spaces.decode([6]) == "ab c"
    with pytest.raises(DamagedFileError, match="line 2"):
        load(bpe_file(tmp_path / "bad", ["a b", "a b c"]))
    for tokenizer in (strings, spaces):
        tokenizer.save(tmp_path / "saved")
        merges = json.loads((tmp_path / "saved" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
        assert all(isinstance(merge, list) and len(merge) == 2 for merge in merges)
        assert load(tmp_path / "saved").encode("ab c") == tokenizer.encode("ab c")


def test_only_a_sentencepiece_model_says_how_to_convert(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(UnsupportedError, match="save_pretrained"):
        Tokenizer.from_folder(tmp_path)


# Saving, with transformers as the judge.

TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"


def saved(folder: Path, name: str) -> Tokenizer:
    if name == "llama3":
        eos, template = frozenset({128009, 128007}), TEMPLATE
        tokenizer = Tokenizer(llama3(), bos_id=128000, eos_id=128009, eos_ids=eos, add_bos=True, chat_template=template)
    elif name == "no bos":
        tokenizer = Tokenizer(llama3(), bos_id=128000, eos_ids=frozenset({128009}), add_bos=False)
    elif name == "gpt2":
        tokenizer = Tokenizer(gpt2(), bos_id=50256, eos_ids=frozenset({50256}), pad_id=50256, add_bos=False)
    elif name == "template":
        backend = byte_level({}, plain=("<think>", "  "), special=("<e>",))
        template = "<think>"
        tokenizer = Tokenizer(backend, bos_id=None, eos_ids=frozenset({258}), add_bos=False, chat_template=template)
    else:
        tokenizer = Tokenizer(sentencepiece(name), bos_id=1, eos_ids=frozenset({2}), add_bos=True)
    tokenizer.save(folder)
    return tokenizer


@pytest.mark.parametrize("name", ["llama3", "no bos", "gpt2", "template", "legacy", "first", "none"])
def test_what_is_saved_is_the_same_tokenizer_in_transformers(tmp_path: Path, name: str):
    tokenizer = saved(tmp_path, name)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("hello !", "  he, the\n\n\n</s>", "party . . . in", "😸 é\0", ""):
        assert theirs(text)["input_ids"] == tokenizer.encode(text, special=True)
    assert theirs.bos_token_id == tokenizer.bos_id
    assert theirs.eos_token_id == tokenizer.eos_id
    assert theirs.pad_token_id == tokenizer.pad_id
    assert theirs.chat_template == tokenizer.chat_template
    ids = tokenizer.encode("hello ! <think>  <e>", special=True)
    for skip in (False, True):
        assert theirs.decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("name", ["llama3", "no bos", "gpt2", "template", "legacy", "first", "none"])
def test_what_is_saved_is_read_back(tmp_path: Path, name: str):
    tokenizer = saved(tmp_path, name)
    again = load(tmp_path)
    for text in ("hello ! <think>", "</s>  he\n", "<|eot_id|>"):
        for special in (False, True):
            assert again.encode(text, special=special) == tokenizer.encode(text, special=special)
    assert again.special_ids == tokenizer.special_ids
    assert again.d_vocab == tokenizer.d_vocab
    assert not list(tmp_path.glob(".*")), "no temporary file stays"


def test_what_transformers_saves_is_read(tmp_path: Path):
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=llama3(), bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", chat_template=TEMPLATE
    )
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.encode("hello !") == theirs("hello !")["input_ids"] == [128000, 15339, 758]
    assert (ours.bos_id, ours.eos_id, ours.chat_template) == (128000, 128009, TEMPLATE)


def test_the_locale_changes_nothing(tmp_path: Path):
    """X2: bytes E2 80 9D are one UTF-8 character, whatever encoding the system would choose."""
    write(tmp_path, vocab={**BYTES, "âĢ": 256, "âĢĿ": 257}, tokenizer_config={"chat_template": "”"})
    (tmp_path / "merges.txt").write_text("â Ģ\nâĢ Ŀ\n", encoding="utf-8")
    program = (
        "import sys; from cutaway.text.tokenizer import Tokenizer; t = Tokenizer.from_folder(sys.argv[1]);"
        "assert t.encode(bytes.fromhex('e2809d').decode()) == [257] and t.chat_template == chr(0x201d);"
        "t.save(sys.argv[1]); assert Tokenizer.from_folder(sys.argv[1]).chat_template == chr(0x201d)"
    )
    strict = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, *strict, "-c", program, str(tmp_path)], check=True, env=environment)


def test_no_torch_is_imported():
    program = "import sys, cutaway.text.tokenizer; assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_an_id_of_plain_text_does_not_become_a_control_token(tmp_path: Path):
    """The model ends at "!", which transformers too must go on reading as text; config.json keeps the id."""
    mark = BYTES["!"]
    tokenizer = load(write(tmp_path / "a", gpt2(), config={"eos_token_id": mark}))
    assert tokenizer.eos_id == mark
    tokenizer.save(tmp_path / "b")
    assert "eos_token" not in json.loads((tmp_path / "b" / "tokenizer_config.json").read_text(encoding="utf-8"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert mark not in theirs.all_special_ids
    again = load(write(tmp_path / "b", config={"eos_token_id": mark}))
    assert (again.eos_ids, again.special_ids) == (tokenizer.eos_ids, tokenizer.special_ids)
    assert again.decode([mark], skip_special=True) == "!"
