"""From the log's pieces to the source's Arrow batches, copying as little as can be. No pyspark.

A batch must match the source's schema to the letter (spark-traps.md 11). Large pieces are cut, which copies nothing;
small ones are joined, because every batch costs the JVM something too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.reading import Piece
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.validation import first_not_utf8
from partq_spark.query.schema import HEADERS_TYPE, WantedColumns

if TYPE_CHECKING:
    from partq_spark.query.typed_columns import TypedColumns

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


def batch_schema(wanted: WantedColumns | TypedColumns) -> pa.Schema:
    """That of the batches."""
    if not isinstance(wanted, WantedColumns):
        return wanted.schema
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.type]) for column in wanted.columns])


def batches(
    pieces: Iterable[Piece], *, queue: str, wanted: WantedColumns | TypedColumns, redelivered_below: Mapping[int, int]
) -> Iterator[pa.RecordBatch]:
    """The rows for `pieces`, in their order, with the columns that are wanted; the pieces have what of them is stored
    (`wanted.payload`, `wanted.stored`). `redelivered_below`: per partition, offsets under it are repeats.

    Raises `Invalid` for a value that is wanted as text and is not UTF-8.
    """
    own = _OwnColumns(queue, redelivered_below)
    make = _UntypedMaker(own, wanted) if isinstance(wanted, WantedColumns) else _TypedMaker(own, wanted)
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


class _UntypedMaker:
    """Messages as rows of key, value and what partq knows of them, those columns alone that are wanted."""

    def __init__(self, own: _OwnColumns, wanted: WantedColumns) -> None:
        source = {"key": self._key, "value": self._value, **own.by_name}
        self._own = own
        self._columns = [source[column.source] for column in wanted.columns]
        self._schema = batch_schema(wanted)
        self._text = any(column.source == "value" and column.type == "string" for column in wanted.columns)

    def __call__(self, piece: Piece) -> pa.RecordBatch:
        self._own.make_room(piece.batch.num_rows)
        return pa.RecordBatch.from_arrays([column(piece) for column in self._columns], schema=self._schema)

    def _key(self, piece: Piece) -> pa.Array:
        return piece.batch.column("key")

    def _value(self, piece: Piece) -> pa.Array:
        values = piece.batch.column("value")
        if not self._text:
            return values
        try:
            return values.cast(pa.string())  # looks at every byte and copies none
        except pa.ArrowInvalid:
            bad = first_not_utf8(values.view(pa.string())) or 0
        raise Invalid(
            f"the value at offset {piece.offset + bad} of partition {piece.partition} of queue {self._own.queue!r} is "
            f"not UTF-8 ({values[bad].as_buffer().to_pybytes()[:40]!r}), and is asked for as STRING: ask for value "
            "BINARY in .schema()"
        )


class _TypedMaker:
    """Messages as rows of a typed queue: the payload as the log gives it, and `_metadata` among it, if it is wanted."""

    def __init__(self, own: _OwnColumns, wanted: TypedColumns) -> None:
        self._own = own
        self._schema = wanted.schema
        self._payload = len(wanted.payload)
        self._at = wanted.metadata_at
        self._metadata = [own.by_name[name] for name in wanted.metadata]
        self._fields = [] if self._at is None else list(wanted.schema.field(self._at).type)

    def __call__(self, piece: Piece) -> pa.RecordBatch:
        columns = piece.batch.columns[: self._payload]
        if self._at is not None:
            self._own.make_room(piece.batch.num_rows)
            values = [column(piece) for column in self._metadata]
            columns.insert(self._at, pa.StructArray.from_arrays(values, fields=self._fields))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _OwnColumns:
    """The columns that partq makes, or keeps, beside what was published: where a message lies, and what is known of it.

    Constant ones are made once and sliced, and from buffers, because `pa.scalar` and `pa.array` import pandas where it
    is installed: 0.2 s and 30 MB in every worker of Spark's.
    """

    def __init__(self, queue: str, redelivered_below: Mapping[int, int]) -> None:
        self.queue = queue
        self.by_name: Mapping[str, Callable[[Piece], pa.Array]] = {
            "queue": self._queue,
            "partition": self._partition,
            "offset": self._offset,
            "timestamp": self._timestamp,
            "redelivered": self._redelivered,
            "headers": self._headers,
        }
        self._redelivered_below = redelivered_below
        self._rows = 0  # of the constant columns
        # One of each: a task may have a thousand partitions, and as many times.
        self._constants: dict[str, tuple[int, pa.Array]] = {}

    def make_room(self, rows: int) -> None:
        """Before a piece with so many."""
        if rows > self._rows:
            self._rows = min(MOST_ROWS, max(rows, 2 * self._rows))
            self._constants.clear()

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
        return self._constant(piece, "queue", 0, lambda rows: _texts(self.queue.encode(), rows))

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
            held = self._constants[column] = (value, make(self._rows))
        return held[1].slice(0, piece.batch.num_rows)


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
