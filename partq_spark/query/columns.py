"""From the log's pieces to the source's Arrow batches, copying as little as can be; and which columns a reader gives.
No pyspark. What typed queues alone need is imported where it is used (`log.segment`).

A batch must match the source's schema to the letter (spark-traps.md 11). Large pieces are cut, which copies nothing;
small ones are joined, because every batch costs the JVM something too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.reading import Piece
from partq_spark.log.schema.columns import Column, Columns, shown_names
from partq_spark.log.schema.forms import first_not_utf8
from partq_spark.log.schema.types import TIMESTAMP, normal
from partq_spark.log.segment import HEADERS
from partq_spark.query.settings import (
    HEADERS_TYPE,
    SOURCE_TYPES,
    STORED,
    SourceColumn,
    default_source_columns,
    named_source_columns,
)

MOST_ROWS = 32_768  # of one batch
MOST_BYTES = 16 * 1024 * 1024  # of one batch, unless a single message is larger: bounds the JVM's memory too
JOINED_ROWS = 8_192  # pieces are joined up to here

ARROW_TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": TIMESTAMP,
    "boolean": pa.bool_(),
    HEADERS_TYPE: HEADERS,
}

METADATA: Final = "_metadata"

METADATA_TYPES: Final[Mapping[str, pa.DataType]] = {
    name: ARROW_TYPES[kinds[0]] for name, kinds in SOURCE_TYPES.items() if name not in ("key", "value")
}
"""The fields of `_metadata`, called as the columns of an untyped queue's reader are."""


# --- which columns a reader gives -------------------------------------------------------------------------------------

# Of an untyped queue what partq knows of each message, key and value among it. Of a typed one the payload's own, under
# their names, and `_metadata`, a struct of what partq knows. Which of them are wanted is decided here, once, where the
# queue's head is at hand; what is decided travels to the tasks, which look nothing up and do not ask which kind it is.

Source: TypeAlias = int | str | tuple[str, ...]
"""Where a column comes from: the payload's at this place; what partq knows by this name (`SOURCE_TYPES`); or a struct
of what it knows by these names.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedColumns:
    """The columns that a reader gives: `schema` is that of its batches, `sources` says where each comes from.

    `payload` are those of a typed queue's that the log has, in the reader's order, under the names that the queue has
    for them. `stored` is what they need of the columns of a segment that are partq's: all of an untyped queue's.
    """

    schema: pa.Schema
    sources: tuple[Source, ...]
    stored: tuple[str, ...]
    payload: pa.Schema | None = None


def default_columns(columns: Columns | None, include_headers: bool) -> WantedColumns:
    """For readers that name none: all columns of today, and `_metadata` behind those of a typed queue. `columns` are
    those of a typed queue, None of another.
    """
    if columns is None:
        return message_columns(default_source_columns(include_headers))
    from partq_spark.log.schema.versions import schema_of

    payload = schema_of(columns)
    names = tuple(name for name in METADATA_TYPES if include_headers or name != "headers")
    own = pa.field(METADATA, pa.struct([pa.field(name, METADATA_TYPES[name]) for name in names]))
    return _row_columns(payload.append(own), payload, names)


def named_columns(columns: Columns | None, names: Sequence[str] | None) -> WantedColumns:
    """The columns of these names as they are today; `_metadata` without headers. None: all but headers. Raises
    `Invalid` as `wanted_typed_columns`.
    """
    if names is None:
        return default_columns(columns, include_headers=False)
    if columns is None:
        return message_columns(named_source_columns(names))
    default = default_columns(columns, include_headers=False).schema
    fields = []
    for name in names:
        column = columns.column(name)
        if column is None and name.lower() != METADATA:
            raise _unknown(columns, name)
        fields.append(default.field(METADATA if column is None else column.name).with_name(name))
    return wanted_typed_columns(columns, pa.schema(fields))


def message_columns(columns: Sequence[SourceColumn]) -> WantedColumns:
    """These, of an untyped queue."""
    return WantedColumns(
        schema=pa.schema([pa.field(column.name, ARROW_TYPES[column.type]) for column in columns]),
        sources=tuple(column.source for column in columns),
        stored=tuple(STORED[column.source] for column in columns if column.source in STORED),
    )


def _row_columns(schema: pa.Schema, payload: pa.Schema, metadata: tuple[str, ...]) -> WantedColumns:
    """Of a typed queue: `metadata` names the fields of `_metadata` in their order, if that is wanted."""
    sources: list[Source] = list(range(len(payload)))
    if metadata:
        sources.insert(next(at for at, name in enumerate(schema.names) if name.lower() == METADATA), metadata)
    stored = tuple(STORED[name] for name in metadata if name in STORED)
    return WantedColumns(schema=schema, sources=tuple(sources), stored=stored, payload=payload)


def wanted_typed_columns(columns: Columns, wanted: pa.Schema) -> WantedColumns:
    """The columns that a reader names, with types of Arrow: a column's may be any that it has had. Names match exactly,
    else in another case; a reader's columns are called as it calls them.

    Raises `Invalid` for the first that the queue does not have so.
    """
    from partq_spark.log.schema.conform import chosen_columns

    if not len(wanted):
        raise Invalid(f"no column is named: name some of {_named(columns)}")
    metadata: tuple[str, ...] = ()
    payload: list[pa.Field] = []
    for field in wanted:
        column = columns.column(field.name)
        if column is not None:
            _check_form(column, field)
            payload.append(field)
        elif field.name.lower() != METADATA:
            raise _unknown(columns, field.name)
        elif metadata:
            raise Invalid(f"column {METADATA!r} is asked for twice: name it once")
        else:
            metadata = _metadata(field)
    return _row_columns(wanted, chosen_columns(columns, pa.schema(payload)), metadata)


def _check_form(column: Column, field: pa.Field) -> None:
    """Raises `Invalid` for a type that is not in the normal form, as `chosen_columns` wants it."""
    found = normal(field.type)
    if found is None:
        raise Invalid(f"column {field.name!r} is asked for as {field.type}, it is {column.type}: ask for that")
    if found != field.type:
        raise Invalid(
            f"column {field.name!r} is asked for as {column.type} whose elements or values are never null"
            " (containsNull, valueContainsNull): in a queue they may be, leave that out"
        )


def _metadata(field: pa.Field) -> tuple[str, ...]:
    """The fields that `_metadata` is asked for with."""
    from partq_spark.log.schema.ddl import type_text

    allowed = ", ".join(f"{name}: {type_text(kind)}" for name, kind in METADATA_TYPES.items())
    asked = str(field.type) if normal(field.type) is None else type_text(field.type)
    if not field.nullable:
        raise Invalid(f"column {METADATA!r} is asked for as NOT NULL: leave NOT NULL out")
    if not is_.is_struct(field.type) or not field.type.num_fields:
        raise Invalid(f"column {METADATA!r} is asked for as {asked}: it is STRUCT<{allowed}>, or some of these fields")
    names: list[str] = []
    for inner in field.type:
        name = inner.name.lower()
        if name not in METADATA_TYPES:
            raise Invalid(f"column {METADATA!r} has no field {inner.name!r}: it is STRUCT<{allowed}>")
        if name in names:
            raise Invalid(f"field {inner.name!r} of column {METADATA!r} is asked for twice: name it once")
        if inner.type != METADATA_TYPES[name] or not inner.nullable:
            raise Invalid(
                f"column {METADATA!r} is asked for as {asked}: its field {name!r} is {type_text(METADATA_TYPES[name])},"
                " without NOT NULL"
            )
        names.append(name)
    return tuple(names)


def _unknown(columns: Columns, name: str) -> Invalid:
    return Invalid(f"column {name!r} is none of the queue's: name some of {_named(columns)}")


def _named(columns: Columns) -> str:
    return f"{shown_names(columns.names)} and {METADATA}"


# --- batches ----------------------------------------------------------------------------------------------------------


def batches(
    pieces: Iterable[Piece], *, queue: str, wanted: WantedColumns, redelivered_below: Mapping[int, int]
) -> Iterator[pa.RecordBatch]:
    """The rows for `pieces`, in their order, with the columns that are wanted; the pieces have what of them is stored
    (`wanted.payload`, `wanted.stored`). `redelivered_below`: per partition, offsets under it are repeats.

    Raises `Invalid` for a value that is wanted as text and is not UTF-8.
    """
    make = _Rows(queue, redelivered_below, wanted)
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for piece in pieces:
        for part in _cut(piece):
            batch = make(part)
            if held and (held_rows + batch.num_rows > JOINED_ROWS or held_bytes + batch.nbytes > MOST_BYTES):
                yield _joined(held)
                held, held_rows, held_bytes = [], 0, 0
            held.append(batch)
            held_rows += batch.num_rows
            held_bytes += batch.nbytes
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    return held[0] if len(held) == 1 else pa.concat_batches(held)


def _cut(piece: Piece) -> Iterator[Piece]:
    """`piece` in parts within the limits; every part has at least one row."""
    rows = piece.batch.num_rows
    if rows <= MOST_ROWS and (rows == 1 or piece.batch.nbytes <= MOST_BYTES):
        if rows:
            yield piece
        return
    # Halves, and not steps of the average size: a few large messages may lie together.
    step = MOST_ROWS if rows > MOST_ROWS else (rows + 1) // 2
    for start in range(0, rows, step):
        yield from _cut(piece._replace(offset=piece.offset + start, batch=piece.batch.slice(start, step)))


class _Rows:
    """Messages as rows of the columns that are wanted: stored as they are, or made, for what partq knows of them. Those
    of a typed queue stand in `_metadata`.

    Constant ones are made once and sliced, and from buffers, because `pa.scalar` and `pa.array` import pandas where it
    is installed: 0.2 s and 30 MB in every worker of Spark's.
    """

    def __init__(self, queue: str, redelivered_below: Mapping[int, int], wanted: WantedColumns) -> None:
        self._queue_name = queue
        self._redelivered_below = redelivered_below
        self._schema = wanted.schema
        self._room = 0  # rows of the constant columns
        # One of each: a task may have a thousand partitions, and as many times.
        self._constants: dict[str, tuple[int, pa.Array]] = {}
        self._known: Mapping[str, Callable[[Piece], pa.Array]] = {
            "key": lambda piece: piece.batch.column("key"),
            "value": lambda piece: piece.batch.column("value"),
            "queue": self._queue,
            "partition": self._partition,
            "offset": self._offset,
            "timestamp": self._timestamp,
            "redelivered": self._redelivered,
            "headers": self._headers,
        }
        self._columns = [
            self._column(source, field.type) for source, field in zip(wanted.sources, wanted.schema, strict=True)
        ]

    def _column(self, source: Source, kind: pa.DataType) -> Callable[[Piece], pa.Array]:
        if isinstance(source, int):
            return lambda piece: piece.batch.column(source)
        if isinstance(source, str):
            return self._text if source == "value" and kind == pa.string() else self._known[source]
        return partial(_struct, [self._known[name] for name in source], list(kind))

    def __call__(self, piece: Piece) -> pa.RecordBatch:
        rows = piece.batch.num_rows
        if rows > self._room:
            self._room = min(MOST_ROWS, max(rows, 2 * self._room))
            self._constants.clear()
        return pa.RecordBatch.from_arrays([column(piece) for column in self._columns], schema=self._schema)

    def _text(self, piece: Piece) -> pa.Array:
        values = piece.batch.column("value")
        try:
            return values.cast(pa.string())  # looks at every byte and copies none
        except pa.ArrowInvalid:
            bad = first_not_utf8(values.view(pa.string())) or 0
        raise Invalid(
            f"the value at offset {piece.offset + bad} of partition {piece.partition} of queue {self._queue_name!r} is "
            f"not UTF-8 ({values[bad].as_buffer().to_pybytes()[:40]!r}), and is asked for as STRING: ask for value "
            "BINARY in .schema()"
        )

    # --- stored, or stored or made

    def _headers(self, piece: Piece) -> pa.Array:
        headers = piece.headers
        return pa.nulls(piece.batch.num_rows, HEADERS) if headers is None else headers

    def _timestamp(self, piece: Piece) -> pa.Array:
        times = piece.times
        if times is not None:
            return times
        time = struct.pack("=q", piece.time_us)
        return self._constant(piece, "timestamp", piece.time_us, lambda rows: _array(TIMESTAMP, rows, time * rows))

    # --- made

    def _offset(self, piece: Piece) -> pa.Array:
        return pa.arange(piece.offset, piece.offset + piece.batch.num_rows)

    def _partition(self, piece: Piece) -> pa.Array:
        number = struct.pack("=i", piece.partition)
        return self._constant(piece, "partition", piece.partition, lambda rows: _array(pa.int32(), rows, number * rows))

    def _queue(self, piece: Piece) -> pa.Array:
        return self._constant(piece, "queue", 0, lambda rows: _texts(self._queue_name.encode(), rows))

    def _redelivered(self, piece: Piece) -> pa.Array:
        rows = piece.batch.num_rows
        repeats = min(max(self._redelivered_below.get(piece.partition, 0) - piece.offset, 0), rows)
        if repeats:
            return _flags(repeats, rows)
        return self._constant(piece, "redelivered", 0, lambda rows: _flags(0, rows))

    def _constant(self, piece: Piece, column: str, value: int, make: Callable[[int], pa.Array]) -> pa.Array:
        """As many rows as the piece has; made anew where the last one had another value."""
        held = self._constants.get(column)
        if held is None or held[0] != value:
            held = self._constants[column] = (value, make(self._room))
        return held[1].slice(0, piece.batch.num_rows)


def _struct(columns: Sequence[Callable[[Piece], pa.Array]], fields: list[pa.Field], piece: Piece) -> pa.Array:
    return pa.StructArray.from_arrays([column(piece) for column in columns], fields=fields)


def _texts(text: bytes, rows: int) -> pa.Array:
    """`rows` times one text that is not empty."""
    ends = pa.arange(0, (rows + 1) * len(text), len(text)).cast(pa.int32()).buffers()[1]
    return _array(pa.string(), rows, ends, text * rows)


def _flags(true: int, rows: int) -> pa.Array:
    """`rows` booleans, the first `true` of them true: bits, the lowest of a byte first."""
    bits = b"\xff" * (true // 8) + bytes([(1 << true % 8) - 1])
    return _array(pa.bool_(), rows, bits.ljust((rows + 7) // 8, b"\0"))


def _array(kind: pa.DataType, rows: int, *buffers: bytes | pa.Buffer) -> pa.Array:
    """A column without nulls from its buffers, the machine's own byte order."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)], null_count=0)
