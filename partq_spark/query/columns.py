"""From the log's pieces to the source's Arrow batches, copying as little as can be; and which columns a reader gives.
No pyspark. What typed queues alone need is imported where it is used (`log.segment`).

A batch must match the source's schema to the letter (spark-traps.md 11). Large pieces are cut, which copies nothing;
small ones are joined, because every batch costs the JVM something too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.errors import Invalid
from partq_spark.log.reading import Piece
from partq_spark.log.schema.columns import Column, Columns, find_name, shown_names
from partq_spark.log.schema.forms import first_not_utf8
from partq_spark.log.schema.types import TIMESTAMP, gives, normal
from partq_spark.log.segment import HEADERS
from partq_spark.query.settings import MESSAGES, STORED, default_names

MOST_ROWS = 32_768  # of one batch
MOST_BYTES = 16 * 1024 * 1024  # of one batch, unless a single message is larger: bounds the JVM's memory too
JOINED_ROWS = 8_192  # pieces are joined up to here

METADATA: Final = "_metadata"

METADATA_TYPES: Final[Mapping[str, pa.DataType]] = {
    "queue": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "redelivered": pa.bool_(),
    "headers": HEADERS,
}
"""The fields of `_metadata`, called as the columns of an untyped queue's reader are (`MESSAGES`)."""


# --- which columns a reader gives -------------------------------------------------------------------------------------

# Of an untyped queue what partq knows of each message, key and value among it. Of a typed one the payload's own, under
# their names, and `_metadata`, a struct of what partq knows. Which of them are wanted is decided here, once, where the
# queue's head is at hand; what is decided travels to the tasks, which look nothing up and do not ask which kind it is.

Source: TypeAlias = int | str | tuple[str, ...]
"""Where a column comes from: the payload's at this place; what partq knows by this name (`MESSAGES`); or a struct of
what it knows by these names.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedColumns:
    """The columns that a reader gives: `schema` is that of its batches, `sources` says where each comes from.

    `payload` are those of a typed queue's that the log has, in the reader's order, under the names that the queue has
    for them.
    """

    schema: pa.Schema
    sources: tuple[Source, ...]
    payload: pa.Schema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Schemas as Arrow writes them: field by field, as pickle does it, each task would cost 0.2 ms."""
        written = [None if each is None else each.serialize().to_pybytes() for each in (self.schema, self.payload)]
        return _travelled, (self.sources, *written)

    @property
    def stored(self) -> tuple[str, ...]:
        """What they need of the columns of a segment that are partq's: all of an untyped queue's."""
        known = [(each,) if isinstance(each, str) else each for each in self.sources if not isinstance(each, int)]
        return tuple(STORED[name] for names in known for name in names if name in STORED)


def _travelled(sources: tuple[Source, ...], *written: bytes | None) -> WantedColumns:
    schema, payload = (None if each is None else pa.ipc.read_schema(pa.py_buffer(each)) for each in written)
    return WantedColumns(schema=schema, sources=sources, payload=payload)


@lru_cache(maxsize=64)
def default_columns(columns: Columns | None, include_headers: bool) -> WantedColumns:
    """For readers that name none: all columns of today, and `_metadata` behind those of a typed queue. `columns` are
    those of a typed queue, None of another.
    """
    names = default_names(include_headers)
    own = [pa.field(name, METADATA_TYPES[name]) for name in names if name in METADATA_TYPES]
    if columns is None:
        return WantedColumns(schema=pa.schema([("key", pa.string()), ("value", pa.binary()), *own]), sources=names)
    from partq_spark.log.schema.versions import schema_of

    payload = schema_of(columns)
    sources = (*range(len(payload)), tuple(field.name for field in own))
    return WantedColumns(schema=payload.append(pa.field(METADATA, pa.struct(own))), sources=sources, payload=payload)


def named_columns(columns: Columns | None, names: Sequence[str] | None) -> WantedColumns:
    """The columns of these names as they are today; `_metadata` without headers. None: all but headers. Raises
    `Invalid` as `wanted_columns`, naming the argument `columns`.
    """
    if names is None:
        return default_columns(columns, False)
    default = default_columns(columns, columns is None).schema
    fields = []
    try:
        for name in names:
            found = find_name(default.names, name)
            if found is None:
                raise _unknown(columns, name)
            fields.append(default.field(found).with_name(name))
        return wanted_columns(columns, pa.schema(fields))
    except Invalid as error:
        raise Invalid(f"columns={[*names]!r:.60} is not possible: {error}") from None


def wanted_columns(columns: Columns | None, wanted: pa.Schema) -> WantedColumns:
    """The columns that a reader names, with types of Arrow: a column's may be any that it has had. Names match exactly,
    else in another case; a reader's columns are called as it calls them. `columns` as for `default_columns`.

    Raises `Invalid` for the first that the queue does not have so.
    """
    if not len(wanted):
        raise Invalid(f"no column is named: name some of {_named(columns)}")
    sources: list[Source] = []
    payload: list[pa.Field] = []
    for field in wanted:
        column = (MESSAGES if columns is None else columns).column(field.name)
        if column is not None:
            sources.append(column.name if columns is None else len(payload))
            payload.append(_asked(column, field, payload))
        elif columns is None or field.name.lower() != METADATA:
            raise _unknown(columns, field.name)
        elif any(isinstance(source, tuple) for source in sources):
            raise _twice(METADATA)
        else:
            sources.append(_metadata(field))
    schema = None if columns is None else pa.schema(payload)
    return WantedColumns(schema=wanted, sources=tuple(sources), payload=schema)


def _asked(column: Column, field: pa.Field, before: Sequence[pa.Field]) -> pa.Field:
    """The column as `field` asks for it, under its own name. Raises `Invalid`: it is one of those `before`, it never
    had this type, or it may be null and is asked for as NOT NULL.
    """
    from partq_spark.log.schema.ddl import parse_type, said_type

    form = normal(field.type)
    if any(known.name == column.name for known in before):
        raise _twice(column.name)
    if form is not None and form != field.type:
        raise Invalid(
            f"column {field.name!r} is asked for as {column.type} whose elements or values are never null"
            " (containsNull, valueContainsNull): in a queue they may be, leave that out"
        )
    if form is None or not any(gives(parse_type(text), form) for text in column.types()):
        had = dict.fromkeys(reversed([*column.types()]))
        raise Invalid(
            f"column {field.name!r} is asked for as {said_type(field.type)}, it is {' or '.join(had)}: ask for that "
            "and cast it in the query"
        )
    if not field.nullable and column.nullable:
        raise Invalid(f"column {field.name!r} is asked for as NOT NULL, it may be null: leave NOT NULL out")
    return pa.field(column.name, field.type, field.nullable)


def _metadata(field: pa.Field) -> tuple[str, ...]:
    """The fields that `_metadata` is asked for with. Raises `Invalid`."""
    from partq_spark.log.schema.ddl import said_type

    if not field.nullable:
        raise Invalid(f"column {METADATA!r} is asked for as NOT NULL: leave NOT NULL out")
    found: list[pa.Field] = []
    for inner in field.type if is_.is_struct(field.type) else ():
        column = MESSAGES.column(inner.name)
        if column is None or column.name not in METADATA_TYPES:
            raise Invalid(f"column {METADATA!r} has no field {inner.name!r}: {_fields_of_metadata()}")
        try:
            found.append(_asked(column, inner, found))
        except Invalid as error:
            raise Invalid(f"in column {METADATA!r}, {error}") from None
    if not found:
        raise Invalid(f"column {METADATA!r} is asked for as {said_type(field.type)}: {_fields_of_metadata()}")
    return tuple(each.name for each in found)


def _fields_of_metadata() -> str:
    fields = (f"{name}: {column.type}" for name in METADATA_TYPES if (column := MESSAGES.column(name)))
    return f"it is STRUCT<{', '.join(fields)}>, or some of these fields"


def _twice(name: str) -> Invalid:
    return Invalid(f"column {name!r} is asked for twice: name it once")


def _unknown(columns: Columns | None, name: str) -> Invalid:
    return Invalid(f"column {name!r} is none of the queue's: name some of {_named(columns)}")


def _named(columns: Columns | None) -> str:
    if columns is not None:
        return f"{shown_names(columns.names)} and {METADATA}"
    return f"{', '.join(MESSAGES.names)}; what messages hold is in value, for example for from_json(value, ...)"


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
            "offset": lambda piece: pa.arange(piece.offset, piece.offset + piece.batch.num_rows),
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
