"""Reading and writing the files of a tokenizer in a model's folder."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cutaway.errors import CheckpointError, DamagedFileError, TokenizerError, UnsupportedError
from cutaway.text.tokenizer import FLAGS, ID_LIMIT, Tokenizer, rust_errors

__all__ = ["end_ids_of", "read_folder", "remove_tokenizer", "write_folder"]

TOKENIZER_LIMIT = 2**28  # bytes; the largest in use have 40 MB
CONFIG_LIMIT = 2**24

WRITTEN = ("tokenizer.json", "tokenizer_config.json")
# What other writers put beside them, and what speaks louder than they do.
OLDER = ("chat_template.jinja", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")

NAMED = ("bos_token", "eos_token", "pad_token")

Json = dict[str, Any]


def read_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder; see `Tokenizer.from_folder`."""
    try:
        with rust_errors(DamagedFileError, f"{folder} has a tokenizer that cannot be used; download it again"):
            return _read(folder)
    except TokenizerError as error:
        raise DamagedFileError(f"{folder}: {error}") from error


def _read(folder: Path) -> Tokenizer | None:
    backend = _read_backend(folder)
    if backend is None:
        return None
    config = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    _add_tokens(backend, folder, config)
    bos_id, eos_id, pad_id = (_token_id(backend, config, name) for name in NAMED)
    first_id = _leading_id(backend)
    if bos_id is None:
        known = _ids(_read_json(folder / "config.json"), "bos_token_id") & backend.get_added_tokens_decoder().keys()
        bos_id = first_id if first_id is not None else min(known, default=None)
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = bos_id is not None and first_id == bos_id
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=end_ids_of(folder),
        pad_id=pad_id,
        add_bos=add_bos and bos_id is not None,
        chat_template=_chat_template(folder, config),
    )


def end_ids_of(folder: Path) -> frozenset[int]:
    """The ids that end a text by config.json and generation_config.json: those of both.

    Raises:
        DamagedFileError: something that is no id.
    """
    model, generation = _read_json(folder / "config.json"), _read_json(folder / "generation_config.json")
    return _ids(generation, "eos_token_id") | _ids(model, "eos_token_id")


def _read_backend(folder: Path) -> Backend | None:
    if (path := folder / "tokenizer.json").is_file():
        text = _read_text(path, TOKENIZER_LIMIT)
        with rust_errors(DamagedFileError, f"{path} is no tokenizer; download it again"):
            return Backend.from_str(text)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _read_gpt2(folder)
    for name in ("tokenizer.model", "tekken.json"):
        if (folder / name).is_file():
            raise UnsupportedError(
                f"{folder / name} is the only tokenizer there; Cutaway reads tokenizer.json, so convert it: "
                "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
    return None


def _read_gpt2(folder: Path) -> Backend:
    """GPT-2's pair of files: byte-level BPE, words cut as GPT-2 cuts them."""
    kind = str(_read_json(folder / "tokenizer_config.json").get("tokenizer_class", "GPT2Tokenizer"))
    model_type = _read_json(folder / "config.json").get("model_type", "gpt2")
    if not kind.startswith("GPT2Tokenizer") or model_type != "gpt2":
        raise UnsupportedError(
            f"{folder} has vocab.json and merges.txt of a {kind} for {model_type}; only GPT-2's can be read, so "
            "convert them: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    path = folder / "vocab.json"
    vocabulary = _read_json(path, TOKENIZER_LIMIT)
    for token, i in vocabulary.items():
        if not _is_id(i):
            raise DamagedFileError(
                f"{path}: token {token[:40]!r} has id {str(i)[:40]}; the limit is {ID_LIMIT}, download it again"
            )
    merges = list(_read_merges(folder / "merges.txt", vocabulary))
    with rust_errors(DamagedFileError, f"{folder / 'merges.txt'} does not fit {path}; download both again"):
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if "<|endoftext|>" in vocabulary:
        backend.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return backend


def _read_merges(path: Path, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """One pair a line. A token may hold a space itself, so the vocabulary decides where the pair is cut."""
    for number, line in enumerate(_read_text(path, TOKENIZER_LIMIT).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        cuts = [i for i, character in enumerate(line) if character == " "]
        pairs = [(line[:cut], line[cut + 1 :]) for cut in cuts]
        known = [(a, b) for a, b in pairs if a in vocabulary and b in vocabulary and a + b in vocabulary]
        if len(known) != 1:
            raise DamagedFileError(
                f"{path} line {number}: {line[:40]!r} is not one pair of known tokens that make a third; "
                "download it again, or use a tokenizer.json with its merges as pairs"
            )
        yield known[0]


def _add_tokens(backend: Backend, folder: Path, config: Json) -> None:
    """Add the tokens that only the configuration knows, and give the others the flags it states."""
    known = backend.get_added_tokens_decoder()
    for i, token in sorted(_declared(folder, config), key=operator.itemgetter(0)):
        if repr(known.get(i)) != repr(token):
            backend.add_tokens([token])
        if (found := backend.token_to_id(token.content)) != i:
            raise DamagedFileError(
                f"{folder}: token {token.content[:40]!r} is to have id {i} but has {found}; the tokenizer's files do "
                "not belong together, download them again"
            )
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    more = config.get("additional_special_tokens")
    names = [_content(config, name) for name in NAMED]
    names += [_content({"": entry}, "") for entry in (more if isinstance(more, list) else [])]
    for name in names:
        if name is not None and name not in special and backend.token_to_id(name) is not None:
            backend.add_tokens([AddedToken(name, special=True, normalized=False)])


def _declared(folder: Path, config: Json) -> Iterator[tuple[int, AddedToken]]:
    for name, i in _read_json(folder / "added_tokens.json").items():
        if not _is_id(i):
            raise DamagedFileError(f"{folder / 'added_tokens.json'}: {str(i)[:40]} is no token id; download it again")
        yield i, AddedToken(name, normalized=False)
    entries = config.get("added_tokens_decoder", {})
    for i in entries if isinstance(entries, dict) else ():
        content, flags = _content(entries, i), entries[i] if isinstance(entries[i], dict) else {}
        if content is None or not i.isdecimal():
            raise DamagedFileError(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder[{i[:40]!r}] is no token; download it again"
            )
        yield int(i), AddedToken(content, **{flag: bool(flags[flag]) for flag in FLAGS if flag in flags})


def _token_id(backend: Backend, config: Json, name: str) -> int | None:
    content = _content(config, name)
    return None if content is None else backend.token_to_id(content)


def _content(config: Json, name: str) -> str | None:
    """A token, which is a string or an object with its text under "content"."""
    token = config.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    if token is not None and not isinstance(token, str):
        raise DamagedFileError(
            f"tokenizer_config.json: {name[:40]!r} is {str(token)[:40]!r}; a token is text, download it again"
        )
    return token or None


def _leading_id(backend: Backend) -> int | None:
    """The id that the tokenizer's own post-processor puts before a text."""
    if backend.post_processor is None:
        return None
    state = json.loads(backend.post_processor.__getstate__())
    for step in state["processors"] if state["type"] == "Sequence" else [state]:
        match step:
            case {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": name}}, *_],
                "special_tokens": names,
            }:
                return next(iter(names[name]["ids"]), None)
    return None


def _chat_template(folder: Path, config: Json) -> str | None:
    if (path := folder / "chat_template.jinja").is_file():
        return _read_text(path, CONFIG_LIMIT)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default", next(iter(named.values()), None))
    if source is not None and not isinstance(source, str):
        raise DamagedFileError(f"{folder / 'tokenizer_config.json'}: chat_template is no text; download it again")
    return source


def _ids(config: Json, name: str) -> frozenset[int]:
    value = config.get(name)
    values = value if isinstance(value, list) else [value]
    for i in values:
        if i not in (None, -1) and not _is_id(i):
            raise DamagedFileError(f"{name} is {str(i)[:40]}; ids run from 0 to {ID_LIMIT - 1}, correct config.json")
    return frozenset(i for i in values if i not in (None, -1))


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < ID_LIMIT


def _read_json(path: Path, limit: int = CONFIG_LIMIT) -> Json:
    """The object in a file; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path, limit))
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no JSON: {' '.join(str(error).split())[:200]}; download it again") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} holds a {type(value).__name__}, not an object; download it again")
    return value


def _read_text(path: Path, limit: int) -> str:
    if (size := path.stat().st_size) > limit:
        raise DamagedFileError(f"{path} has {size} bytes; the limit is {limit}, check the file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(f"{path} is no UTF-8 at byte {error.start}; download it again") from error


def write_folder(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer's files, then remove those of another that would be read beside them; see `Tokenizer.save`."""
    state = tokenizer.backend_state()
    leading = tokenizer.bos_id if tokenizer.add_bos else None
    if _leading_id(tokenizer.backend) != leading:
        state["post_processor"] = _post_processor(tokenizer, leading)
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    # Named here, a token that is plain text would become a control token; such an id is in the model's files alone.
    config |= {name: tokenizer.added[i].content for name, i in ids.items() if i in tokenizer.added}
    if tokenizer.chat_template is not None:
        config["chat_template"] = tokenizer.chat_template
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in zip(WRITTEN, (state, config), strict=True):
            _write_json(folder / name, value)
        _remove(folder, OLDER)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be written ({error.strerror or error}): give another folder, "
            "or make room and rights there"
        ) from error


def remove_tokenizer(folder: Path) -> None:
    """Leave no tokenizer in a folder."""
    _remove(folder, WRITTEN + OLDER)


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _post_processor(tokenizer: Tokenizer, leading: int | None) -> Json:
    """A rule that puts one token, or none, before a text."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    state: Json = {"type": "TemplateProcessing", "single": [text], "special_tokens": {}}
    if leading is not None:
        name = tokenizer.backend.id_to_token(leading)
        state["single"] = [{"SpecialToken": {"id": name, "type_id": 0}}, text]
        state["special_tokens"] = {name: {"id": name, "ids": [leading], "tokens": [name]}}
    return state | {"pair": [*state["single"], {"Sequence": {"id": "B", "type_id": 1}}]}


def _write_json(path: Path, value: Json) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
