"""The Spark source of a query with a group: a flow. Thin: what is delivered is `query`'s, what is read `reader`'s.

Spark calls from its reader process' main thread; what lives beside it is `beside`'s. Nothing is made when a reader is
made, because Spark makes readers in several processes (spark-traps 3).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
)

from partq_spark.log.model import Head
from partq_spark.query.beside import Beside
from partq_spark.query.joining import open_consumer
from partq_spark.query.planning import Spans
from partq_spark.spark.reader import StreamReader, plan_tasks

if TYPE_CHECKING:
    pass


class PartqGroupReader(StreamReader):
    """`spark.readStream.format("partq").option("group", …)`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        super().__init__(options, columns)
        self._process: Beside | None = None

    @property
    def process(self) -> Beside:
        """What the process that Spark asks has; made by the first call that needs it."""
        if self._process is None:
            self._process = Beside(lambda wait: open_consumer(self.options, wait=wait))
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _end_in_good_order)
        return self._process

    # --- Spark's calls

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
