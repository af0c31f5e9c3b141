"""Columns as messages: those of other libraries' tables, by the Arrow PyCapsule interface, and those of files. They are
checked by name and type, then cast.

A column that is no part of a message is refused. Large, view and dictionary forms are taken, with a copy. How a typed
queue takes columns and values is decided in `log.schema.conform`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.destinations import Stage
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.forms import as_form, pieces
from partq_spark.log.schema.types import filled, normal, without_not_null
from partq_spark.log.segment import HEADERS, HEADERS_NAME, segment_schema
from partq_spark.query.columns import METADATA
from partq_spark.query.settings import IGNORED

CHUNK_ROWS = 8192  # with CHUNK_BYTES: what is cast, or held of a file, at a time
CHUNK_BYTES = 4 * 1024 * 1024

TakeBatch = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Makes messages of rows, with the columns of a segment. Raises `BadRow`."""

_NULL = pa.scalar("null")
# As JSON has it, without exponents: 1e5 in a CSV file is more often a name than a number.
_NUMBER = r"\A-?(0|[1-9][0-9]*)(\.[0-9]+)?\z"
_CONTROL = r"[\x00-\x1f]"


def rows_taking(given: pa.Schema, stage: Stage) -> Conversion:
    """How a typed queue takes columns, by name. `_headers` may be among them, and `_metadata`, which readers get and
    is left out. Raises `Invalid` naming the column that it does not take, with both types.
    """
    schema = segment_schema(stage.columns, headers=HEADERS_NAME in given.names)
    try:
        return Conversion.to_queue(given, schema, beside=(METADATA,))
    except Invalid as error:
        raise Invalid(f"queue {stage.queue!r} cannot take these rows: {error}") from None


def messages_taking(given: pa.Schema, key: str | None = "key") -> TakeBatch:
    """How columns become the messages of an untyped queue: `value`, and perhaps `key`, the column of the key, and
    `headers`. Whether texts are UTF-8, the log says. Raises `Invalid` naming the column whose type cannot be one.
    """
    value = given.field("value").type
    if not is_text(value):
        raise Invalid(f"column 'value' has type {value}, it must be text or bytes: cast it")
    with_headers = "headers" in given.names
    if with_headers:
        form = _headers_form(given.field("headers").type)
    schema = segment_schema(headers=with_headers)

    def take(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [keys_in(batch, key), as_form(batch.column("value"), pa.binary())]
        if with_headers:
            columns.append(as_form(batch.column("headers"), form).cast(HEADERS, safe=False))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return take


def _headers_form(kind: pa.DataType) -> pa.DataType:
    """The form of headers that are given so, which Arrow casts: structs of `key` and `value`, texts or bytes in any
    order, or a map. Raises `Invalid` for what is no headers.
    """
    form = normal(filled(kind, HEADERS))
    parts: dict[str, pa.DataType] = {}
    if form is not None and is_.is_map(form):
        parts = {"key": form.key_type, "value": form.item_type}
    elif form is not None and is_.is_list(form) and is_.is_struct(form.value_type):
        parts = {field.name: field.type for field in form.value_type}
    # Arrow would make null of a part that has another name, and drop one too many, without a word.
    if "key" not in parts or not parts.keys() <= {"key", "value"} or not all(map(is_text, parts.values())):
        raise Invalid(
            f"column 'headers' has type {kind}, it must be a list of structs of key (string) and value (binary): cast "
            "it"
        )
    return without_not_null(form)


def table_source(table: Any, stage: Stage | None) -> tuple[Iterator[pa.RecordBatch], TakeBatch]:
    """What anything with `__arrow_c_stream__` has, a bounded part at a time, and what makes messages of it, with the
    columns of a segment. `stage` is that of a queue that gets them: a typed one gets rows. Raises `Invalid` naming the
    column that is not taken, with its type.
    """
    reader = _opened(table)
    if stage is None or stage.columns is None:
        return _chunks(reader, IGNORED), _keys_and_values(reader.schema)
    return _chunks(reader, (METADATA,)), rows_taking(reader.schema, stage)


def _keys_and_values(given: pa.Schema) -> TakeBatch:
    for field in given:
        if field.name not in ("key", "value", "headers", *IGNORED):
            raise Invalid(
                f"column {field.name!r} ({field.type}) is no part of a message: give value, and if there are any key "
                "and headers"
            )
    if "value" not in given.names:
        raise Invalid(f"column 'value' is missing (found: {', '.join(given.names) or 'none'}): every message needs one")
    take = messages_taking(given)
    if "key" in given.names and not is_text(given.field("key").type):
        raise Invalid(f"column 'key' has type {given.field('key').type}, it must be text or bytes: cast it")
    return take


def keys_in(batch: pa.RecordBatch, name: str | None) -> pa.Array:
    """The column of the key as text; nulls where there is none. Whether texts are UTF-8, the log says."""
    if name is None or name not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column(name)
    return as_form(column, pa.binary()).view(pa.string()) if is_text(column.type) else texts(column, name)


def is_text(kind: pa.DataType) -> bool:
    """Whether it is one of text or of bytes, in any form, or of nulls alone."""
    return is_.is_null(kind) or normal(kind) in (pa.string(), pa.binary())


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
    index = next((name for name in names if name.startswith("__index_level_")), None)
    if index is not None:
        raise Invalid(
            f"column {index!r} is the index of a frame of pandas, no column of the queue's: leave it out with "
            "frame.reset_index(drop=True)"
        )
    return reader


def _chunks(reader: pa.RecordBatchReader, ignored: Collection[str]) -> Iterator[pa.RecordBatch]:
    """What can be cast at a time, in bounded memory: of the columns that are not `ignored`, those that need it."""
    cast = [at for at, field in enumerate(reader.schema) if field.name not in ignored and _is_cast(field.type)]
    for batch in reader:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield from pieces(batch.slice(start, CHUNK_ROWS), cast, CHUNK_BYTES)


def _is_cast(kind: pa.DataType) -> bool:
    form = normal(kind)
    return form is not None and form != kind  # None: it is refused


# --- as JSON text -----------------------------------------------------------------------------------------------------

# What whole rows of a file are published as, without a Python object per value. Numbers keep the text that Arrow gives
# them; what JSON cannot hold is written as Spark's `to_json` does: NaN and infinity as strings, bytes in base64, times
# in ISO 8601. Maps and other types without such a form are refused by name.


def objects(columns: Mapping[str, pa.Array], *, untyped: bool = False) -> pa.Array:
    """One compact JSON object per row, as strings; the order of the columns is kept.

    `untyped`: the columns are texts without types (CSV), so a field that is a JSON number becomes one, digit by digit.
    Raises `Invalid` naming a column whose type has no JSON form.
    """
    parts: list[pa.Array | pa.Scalar] = []
    for index, (name, column) in enumerate(columns.items()):
        parts.append(pa.scalar(("," if index else "{") + json.dumps(name, ensure_ascii=False) + ":"))
        parts.append(_untyped(column) if untyped else values(column, name))
    if not parts:
        raise Invalid("a table without columns has nothing to publish: give one with at least one column")
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def values(column: pa.Array, name: str) -> pa.Array:
    """The JSON text of each value, as strings without nulls. Raises `Invalid` naming the column `name`."""
    kind = column.type
    if is_.is_dictionary(kind):
        return values(column.dictionary_decode(), name)
    if is_.is_struct(kind):
        return _struct(column, name)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _list(column, name)
    text = texts(column, name)
    if not (is_.is_integer(kind) or is_.is_boolean(kind) or is_.is_decimal(kind)):
        quoted = _quoted(text)
        text = pc.if_else(pc.is_finite(column), text, quoted) if is_.is_floating(kind) else quoted
    return pc.fill_null(text, _NULL)


def texts(column: pa.Array, name: str) -> pa.Array:
    """Each value as plain text, nulls kept: what a key is made of, and a JSON value that is no list or struct."""
    kind = column.type
    if is_.is_float16(kind):
        return texts(column.cast(pa.float32()), name)
    if is_.is_floating(kind):
        plain = column.cast(pa.string())
        spark = pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity"))
        return pc.if_else(pc.is_finite(column), plain, spark)
    if is_.is_timestamp(kind):
        utc = kind.tz is not None
        plain = column.cast(pa.timestamp(kind.unit)).cast(pa.string()) if utc else column.cast(pa.string())
        plain = pc.replace_substring(plain, " ", "T")
        return pc.binary_join_element_wise(plain, pa.scalar("Z"), "") if utc else plain
    if _is_binary(kind):
        return pa.array(
            [None if raw is None else base64.b64encode(raw).decode() for raw in column.to_pylist()], pa.string()
        )
    if _is_plain(kind):
        return column.cast(pa.string())
    raise Invalid(
        f"column {name!r} has type {kind}, which cannot be published as text: leave it out, or turn it into a string "
        "first"
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    tests = (is_.is_string, is_.is_large_string, is_.is_integer, is_.is_boolean, is_.is_null)
    return any(test(kind) for test in (*tests, is_.is_decimal, is_.is_date, is_.is_time))


def _untyped(column: pa.Array) -> pa.Array:
    number = pc.match_substring_regex(column, _NUMBER)
    return pc.fill_null(pc.if_else(number, column, _quoted(column)), _NULL)


def _quoted(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():  # rare, and has many cases
        return pa.array(
            [None if text is None else json.dumps(text, ensure_ascii=False) for text in column.to_pylist()], pa.string()
        )
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), "")


def _struct(column: pa.StructArray, name: str) -> pa.Array:
    fields = {field.name: column.field(index) for index, field in enumerate(column.type)}
    text = objects(fields) if fields else pa.array(["{}"] * len(column), pa.string())
    return pc.if_else(pc.is_valid(column), text, _NULL)


def _list(column: pa.Array, name: str) -> pa.Array:
    lengths: Sequence[int | None] = pc.list_value_length(column).to_pylist()
    items = iter(values(column.flatten(), name).to_pylist())  # flatten leaves out what lies under a null list
    return pa.array(
        ["null" if length is None else f"[{','.join(next(items) for _ in range(length))}]" for length in lengths],
        pa.string(),
    )
