"""The tokenizer of a corpus: trained on it, or taken from a model or a file."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from cutaway.data.files import reason
from cutaway.errors import DataError
from cutaway.text.gguf_tokenizer import END_NAMES, WORD_RULES, tokenizer_from_gguf
from cutaway.text.pieces import BYTE_OF_CHARACTER
from cutaway.text.tokenizer import Tokenizer, rust_errors

__all__ = ["END", "KINDS", "Sample", "bpe_size", "take_tokenizer", "train_tokenizer"]

END = "<|endoftext|>"
N_BYTES = 256
SMALLEST, LARGEST = 512, 32768  # of the sizes that `bpe_size` gives
SAMPLE_LIMIT = 100_000_000  # bytes of text to train on
# A word of a million letters would cost its square, so words are learnt a part at a time.
PART_OF_WORD = r"[\s\S]{1,256}"

# The kinds of tokenizer that are made from the corpus.
KINDS = ("bpe", "chars", "bytes")


class Sample:
    """What training a tokenizer needs of a corpus: its characters, its size, and evenly spread parts of it.

    Pieces are kept until they are too many; then every other one goes, and of those that follow as many fewer are
    kept. So memory is bounded, whatever the corpus.
    """

    def __init__(self, limit: int = SAMPLE_LIMIT) -> None:
        self.limit = limit
        self.n_bytes = 0  # of all text seen
        self._kept: list[bytes] = []
        self._n_kept, self._n_seen, self._stride = 0, 0, 1
        self._seen = np.zeros(0x110000, dtype=bool)

    def add(self, piece: str) -> None:
        """See the next piece of the text."""
        text = piece.encode()
        self.n_bytes += len(text)
        self._seen[np.frombuffer(piece.encode("utf-32-le"), "<u4")] = True
        if self._n_seen % self._stride == 0:
            self._kept.append(text)
            self._n_kept += len(text)
        self._n_seen += 1
        while self._n_kept > self.limit and len(self._kept) > 1:
            self._kept, self._stride = self._kept[::2], self._stride * 2
            self._n_kept = sum(map(len, self._kept))

    def texts(self) -> Iterator[str]:
        """The kept pieces, in order."""
        return (piece.decode() for piece in self._kept)

    def characters(self) -> list[str]:
        """Every character that was seen, by code point."""
        return [chr(code) for code in np.flatnonzero(self._seen)]


def bpe_size(n_bytes: int) -> int:
    """The vocabulary for a text of `n_bytes`: the power of two nearest to 2·√n_bytes, from 512 to 32768.

    A larger text shows more words often enough to learn them (Heaps' law grows like the root).
    """
    nearest = 1 << round(math.log2(2 * math.sqrt(max(1, n_bytes))))
    return min(max(nearest, SMALLEST), LARGEST)


def train_tokenizer(kind: str, sample: Sample, vocab_size: int | None = None) -> tuple[Tokenizer, list[str]]:
    """A tokenizer for the text that the sample has seen, and notes. It loses no character of that text.

    The end token is the last id; it is the begin token too. `bpe` and `bytes` can write any text.

    Args:
        kind: one of `KINDS`.
        vocab_size: of bpe, with the 256 bytes and the end token; None is by the size of the text.
    Raises:
        DataError: a size that is too small.
    """
    if kind == "bpe":
        return _train_bpe(sample, bpe_size(sample.n_bytes) if vocab_size is None else vocab_size)
    return (_byte_tokenizer() if kind == "bytes" else _character_tokenizer(sample.characters())), []


def take_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a model's folder, a `tokenizer.json` or a .gguf file.

    Raises:
        DataError: there is none.
        CheckpointError: a file that cannot be used.
    """
    tokenizer: Tokenizer | None
    if path.is_dir():
        tokenizer = Tokenizer.from_folder(path)
    elif path.suffix.lower() == ".gguf":
        from cutaway.checkpoint.gguf import GGUFFile

        with GGUFFile(path) as file:
            tokenizer = tokenizer_from_gguf(file.metadata)
    elif path.name == "tokenizer.json":
        tokenizer = Tokenizer.from_folder(path.parent)
    else:
        tokenizer = _from_file(path)
    if tokenizer is None:
        raise DataError(f"{path} has no tokenizer: give a folder with a tokenizer.json, or one of {', '.join(KINDS)}")
    return tokenizer if tokenizer.eos_id is not None else _with_end(tokenizer)


def _from_file(path: Path) -> Tokenizer | None:
    """A tokenizer.json under another name, read without what lies beside it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copyfile(path, Path(folder, "tokenizer.json"))
            return Tokenizer.from_folder(folder)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({reason(error)}): give a tokenizer.json or a model's folder"
        ) from error


def _with_end(tokenizer: Tokenizer) -> Tokenizer:
    """The same with the end token that its names tell; a tokenizer.json on its own does not say which it is."""
    ids = {token.content: i for i, token in tokenizer.added.items() if token.special}
    end = next((ids[name] for name in END_NAMES if name in ids), None)
    if end is None:
        return tokenizer
    backend = Backend.from_str(json.dumps(tokenizer.backend_state()))
    bos_id = end if tokenizer.bos_id is None else tokenizer.bos_id
    return Tokenizer(
        backend,
        bos_id=bos_id,
        eos_ids=tokenizer.eos_ids,
        eos_id=end,
        pad_id=tokenizer.pad_id,
        add_bos=tokenizer.add_bos,
        chat_template=tokenizer.chat_template,
    )


def _train_bpe(sample: Sample, vocab_size: int) -> tuple[Tokenizer, list[str]]:
    if vocab_size <= N_BYTES:
        raise DataError(f"vocab_size {vocab_size} is too small: {N_BYTES} bytes and the end token make {N_BYTES + 1}")
    words = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in WORD_RULES["llama-bpe"].patterns]
    parts = pre_tokenizers.Split(Regex(PART_OF_WORD), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # Whole words first: so llama.cpp reads a vocabulary with this rule.
    backend = Backend(models.BPE(ignore_merges=WORD_RULES["llama-bpe"].whole_words))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, parts, as_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=sorted(BYTE_OF_CHARACTER), special_tokens=[], show_progress=False
    )
    with rust_errors(DataError, "the tokenizer could not be trained, give a smaller vocab_size or chars"):
        backend.train_from_iterator(sample.texts(), trainer)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*words, as_bytes])
    backend.decoder = decoders.ByteLevel()
    tokenizer = _with_end_token(backend)
    few = f"the text has merges for {tokenizer.d_vocab} tokens, not {vocab_size}"
    return tokenizer, [few] if tokenizer.d_vocab < vocab_size else []


def _byte_tokenizer() -> Tokenizer:
    """A token's id is its byte."""
    backend = _without_merges(BYTE_OF_CHARACTER)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _with_end_token(backend)


def _character_tokenizer(characters: Iterable[str]) -> Tokenizer:
    backend = _without_merges({character: i for i, character in enumerate(characters)})
    backend.decoder = decoders.Fuse()
    return _with_end_token(backend)


def _without_merges(ids: Mapping[str, int]) -> Backend:
    return Backend(models.BPE(vocab=dict(ids), merges=[]))


def _with_end_token(backend: Backend) -> Tokenizer:
    backend.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    end = backend.get_vocab_size() - 1
    return Tokenizer(backend, bos_id=end, eos_ids=frozenset({end}), add_bos=False)
