"""Bytes on disk to documents: unpacked, decoded and taken apart a piece at a time."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from cutaway.data.files import Source, extra, reason
from cutaway.errors import DataError

__all__ = ["Reader"]

CHUNK = 1 << 20  # bytes read at a time
PACKED_CHUNK = 1 << 12  # bytes of .zst at a time: they may unpack to 32,768 times as many
LINE_LIMIT = 1 << 28  # characters of one line of JSON, which is parsed whole

Decode = Callable[[bytes, str, bool], tuple[str, int]]

# The longer mark goes first: UTF-32's begins with UTF-16's.
MARKS: tuple[tuple[bytes, Decode], ...] = (
    (codecs.BOM_UTF32_LE, codecs.utf_32_le_decode),
    (codecs.BOM_UTF32_BE, codecs.utf_32_be_decode),
    (codecs.BOM_UTF8, codecs.utf_8_decode),
    (codecs.BOM_UTF16_LE, codecs.utf_16_le_decode),
    (codecs.BOM_UTF16_BE, codecs.utf_16_be_decode),
)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Reader:
    """Reads sources as documents: a text file is one, and so is each line of .jsonl and each row of .parquet.

    Args:
        lenient: a byte that is no text becomes U+FFFD and is counted, where it would be an error.
        text_field: the field or column that holds the text.
    """

    def __init__(self, sources: Sequence[Source], *, lenient: bool = False, text_field: str = "text") -> None:
        self.sources, self.lenient, self.text_field = sources, lenient, text_field
        self.n_bytes_read = 0  # on disk; all of them at the end, also of documents that were not asked for
        self.n_empty = 0
        self.replaced: Counter[str] = Counter()  # by file

    def documents(self) -> Iterator[Iterator[str]]:
        """Each document as an iterator of pieces of its text, none of them empty; take them before the next one.

        Newlines are as the file has them. Documents without text are counted and left out.

        Raises:
            DataError: a byte that is no text (unless lenient), or a file that is damaged or cannot be read.
        """
        read = {"text": self._text, "jsonl": self._jsonl, "parquet": self._parquet}
        before = 0
        for source in self.sources:
            try:
                for document in read[source.kind](source):
                    if (first := next(document, None)) is None:
                        self.n_empty += 1
                    else:
                        yield _chained(first, document)
            except (OSError, EOFError, zlib.error) as error:
                refused = isinstance(error, OSError) and error.errno is not None
                what = "cannot be read" if refused else "is damaged"
                raise DataError(f"{source.path} {what} ({reason(error)}): get it again, or leave it out") from error
            before += source.n_bytes
            self.n_bytes_read = before

    def notes(self) -> list[str]:
        """What was left out or replaced, for the user."""
        notes = [f"empty documents left out: {self.n_empty}"] if self.n_empty else []
        return notes + [f"{path}: bytes that are no text, now U+FFFD: {n}" for path, n in self.replaced.items()]

    def _text(self, source: Source) -> Iterator[Iterator[str]]:
        yield self._decoded(source)

    def _jsonl(self, source: Source) -> Iterator[Iterator[str]]:
        for number, line in enumerate(_lines(self._decoded(source), source), start=1):
            if line.strip():
                yield _whole(self._field(line, f"{source.path} line {number}"))

    def _field(self, line: str, where: str) -> str:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is no JSON ({reason(error)}): correct it, or leave it out") from error
        if not isinstance(record, dict) or self.text_field not in record:
            has = f"has {', '.join(map(repr, [*record][:8])) or 'none'}" if isinstance(record, dict) else "is no object"
            raise DataError(f"{where} has no field {self.text_field!r} (it {has}): name the one that holds the text")
        return _as_text(record[self.text_field], where, self.text_field)

    def _parquet(self, source: Source) -> Iterator[Iterator[str]]:
        parquet, arrow = extra("pyarrow.parquet", f"{source.path}"), extra("pyarrow", f"{source.path}")
        row = 0
        try:
            with source.path.open("rb") as raw, _seekable(raw, source) as file:
                table = parquet.ParquetFile(file)
                if self.text_field not in table.schema_arrow.names:
                    has = ", ".join(map(repr, table.schema_arrow.names[:8]))
                    raise DataError(
                        f"{source.path} has no column {self.text_field!r} (it has {has}): name the one with the text"
                    )
                start = self.n_bytes_read
                for rows in table.iter_batches(batch_size=256, columns=[self.text_field]):
                    for text in rows.column(0).to_pylist():
                        row += 1
                        yield _whole(_as_text(text, f"{source.path} row {row}", self.text_field))
                    self.n_bytes_read = start + source.n_bytes * row // max(1, table.metadata.num_rows)
        except arrow.ArrowException as error:
            raise DataError(f"{source.path} is no whole Parquet file ({reason(error)}): get it again") from error

    def _decoded(self, source: Source) -> Iterator[str]:
        """The text of a file; its byte-order mark says the encoding and is no text."""
        before = self.n_bytes_read
        with source.path.open("rb") as raw:
            chunks = _unpacked(raw, source)
            rest = b""
            while len(rest) < 4 and (chunk := next(chunks, b"")):
                rest += chunk
            mark, decode = next((pair for pair in MARKS if rest.startswith(pair[0])), (b"", codecs.utf_8_decode))
            rest, offset = rest[len(mark) :], len(mark)
            final = False
            while not final:
                chunk = next(chunks, b"")
                final = not chunk
                text, used = self._decode_piece(decode, rest, offset, final, source)
                self.n_bytes_read = before + raw.tell()
                if text:
                    yield text
                rest, offset = rest[used:] + chunk, offset + used

    def _decode_piece(self, decode: Decode, data: bytes, offset: int, final: bool, source: Source) -> tuple[str, int]:
        try:
            return decode(data, "strict", final)
        except UnicodeDecodeError as error:
            if not self.lenient:
                at = f"offset {offset + error.start}{' of the unpacked file' if source.packing else ''}"
                raise DataError(
                    f"{source.path}: byte 0x{data[error.start]:02X} at {at} is no {error.encoding.upper()} text: "
                    "convert the file to UTF-8 or leave it out, or have such bytes replaced (lenient)"
                ) from None
        text, used = decode(data, "replace", final)
        self.replaced[str(source.path)] += len(text) - len(decode(data, "ignore", final)[0])
        return text, used


def _unpacked(raw: IO[bytes], source: Source) -> Iterator[bytes]:
    """The bytes of a file in bounded pieces."""
    if source.packing == ".zst":
        yield from _from_zstd(raw, source)
        return
    file: Any = gzip.GzipFile(fileobj=raw) if source.packing == ".gz" else raw
    while chunk := file.read(CHUNK):
        yield chunk


@contextmanager
def _seekable(raw: IO[bytes], source: Source) -> Iterator[IO[bytes]]:
    """The file, unpacked if need be, for a format that is read from its end."""
    if not source.packing:
        yield raw
        return
    with tempfile.TemporaryFile() as unpacked:
        for chunk in _unpacked(raw, source):
            unpacked.write(chunk)
        unpacked.seek(0)
        yield unpacked


def _from_zstd(raw: IO[bytes], source: Source) -> Iterator[bytes]:
    zstandard = extra("zstandard", f"{source.path}")
    unpacker, begun = zstandard.ZstdDecompressor().decompressobj(), False
    try:
        while packed := raw.read(PACKED_CHUNK):
            while packed:
                begun = True
                if chunk := unpacker.decompress(packed):
                    yield chunk
                packed = unpacker.unused_data
                if unpacker.eof:
                    unpacker, begun = zstandard.ZstdDecompressor().decompressobj(), False
    except zstandard.ZstdError as error:
        raise DataError(f"{source.path} is damaged ({reason(error)}): get it again, or leave it out") from error
    if begun:
        raise EOFError("it ends in the middle")


def _lines(pieces: Iterable[str], source: Source) -> Iterator[str]:
    held, n_held = io.StringIO(), 0
    for piece in pieces:
        first, *more = piece.split("\n")
        for line in more:
            held.write(first)
            yield held.getvalue()
            held, n_held, first = io.StringIO(), 0, line
        held.write(first)
        n_held += len(first)
        if n_held > LINE_LIMIT:
            raise DataError(
                f"{source.path} has a line of more than {LINE_LIMIT} characters: a line is one JSON object, split it, "
                "or rename the file to read it as plain text"
            )
    yield held.getvalue()


def _as_text(value: object, where: str, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} is a {type(value).__name__}, not text: name the field that holds the text")
    return _SURROGATE.sub("\ufffd", value)  # JSON can name halves of a character


def _whole(text: str) -> Iterator[str]:
    if text:
        yield text


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
