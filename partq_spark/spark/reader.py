"""The Spark source: batch reads and streams. Thin: `query` decides what is delivered, `log.reading` reads it.

No client, thread or file is opened when a reader is made, because Spark makes readers in several processes; `read`
depends on its partition alone (spark-traps.md 3).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from partq_spark.log import tree
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueAddress, QueueLog, open_queue
from partq_spark.query import offsets, planning
from partq_spark.query.offsets import BatchSpan
from partq_spark.query.planning import Spans
from partq_spark.query.settings import Boundary, SourceOptions
from partq_spark.spark.columns import wanted_by
from partq_spark.spark.local import prepare_worker
from partq_spark.spark.options import stream_source_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from partq_spark.query.columns import WantedColumns
    from partq_spark.query.consumer import ConsumerLoop
    from partq_spark.query.consumer_process import ConsumerProcess

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, repr=False)
class LogPartition(InputPartition):
    """What one task reads: spans of some partitions, and the part of the log that leads to them. Holds no secret."""

    target: QueueAddress
    queue_id: str
    log: tree.LogView
    redelivered_below: Mapping[int, int]
    wanted: WantedColumns
    fail_on_data_loss: bool

    def __repr__(self) -> str:
        return f"LogPartition({self.target.queue!r}, {dict(self.log.wanted)!r})"


def plan_tasks(
    queue: QueueLog,
    head: Head,
    spans: Mapping[int, BatchSpan],
    options: SourceOptions,
    wanted: WantedColumns,
) -> Sequence[InputPartition]:
    """The tasks of a batch that reads `spans`. Raises `ObjectMissing` for what is gone (failOnDataLoss)."""
    log = planning.log_view(head, spans, fail_on_data_loss=options.fail_on_data_loss, warn=logger.warning)
    return [
        LogPartition(
            target=options.target,
            queue_id=head.queue_id,
            log=log.only(partitions),
            redelivered_below={partition: spans[partition].redelivered_below for partition in partitions},
            wanted=wanted,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for partitions in planning.tasks(log.wanted)
    ]


def read_task(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow batches with the columns that are wanted."""
    prepare_worker()
    if not isinstance(partition, LogPartition):
        return  # a batch read of nothing: Spark asks with InputPartition(None) (spark-traps.md 29)
    from partq_spark.log.reading import RangeReader
    from partq_spark.query.columns import batches

    reader = RangeReader(
        open_queue(partition.target),
        partition.queue_id,
        partition.log,
        fail_on_data_loss=partition.fail_on_data_loss,
        payload=partition.wanted.payload,
        only=partition.wanted.stored,
    )
    yield from batches(
        reader.pieces(),
        queue=partition.target.queue,
        wanted=partition.wanted,
        redelivered_below=partition.redelivered_below,
    )


class PartqBatchReader(DataSourceReader):
    """`spark.read.format("partq")`: a fixed range of every partition, decided once. `schema`: the columns that
    `.load()` or `.schema()` said.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        queue = open_queue(self._options.target)
        head = queue.refresh()
        wanted = wanted_by(head, self._schema)
        start, end = self._options.start or Boundary(edge="earliest"), self._options.end
        spans = planning.between(head, start, end, ("startingOffsets", "endingOffsets"), queue.offsets_at)
        return plan_tasks(queue, head, spans, self._options, wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)


class PartqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("partq")`, with the option `group` or without. Spark calls from its reader process' main
    thread; the consumer decides what is delivered. `schema` as for a batch: a query keeps the columns and types that it
    began with, whatever is added or widened since.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._options: SourceOptions | None = None
        self._process: ConsumerProcess | None = None
        self._wanted: tuple[str, WantedColumns] | None = None  # of the queue with this id

    # --- what is made on first use, in the process that uses it

    @property
    def options(self) -> SourceOptions:
        if self._options is None:
            self._options = stream_source_options(self._given)
        return self._options

    @property
    def process(self) -> ConsumerProcess:
        """What the process that Spark asks has; made by the first call that needs it."""
        if self._process is None:
            # Here, because the processes that read rows import this module, too, and need nothing of it.
            from partq_spark.query.consumer_process import ConsumerProcess

            self._process = ConsumerProcess(self.options)
            if self.options.group is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _end_in_good_order)
        return self._process

    @contextmanager
    def _asked(self) -> Iterator[ConsumerLoop]:
        """The consumer, for one of Spark's questions."""
        with self.process.asked() as consumer:
            if self._wanted is None:  # before anything is done in the name of a query that wants what is not there
                self._wanted_of(consumer.queue.refresh())
            yield consumer

    def _wanted_of(self, head: Head) -> WantedColumns:
        """What is wanted of the queue, decided once; a queue that was made again may have other columns."""
        if self._wanted is None or self._wanted[0] != head.queue_id:
            self._wanted = head.queue_id, wanted_by(head, self._schema)
        return self._wanted[1]

    # --- Spark's calls

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

    def prepareForTriggerAvailableNow(self) -> None:
        with self._asked() as consumer:
            consumer.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self._asked() as consumer:
            return consumer.next_end(start, limited=not isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        def tasks(head: Head, spans: Spans) -> Sequence[InputPartition]:
            return plan_tasks(consumer.queue, head, spans, self.options, self._wanted_of(head))

        with self._asked() as consumer:
            return consumer.batch(start, end, tasks, [])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._process.report() if self._process is not None else None

    def stop(self) -> None:
        """Write down what is acknowledged and leave the group."""
        if self._process is not None:
            self._process.stop()


def _end_in_good_order(_signal: int, _frame: FrameType | None) -> None:
    """Spark ends a reader by two SIGTERMs within milliseconds, and calls `stop` only if the process exits by itself
    (spark-traps.md 2): the second signal must not cut that short.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
