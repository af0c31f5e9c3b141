"""CSV and Parquet as messages. What the columns of a table mean is decided by `messages.shape_of`."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partq_spark.base.errors import Invalid
from partq_spark.client.files import json_text
from partq_spark.client.files.messages import CHUNK_BYTES, CHUNK_ROWS, FIELD_BYTES, Chunk, Lines, Shape, shape_of
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.log.validation import first_not_utf8


class Csv:
    """A `Source` of CSV (RFC 4180, with a header line, UTF-8). An empty field is null.

    CSV has no types: in rows that become JSON a field that is a JSON number becomes one, all else a string.
    """

    unit = "line"
    headers = False

    def __init__(self, lines: Lines, *, key_column: str | None, whole_rows: bool, most_chars: int) -> None:
        self.name = lines.name
        self._lines = lines
        csv.field_size_limit(most_chars)  # of the whole process, which reads one file
        self._rows = csv.reader(iter(lines), strict=True)
        self._columns = self._next() or []
        if not self._columns:
            raise Invalid(f"{self.name} is empty: the first line of a CSV file names its columns")
        twice = {column for column in self._columns if self._columns.count(column) > 1}
        if twice:
            raise Invalid(f"{self.name} names the column {min(twice)!r} twice: rename one of them")
        self._shape = shape_of(self.name, self._columns, key_column=key_column, whole_rows=whole_rows)
        if not self._shape.whole and "headers" in self._columns:
            raise Invalid(f"{self.name} has a column 'headers': CSV cannot hold them, use JSON lines or Parquet")
        self.meaning = self._shape.meaning

    def progress(self) -> tuple[int, int | None]:
        return self._lines.progress()

    def chunks(self) -> Iterator[Chunk]:
        rows: list[list[str]] = []
        places: list[int] = []
        size = 0
        place = self._rows.line_num + 1
        while (row := self._next()) is not None:
            if row:  # an empty line is no row
                if len(row) != len(self._columns):
                    raise Invalid(
                        f"{self.name} line {place} has {len(row)} fields, the first line names {len(self._columns)} "
                        "columns: does a field with a comma in it lack its quotes?"
                    )
                rows.append(row)
                places.append(place)
                size += sum(map(len, row)) + FIELD_BYTES * len(row)
                if size >= CHUNK_BYTES or len(rows) >= CHUNK_ROWS:
                    yield self._chunk(rows, places)
                    rows, places, size = [], [], 0
            place = self._rows.line_num + 1
        if rows:
            yield self._chunk(rows, places)

    def _next(self) -> list[str] | None:
        place = self._rows.line_num + 1
        try:
            return next(self._rows, None)
        except csv.Error as error:
            raise Invalid(f"{self.name} line {place} is no CSV ({error}): is a quote not closed?") from None

    def _chunk(self, rows: Sequence[Sequence[str]], places: Sequence[int]) -> Chunk:
        columns: dict[str, pa.Array] = {}
        for name, fields in zip(self._columns, zip(*rows, strict=True), strict=True):
            texts = pa.array(fields, pa.string())
            columns[name] = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        return _messages(columns, self._shape, places, self.name, headers=False, untyped=True)


class Parquet:
    """A `Source` of a Parquet file, read in batches of bounded size."""

    unit = "row"

    def __init__(self, file: BinaryIO, name: str, *, key_column: str | None, whole_rows: bool) -> None:
        self.name = name
        try:
            # Nothing is read ahead, so memory is that of one batch and the pages it comes from. Texts that the file
            # writes once and refers to stay so until it is known how large they are in all: a page of some kilobytes
            # may stand for gigabytes.
            texts = [field.name for field in pq.read_schema(file) if _is_text(field.type)]
            self._parquet = pq.ParquetFile(file, pre_buffer=False, read_dictionary=texts)
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"{name} is no Parquet file that can be read: {error}") from error
        schema = self._parquet.schema_arrow
        self._shape = shape_of(name, schema.names, key_column=key_column, whole_rows=whole_rows)
        self.headers = not self._shape.whole and "headers" in schema.names
        self.meaning = self._shape.meaning
        self._done = 0

    def progress(self) -> tuple[int, int | None]:
        return self._done, self._parquet.metadata.num_rows

    def chunks(self) -> Iterator[Chunk]:
        wanted = None
        if not self._shape.whole:
            wanted = [
                name for name in (self._shape.key, "value", "headers") if name in self._parquet.schema_arrow.names
            ]
        try:
            for batch in self._parquet.iter_batches(self._batch_rows(), columns=wanted, use_threads=False):
                for piece in _decoded(batch):
                    columns = dict(zip(piece.schema.names, piece.columns, strict=True))
                    places = range(self._done + 1, self._done + piece.num_rows + 1)
                    yield _messages(columns, self._shape, places, self.name, headers=self.headers, untyped=False)
                    self._done += piece.num_rows
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"{self.name} cannot be read after row {self._done}: {error}") from error

    def _batch_rows(self) -> int:
        metadata = self._parquet.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        row_bytes = max((group.total_byte_size / group.num_rows for group in groups if group.num_rows), default=1.0)
        return max(1, min(CHUNK_ROWS, int(CHUNK_BYTES / max(row_bytes, 1.0))))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` with its texts written out, in pieces in which they have `CHUNK_BYTES`, or one row."""
    short = [isinstance(column, pa.DictionaryArray) for column in batch.columns]
    sizes = [0] * batch.num_rows
    for column in (column for column, is_short in zip(batch.columns, short, strict=True) if is_short):
        lengths = pc.fill_null(pc.binary_length(column.dictionary).take(column.indices), 0).to_pylist()
        sizes = list(map(add, sizes, lengths))
    first = size = 0
    for row, more in enumerate([*sizes, CHUNK_BYTES + 1]):  # the last is no row: it ends the last piece
        if row > first and size + more > CHUNK_BYTES:
            columns = [column.slice(first, row - first) for column in batch.columns]
            plain = [c.dictionary_decode() if is_short else c for c, is_short in zip(columns, short, strict=True)]
            yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)
            first, size = row, 0
        size += more


def _messages(
    columns: Mapping[str, pa.Array],
    shape: Shape,
    places: Sequence[int],
    name: str,
    *,
    headers: bool,
    untyped: bool,
) -> Chunk:
    """Columns of a table as a chunk of messages. Raises `Invalid` naming the column whose type cannot be one."""
    rows = len(places)
    key = pa.nulls(rows, pa.string()) if shape.key is None else _key(columns[shape.key], shape.key)
    if shape.whole:
        for column in () if untyped else columns:  # what has no types was decoded when it was read
            bad = first_not_utf8(columns[column])
            if bad is not None:
                raise Invalid(
                    f"{name} row {places[bad]} has text in {column!r} that is not UTF-8, which JSON cannot hold: make"
                    " that column binary (it becomes base64), or encode it"
                )
        value = json_text.objects(columns, untyped=untyped).cast(pa.binary())
    else:
        value = _value(columns["value"], name)
    arrays = [key, value]
    if headers:
        arrays.append(_headers(columns["headers"], name))
    return Chunk(pa.RecordBatch.from_arrays(arrays, schema=segment_schema(headers)), places)


def _key(column: pa.Array, key: str) -> pa.Array:
    """As text; whether it is UTF-8, `messages.check` says."""
    if pa.types.is_binary(column.type):
        return column.view(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary()).view(pa.string())
    return json_text.texts(column, key)


def _value(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _value(column.dictionary_decode(), name)
    if _is_text(kind):
        return column.cast(pa.binary())
    raise Invalid(
        f"{name} has a column 'value' of type {kind}, a message's value is text or bytes: give --whole-rows to publish "
        "each row as a JSON object, or turn the column into text"
    )


def _headers(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(HEADERS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(
            f"{name} has a column 'headers' of type {column.type}, it must be a list of structs of key (string) and "
            f"value (binary): {error}"
        ) from None
