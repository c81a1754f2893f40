"""Text to ids and back, exactly: what the user typed is text, and control tokens come only by request."""

from __future__ import annotations

import json
import operator
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import filterfalse
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

from cutaway.errors import CutawayError, TemplateError, TokenizerError
from cutaway.text.chat_template import ChatTemplate
from cutaway.text.pieces import BYTE_OF_CHARACTER, PieceRule, require_text, token_id, token_ids
from cutaway.text.stream import TextStream

__all__ = ["FLAGS", "ID_LIMIT", "Tokenizer", "rust_errors"]

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
LONG = 2**14  # characters from which a text is encoded as a batch of one, during which other threads may run
ID_LIMIT = 2**22  # the largest vocabulary in use has about a million ids
_RARE = (*range(0x13000, 0x13430), *range(0x20000, 0x2A6E0))  # printable, so that no escaping changes them
_CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


@contextmanager
def rust_errors(kind: type[CutawayError], what: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises, its panics included, into one named error."""
    try:
        yield
    except (CutawayError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        raise kind(f"{what}: {' '.join(str(error).split())[:200]}") from error


class _Pieces(dict[int, bytes]):
    """The bytes of every token asked for so far."""

    def __init__(self, backend: Backend, rule: PieceRule, literal: Mapping[int, bytes], d_vocab: int) -> None:
        super().__init__(literal)
        self._backend, self._rule, self._d_vocab = backend, rule, d_vocab

    def __missing__(self, index: int) -> bytes:
        if not 0 <= index < 2**31:
            raise TokenizerError(f"token id {index} is out of range; ids run from 0 to {self._d_vocab - 1}")
        # A model's vocabulary is often padded past its tokenizer's: such an id is no text, and no error.
        if index >= self._d_vocab or (name := self._backend.id_to_token(index)) is None:
            return b""
        self[index] = piece = self._rule.piece(name)
        return piece


class Tokenizer:
    """A `tokenizers.Tokenizer` that keeps text and control tokens apart.

    Control tokens are the special ones, the ones named below, and the added tokens that the chat template writes
    out. The backend never sees their names: each has an unguessable alias, and only `encode(special=True)` and the
    template's own words are translated to aliases. So no text, whatever it holds, becomes a control token, and one
    backend serves any number of threads.

    Args:
        backend: owned by the tokenizer from here on. Its truncation and padding are switched off.
        bos_id: begins a text; `add_bos` says whether the model wants it there.
        eos_ids: each of them ends a text; `eos_id` is the one that templates know as `eos_token`.
        pad_id: fills batches.
        chat_template: jinja2 source.
    Raises:
        TokenizerError: an empty vocabulary, or ids past `ID_LIMIT`.
        UnsupportedError: a decoder Cutaway does not implement.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        bos_id: int | None,
        eos_ids: frozenset[int],
        pad_id: int | None = None,
        eos_id: int | None = None,
        add_bos: bool,
        chat_template: str | None = None,
    ) -> None:
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise TokenizerError("the tokenizer has no tokens; train it, or take another")
        last, last_id = max(vocabulary.items(), key=operator.itemgetter(1))
        if last_id >= ID_LIMIT:
            raise TokenizerError(f"token {last[:40]!r} has id {last_id}; the limit is {ID_LIMIT}, check the file")
        if add_bos and bos_id is None:
            raise TokenizerError(
                "the tokenizer is to add a BOS token but has none; name one, or set add_bos_token false"
            )
        self.backend = backend
        self.bos_id, self.pad_id, self.add_bos = bos_id, pad_id, add_bos
        self.eos_id = eos_id if eos_id is not None else min(eos_ids, default=None)
        self.eos_ids = eos_ids | ({self.eos_id} if self.eos_id is not None else set())
        self.chat_template = chat_template
        self.d_vocab = last_id + 1
        self.rule = PieceRule.of(backend)
        self.added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        # The library leaves such bytes out without a word.
        whole = self.rule.byte_level and getattr(backend.model, "unk_token", None) is None
        self._unwritable = {b for c, b in BYTE_OF_CHARACTER.items() if c not in vocabulary} if whole else set()
        self._alphabet = _alphabet(backend)

        named = {bos_id, pad_id} | self.eos_ids
        self.special_ids = frozenset(i for i, token in self.added.items() if token.special or i in named)
        controls = {i: token for i, token in self.added.items() if i in self.special_ids or self._in_template(token)}
        literal = {i: token.content.encode() for i, token in self.added.items()} if self.rule.byte_level else {}
        self._pieces = _Pieces(backend, self.rule, literal, self.d_vocab)
        self._hide(controls, last)

    def backend_state(self) -> dict[str, Any]:
        """The backend as it was given, without the aliases: what a `tokenizer.json` holds."""
        state: dict[str, Any] = json.loads(self.backend.to_str())
        state["added_tokens"] = [
            {"id": i, "content": token.content} | {flag: getattr(token, flag) for flag in FLAGS}
            for i, token in sorted(self.added.items())
        ]
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("bos_id", "eos_ids", "pad_id", "eos_id", "add_bos", "chat_template")
        return _rebuild, (json.dumps(self.backend_state()), {name: getattr(self, name) for name in names})

    def _in_template(self, token: AddedToken) -> bool:
        return bool(token.content.strip()) and token.content in (self.chat_template or "")

    def _hide(self, controls: Mapping[int, AddedToken], last: str) -> None:
        """Make the backend blind to the control tokens' names, and give each an alias."""
        backend, key = self.backend, secrets.token_hex(12)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # in tokenizers' words: special tokens are encoded like other text
        hidden = [_copy(token, token.content, special=True) for token in controls.values()]
        if max(self.added, default=-1) < self.d_vocab - 1:
            hidden.append(AddedToken(last, special=True))  # so that new ids begin past the vocabulary's holes
        backend.add_special_tokens(hidden)
        self._alias = {token.content: f"\ue0fe{key}.{i:x}\ue0ff" for i, token in controls.items()}
        backend.add_tokens([_copy(token, self._alias[token.content], special=False) for token in controls.values()])

        longest_first = sorted(controls.values(), key=lambda token: len(token.content), reverse=True)
        self._control = re.compile("|".join(map(_pattern, longest_first)) or r"(?!)")
        unknown = getattr(backend.model, "unk_token", "<unk>")  # what stands for a character is no control token
        self._substitutes = {backend.token_to_id(self._alias[token.content]): [i] for i, token in controls.items()}
        self._substitutes |= {i: self._spell(t.content) for i, t in controls.items() if t.content != unknown}

    def _spell(self, name: str) -> list[int]:
        """The ids that write a control token's name character by character, for models whose merges or scores
        can reach the token itself from plain text."""
        for old, new in self.rule.replacements:
            name = name.replace(new, old)
        if self.rule.byte_level:
            name = "".join(_CHARACTER_OF_BYTE[byte] for byte in name.encode())
        ids: list[int | None] = []
        for character in name:
            names = (character,) if self.backend.token_to_id(character) is not None else _byte_names(character)
            ids += map(self.backend.token_to_id, names)
        return [i for i in ids if i is not None]

    @classmethod
    def from_folder(cls, path: Path | str) -> Tokenizer | None:
        """The tokenizer in a model's folder, or None where there is none.

        Reads `tokenizer.json` or GPT-2's `vocab.json` and `merges.txt`, and for the named tokens, the BOS rule and
        the chat template `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`. End ids are the
        union of the tokenizer's, `generation_config.json`'s and `config.json`'s.

        Raises:
            DamagedFileError: a file that is too long, no JSON, or holds values of the wrong kind.
            UnsupportedError: a tokenizer of another kind.
        """
        from cutaway.text.tokenizer_files import read_folder

        return read_folder(Path(path))

    def save(self, folder: Path | str) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers.AutoTokenizer` loads too.

        All `eos_ids` but one belong in the model's `generation_config.json`, which is not written here.
        """
        from cutaway.text.tokenizer_files import write_folder

        write_folder(self, Path(folder))

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The ids of a text; an EOS is never appended.

        Args:
            special: names of control tokens in the text become these tokens. Otherwise they are text.
            bos: begin with BOS, once; None is as the model wants it.
        Raises:
            TokenizerError: what is no text, or none the vocabulary can express, or a BOS that does not exist.
        """
        text = require_text(text)
        ids = self._encode(self._with_controls(text) if special else text, shown=text)
        if self.add_bos if bos is None else bos:
            if self.bos_id is None:
                raise TokenizerError("this tokenizer has no BOS token; encode with bos=False")
            if ids[:1] != [self.bos_id]:
                ids.insert(0, self.bos_id)
        return ids

    def _with_controls(self, text: str) -> str:
        return self._control.sub(lambda name: self._alias[name[0]], text)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as `encode` gives them with bos=False, worked out on all cores.

        Raises:
            TokenizerError: a text that the vocabulary cannot express.
        """
        with rust_errors(TokenizerError, f"cannot encode {len(texts)} texts"):
            encodings = self.backend.encode_batch_fast([*map(_well_formed, texts)], add_special_tokens=False)
        return [self._checked(encoding.ids, text) for encoding, text in zip(encodings, texts, strict=True)]

    def _encode(self, text: str, shown: str) -> list[int]:
        # No alias may show up in an error: who knows it can write control tokens.
        with rust_errors(TokenizerError, f"cannot encode {shown[:40]!r}"):
            if len(text) < LONG:
                ids = self.backend.encode(_well_formed(text), add_special_tokens=False).ids
            else:
                ids = self.backend.encode_batch_fast([_well_formed(text)], add_special_tokens=False)[0].ids
        return self._checked(ids, shown)

    def _checked(self, ids: list[int], shown: str) -> list[int]:
        """The ids without aliases, if they say all of the text."""
        if not self._substitutes.keys().isdisjoint(ids):
            ids = [new for i in ids for new in self._substitutes.get(i, (i,))]
        lost = self._unwritable.intersection(shown.encode("utf-8", "replace"))
        lost -= set(b"".join(map(self.token_bytes, ids))) if lost else set()  # a control token's name may hold them
        if lost:
            raise TokenizerError(
                f"cannot encode {shown[:40]!r}: the vocabulary has no token for byte 0x{min(lost):02X}; leave it out"
            )
        if self._alphabet is not None and (unknown := set(shown) - self._alphabet):
            unknown -= set(self.rule.join(map(self.token_bytes, ids)))  # a control token's name may hold them
            if unknown:
                first = sorted((shown.index(character), character) for character in unknown)
                listed = ", ".join(f"{character!r} at {i}" for i, character in first[:10])
                more = f" and {len(first) - 10} more" if len(first) > 10 else ""
                raise TokenizerError(
                    f"cannot encode {shown[:40]!r}: the vocabulary has no {listed}{more}; leave such characters out"
                )
        return ids

    def chat(self, messages: Sequence[Mapping[str, Any]], /, **variables: Any) -> list[int]:
        """The ids of a conversation, by the model's chat template.

        Control tokens come from the template alone: what looks like one in a message is text. BOS is there if the
        template writes it, and no second one is added.

        Args:
            variables: for the template, such as `tools` or `add_generation_prompt`.
        Raises:
            TemplateError: no template, or one that fails or refuses the messages.
        """
        text = self._template.render(messages, **variables)
        mark = next(character for character in map(chr, _RARE) if character not in text)
        marked = self._template.render_marked(messages, mark, **variables)
        if self._control.findall(marked) != self._control.findall(text):
            text = marked  # a message holds, or completes, the name of a control token
        return self._encode(self._with_controls(text).replace(mark, ""), shown=text.replace(mark, ""))

    @cached_property
    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise TemplateError("this model has no chat template; give it a prompt to continue, or an instruct model")
        return ChatTemplate(self.chat_template, self._name(self.bos_id), self._name(self.eos_id))

    def _name(self, token: int | None) -> str | None:
        return None if token is None else self.backend.id_to_token(token)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False, continues: bool = False) -> str:
        """The text of these ids, every space as the ids have it.

        Bytes that are no character become U+FFFD; ids past the vocabulary are no text.

        Args:
            skip_special: leave special tokens out.
            continues: the text goes on from an earlier one, so a leading space is meant.
        Raises:
            TokenizerError: what is no list of ids, or a negative or absurd id.
        """
        kept = token_ids(ids)
        if skip_special:
            kept = filterfalse(self.special_ids.__contains__, kept)
        text = self.rule.join(map(self._pieces.__getitem__, kept))
        return text if continues else self.rule.strip_start(text)

    def stream(self, *, skip_special: bool = True, continues: bool = False) -> TextStream:
        """Decodes ids one at a time."""
        return TextStream(self, skip_special=skip_special, continues=continues)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token writes, which may be a part of a character.

        Raises:
            TokenizerError: a negative or absurd id.
        """
        return self._pieces[token_id(token)]

    def token_text(self, token: int) -> str:
        r"""A token to look at: its text, with bytes that are no character as \xff; `[id]` past the vocabulary."""
        return self.token_bytes(token).decode("utf-8", "backslashreplace") or f"[{token_id(token)}]"


def _rebuild(state: str, arguments: dict[str, Any]) -> Tokenizer:
    return Tokenizer(Backend.from_str(state), **arguments)


def _copy(token: AddedToken, content: str, *, special: bool) -> AddedToken:
    """A token that is met where the other is; whether it stands alone is looked at before."""
    return AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized, special=special)


def _byte_names(character: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in character.encode()]


def _alphabet(backend: Backend) -> frozenset[str] | None:
    """The characters of a vocabulary that has no other way to write one, which the library leaves out without a word;
    None for any other vocabulary."""
    model = backend.model
    if not isinstance(model, models.BPE) or model.unk_token is not None or model.byte_fallback:
        return None
    if backend.normalizer is not None or backend.pre_tokenizer is not None:
        return None
    return frozenset(name for name in backend.get_vocab(with_added_tokens=False) if len(name) == 1)


def _pattern(token: AddedToken) -> str:
    name = re.escape(token.content)
    return rf"(?<!\w){name}(?!\w)" if token.single_word else name


def _well_formed(text: str) -> str:
    """Surrogates in pairs are one character; alone they are none, and become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
