"""The Spark source of a query with a group: a flow. Thin: what is delivered is `consuming`'s, what is read `reader`'s.

Spark calls from its reader process' main thread; what lives beside it is `beside`'s. Nothing is made when a reader is
made, because Spark makes readers in several processes (spark-traps 3).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from partq_spark import offsets
from partq_spark.beside import Beside
from partq_spark.flow_planning import Spans
from partq_spark.joining import open_consumer
from partq_spark.log.model import Head
from partq_spark.options import SourceOptions, stream_source_options
from partq_spark.reader import plan_tasks, read_task
from partq_spark.schema import check_source_columns

if TYPE_CHECKING:
    import pyarrow as pa


class PartqGroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("partq").option("group", …)`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        self._given = dict(options)
        self._columns = columns
        self._options: SourceOptions | None = None
        self._process: Beside | None = None

    @property
    def options(self) -> SourceOptions:
        if self._options is None:
            parsed = stream_source_options(self._given)
            check_source_columns(self._columns, parsed.include_headers)
            self._options = parsed
        return self._options

    @property
    def process(self) -> Beside:
        """What the process that Spark asks has; made by the first call that needs it."""
        if self._process is None:
            self._process = Beside(lambda wait: open_consumer(self.options, wait=wait))
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _end_in_good_order)
        return self._process

    # --- Spark's calls

    def initialOffset(self) -> dict[str, Any]:
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_messages is not None:
            return ReadMaxRows(self.options.max_messages)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with self.process.asked() as consumer:
            consumer.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self.process.asked() as consumer:
            return consumer.next_end(start, limited=not isinstance(limit, ReadAllAvailable))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        def tasks(head: Head, spans: Spans) -> Sequence[InputPartition]:
            return plan_tasks(consumer.queue, head, spans, self.options)

        with self.process.asked() as consumer:
            return consumer.batch(start, end, tasks, [])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._process.report() if self._process is not None else None

    def stop(self) -> None:
        """Write down what is acknowledged and leave the group, whatever the reason."""
        if self._process is not None:
            self._process.stop()


def _end_in_good_order(_signal: int, _frame: FrameType | None) -> None:
    """Spark ends a reader by two SIGTERMs within milliseconds, and calls `stop` only if the process exits by itself
    (spark-traps 2): the second signal must not cut that short.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
