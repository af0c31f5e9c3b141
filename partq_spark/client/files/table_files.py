"""CSV and Parquet files as columns, a bounded part at a time. Nothing here knows what the columns mean."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from partq_spark.base.errors import Invalid
from partq_spark.client.files.messages import CHUNK_BYTES, CHUNK_ROWS, FIELD_BYTES, Lines
from partq_spark.log.schema.forms import pieces
from partq_spark.log.schema.types import TIMESTAMP


class CsvFile:
    """CSV (RFC 4180, with a header line, UTF-8)."""

    def __init__(self, lines: Lines, *, most_chars: int) -> None:
        self.name = lines.name
        self._lines = lines
        csv.field_size_limit(most_chars)  # of the whole process, which reads one file
        self._rows = csv.reader(iter(lines), strict=True)
        self.columns = self._next() or []
        if not self.columns:
            raise Invalid(f"{self.name} is empty: the first line of a CSV file names its columns")
        twice = {column for column in self.columns if self.columns.count(column) > 1}
        if twice:
            raise Invalid(f"{self.name} names the column {min(twice)!r} twice: rename one of them")

    def progress(self) -> tuple[int, int | None]:
        return self._lines.progress()

    def parts(self) -> Iterator[tuple[list[tuple[str, ...]], list[int]]]:
        """The fields, column by column, and the line of each row."""
        rows: list[list[str]] = []
        places: list[int] = []
        size = 0
        place = self._rows.line_num + 1
        while (row := self._next()) is not None:
            if row:  # an empty line is no row
                if len(row) != len(self.columns):
                    raise Invalid(
                        f"{self.name} line {place} has {len(row)} fields, the first line names {len(self.columns)} "
                        "columns: does a field with a comma in it lack its quotes?"
                    )
                rows.append(row)
                places.append(place)
                size += sum(map(len, row)) + FIELD_BYTES * len(row)
                if size >= CHUNK_BYTES or len(rows) >= CHUNK_ROWS:
                    yield list(zip(*rows, strict=True)), places
                    rows, places, size = [], [], 0
            place = self._rows.line_num + 1
        if rows:
            yield list(zip(*rows, strict=True)), places

    def _next(self) -> list[str] | None:
        place = self._rows.line_num + 1
        try:
            return next(self._rows, None)
        except csv.Error as error:
            raise Invalid(f"{self.name} line {place} is no CSV ({error}): is a quote not closed?") from None


class ParquetFile:
    """A Parquet file, read in batches of bounded size. `instants`: INT96 is a TIMESTAMP to the microsecond, which is
    what Spark writes as INT96; else it is what Arrow makes of it, a time without a zone to the nanosecond, in which
    years before 1678 and after 2261 are others.
    """

    def __init__(self, file: BinaryIO, name: str, *, instants: bool = False) -> None:
        self.name = name
        self._instants: dict[str, pa.DataType] = {}
        try:
            # Nothing is read ahead, so memory is that of one batch and the pages it comes from. Texts that the file
            # writes once and refers to stay so until it is known how large they are in all: a page of some kilobytes
            # may stand for gigabytes.
            texts = [field.name for field in pq.read_schema(file) if is_text(field.type)]
            self._parquet = pq.ParquetFile(
                file,
                pre_buffer=False,
                read_dictionary=texts,
                coerce_int96_timestamp_unit="us" if instants else None,
            )
        except (pa.ArrowException, OSError) as error:
            raise Invalid(f"{name} is no Parquet file that can be read: {error}") from error
        self.schema = self._parquet.schema_arrow
        if instants:
            leaves = (self._parquet.schema.column(index) for index in range(len(self._parquet.schema)))
            is_int96 = iter([leaf.physical_type == "INT96" for leaf in leaves])
            fields = [field.with_type(_with_instants(field.type, is_int96)) for field in self.schema]
            self._instants = {
                field.name: field.type
                for field, before in zip(fields, self.schema, strict=True)
                if field.type != before.type
            }
            self.schema = pa.schema(fields)
        self._done = 0

    def progress(self) -> tuple[int, int | None]:
        return self._done, self._parquet.metadata.num_rows

    def parts(self, wanted: Collection[str] | None) -> Iterator[tuple[pa.RecordBatch, Sequence[int]]]:
        """The columns `wanted` (None: all), and the number of each row, from 1."""
        columns = None if wanted is None else list(wanted)
        try:
            for batch in self._parquet.iter_batches(self._batch_rows(), columns=columns, use_threads=False):
                for piece in _decoded(self._viewed(batch)):
                    yield piece, range(self._done + 1, self._done + piece.num_rows + 1)
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


def is_text(kind: pa.DataType) -> bool:
    """Whether it is one of text or of bytes."""
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` with its texts written out, in pieces in which they have `CHUNK_BYTES`, or one row."""
    short = [at for at, column in enumerate(batch.columns) if isinstance(column, pa.DictionaryArray)]
    for piece in pieces(batch, short, CHUNK_BYTES):
        plain = [column.dictionary_decode() if at in short else column for at, column in enumerate(piece.columns)]
        yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)
