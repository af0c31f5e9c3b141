"""CSV and Parquet as messages of a key and a value. What the columns of a table mean is decided by
`messages.shape_of`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import Invalid
from partq_spark.client.files import json_text
from partq_spark.client.files.messages import Chunk, Lines, Shape, shape_of
from partq_spark.client.files.table_files import CsvFile, ParquetFile, is_text
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.log.validation import first_not_utf8


class Csv:
    """A `MessageSource` of CSV. An empty field is null.

    CSV has no types: in rows that become JSON a field that is a JSON number becomes one, all else a string.
    """

    unit = "line"
    headers = False

    def __init__(self, lines: Lines, *, key_column: str | None, whole_rows: bool, most_chars: int) -> None:
        self.name = lines.name
        self._file = CsvFile(lines, most_chars=most_chars)
        columns = self._file.columns
        self._shape = shape_of(self.name, columns, key_column=key_column, whole_rows=whole_rows)
        if not self._shape.whole and "headers" in columns:
            raise Invalid(f"{self.name} has a column 'headers': CSV cannot hold them, use JSON lines or Parquet")
        self.meaning = self._shape.meaning

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

    def chunks(self) -> Iterator[Chunk]:
        for fields, places in self._file.parts():
            columns: dict[str, pa.Array] = {}
            for name, column in zip(self._file.columns, fields, strict=True):
                texts = pa.array(column, pa.string())
                columns[name] = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            yield _messages(columns, self._shape, places, self.name, headers=False, untyped=True)


class Parquet:
    """A `MessageSource` of a Parquet file, read in batches of bounded size."""

    unit = "row"

    def __init__(self, file: BinaryIO, name: str, *, key_column: str | None, whole_rows: bool) -> None:
        self.name = name
        self._file = ParquetFile(file, name)
        names = self._file.schema.names
        self._shape = shape_of(name, names, key_column=key_column, whole_rows=whole_rows)
        self.headers = not self._shape.whole and "headers" in names
        self.meaning = self._shape.meaning

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

    def chunks(self) -> Iterator[Chunk]:
        wanted = None
        if not self._shape.whole:
            parts = {self._shape.key, "value", "headers"}
            wanted = [name for name in self._file.schema.names if name in parts]
        for piece, places in self._file.parts(wanted):
            columns = dict(zip(piece.schema.names, piece.columns, strict=True))
            yield _messages(columns, self._shape, places, self.name, headers=self.headers, untyped=False)


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
    """As text; whether it is UTF-8 is seen when it is staged."""
    if pa.types.is_binary(column.type):
        return column.view(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary()).view(pa.string())
    return json_text.texts(column, key)


def _value(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _value(column.dictionary_decode(), name)
    if is_text(kind):
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
