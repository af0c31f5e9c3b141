"""Tables of other libraries as messages, by the Arrow PyCapsule interface: columns are checked by name and type, then
cast.

A column that is no part of a message is refused. Large, view and dictionary forms are taken, with a copy. How a typed
queue takes columns and values is decided in `log.schema.conform`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa

from partq_spark.base.errors import BadRow, Invalid
from partq_spark.log import destinations
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.forms import as_form, pieces
from partq_spark.log.schema.types import normal
from partq_spark.log.segment_columns import HEADERS, HEADERS_NAME, segment_schema
from partq_spark.log.staged import Stage
from partq_spark.query.columns import METADATA
from partq_spark.query.settings import IGNORED

CHUNK_ROWS = 8192  # with CHUNK_BYTES: what is cast, or held of a file, at a time
CHUNK_BYTES = 4 * 1024 * 1024


def message_batches(table: Any) -> Iterator[pa.RecordBatch]:
    """The messages of anything with `__arrow_c_stream__`, as batches with the columns of a segment. Raises `Invalid`
    naming the column that cannot be one.
    """
    reader = _opened(table)
    names = reader.schema.names
    for name in names:
        if name not in ("key", "value", "headers", *IGNORED):
            raise Invalid(
                f"column {name!r} ({reader.schema.field(name).type}) is no part of a message: give value, and if there "
                "are any key and headers"
            )
    if "value" not in names:
        raise Invalid(f"column 'value' is missing (found: {', '.join(names) or 'none'}): every message needs one")
    taking = headers_taking(reader.schema, "headers")
    row = 0
    for batch in _chunks(reader, ("key", "value", "headers")):
        columns = _key_and_value(batch)
        if taking is not None:
            columns.append(taken_headers(taking, batch, row))
        yield pa.RecordBatch.from_arrays(columns, schema=segment_schema(headers=taking is not None))
        row += batch.num_rows


def row_batches(table: Any, stage: Stage, first_row: int) -> Iterator[pa.RecordBatch]:
    """The rows of anything with `__arrow_c_stream__`, as batches with the columns of a typed queue's segment.
    `first_row` is the number of the first one, for errors. Raises `Invalid` naming the column that the queue does not
    take, with both types, or the row and column of a value.
    """
    reader = _opened(table)
    names = reader.schema.names
    for name in names:
        if name.startswith("__index_level_"):
            raise Invalid(
                f"column {name!r} is the index of a frame of pandas, no column of the queue's: leave it out with "
                "frame.reset_index(drop=True)"
            )
    headers_of = headers_taking(reader.schema, HEADERS_NAME)
    payload = [index for index, name in enumerate(names) if name not in (HEADERS_NAME, METADATA)]
    taking = destinations.taking(stage, pa.schema([reader.schema.field(index) for index in payload]))
    if taking is None:
        raise Invalid(f"queue {stage.queue!r} is untyped, and takes no rows")
    row = first_row
    for batch in _chunks(reader, {*names} - {METADATA}):
        made = taken(taking, batch.select(payload), row)
        if headers_of is not None:
            made = made.append_column(pa.field(HEADERS_NAME, HEADERS), taken_headers(headers_of, batch, row))
        yield made
        row += batch.num_rows


def _opened(table: Any) -> pa.RecordBatchReader:
    if not hasattr(table, "__arrow_c_stream__"):
        raise Invalid(
            f"{type(table).__name__} is no table: give something with __arrow_c_stream__, such as a table of pyarrow, "
            "polars, pandas or duckdb"
        )
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except pa.ArrowInvalid as error:  # of a series, which is one column without a name
        raise Invalid(
            f"{type(table).__name__} is no table ({error}): give one with named columns, such as"
            " pyarrow.table({'name': column})"
        ) from None
    names = reader.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Invalid(f"column {twice!r} is there {names.count(twice)} times: select it once")
    return reader


def _chunks(reader: pa.RecordBatchReader, wanted: Collection[str]) -> Iterator[pa.RecordBatch]:
    """What can be cast at a time, in bounded memory: of the columns `wanted`, those that need it."""
    cast = [at for at, field in enumerate(reader.schema) if field.name in wanted and _is_cast(field.type)]
    for batch in reader:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield from pieces(batch.slice(start, CHUNK_ROWS), cast, CHUNK_BYTES)


def _is_cast(kind: pa.DataType) -> bool:
    form = normal(kind)
    return form is not None and form != kind  # None: it is refused


def headers_taking(schema: pa.Schema, name: str) -> Conversion | None:
    """How the column `name` becomes headers, in whatever form it comes; None if there is none. Raises `Invalid` for
    another type.
    """
    if name not in schema.names:
        return None
    return Conversion.to_queue(pa.schema([schema.field(name)]), pa.schema([pa.field(name, HEADERS)]))


def taken_headers(taking: Conversion, batch: pa.RecordBatch, first_row: int) -> pa.Array:
    """A batch's headers. Raises `BadRow` for one that is not UTF-8."""
    return taken(taking, batch.select(taking.schema.names), first_row).column(0)


def taken(taking: Conversion, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """The batch as the queue takes it. Raises `BadRow`, which counts from `first_row` on."""
    try:
        return taking(batch)
    except BadRow as bad:
        raise bad.moved(first_row + bad.row) from None


def _key_and_value(batch: pa.RecordBatch) -> list[pa.Array]:
    value = _text(batch.column("value"), "value", pa.binary())
    if "key" not in batch.schema.names:
        return [pa.nulls(batch.num_rows, pa.string()), value]
    return [_text(batch.column("key"), "key", pa.binary()).view(pa.string()), value]  # the log checks that it is UTF-8


def _text(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    given = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    )
    if not any(test(given) for test in is_text):
        raise Invalid(f"column {name!r} has type {given}, it must be text or bytes: cast it")
    try:
        return as_form(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"column {name!r} has type {given}, it must be {kind}: {error}") from None
