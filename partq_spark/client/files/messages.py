"""What a source of messages is to `partq publish`, and what all of them share: how columns become messages, and lines
of text.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol, cast

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.query.settings import IGNORED

CHUNK_ROWS = 8192  # with CHUNK_BYTES: what a source holds in memory at a time
CHUNK_BYTES = 4 * 1024 * 1024
HEADER_BYTES = 256  # of Python objects for each header, whatever is in it
FIELD_BYTES = 16  # for each field of a row of CSV


class Chunk(NamedTuple):
    """Some messages in order: `batch` has the columns of a segment, `places` the line or row of each, from 1."""

    batch: pa.RecordBatch
    places: Sequence[int]


class MessageSource(Protocol):
    """Messages to publish. Made by `open_source`, read once, in bounded memory.

    `name` is the file as the user wrote it; `unit` what `places` count, "line" or "row"; `headers` whether the batches
    have that column; `meaning` says how rows become messages, or is empty where there is nothing to say.
    """

    name: str
    unit: str
    headers: bool
    meaning: str

    def chunks(self) -> Iterator[Chunk]:
        """The messages. Raises `Invalid` naming file and line or row for what cannot be published."""

    def progress(self) -> tuple[int, int | None]:
        """How much has been read, and of how much (None: nobody knows), in one unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How the columns of a table become messages. `key` is the column of the key, if there is one.

    `whole`: the whole row becomes the value, as a JSON object; else there is a column `value`.
    """

    key: str | None
    whole: bool

    @property
    def meaning(self) -> str:
        """For the summary; empty for a plain table of messages."""
        if not self.whole:
            return "" if self.key in (None, "key") else f"key from {self.key!r}"
        return "each row as a JSON object, " + ("without keys" if self.key is None else f"key from {self.key!r}")


def shape_of(
    name: str, columns: Sequence[str], *, key_column: str | None, whole_rows: bool, also: Sequence[str] = ()
) -> Shape:
    """How to publish a table with these columns. Raises `Invalid` where it could be meant in two ways.

    A table with a column `value` holds messages (key, value, headers). In any other each whole row becomes a value.
    `also` are further columns that a table of messages may have.
    """
    if key_column is not None and key_column not in columns:
        raise Invalid(
            f"{name} has no column {key_column!r} (--key-column), it has {', '.join(columns)}: name one of them"
        )
    key = key_column if key_column is not None else ("key" if "key" in columns else None)
    if whole_rows or "value" not in columns:
        return Shape(key=key, whole=True)
    known = {key, "value", "headers", *IGNORED, *also}
    unknown = [column for column in columns if column not in known]
    if unknown:
        raise Invalid(
            f"{name} has a column 'value', so its rows are taken for messages, but {unknown[0]!r} is no part of a "
            "message: give --whole-rows to publish each row as a JSON object, or leave that column out"
        )
    return Shape(key=key, whole=False)


class Lines:
    """Iterates over the lines of a binary file as text, line ends kept. `number` is that of the last line given.

    A line beyond `most_bytes`, one that is not UTF-8, and compressed data that is damaged or cut off raise `Invalid`,
    naming the line. A byte order mark at the beginning is left out.
    """

    def __init__(self, file: BinaryIO, name: str, *, compressed: bool, most_bytes: int) -> None:
        self.name = name
        self.number = 0
        self._raw = file
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
        self._most_bytes = most_bytes
        try:
            self._total: int | None = os.fstat(file.fileno()).st_size if file.seekable() else None
        except OSError:
            self._total = None

    def __iter__(self) -> Iterator[str]:
        while line := self._read():
            self.number += 1
            if len(line) > self._most_bytes:
                raise Invalid(
                    f"{self.name} line {self.number} has more than {self._most_bytes:,} bytes, more than any message "
                    "of this queue may take: is it one JSON object or CSV row per line?"
                )
            try:
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(
                    f"{self.name} line {self.number} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}): "
                    "convert the file, for example with iconv"
                ) from None

    def progress(self) -> tuple[int, int | None]:
        """Bytes read of the file as it lies on the disk, and its size; only the first where nobody knows the size."""
        return (self._raw.tell(), self._total) if self._total else (0, None)

    def _read(self) -> bytes:
        try:
            return self._file.readline(self._most_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise Invalid(f"{self.name} cannot be read after line {self.number}: {error}") from error
