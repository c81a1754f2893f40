"""A tokenizer as the metadata of a GGUF file: the inverse of `gguf_tokenizer`.

A file names the way of cutting text into words instead of spelling it out, so a tokenizer can be written only where
its way has a name. Nothing is rounded to the nearest one: other words would be other ids.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md); llama.cpp's converter.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from cutaway.errors import TokenizerError, UnsupportedError
from cutaway.text.gguf_tokenizer import (
    CONTROL,
    END_NAMES,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    WHOLE_PATTERNS,
    WORD_RULES,
    array_of,
    field_of,
    named_id,
)
from cutaway.text.pieces import PieceRule
from cutaway.text.tokenizer import Tokenizer

__all__ = ["tokenizer_fields", "tokenizer_fields_of_file", "unsaid"]

PREFIX = "tokenizer.ggml."
INSTEAD = "convert to a folder instead"

# Of another file's fields, those that mean the same in every file.
IDS = ("bos", "eos", "eot", "eom", "unknown", "padding")
FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")
ARRAYS: Mapping[str, tuple[type, ...]] = {"token_type": (int,), "scores": (float, int)}  # with an entry for each token

_short = reprlib.Repr()  # of a tokenizer's parts, in messages
_short.maxstring = _short.maxother = 100


def tokenizer_fields(tokenizer: Tokenizer | None, d_vocab: int) -> dict[str, Any]:
    """The fields of a byte-level BPE, with one token for each of the model's `d_vocab` rows; of no tokenizer, one.

    Raises:
        UnsupportedError: a tokenizer of another kind, or one that llama.cpp would not give the same ids.
        TokenizerError: more tokens than rows.
    """
    if tokenizer is None:
        return {f"{PREFIX}model": "no_vocab"}
    state = tokenizer.backend_state()
    _check(tokenizer, state)
    names = {i: token for token, i in state["model"]["vocab"].items()}
    names |= {i: token.content for i, token in tokenizer.added.items()}
    fields: dict[str, Any] = {
        "model": "gpt2",
        "pre": _word_rule(state),
        "tokens": [names.get(i, _spare(i)) for i in range(tokenizer.d_vocab)],
        "token_type": _types(tokenizer, names),
        "merges": [_merge(left, right) for left, right in state["model"]["merges"]],
        "add_bos_token": tokenizer.add_bos,
    }
    fields |= {f"{name}_token_id": i for name, i in _ids(tokenizer, names).items() if i is not None}
    return _padded(fields, d_vocab) | _template(tokenizer.chat_template)


def tokenizer_fields_of_file(metadata: Mapping[str, Any], d_vocab: int) -> dict[str, Any]:
    """The fields of another GGUF file's tokenizer, of whichever kind.

    Raises:
        TokenizerError: more tokens than the model has rows, or a field that cannot be.
    """
    n_tokens = len(array_of(metadata, f"{PREFIX}tokens", str))
    names = ("model", "pre", "tokens", *ARRAYS, "merges", *FLAGS)
    fields = {name: _checked(metadata, name, n_tokens) for name in names if PREFIX + name in metadata}
    fields.setdefault("token_type", [NORMAL] * n_tokens)
    ids = {name: named_id(metadata, name, n_tokens) for name in IDS}
    fields |= {f"{name}_token_id": i for name, i in ids.items() if i is not None}
    return _padded(fields, d_vocab) | _template(metadata.get("tokenizer.chat_template"))


def _checked(metadata: Mapping[str, Any], name: str, n_tokens: int) -> Any:
    if name in FLAGS:
        return field_of(metadata, PREFIX + name, bool, False)
    if name in ARRAYS:
        return array_of(metadata, PREFIX + name, *ARRAYS[name], n=n_tokens)
    if name in ("tokens", "merges"):
        return array_of(metadata, PREFIX + name, str)
    return field_of(metadata, PREFIX + name, str, "")


def unsaid(tokenizer: Tokenizer) -> list[str]:
    """What of a tokenizer a file cannot say, though it is written: one line each."""
    notes = []
    if tokenizer.backend.normalizer is not None and tokenizer.rule.byte_level:
        notes.append(
            "the tokenizer composes characters (NFC), a GGUF file cannot say so: text in parts gets other ids there"
        )
    if tokenizer.eos_id is None:
        notes.append("the tokenizer has no end token, a GGUF file cannot say so: llama.cpp ends texts at id 11")
    return notes


def _padded(fields: dict[str, Any], d_vocab: int) -> dict[str, Any]:
    """Under their full keys, with unused tokens for the rows past the last; llama.cpp wants as many as rows."""
    n_tokens = len(fields["tokens"])
    if n_tokens > d_vocab:
        raise TokenizerError(
            f"the tokenizer has {n_tokens} tokens, the model {d_vocab} rows: it may be another model's; {INSTEAD}"
        )
    spare = [_spare(i) for i in range(n_tokens, d_vocab)]
    more = {"tokens": spare, "token_type": [UNUSED] * len(spare), "scores": [-1000.0] * len(spare)}
    fields |= {name: fields[name] + values for name, values in more.items() if name in fields}
    if len(set(fields["tokens"])) < d_vocab:
        raise _unsupported("it has a token like [PAD7], which here fills an empty row, and names must differ")
    return {PREFIX + name: value for name, value in fields.items()}


def _spare(i: int) -> str:
    return f"[PAD{i}]"


def _template(source: str | None) -> dict[str, str]:
    return {} if source is None else {"tokenizer.chat_template": source}


def _check(tokenizer: Tokenizer, state: Mapping[str, Any]) -> None:
    """Refuse what changes ids or text and has no field."""
    model, normalizer = state["model"], state["normalizer"]
    if model["type"] != "BPE" or tokenizer.rule != PieceRule(byte_level=True):
        raise _unsupported(f"it is of the kind {_kind(tokenizer, model)}, and from a folder only byte-level BPE can go")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model[name]:
            raise _unsupported(f"its {name} is {_shown(model[name])}, for which a GGUF file has no field")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise _unsupported(
            f"it normalizes text by {_shown(normalizer.get('type'))}, for which a GGUF file has no field"
        )
    for token in tokenizer.added.values():
        if token.lstrip or token.rstrip or token.single_word:
            raise _unsupported(f"its token {_shown(token.content)} minds the text beside it, which a GGUF cannot say")


def _kind(tokenizer: Tokenizer, model: Mapping[str, Any]) -> str:
    if tokenizer.rule.replacements:
        return "SentencePiece"
    return str(model["type"]) if model.get("merges", True) else "one token a character"


def _word_rule(state: Mapping[str, Any]) -> str:
    """The name of the way text is cut into words."""
    steps = list(_steps(state["pre_tokenizer"]))
    patterns = tuple(_patterns(steps))
    whole_words = state["model"]["ignore_merges"]
    if not state["model"]["merges"] and not whole_words:
        return "gpt-2"  # with nothing to join, every way gives the same ids
    for name, rule in WORD_RULES.items():
        if (rule.patterns, rule.whole_words) == (patterns, whole_words):
            return name
    cut = " then ".join(map(repr, patterns))
    taken = ", whole words being taken without merges" if whole_words else ""
    raise _unsupported(
        f"it cuts text by {_shown(cut)}{taken}, a rule without a name; Cutaway knows {', '.join(WORD_RULES)}"
    )


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if step is not None and step["type"] == "Sequence":
        for inner in step["pretokenizers"]:
            yield from _steps(inner)
    elif step is not None:
        yield step


def _patterns(steps: list[Mapping[str, Any]]) -> Iterator[str]:
    """Each step as the pattern that it cuts by. The last one turns bytes into characters."""
    if not steps or steps[-1]["type"] != "ByteLevel":
        raise _unsupported("it does not end in the step that turns bytes into characters")
    for step in steps:
        match step:
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": own} if step is steps[-1]:
                yield from WORD_RULES["gpt-2"].patterns if own else ()
            case {"type": "Digits", "individual_digits": alone}:
                yield r"\p{N}" if alone else r"\p{N}+"
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
                yield pattern
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Removed", "invert": True} if (
                pattern in WHOLE_PATTERNS  # nothing is left between the matches that could be removed
            ):
                yield pattern
            case _:
                raise _unsupported(f"its step {_shown(dict(step))} has no name")


def _merge(left: str, right: str) -> str:
    if " " in left + right:
        raise _unsupported(f"it merges {_shown(left)} and {_shown(right)}, of which one holds a space")
    return f"{left} {right}"


def _types(tokenizer: Tokenizer, names: Mapping[int, str]) -> list[int]:
    control = tokenizer.special_ids | tokenizer.eos_ids
    types = (
        dict.fromkeys(names, NORMAL) | dict.fromkeys(tokenizer.added, USER_DEFINED) | dict.fromkeys(control, CONTROL)
    )
    return [types.get(i, UNUSED) for i in range(tokenizer.d_vocab)]


def _ids(tokenizer: Tokenizer, names: Mapping[int, str]) -> dict[str, int | None]:
    """The named ids. Ends beside the first that readers do not know by their names: as ends of turn and message."""
    known = {i for i in tokenizer.eos_ids if names.get(i) in END_NAMES}
    more = sorted(tokenizer.eos_ids - known - {tokenizer.eos_id})
    if len(more) > 2:
        raise _unsupported(f"it ends texts at {len(more) + 1} tokens without a known name; a GGUF file names 3")
    return {
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "padding": tokenizer.pad_id,
        **dict(zip(("eot", "eom"), more, strict=False)),
    }


def _unsupported(what: str) -> UnsupportedError:
    return UnsupportedError(f"the tokenizer cannot go into a GGUF file: {what}: {INSTEAD}")


def _shown(value: object) -> str:
    return _short.repr(value)
