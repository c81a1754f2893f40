"""What is held out for validation: whole documents, or of a few the last part of each; the seed alone decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cutaway.data.documents import Reader
from cutaway.data.pieces import even_pieces
from cutaway.data.vocabulary import Sample
from cutaway.errors import DataError

__all__ = ["Split", "Survey"]

FEW = 20  # documents; of fewer, whole ones are too coarse a share
SAMPLED = 1 << 16  # characters; the size of the parts that a vocabulary is trained on


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one look at all documents tells."""

    n_documents: int
    lengths: list[int]  # of the first `FEW` documents [character]
    sample: Sample

    @classmethod
    def of(cls, reader: Reader, sample: Sample) -> Survey:
        """Look at every document once."""
        n_documents, lengths = 0, []
        for document in reader.documents():
            n = 0
            for piece in even_pieces(document, SAMPLED):
                sample.add(piece)
                n += len(piece)
            n_documents += 1
            if n_documents <= FEW:
                lengths.append(n)
        return cls(n_documents=n_documents, lengths=lengths, sample=sample)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which part of which document is held out."""

    seed: int
    fraction: float
    chosen: int | None  # held out whatever its hash
    cuts: list[int] | None  # where the held-out part of each document begins [character]

    @classmethod
    def of(cls, survey: Survey, seed: int, fraction: float) -> Split:
        """The split of a corpus.

        Raises:
            DataError: nothing would be left to train on.
        """
        n, cuts, chosen = survey.n_documents, None, None
        if n < FEW:
            # The first character is never held out: there is a text to train on, however short.
            cuts = [max(1, int(length * (1 - fraction))) for length in survey.lengths]
        elif fraction:
            if not any(_draw(seed, index) < fraction for index in range(n)):
                chosen = min(range(n), key=lambda index: _draw(seed, index))
            elif all(_draw(seed, index) < fraction for index in range(n)):
                raise DataError(f"val_fraction {fraction} holds out all {n} documents: give a smaller one")
        return cls(seed=seed, fraction=fraction, chosen=chosen, cuts=cuts)

    def parts(self, index: int, document: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The pieces of a document, each as ("train" or "val", text)."""
        if self.cuts is None:
            held = index == self.chosen or _draw(self.seed, index) < self.fraction
            yield from (("val" if held else "train", piece) for piece in document)
            return
        position, cut = 0, self.cuts[index]
        for piece in document:
            here = max(0, cut - position)
            if piece[:here]:
                yield "train", piece[:here]
            if piece[here:]:
                yield "val", piece[here:]
            position += len(piece)

    def notes(self, n_held: int) -> list[str]:
        """What was held out, for the user."""
        if not self.fraction:
            return []
        if not n_held:
            return ["no text is held out for validation: there is too little"]
        share = f"{self.fraction:.4g}"
        if self.cuts is None:
            return [f"{n_held} whole documents are held out for validation ({share} of them, chosen by the seed)"]
        return [f"the last {share} of each document is held out for validation (fewer than {FEW} documents)"]


def _draw(seed: int, index: int) -> float:
    """A number from 0 to 1 that belongs to a document."""
    drawn = hashlib.blake2b(f"cutaway split {seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") / 2**64
