"""CSV, JSON lines and Parquet files as rows, a bounded part at a time. Nothing here knows what the rows mean."""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, BinaryIO, Final, NoReturn, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq

from partq_spark.base.errors import Invalid
from partq_spark.client.rows import RefusedValue
from partq_spark.client.tables import CHUNK_BYTES, CHUNK_ROWS, is_text
from partq_spark.log.schema.forms import pieces
from partq_spark.log.schema.types import TIMESTAMP

FIELD_BYTES = 16  # of Python objects for each field of a row of CSV
JSON_BYTES = 4  # for each character of a line of JSON, of Python objects too, about

_SPACES: Final = " \t\r\n"  # of JSON

Row = TypeVar("Row")


Place = Callable[[int], str]
"""Where one of some rows stands, for people: "orders.csv line 3"."""


def _place(unit: str, numbers: Sequence[int]) -> Place:
    return lambda index: f"{unit} {numbers[index]}"


def _parts(name: str, rows: Iterator[tuple[int, Row, int]]) -> Iterator[tuple[list[Row], Place]]:
    """Of rows with the lines they stand in and the bytes they take in memory, about."""
    held: list[Row] = []
    numbers: list[int] = []
    size = 0
    try:
        for number, row, row_bytes in rows:
            held.append(row)
            numbers.append(number)
            size += row_bytes
            if size >= CHUNK_BYTES or len(held) >= CHUNK_ROWS:
                yield held, _place(f"{name} line", numbers)
                held, numbers, size = [], [], 0
    except Invalid:
        if held:  # what stands before it is looked at first
            yield held, _place(f"{name} line", numbers)
        raise
    if held:
        yield held, _place(f"{name} line", numbers)


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


def _require_names_once(name: str, columns: Sequence[str]) -> None:
    twice = {column for column in columns if columns.count(column) > 1}
    if twice:
        raise Invalid(f"{name} names the column {min(twice)!r} twice: rename one of them")


class CsvFile:
    """CSV (RFC 4180, with a header line, UTF-8)."""

    def __init__(self, lines: Lines, *, most_chars: int) -> None:
        self.name = lines.name
        self.progress = lines.progress
        csv.field_size_limit(most_chars)  # of the whole process, which reads one file
        self._rows = self._numbered(lines)
        self.columns = next((row for _, row, _ in self._rows), [])
        if not self.columns:
            raise Invalid(f"{self.name} is empty: the first line of a CSV file names its columns")
        _require_names_once(self.name, self.columns)

    def parts(self) -> Iterator[tuple[list[list[str]], Place]]:
        """The fields of each row, as many as there are columns."""
        return _parts(self.name, self._rows)

    def _numbered(self, lines: Lines) -> Iterator[tuple[int, list[str], int]]:
        """Each row, the first too, with the line in which it begins and the bytes that it takes."""
        rows = csv.reader(iter(lines), strict=True)
        number, width = 1, 0
        try:
            for row in rows:
                if number == 1:
                    width = len(row)
                if len(row) != width and row:  # an empty line is no row
                    raise Invalid(
                        f"{self.name} line {number} has {len(row)} fields, the first line names {width} columns: does "
                        "a field with a comma in it lack its quotes?"
                    )
                if row or number == 1:
                    yield number, row, sum(map(len, row)) + FIELD_BYTES * width
                number = rows.line_num + 1
        except csv.Error as error:
            raise Invalid(f"{self.name} line {number} is no CSV ({error}): is a quote not closed?") from None


# --- JSON lines -------------------------------------------------------------------------------------------------------


class ExactDecoder(json.JSONDecoder):
    """Numbers with a fraction become `Decimal`, or what `parse_float` makes of them: with `str.encode` they stay as
    they are written, as bytes. Raises `ValueError`, and `RecursionError` for what is nested too deep, as any decoder
    does.
    """

    def __init__(self, parse_float: Callable[[str], Any] | None = None) -> None:
        super().__init__(parse_float=parse_float or _exact, parse_constant=_no_constant, object_pairs_hook=_named_once)

    def decode(self, s: str, *more: Any) -> Any:
        """An object at the beginning of a line, as nearly all are, without Python's search for spaces around it."""
        if s.startswith("{"):
            found, end = self.raw_decode(s)
            if not s[end:].strip(_SPACES):
                return found
        return super().decode(s, *more)


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("a number has an exponent that is too large: give one in digits") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of which no name is there twice; else raises `ValueError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} is there twice in one object: keep one")
    return found


JsonLine = tuple[str, dict[str, Any]]


class JsonFile:
    """Objects, one per line; none has a name twice, of which one value would be lost. `example` is a line as it is
    wanted.
    """

    def __init__(self, lines: Lines, *, example: str, decoder: ExactDecoder) -> None:
        self.name = lines.name
        self.progress = lines.progress
        self._lines = lines
        self._example = example
        self._decoder = decoder
        self._rows = self._numbered()
        self._first = next(self._rows, None)

        self.first_line = None if self._first is None else self._first[0]
        """Its number; None: there is none."""
        self.columns = [] if self._first is None else list(self._first[1][1])
        """The names in the first line."""

    def parts(self, take: Callable[[JsonLine], Sequence[Any]]) -> Iterator[tuple[list[Sequence[Any]], Place]]:
        """What `take` makes of each line, given its text and what it says, or refuses by `RefusedValue`. At once: many
        objects that live for a while are what Python's collector of garbage looks through again and again.
        """
        return _parts(self.name, self._taken(take))

    def _taken(self, take: Callable[[JsonLine], Sequence[Any]]) -> Iterator[tuple[int, Sequence[Any], int]]:
        for number, line, size in chain([] if self._first is None else [self._first], self._rows):
            try:
                yield number, take(line), size
            except RefusedValue as error:
                raise error.of_row(0).at(f"{self.name} line {number}") from None

    def _numbered(self) -> Iterator[tuple[int, JsonLine, int]]:
        for text in self._lines:
            if text.isspace():
                continue
            try:
                row = self._decoder.decode(text)
            except (ValueError, RecursionError) as error:
                raise self._no_row(f"is no JSON ({error}): write one object per line") from None
            if isinstance(row, list):
                raise self._no_row("is a JSON array: write one object per line, for example with `jq -c '.[]'`")
            if not isinstance(row, dict):
                raise self._no_row(f"is no JSON object: write one per line, such as {self._example}")
            yield self._lines.number, (text, row), JSON_BYTES * len(text)

    def _no_row(self, why: str) -> Invalid:
        return Invalid(f"{self.name} line {self._lines.number} {why}")


class ParquetFile:
    """A Parquet file, read in batches of bounded size. INT96 is a TIMESTAMP to the microsecond, which is what Spark
    writes so; Arrow would make it a time without a zone to the nanosecond, in which years before 1678 and after 2261
    are others.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        try:
            # Nothing is read ahead, so memory is that of one batch and the pages it comes from. Texts that the file
            # writes once and refers to stay so until it is known how large they are in all: a page of some kilobytes
            # may stand for gigabytes.
            texts = [field.name for field in pq.read_schema(file) if is_text(field.type)]
            self._parquet = pq.ParquetFile(
                file, pre_buffer=False, read_dictionary=texts, coerce_int96_timestamp_unit="us"
            )
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"{name} is no Parquet file that can be read: {error}") from error
        given = self._parquet.schema_arrow
        _require_names_once(name, given.names)
        leaves = (self._parquet.schema.column(index) for index in range(len(self._parquet.schema)))
        is_int96 = iter([leaf.physical_type == "INT96" for leaf in leaves])
        self.schema = pa.schema([field.with_type(_with_instants(field.type, is_int96)) for field in given])
        both = zip(self.schema, given, strict=True)
        self._instants = {field.name: field.type for field, before in both if field.type != before.type}
        self._done = 0

    def progress(self) -> tuple[int, int | None]:
        return self._done, self._parquet.metadata.num_rows

    def parts(self, wanted: Collection[str] | None) -> Iterator[tuple[pa.RecordBatch, Place]]:
        """The columns `wanted` (None: all)."""
        columns = None if wanted is None else list(wanted)
        try:
            for batch in self._parquet.iter_batches(self._batch_rows(), columns=columns, use_threads=False):
                for piece in _decoded(self._viewed(batch)):
                    yield piece, _place(f"{self.name} row", range(self._done + 1, self._done + piece.num_rows + 1))
                    self._done += piece.num_rows
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"{self.name} cannot be read after row {self._done}: {error}") from error

    def _viewed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With its instants as such."""
        names = batch.schema.names
        if not self._instants.keys() & set(names):
            return batch
        pairs = zip(names, batch.columns, strict=True)
        columns = [column.view(self._instants[name]) if name in self._instants else column for name, column in pairs]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _batch_rows(self) -> int:
        metadata = self._parquet.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        row_bytes = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=1.0)
        return max(1, min(CHUNK_ROWS, int(CHUNK_BYTES / max(row_bytes, 1.0))))


def _with_instants(kind: pa.DataType, is_int96: Iterator[bool]) -> pa.DataType:
    """The type in which every leaf that is INT96 is a TIMESTAMP; `is_int96` goes from leaf to leaf."""
    if pa.types.is_map(kind):
        key, item = _with_instants(kind.key_type, is_int96), _with_instants(kind.item_type, is_int96)
        return kind if (key, item) == (kind.key_type, kind.item_type) else pa.map_(key, item)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_instants(field.type, is_int96)) for field in kind])
    if kind.num_fields:
        value = _with_instants(kind.value_type, is_int96)
        return kind if value == kind.value_type else pa.list_(value)
    return TIMESTAMP if next(is_int96) else kind


def _decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` with its texts written out, in pieces in which they have `CHUNK_BYTES`, or one row."""
    short = [at for at, column in enumerate(batch.columns) if isinstance(column, pa.DictionaryArray)]
    for piece in pieces(batch, short, CHUNK_BYTES):
        plain = [column.dictionary_decode() if at in short else column for at, column in enumerate(piece.columns)]
        yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)
