"""From the log's pieces to the source's Arrow batches, copying as little as can be. No pyspark.

A batch must match the source's schema to the letter (spark-traps 11). Large pieces are cut, which copies nothing;
small ones are joined, because every batch costs the JVM something too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from partq_spark.log.reading import Piece
from partq_spark.log.segment import HEADERS, TIMESTAMP

MOST_ROWS = 32_768  # of one batch
MOST_BYTES = 16 * 1024 * 1024  # of one batch, unless a single message is larger: bounds the JVM's memory too
JOINED_ROWS = 8_192  # pieces are joined up to here

PLAIN = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("queue", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("redelivered", pa.bool_()),
    ]
)
WITH_HEADERS = PLAIN.append(pa.field("headers", HEADERS))


def batches(
    pieces: Iterable[Piece], *, queue: str, include_headers: bool, redelivered_below: Mapping[int, int]
) -> Iterator[pa.RecordBatch]:
    """The source's rows for `pieces`, in their order. `redelivered_below`: per partition, offsets under it are
    repeats.
    """
    make = _Maker(queue, include_headers, redelivered_below)
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


class _Maker:
    """Puts the columns that the log does not store beside those it does; constant ones are made once and sliced.

    They are made from buffers, because `pa.scalar` and `pa.array` import pandas where it is installed: 0.2 s and 30 MB
    in every worker of Spark's.
    """

    def __init__(self, queue: str, include_headers: bool, redelivered_below: Mapping[int, int]) -> None:
        self._headers = include_headers
        self._schema = WITH_HEADERS if include_headers else PLAIN
        self._redelivered_below = redelivered_below
        self._queue_name = queue.encode()
        self._rows = 0  # of the constant columns
        self._queue = self._false = pa.nulls(0)
        self._partition: tuple[int, pa.Array] | None = None
        self._timestamp: tuple[int, pa.Array] | None = None

    def __call__(self, piece: Piece) -> pa.RecordBatch:
        rows = piece.batch.num_rows
        self._grow(rows)
        columns = [
            piece.batch.column(0),
            piece.batch.column(1),
            self._queue.slice(0, rows),
            self._partition_column(piece.partition).slice(0, rows),
            pa.arange(piece.offset, piece.offset + rows),
            self._times(piece),
            self._redelivered(piece, rows),
        ]
        if self._headers:
            has_headers = "headers" in piece.batch.schema.names
            columns.append(piece.batch.column("headers") if has_headers else pa.nulls(rows, HEADERS))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _grow(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = rows = min(MOST_ROWS, max(rows, 2 * self._rows))
        length = len(self._queue_name)
        ends = pa.arange(0, (rows + 1) * length, length).cast(pa.int32()).buffers()[1]  # a name is never empty
        self._queue = _array(pa.string(), rows, ends, self._queue_name * rows)
        self._false = _flags(0, rows)
        self._partition = self._timestamp = None

    # One partition and one time are kept: a task may have a thousand of each.

    def _partition_column(self, partition: int) -> pa.Array:
        if self._partition is None or self._partition[0] != partition:
            self._partition = (partition, _array(pa.int32(), self._rows, struct.pack("=i", partition) * self._rows))
        return self._partition[1]

    def _times(self, piece: Piece) -> pa.Array:
        if "timestamp" in piece.batch.schema.names:
            return piece.batch.column("timestamp")
        return self._timestamp_column(piece.time_us).slice(0, piece.batch.num_rows)

    def _timestamp_column(self, time_us: int) -> pa.Array:
        if self._timestamp is None or self._timestamp[0] != time_us:
            self._timestamp = (time_us, _array(TIMESTAMP, self._rows, struct.pack("=q", time_us) * self._rows))
        return self._timestamp[1]

    def _redelivered(self, piece: Piece, rows: int) -> pa.Array:
        repeats = min(max(self._redelivered_below.get(piece.partition, 0) - piece.offset, 0), rows)
        return _flags(repeats, rows) if repeats else self._false.slice(0, rows)


def _flags(true: int, rows: int) -> pa.Array:
    """`rows` booleans, the first `true` of them true: bits, the lowest of a byte first."""
    bits = b"\xff" * (true // 8) + bytes([(1 << true % 8) - 1])
    return _array(pa.bool_(), rows, bits.ljust((rows + 7) // 8, b"\0"))


def _array(kind: pa.DataType, rows: int, *buffers: bytes | pa.Buffer) -> pa.Array:
    """A column without nulls from its buffers, the machine's own byte order."""
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, buffers)], null_count=0)
