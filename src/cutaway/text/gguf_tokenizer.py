"""The tokenizer inside a GGUF file, rebuilt from the file's metadata.

A GGUF carries no tokenizer.json: only a list of tokens with a type each, and either ranked merges (kind
`gpt2`: byte-level BPE, whose way of cutting text into words is named, not spelled out) or a score per token
(kind `llama`: SentencePiece). The rest is knowledge about the names, and this file holds it.

Source: the GGUF specification (github.com/ggml-org/ggml, docs/gguf.md); llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cutaway.errors import TokenizerError, UnsupportedError
from cutaway.text.tokenizer import Tokenizer, rust_errors

__all__ = ["array_of", "build_backend", "field_of", "named_id", "tokenizer_from_gguf"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Control tokens that end a turn or a text, in the vocabularies of the families Cutaway loads.
END_NAMES = (
    "<|endoftext|>",  # gpt2, gpt-neox, olmo, qwen, phi, smollm
    "<|im_end|>",  # qwen, smollm
    "<|eot_id|>",  # llama 3
    "<|eom_id|>",  # llama 3, a message before a tool's answer
    "<|end_of_text|>",  # llama 3
    "<|end|>",  # phi 3
    "<end_of_turn>",  # gemma
    "<eos>",  # gemma
    "</s>",  # llama, mistral
)

# Phi-3's markers swallow the white space after them, except these three; a GGUF has no field that says so.
# Source: microsoft/Phi-3-mini-4k-instruct, tokenizer.json, "rstrip".
PHI3_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")

# SentencePiece learns pieces of at most 16 characters unless told otherwise. Splitting costs the square.
MAX_PIECE = 512


UNBUILDABLE = "the file's vocabulary makes no tokenizer, convert the file again"


@dataclass(frozen=True, kw_only=True)
class WordRule:
    """How text is cut into words before the merges run: each pattern cuts what the one before it left.

    `whole_words`: a word that is a token is taken as it is, whatever the merges say.
    `add_bos`: what holds where the file does not say whether a text starts with BOS.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START, _CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}" + _TAIL
_O200K = rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}|{_START}{_UPPER}+{_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}" + _TAIL

# Every character of a text lies in a match of each of these.
WHOLE_PATTERNS = frozenset((_GPT2, _CL100K, _QWEN2, _TEKKEN, _O200K))

_GPT2_RULE = WordRule(patterns=(_GPT2,))
_DIGIT_RULE = WordRule(patterns=(r"\p{N}", _GPT2))
_LLAMA3_RULE = WordRule(patterns=(_CL100K,), whole_words=True, add_bos=True)
_QWEN2_RULE = WordRule(patterns=(_QWEN2,))

# What each value of `tokenizer.ggml.pre` means.
# Source: the "pre_tokenizer" of the named models' tokenizer.json, and llama.cpp's table of the same names.
WORD_RULES: Mapping[str, WordRule] = {
    "default": WordRule(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "mpt": _GPT2_RULE,  # with "olmo": the vocabulary of gpt-neox and pythia
    "olmo": _GPT2_RULE,
    "smollm": _DIGIT_RULE,  # SmolLM and SmolLM2
    "starcoder": _DIGIT_RULE,
    "refact": _DIGIT_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    # Llama 3's vocabulary as converted from a tokenizer that adds no BOS; SmolLM3 is the best known.
    # llama.cpp runs the merges on whole words too; the models' own tokenizer.json does not.
    "smaug-bpe": WordRule(patterns=(_CL100K,), whole_words=True),
    "dbrx": WordRule(patterns=(_CL100K,)),  # OLMo 2, Phi-4
    "qwen2": _QWEN2_RULE,  # Qwen 1.5 to 3
    "deepseek-r1-qwen": _QWEN2_RULE,
    "tekken": WordRule(patterns=(_TEKKEN,), whole_words=True, add_bos=True),  # Mistral Nemo
    "gpt-4o": WordRule(patterns=(_O200K,)),  # Phi-4-mini
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer a GGUF file carries, or None where it carries none.

    End ids are the union of every source: the declared end of text, of turn and of message, and the control
    tokens known by name to end one. `add_eos_token` is not followed: a prompt is there to be continued.

    Args:
        metadata: the file's key-value pairs; arrays are lists.
    Raises:
        UnsupportedError: a kind of tokenizer or a word rule Cutaway does not implement.
        TokenizerError: fields that are missing, of a wrong type, or at odds with each other.
    """
    if _TOKENS not in metadata and metadata.get(_MODEL) in (None, "none", "no_vocab"):
        return None
    vocabulary = _Vocabulary.read(metadata)
    bos_id, eos_id, pad_id = (named_id(metadata, name, len(vocabulary.tokens)) for name in ("bos", "eos", "padding"))
    return Tokenizer(
        _backend(metadata, vocabulary),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=vocabulary.end_ids,
        pad_id=pad_id,
        add_bos=_adds_bos(metadata, vocabulary, bos_id),
        chat_template=field_of(metadata, "tokenizer.chat_template", str, None),
    )


def build_backend(metadata: Mapping[str, Any]) -> Backend:
    """The vocabulary, merges, word rule and decoder of a GGUF file, as a `tokenizers.Tokenizer`.

    Raises: as `tokenizer_from_gguf`.
    """
    return _backend(metadata, _Vocabulary.read(metadata))


_MODEL, _PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_MERGES, _SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.scores"


@dataclass(frozen=True, kw_only=True)
class _Vocabulary:
    """The kind of a file's tokenizer, its tokens in the order of their ids, and what each one is.

    `special_ids` are never part of a text: control and unknown tokens, and whatever ends a text.
    """

    kind: str
    tokens: Sequence[str]
    types: Sequence[int]
    ids: Mapping[str, int]
    end_ids: frozenset[int]
    special_ids: frozenset[int]

    @staticmethod
    def read(metadata: Mapping[str, Any]) -> _Vocabulary:
        if (kind := metadata.get(_MODEL)) not in ("gpt2", "llama"):
            raise UnsupportedError(
                f"{_MODEL} is {_shown(kind)}; Cutaway reads 'gpt2' (byte-level BPE) and 'llama' (SentencePiece), "
                "load the model from a transformers folder instead"
            )
        tokens = array_of(metadata, _TOKENS, str)
        if not tokens:
            raise TokenizerError(f"{_TOKENS} is empty; a tokenizer needs at least one token, convert the file again")
        types = array_of(metadata, _TYPES, int, n=len(tokens)) if _TYPES in metadata else [NORMAL] * len(tokens)
        if strange := set(types) - set(range(NORMAL, BYTE + 1)):
            raise TokenizerError(f"{_TYPES} has {min(strange)}; types run from 1 to 6, convert the file again")
        ids = {token: i for i, token in enumerate(tokens)}
        if len(ids) < len(tokens):
            second = next(i for i, token in enumerate(tokens) if ids[token] != i)
            raise TokenizerError(
                f"{_TOKENS} has {_shown(tokens[second])} twice, as ids {second} and {ids[tokens[second]]}; "
                "a token has one id, convert the file again"
            )
        declared = {named_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")}
        named = {ids[name] for name in END_NAMES if name in ids and types[ids[name]] == CONTROL}
        ends = frozenset(i for i in declared | named if i is not None)
        special = ends | {i for i, type_ in enumerate(types) if type_ in (UNKNOWN, CONTROL)}
        return _Vocabulary(kind=kind, tokens=tokens, types=types, ids=ids, end_ids=ends, special_ids=special)


def _backend(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    build = _byte_level if vocabulary.kind == "gpt2" else _sentencepiece
    backend = build(metadata, vocabulary)
    phi3 = vocabulary.kind == "llama" and metadata.get("general.architecture") == "phi3"
    added = [
        AddedToken(
            token,
            special=i in vocabulary.special_ids,
            normalized=False,
            rstrip=phi3 and vocabulary.types[i] == CONTROL and token not in PHI3_KEEPS_SPACE,
        )
        for i, token in enumerate(vocabulary.tokens)
        if i in vocabulary.special_ids or vocabulary.types[i] == USER_DEFINED
    ]
    with rust_errors(TokenizerError, UNBUILDABLE):
        backend.add_tokens(added)
    return backend


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    """BPE over bytes, each byte written as one printable character.

    No Unicode normalization, also where the model's tokenizer.json has NFC (Qwen, gpt-neox): a GGUF does not
    say so, llama.cpp does none, and without it what is decoded is what was encoded.
    """
    rule = _word_rule(metadata)
    merges = []
    for n, line in enumerate(array_of(metadata, _MERGES, str)):
        left, _, right = line.partition(" ")
        if not (left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids):
            raise TokenizerError(
                f"{_MERGES}[{n}] is {_shown(line)}; a merge is two tokens that make a third, convert the file again"
            )
        merges.append((left, right))
    with rust_errors(TokenizerError, UNBUILDABLE):
        backend = Backend(models.BPE(vocab=dict(vocabulary.ids), merges=merges, ignore_merges=rule.whole_words))
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Backend:
    """SentencePiece's BPE: of all neighbours that make a token, join the pair that makes the best-scored one.

    Said as ranked merges: every split of every token into two, best token first. Equal scores, which
    SentencePiece never writes, rank by id, the order in which a vocabulary was learnt.

    As in llama.cpp, a space goes before the text and before what follows a special token
    (`add_space_prefix`), and characters outside the vocabulary are spelled in byte tokens.
    """
    prefix = field_of(metadata, "tokenizer.ggml.add_space_prefix", bool, True)
    with rust_errors(TokenizerError, UNBUILDABLE):
        backend = Backend(
            models.BPE(
                vocab=dict(vocabulary.ids),
                merges=_merges_from_scores(metadata, vocabulary),
                unk_token=_unknown_token(metadata, vocabulary),
                fuse_unk=True,
                byte_fallback=True,
            )
        )
    space = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prefix else space
    to_text = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*to_text, decoders.Strip(" ", 1, 0)] if prefix else to_text)
    return backend


def _merges_from_scores(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    scores = array_of(metadata, _SCORES, float, int, n=len(vocabulary.tokens))
    if not all(map(math.isfinite, scores)):
        raise TokenizerError(f"{_SCORES} has a value that is not a finite number, convert the file again")
    # Only plain tokens: typed text must not grow into a control token, nor "<0x41>" into a byte.
    pieces = {
        token: (-scores[i], i)
        for i, token in enumerate(vocabulary.tokens)
        if vocabulary.types[i] == NORMAL and i not in vocabulary.special_ids
    }
    if (longest := max(pieces, key=len, default="")) and len(longest) > MAX_PIECE:
        raise TokenizerError(
            f"{_TOKENS} has a piece of {len(longest)} characters; the limit is {MAX_PIECE}, convert the file again"
        )
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=pieces.__getitem__)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


def _unknown_token(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> str | None:
    unknown = named_id(metadata, "unknown", len(vocabulary.tokens))
    if unknown is None:
        unknown = next((i for i, kind in enumerate(vocabulary.types) if kind == UNKNOWN), None)
    if unknown is not None:
        return vocabulary.tokens[unknown]
    if missing := [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]:
        raise TokenizerError(
            f"{_TOKENS} has no <0x{missing[0]:02X}> and no unknown token; text outside the vocabulary would "
            "vanish, convert the file again"
        )
    return None


def _word_rule(metadata: Mapping[str, Any]) -> WordRule:
    name = field_of(metadata, _PRE, str, "")
    if not name:
        warnings.warn(
            f"this file has no {_PRE}: text is cut into words by the default rule, and tokens may differ from "
            "those the model learnt; convert the file again with a current llama.cpp",
            stacklevel=2,
        )
        return WORD_RULES["default"]
    if name not in WORD_RULES:
        raise UnsupportedError(
            f"{_PRE} is {_shown(name)}; Cutaway knows {', '.join(WORD_RULES)}, "
            "load the model from a transformers folder instead"
        )
    return WORD_RULES[name]


def _adds_bos(metadata: Mapping[str, Any], vocabulary: _Vocabulary, bos_id: int | None) -> bool:
    key = "tokenizer.ggml.add_bos_token"
    if key in metadata:
        stated: bool = field_of(metadata, key, bool, False)
        if stated and bos_id is None:
            raise TokenizerError(f"{key} is true without tokenizer.ggml.bos_token_id, convert the file again")
        return stated
    usual = vocabulary.kind == "llama" or WORD_RULES[metadata.get(_PRE) or "default"].add_bos
    return usual and bos_id is not None


def named_id(metadata: Mapping[str, Any], name: str, n_tokens: int) -> int | None:
    """The id that a file names, such as "bos"; None where it names none.

    Raises:
        TokenizerError: an id outside the vocabulary.
    """
    key = f"tokenizer.ggml.{name}_token_id"
    value = field_of(metadata, key, int, None)
    if value is None or value == 2**32 - 1:  # −1 in the file's unsigned integers: none
        return None
    if not 0 <= value < n_tokens:
        raise TokenizerError(f"{key} is {_shown(value)}; the file has {n_tokens} tokens, convert it again")
    return int(value)


def field_of(metadata: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    """One value of a stated type.

    Raises:
        TokenizerError: it is of another.
    """
    value = metadata.get(key, default)
    if value is not default and type(value) is not kind:
        raise TokenizerError(f"{key} is {_shown(value)}; it must be of type {kind.__name__}, convert the file again")
    return value


def array_of(metadata: Mapping[str, Any], key: str, *kinds: type, n: int | None = None) -> list[Any]:
    """A list of stated types, and of a stated length.

    Raises:
        TokenizerError: it is none.
    """
    values = metadata.get(key)
    if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
        raise TokenizerError(
            f"{key} is {_shown(values)}; it must be a list of {kinds[0].__name__}, convert the file again"
        )
    if n is not None and len(values) != n:
        raise TokenizerError(f"{key} has {len(values)} values for {n} tokens, convert the file again")
    return values


def _shown(value: object) -> str:
    return reprlib.repr(value)
