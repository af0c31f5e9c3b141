"""Tables of other libraries as messages, by the Arrow PyCapsule interface: columns are checked by name and type, then
cast.

A column that is no part of a message is refused. Large, view and dictionary forms are taken, with a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.query.schema import IGNORED

CHUNK_ROWS = 8192  # what is cast at a time


def message_batches(table: Any, headers: bool | None) -> Iterator[pa.RecordBatch]:
    """The messages of anything with `__arrow_c_stream__`, as batches with the columns of a segment. `headers`: whether
    these have that column; None: if the table has it. Raises `Invalid` naming the column that cannot be one.
    """
    if not hasattr(table, "__arrow_c_stream__"):
        raise Invalid(
            f"{type(table).__name__} is no table: give something with __arrow_c_stream__, such as a table of pyarrow, "
            "polars, pandas or duckdb"
        )
    reader = pa.RecordBatchReader.from_stream(table)
    names = reader.schema.names
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"column {name!r} is there {names.count(name)} times: select it once")
        if name not in ("key", "value", "headers", *IGNORED):
            raise Invalid(
                f"column {name!r} ({reader.schema.field(name).type}) is no part of a message: give value, and if there "
                "are any key and headers"
            )
    if "value" not in names:
        raise Invalid(f"column 'value' is missing (found: {', '.join(names) or 'none'}): every message needs one")
    with_headers = "headers" in names if headers is None else headers
    if "headers" in names and not with_headers:
        raise Invalid("some of the messages have headers and some do not: give the column 'headers' from the first on")
    for batch in reader:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield _messages(batch.slice(start, CHUNK_ROWS), with_headers)


def _messages(batch: pa.RecordBatch, headers: bool) -> pa.RecordBatch:
    names = batch.schema.names
    value = _text(batch.column("value"), "value", pa.binary())
    key = pa.nulls(batch.num_rows, pa.string())
    if "key" in names:
        key = _text(batch.column("key"), "key", pa.binary()).view(pa.string())  # that it is UTF-8 the log checks
    columns = [key, value]
    if headers:
        columns.append(
            _cast(batch.column("headers"), "headers", HEADERS)
            if "headers" in names
            else pa.nulls(batch.num_rows, HEADERS)
        )
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(headers))


def _text(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_text = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    )
    if not any(test(column.type) for test in is_text):
        raise Invalid(f"column {name!r} has type {column.type}, it must be text or bytes: cast it")
    return _cast(column, name, kind)


def _cast(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(f"column {name!r} has type {column.type}, it must be {kind}: {error}") from None
