"""Reading ranges of offsets: every message once, in order per partition, or an error that says which are missing.

What was planned may have been trimmed, compacted or collected since. So a reader that finds an object gone asks the
head once more, by offset, before it calls that a loss.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from partq_spark.base.errors import BadRow, Corrupt, ObjectMissing
from partq_spark.log import codec, names, tree
from partq_spark.log.model import Chunk, ChunkRef, Entry, Head, Slice
from partq_spark.log.queue import QueueLog
from partq_spark.log.segment import HEADERS_NAME, TIMES_NAME, payload_schema, read_slice, schema_of_entry, times_us

if TYPE_CHECKING:
    from partq_spark.log.schema.conform import Conversion

logger = logging.getLogger(__name__)

MOST_LOOKS = 100  # at the head, without a message in between: each time another object would have to go


class _LookAgain(Exception):
    """An object is gone that a newer head may do without."""


class Piece(NamedTuple):
    """Consecutive messages of one partition; `offset` is that of the first. `batch` has the queue's columns that the
    reader takes, and behind them those of partq's own that the segment has (`headers`, `times`).
    """

    partition: int
    offset: int
    time_us: int  # when all were published, unless `times` says it; then that of the last they were compacted with
    batch: pa.RecordBatch

    @property
    def headers(self) -> pa.Array | None:
        """The column of headers; None: there are none."""
        return self._column(HEADERS_NAME)

    @property
    def times(self) -> pa.Array | None:
        """When each message was published; None: all at `time_us`."""
        return self._column(TIMES_NAME)

    def times_us(self) -> list[int]:
        """When each message was published (Unix, microseconds)."""
        times = self.times
        return [self.time_us] * self.batch.num_rows if times is None else times_us(times)

    def _column(self, name: str) -> pa.Array | None:
        return self.batch.column(name) if name in self.batch.schema.names else None


class _Slices(NamedTuple):
    """What slices of one kind of entry have, which of it is decoded, and how that becomes the reader's columns, if it
    takes anything.
    """

    schema: pa.Schema
    only: Collection[str] | None
    bringing: Conversion | None


def _slices(schema: pa.Schema, payload: pa.Schema, only: Collection[str] | None) -> _Slices:
    """For slices of which the reader takes `payload`, and of partq's own columns those in `only`."""
    own = (name for name in (HEADERS_NAME, TIMES_NAME) if name in schema.names and (only is None or name in only))
    wanted = pa.schema([*payload, *map(schema.field, own)])
    if wanted == schema:
        return _Slices(schema, None, None)
    there = pa.schema([field for field in schema if field.name in wanted.names])
    if wanted == there:
        return _Slices(schema, frozenset(there.names), None)
    from partq_spark.log.schema.conform import Conversion

    return _Slices(schema, frozenset(there.names), Conversion.to_reader(there, wanted))


class RangeReader:
    """Yields the messages of a view's ranges. One use, one thread; memory is that of one slice at a time.

    `segment_folder` and `log_folder` are those of the queue when the view was made; `queue` is asked only when an
    object is gone. With `fail_on_data_loss=False` messages that are gone are skipped with a warning; otherwise
    `ObjectMissing` is raised.

    `payload`: the queue's columns that the reader takes (`query.columns`), in its order and with its
    types; None: those that the queue had when the view was made, of an untyped queue those in `only`. `only` names the
    columns of partq's own that are wanted; None: all.
    """

    def __init__(
        self,
        queue: QueueLog,
        queue_id: str,
        log: tree.LogView,
        *,
        fail_on_data_loss: bool = True,
        payload: pa.Schema | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self._queue = queue
        self._queue_id = queue_id
        self._log = log
        self._fail = fail_on_data_loss
        self._payload = payload
        if payload is None:
            self._payload = payload_schema(log.columns)
            if log.columns is None and only is not None:
                self._payload = pa.schema([field for field in self._payload if field.name in only])
        self._only = only
        self._slices: dict[tuple[int | None, bool, bool], _Slices] = {}
        self._next = {partition: start for partition, (start, _) in log.wanted.items()}
        self._ends = {partition: to for partition, (_, to) in log.wanted.items()}
        self._segment_folder = names.segment_folder(queue.namespace, queue.name, queue_id)
        self._log_folder = names.log_folder(queue.namespace, queue.name, queue_id)
        self._planned_at: str | None = None  # ETag of the head that the rest was planned from, after a first loss
        self._missing = ""  # what was gone when the rest was planned again
        self._looks = 0

    def pieces(self) -> Iterator[Piece]:
        """All messages wanted, in publish order; several partitions interleave, each in its own order.

        Raises `ObjectMissing` (gone and not accepted), `Corrupt` (damaged, or the log has a gap), `Unavailable`, and
        `Invalid` for the first value that does not fit the reader's type for its column, which was widened since.
        """
        while True:
            try:
                yield from self._walk()
            except _LookAgain:
                self._planned_at = self._queue.etag
                self._resume(self._queue.head)
                continue
            break
        for partition, to in self._ends.items():
            if self._next[partition] < to:
                raise Corrupt(
                    f"the log of {self._queue} ends partition {partition} at offset {self._next[partition]}, {to} was "
                    "planned"
                )

    def _walk(self) -> Iterator[Piece]:
        for entry in tree.walk(self._log, self._load_chunk):
            for piece in entry.slices:
                rows = self._rows(entry, piece)
                if rows is not None:
                    yield rows

    def _rows(self, entry: Entry, piece: Slice) -> Piece | None:
        expected = self._next[piece.partition]
        to = min(piece.end, self._ends[piece.partition])
        if piece.offset > expected:
            raise Corrupt(
                f"the log of {self._queue} has no entry for offsets {expected} to {piece.offset} of partition "
                f"{piece.partition}"
            )
        name = self._segment_folder + entry.segments[piece.segment]
        slices = self._slices_of(entry)
        try:
            batch = read_slice(self._queue.store, name, piece, slices.schema, only=slices.only)
        except Corrupt as error:
            if isinstance(error, ObjectMissing):
                self._look_again_for(name, error)
            if self._fail:
                raise
            self._lost(piece.partition, expected, to, str(error))
            return None
        self._looks = 0
        rows = Piece(
            piece.partition,
            expected,
            entry.time_us,
            batch.slice(expected - piece.offset, to - expected),
        )
        if slices.bringing is not None:
            rows = self._brought(rows, slices.bringing)
        self._next[piece.partition] = to
        return rows

    def _slices_of(self, entry: Entry) -> _Slices:
        kind = (entry.schema_version, entry.headers, entry.times)
        found = self._slices.get(kind)
        if found is None:
            schema = schema_of_entry(entry, self._log.columns)
            found = self._slices[kind] = _slices(schema, self._payload, self._only)
        return found

    def _brought(self, piece: Piece, bringing: Conversion) -> Piece:
        try:
            return piece._replace(batch=bringing(piece.batch))
        except BadRow as bad:
            at = piece.offset + bad.row
            raise bad.at(f"{self._queue}, partition {piece.partition}, offset {at}") from None

    def _look_again_for(self, name: str, error: ObjectMissing) -> None:
        """Raise `_LookAgain` unless it is certain that the object is lost: the head by which it was asked for was read
        after it had been found gone, and no object that a head names ever comes back. What else the head went on to say
        meanwhile does not matter, or in a busy queue it would be looked for without end.
        """
        if name == self._missing or self._looks >= MOST_LOOKS:
            return
        self._queue.require(self._queue_id)
        if self._planned_at == self._queue.etag:
            return
        self._missing = name
        self._looks += 1
        raise _LookAgain from error

    def _resume(self, head: Head) -> None:
        """Plan the rest again from `head`; what it has trimmed meanwhile is a loss."""
        rest = {partition: (self._next[partition], to) for partition, to in self._ends.items()}
        kept = tree.untrimmed(head, rest, tree.Losses(self._fail, logger.warning))
        if kept != rest:
            self._looks = 0
        self._next = {partition: start for partition, (start, _) in kept.items()}
        self._ends = {partition: to for partition, (_, to) in kept.items()}
        self._log = tree.view(head, kept)  # without the partitions that have been read to their end

    def _lost(self, partition: int, start: int, to: int, why: str) -> None:
        logger.warning("skipped offsets %d to %d of partition %d (failOnDataLoss=false): %s", start, to, partition, why)
        self._looks = 0
        self._next[partition] = to

    def _load_chunk(self, ref: ChunkRef) -> Chunk:
        name = self._log_folder + ref.name
        try:
            return codec.decode_chunk(self._queue.store.read(name), ref)
        except ObjectMissing as error:
            self._look_again_for(name, error)
            raise
