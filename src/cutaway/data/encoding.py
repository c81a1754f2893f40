"""Documents to tokens: in pieces of bounded size, many at a time, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from cutaway.data.documents import Reader
from cutaway.data.pieces import LINE, SPACE, even_pieces
from cutaway.data.shards import ShardWriter
from cutaway.data.split import Split
from cutaway.text.tokenizer import Tokenizer

__all__ = ["encode_documents"]

PIECE = 1 << 18  # characters that are encoded at a time
BATCH = 1 << 22  # characters that are encoded side by side


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of a document."""

    part: str  # "train" or "val"
    text: str
    begins: bool  # the document's part
    ends: bool


def encode_documents(
    reader: Reader,
    tokenizer: Tokenizer,
    split: Split,
    writers: Mapping[str, ShardWriter],
    *,
    shard: tuple[int, int],
    advanced: Callable[[int], None],
) -> tuple[int, int]:
    """Write every n-th document from number i on, for shard (i, n).

    Args:
        advanced: called now and then with the bytes read so far.
    Returns:
        How many documents there were, and of how many all or a part is held out.
    Raises:
        TokenizerError: a text that the tokenizer cannot write.
    """
    first, step = shard
    # Such a tokenizer puts a space before every text. Where a text goes on, it has to be the one that is there.
    adds_space = tokenizer.rule.strip > 0
    seams = (SPACE,) if adds_space else (LINE, SPACE)
    counts = {"documents": 0, "held": 0}

    def pieces() -> Iterator[_Piece]:
        for index, document in enumerate(reader.documents()):
            if index % step != first:
                continue
            counts["documents"] += 1
            for part, texts in groupby(split.parts(index, document), key=lambda pair: pair[0]):
                counts["held"] += part == "val"
                yield from _marked(part, even_pieces((text for _, text in texts), PIECE, seams))

    leading = [tokenizer.bos_id] if tokenizer.add_bos else []
    ending = [tokenizer.eos_id] if tokenizer.eos_id is not None else []
    for batch in _batches(pieces()):
        texts = [
            piece.text[1:] if adds_space and not piece.begins and piece.text[0] == " " else piece.text
            for piece in batch
        ]
        for piece, ids in zip(batch, tokenizer.encode_many(texts), strict=True):
            framed = [*(leading if piece.begins else ()), *ids, *(ending if piece.ends else ())]
            writers[piece.part].append(np.array(framed, dtype=np.int64))
            writers[piece.part].n_bytes += len(piece.text.encode())
        advanced(reader.n_bytes_read)
    return counts["documents"], counts["held"]


def _marked(part: str, texts: Iterator[str]) -> Iterator[_Piece]:
    """Each text as a piece that knows whether it is the first or the last."""
    begins, text = True, next(texts, None)
    while text is not None:
        following = next(texts, None)
        yield _Piece(part=part, text=text, begins=begins, ends=following is None)
        begins, text = False, following


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    n_characters = 0
    for piece in pieces:
        batch.append(piece)
        n_characters += len(piece.text)
        if n_characters >= BATCH:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch
