"""Texts in, token shards out: written once, found again by a hash of all that they depend on."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from cutaway.data.documents import Reader
from cutaway.data.encoding import encode_documents
from cutaway.data.files import Source, find_sources, reason
from cutaway.data.shards import META, VERSION, Prepared, ShardWriter, integer_type, open_prepared
from cutaway.data.split import Split, Survey
from cutaway.data.vocabulary import KINDS, Sample, take_tokenizer, train_tokenizer
from cutaway.errors import CutawayError, DataError, SourceError
from cutaway.text.tokenizer import Tokenizer

__all__ = ["prepare"]

# What may be replaced when a folder is written again.
OURS = re.compile(r"meta\.json|tokenizer(_config)?\.json|(train|val)-\d{5}\.bin")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What was asked for."""

    sources: Sequence[Source]
    tokenizer: str | Tokenizer
    vocab_size: int | None
    seed: int
    val_fraction: float
    lenient: bool
    text_field: str
    shard: tuple[int, int] | None

    def reader(self) -> Reader:
        return Reader(self.sources, lenient=self.lenient, text_field=self.text_field)

    def keys(self) -> tuple[str, str]:
        """Hashes of the corpus with its options, and of the part of it that is made."""
        tokenizer = self.tokenizer if isinstance(self.tokenizer, str) else _fingerprint(self.tokenizer)
        options = [VERSION, tokenizer, self.vocab_size, self.seed, self.val_fraction, self.lenient, self.text_field]
        files = [[source.name, source.kind, source.packing, source.digest()] for source in self.sources]
        corpus = _hash([options, files])
        return corpus, corpus if self.shard is None else _hash([corpus, self.shard])


def prepare(
    paths: str | Path | Sequence[str | Path],
    *,
    tokenizer: str | Path | Tokenizer = "bpe",
    vocab_size: int | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
    val_fraction: float = 0.1,
    lenient: bool = False,
    text_field: str = "text",
    shard: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """The texts under `paths` as tokens, made now or found as they were made before.

    Every document ends with the tokenizer's end token. Held out for validation are whole documents, chosen by the
    seed; of fewer than 20, the last part of each.

    Args:
        paths: files, folders, globs.
        tokenizer: "bpe", "chars" or "bytes" make one from the texts; otherwise a tokenizer, its file, or a model.
        vocab_size: of bpe; None is by the size of the texts.
        folder: where the tokens go; None is in the user's cache.
        val_fraction: of the documents that is held out; 0 holds out none.
        lenient: replace bytes that are no text, where they would be an error.
        text_field: of .jsonl and .parquet.
        shard: (i, n) makes part i of n, counted from 0, of every n-th document: in `folder`/shard-i-of-n.
        progress: called with bytes done and bytes in all.
    Raises:
        DataError: texts that cannot be read, or a folder that cannot be written.
        TokenizerError: a tokenizer that cannot write the texts.
    """
    if not 0 <= val_fraction < 1:
        raise DataError(f"val_fraction is {val_fraction}; it is at least 0 and below 1, such as 0.1")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise DataError(f"shard {shard[0]} of {shard[1]}: parts are numbered from 0 to {max(0, shard[1] - 1)}")
    if vocab_size is not None and tokenizer != "bpe":
        raise DataError(f"vocab_size {vocab_size} is for bpe; other tokenizers have the size they have, leave it out")
    if shard is not None and tokenizer in KINDS and tokenizer != "bytes":
        raise DataError(f"a part of the texts cannot choose {tokenizer!r} for all: make a tokenizer first and give it")
    sources, notes = find_sources(paths)
    job = _Job(
        sources=sources,
        tokenizer=str(tokenizer) if tokenizer in KINDS else _given(tokenizer),
        vocab_size=vocab_size,
        seed=seed,
        val_fraction=val_fraction,
        lenient=lenient,
        text_field=text_field,
        shard=shard,
    )
    corpus, key = job.keys()
    target = _cache() / corpus[:32] if folder is None else Path(folder).expanduser().resolve()
    if shard is not None:
        target /= f"shard-{shard[0]}-of-{shard[1]}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock"):
            return _kept(target, key) or _make(job, target, corpus, key, notes, progress)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({reason(error)}): make room, or give another folder") from error


def _given(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not (path := Path(tokenizer).expanduser()).exists() or (path / "run.json").is_file():
        from cutaway.checkpoint.sources import resolve

        try:
            path = resolve(tokenizer)
        except SourceError as error:
            raise DataError(f"the tokenizer is none of {', '.join(KINDS)}, and {error}") from error
    return take_tokenizer(path)


def _fingerprint(tokenizer: Tokenizer) -> str:
    named = [tokenizer.bos_id, sorted(tokenizer.eos_ids), tokenizer.eos_id, tokenizer.add_bos]
    return _hash([tokenizer.backend_state(), named])


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=32).hexdigest()


def _cache() -> Path:
    from cutaway.checkpoint.sources import cache_folder

    return cache_folder() / "tokens"


def _kept(target: Path, key: str) -> Prepared | None:
    """What is there, if it is whole and of this key."""
    if target.exists() and (not target.is_dir() or any(not OURS.fullmatch(path.name) for path in target.iterdir())):
        raise DataError(f"{target} holds other files: give a new or empty folder for the tokens")
    if not (target / META).is_file():
        return None
    try:
        prepared = open_prepared(target)
    except CutawayError:
        return None  # made again
    return prepared if prepared.key == key else None


def _make(job: _Job, target: Path, corpus: str, key: str, notes: list[str], progress: Progress | None) -> Prepared:
    survey = Survey.of(job.reader(), Sample() if job.tokenizer == "bpe" else Sample(limit=0))
    if not survey.n_documents:
        named = ", ".join(str(source.path) for source in job.sources[:3])
        raise DataError(f"{named}{' …' * (len(job.sources) > 3)}: no text in it, give files that are not empty")
    if isinstance(job.tokenizer, Tokenizer):
        tokenizer = job.tokenizer
    else:
        tokenizer, more = train_tokenizer(job.tokenizer, survey.sample, job.vocab_size)
        notes = notes + more
    if tokenizer.eos_id is None:
        notes = [*notes, "the tokenizer has no end token: documents follow each other without one"]
    split = Split.of(survey, job.seed, job.val_fraction)
    n_all = sum(source.n_bytes for source in job.sources)
    reader, dtype = job.reader(), integer_type(tokenizer.d_vocab)
    with _new_folder(target) as part:
        with closing(ShardWriter(part, "train", dtype)) as train, closing(ShardWriter(part, "val", dtype)) as val:
            n_documents, n_held = encode_documents(
                reader,
                tokenizer,
                split,
                {"train": train, "val": val},
                shard=job.shard or (0, 1),
                advanced=(lambda n: progress(n, n_all)) if progress else (lambda n: None),
            )
        if job.keys() != (corpus, key):
            raise DataError("the texts changed while they were read: try again when they are at rest")
        tokenizer.save(part)
        meta = {
            "version": VERSION,
            "key": key,
            "corpus": corpus,
            "tokenizer": _fingerprint(tokenizer),
            "d_vocab": tokenizer.d_vocab,
            "train": train.meta(),
            "val": val.meta(),
            "n_documents": n_documents,
            "n_val_documents": n_held,
            "notes": notes + reader.notes() + split.notes(n_held),
        }
        with (part / META).open("w", encoding="utf-8") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
    return open_prepared(target)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the target's place when it is full, and goes if that fails."""
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        shutil.rmtree(leftover)  # of a process that was killed: whoever holds the lock is alone here
    part, old = (target.with_name(f".{target.name}.{word}.part") for word in ("new", "old"))
    part.mkdir()
    try:
        yield part
        if target.exists():
            target.replace(old)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
