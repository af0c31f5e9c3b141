"""From the log's pieces to the source's Arrow batches, copying as little as can be. No pyspark.

A batch must match the source's schema to the letter (spark-traps 11). Large pieces are cut, which copies nothing;
small ones are joined, because every batch costs the JVM about as much as a few thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.log.reading import Piece
from partq_spark.log.segment import HEADERS

MOST_ROWS = 32_768  # of one batch
MOST_BYTES = 16 * 1024 * 1024  # of one batch, unless a single message is larger: bounds the JVM's memory too
JOINED_ROWS = 8_192  # pieces are joined up to here

TIMESTAMP = pa.timestamp("us", tz="UTC")
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
    """Puts the columns that the log does not store beside those it does; constant ones are made once and sliced."""

    def __init__(self, queue: str, include_headers: bool, redelivered_below: Mapping[int, int]) -> None:
        self._headers = include_headers
        self._schema = WITH_HEADERS if include_headers else PLAIN
        self._redelivered_below = redelivered_below
        self._rows = 0
        self._queue_name = queue
        self._queue = pa.array([], pa.string())
        self._counting = pa.array([], pa.int64())
        self._partition: dict[int, pa.Array] = {}

    def __call__(self, piece: Piece) -> pa.RecordBatch:
        rows = piece.batch.num_rows
        self._grow(rows)
        columns = [
            piece.batch.column(0),
            piece.batch.column(1),
            self._queue.slice(0, rows),
            self._partition_column(piece.partition).slice(0, rows),
            pc.add(self._counting.slice(0, rows), pa.scalar(piece.offset, pa.int64())),
            pa.repeat(pa.scalar(piece.time_us, TIMESTAMP), rows),
            self._redelivered(piece, rows),
        ]
        if self._headers:
            columns.append(piece.batch.column(2) if piece.batch.num_columns > 2 else pa.nulls(rows, HEADERS))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _grow(self, rows: int) -> None:
        if rows <= self._rows:
            return
        self._rows = min(MOST_ROWS, max(rows, 2 * self._rows))
        self._queue = pa.repeat(pa.scalar(self._queue_name), self._rows)
        self._counting = pa.array(range(self._rows), pa.int64())
        self._partition = {}

    def _partition_column(self, partition: int) -> pa.Array:
        column = self._partition.get(partition)
        if column is None:
            # One at a time: a task may have a thousand partitions.
            self._partition = {partition: pa.repeat(pa.scalar(partition, pa.int32()), self._rows)}
            column = self._partition[partition]
        return column

    def _redelivered(self, piece: Piece, rows: int) -> pa.Array:
        repeats = min(max(self._redelivered_below.get(piece.partition, 0) - piece.offset, 0), rows)
        if repeats in (0, rows):
            return pa.repeat(pa.scalar(repeats > 0), rows)
        return pc.less(self._counting.slice(0, rows), pa.scalar(repeats, pa.int64()))
