"""The Spark source: batch reads, and streams without a group. Thin: decisions are in `planning`, data in `log.reading`.

No client, thread or file is opened when a reader is made, because Spark makes readers in several processes; `read`
depends on its partition alone (spark-traps 3).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from partq_spark.base.errors import Invalid
from partq_spark.log import tree
from partq_spark.log.connect import QueueAddress, open_queue
from partq_spark.log.model import Entry, Head
from partq_spark.log.queue import Queue
from partq_spark.query import offsets, planning
from partq_spark.query.idle import Pace
from partq_spark.query.limits import Limits, Ranges, Unacknowledged, batch_ends, batch_limits
from partq_spark.query.offsets import BatchEnd, Span
from partq_spark.query.schema import check_source_columns
from partq_spark.query.settings import Place, SourceOptions
from partq_spark.spark.options import stream_source_options
from partq_spark.spark.workers import spare_collector

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class LogPartition(InputPartition):
    """What one task reads: spans of some partitions, and the part of the log that leads to them. Holds no secret."""

    def __init__(
        self,
        *,
        target: QueueAddress,
        queue_id: str,
        log: tree.LogView,
        redelivered_below: Mapping[int, int],
        include_headers: bool,
        fail_on_data_loss: bool,
    ) -> None:
        super().__init__(tuple(log.wanted))
        self.target = target
        self.queue_id = queue_id
        self.log = log
        self.redelivered_below = redelivered_below
        self.include_headers = include_headers
        self.fail_on_data_loss = fail_on_data_loss

    def __repr__(self) -> str:
        return f"LogPartition({self.target.queue!r}, {dict(self.log.wanted)!r})"


def plan_tasks(queue: Queue, head: Head, spans: Mapping[int, Span], options: SourceOptions) -> Sequence[InputPartition]:
    """The tasks of a batch that reads `spans`. Raises `ObjectMissing` for what is gone (failOnDataLoss)."""
    ranges = planning.without_trimmed(
        head,
        {partition: (span.start, span.to) for partition, span in spans.items() if span.start < span.to},
        fail_on_data_loss=options.fail_on_data_loss,
        warn=logger.warning,
    )
    log = tree.view(head, ranges)
    return [
        LogPartition(
            target=options.target,
            queue_id=head.queue_id,
            log=log.only(partitions),
            redelivered_below={partition: spans[partition].redelivered_below for partition in partitions},
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for partitions in planning.tasks(ranges)
    ]


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow batches of the source's schema."""
    spare_collector()
    if not isinstance(partition, LogPartition):
        return  # a batch read of nothing: Spark asks with InputPartition(None) (spark-traps 29)
    from partq_spark.log.reading import RangeReader
    from partq_spark.query.columns import batches

    reader = RangeReader(
        open_queue(partition.target), partition.queue_id, partition.log, fail_on_data_loss=partition.fail_on_data_loss
    )
    yield from batches(
        reader.pieces(),
        queue=partition.target.queue,
        include_headers=partition.include_headers,
        redelivered_below=partition.redelivered_below,
    )


class PartqBatchReader(DataSourceReader):
    """`spark.read.format("partq")`: a fixed range of every partition, decided once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        queue = open_queue(self._options.target)
        head = queue.refresh()
        start = planning.resolve(
            head, self._options.start or Place(edge="earliest"), "startingOffsets", queue.offsets_at
        )
        end = planning.resolve(head, self._options.end, "endingOffsets", queue.offsets_at)
        for partition, offset in start.items():
            if offset > end[partition]:
                raise Invalid(
                    f"partition {partition} would be read from offset {offset} to {end[partition]}: its end lies "
                    "before its start; correct startingOffsets, startingTimestamp, endingOffsets or endingTimestamp"
                )
        spans = {partition: Span(0, offset, end[partition], 0) for partition, offset in start.items()}
        return plan_tasks(queue, head, spans, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What the readers of all streams share: their options, and what does not depend on who else reads."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        self._given = dict(options)
        self._columns = columns
        self._options: SourceOptions | None = None

    @property
    def options(self) -> SourceOptions:
        if self._options is None:
            parsed = stream_source_options(self._given)
            check_source_columns(self._columns, parsed.include_headers)
            self._options = parsed
        return self._options

    def initialOffset(self) -> dict[str, Any]:
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark hands back what is returned here, or ReadAllAvailable to override it; a reader with both limits names
        # one.
        if self.options.max_messages is not None:
            return ReadMaxRows(self.options.max_messages)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)


class PartqStreamReader(StreamReader):
    """`spark.readStream.format("partq")` without a group: all partitions, progress in the Spark checkpoint alone
    (CHK-07).
    """

    def __init__(self, options: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        super().__init__(options, columns)
        self._queue: Queue | None = None
        self._pace: Pace | None = None
        self._target: Mapping[int, int] | None = None  # of Trigger.AvailableNow
        self._reached: Mapping[int, int] = {}

    # --- what is made on first use, in the process that uses it

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            self._queue = open_queue(self.options.target)
        return self._queue

    @property
    def pace(self) -> Pace:
        if self._pace is None:
            self._pace = Pace(self.queue.store.look_interval_s, self.options.poll_interval_s, time.monotonic())
        return self._pace

    # --- Spark's calls

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = dict(enumerate(self.queue.refresh().next))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = offsets.decode(start)
        head = self._fresh_head(before)
        if before is None:
            place = self.options.start or Place(edge="latest")
            reached = planning.resolve(head, place, "startingOffsets", self.queue.offsets_at)
        else:
            reached = {partition: span.to for partition, span in before.spans.items()}
        at = planning.continued(head, reached, fail_on_data_loss=self.options.fail_on_data_loss, warn=logger.warning)
        # A new position is written down even if nothing can be read, so that a loss is met once and what is published
        # next is not taken for it.
        moved = before is None or any(at[partition] != offset for partition, offset in reached.items())
        if not moved and not _any_news(at, self._ends(head, at)):
            head = self._wait_for_news(head, before, at)
            at = planning.with_new_partitions(head, at)
            if not _any_news(at, self._ends(head, at)):
                self._reached = at
                return start  # itself: a different text would be an empty batch (spark-traps 6)
        self._reached = batch_ends(
            at, self._ends(head, at), self._limits(limit), lambda spans: self._entries(head, spans)
        )
        self.pace.news(time.monotonic())
        spans = {partition: Span(0, at[partition], self._reached[partition], 0) for partition in at}
        return offsets.encode(BatchEnd(queue_id=head.queue_id, spans=spans))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        batch = offsets.decode(end)
        if batch is None:
            return []
        head = self._fresh_head(batch)
        return plan_tasks(self.queue, head, batch.spans, self.options)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._queue is None or self._queue.etag is None:
            return None
        following = self._queue.head.next
        return {
            "flow": None,
            "partitions": {
                str(partition): {
                    "epoch": 0,
                    "end": following[partition],
                    "lag": following[partition] - reached,
                }
                for partition, reached in self._reached.items()
                if partition < len(following)
            },
        }

    def stop(self) -> None:
        """Nothing is held that its process's end does not give back."""

    # --- steps

    def _fresh_head(self, batch: BatchEnd | None) -> Head:
        head = self.queue.refresh()
        if batch is not None:
            if batch.group is not None or batch.flow is not None:
                raise Invalid(
                    f"the Spark checkpoint belongs to group {batch.group!r}, this query has no group: give the option "
                    f"`group`, or "
                    "use a new checkpoint location"
                )
            offsets.require_same_queue(batch, head.queue_id, str(self.queue))
        return head

    def _ends(self, head: Head, at: Mapping[int, int]) -> dict[int, int]:
        """How far the next batch may go. Everything below `at` is dealt with: Spark asks when its batch is complete."""
        ends = {partition: head.next[partition] for partition in at}
        if self._target is not None:
            # Never beyond what there is: the queue may have been restored from an older copy since the target was set.
            ends = {p: max(offset, min(ends[p], self._target.get(p, offset))) for p, offset in at.items()}
        return planning.barred_ends(head, at, ends)

    def _wait_for_news(self, head: Head, before: BatchEnd | None, at: Mapping[int, int]) -> Head:
        """An idle look: waits up to `pollInterval` for news, and returns at once when there is some."""
        if self._target is not None:
            return head
        deadline_s = time.monotonic() + self.pace.poll_s
        while (left_s := deadline_s - (now_s := time.monotonic())) > 0:
            time.sleep(min(self.pace.look_s(now_s), left_s))
            fresh = self._fresh_head(before)  # which may be another queue's by now
            if fresh is not head:
                now_at = planning.with_new_partitions(fresh, at)
                if _any_news(now_at, self._ends(fresh, now_at)):
                    return fresh
            head = fresh
        return head

    def _limits(self, limit: ReadLimit) -> Limits:
        bound = self.options.max_delivered_unacked
        unacknowledged = Unacknowledged(bound=bound, in_hand={}) if bound is not None else None  # nothing else is
        limited = not isinstance(limit, ReadAllAvailable)  # which overrides the others (spark-traps 13)
        return batch_limits(self.options, unacknowledged, limited)

    def _entries(self, head: Head, spans: Ranges) -> Iterator[Entry]:
        return tree.walk(tree.view(head, spans), self.queue.load_chunk)


def _any_news(at: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return any(ends[partition] > offset for partition, offset in at.items())
