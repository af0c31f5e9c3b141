"""The Spark source of a query with a group: a flow. Thin: what is delivered is `consuming`'s, what is read `reader`'s.

Spark calls from its reader process' main thread. Beside it live two daemon threads, from the first call that needs
them: the heartbeat, and one that looks after the flow while a batch runs for long. Nothing is made when a reader is
made, because Spark makes readers in several processes (spark-traps 3).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from partq_spark import offsets
from partq_spark.consuming import Consumer
from partq_spark.errors import PartqError, Unavailable
from partq_spark.flow.heartbeat import Heartbeat
from partq_spark.flow.lifeline import Lifeline
from partq_spark.flow_planning import Spans
from partq_spark.joining import BEAT_S, open_consumer
from partq_spark.log.model import Head
from partq_spark.options import SourceOptions, stream_source_options
from partq_spark.reader import plan_tasks, read_task
from partq_spark.schema import check_source_columns

if TYPE_CHECKING:
    import pyarrow as pa

BESIDE_S: Final = 0.5
"""How often the flow is looked after while Spark is busy with a batch."""

_STOP_WAIT_S: Final = 5.0
_log = logging.getLogger("partq.flow")


class PartqGroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("partq").option("group", …)`."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        self._given = dict(options)
        self._columns = columns
        self._options: SourceOptions | None = None
        self._process: _Process | None = None

    @property
    def options(self) -> SourceOptions:
        if self._options is None:
            parsed = stream_source_options(self._given)
            check_source_columns(self._columns, parsed.include_headers)
            self._options = parsed
        return self._options

    @property
    def process(self) -> _Process:
        """What the process that Spark asks has; made by the first call that needs it."""
        if self._process is None:
            self._process = _Process(open_consumer(self.options))
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


class _Process:
    """A consumer with the threads beside it, and who may use it when: one at a time, Spark's questions first."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._trouble: Exception | None = None
        lifeline = Lifeline(parent=os.getppid())
        self._heartbeat = Heartbeat(self._beat, BEAT_S, lifeline, name="the query").start()
        self._beside = threading.Thread(target=self._look_beside, name="partq beside the batch", daemon=True)
        self._beside.start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _end_in_good_order)

    @contextmanager
    def asked(self) -> Iterator[Consumer]:
        """The consumer, for one of Spark's questions. Raises what ended the heartbeat or went wrong beside a batch."""
        with self._lock:
            self._heartbeat.check()
            trouble, self._trouble = self._trouble, None
            if trouble is not None:
                raise trouble
            yield self._consumer

    def report(self) -> dict[str, Any] | None:
        return self._consumer.report()

    def stop(self) -> None:
        """Leave the group. Bounded; may be repeated."""
        self._stopping.set()
        self._heartbeat.stop()
        if not self._lock.acquire(timeout=_STOP_WAIT_S):
            _log.warning("the flow's group will notice that it is gone: a store does not answer")
            return
        try:
            self._consumer.stop()
        except PartqError as error:
            _log.warning("the flow left without a word: %s", error)
        finally:
            self._lock.release()

    def _beat(self) -> None:
        member = self._consumer.member
        if member is not None:
            member.beat()

    def _look_beside(self) -> None:
        while not self._stopping.wait(BESIDE_S):
            if not self._lock.acquire(blocking=False):
                continue  # Spark is asking: the flow is looked after anyway
            try:
                if not self._stopping.is_set() and self._heartbeat.is_beating:
                    self._consumer.look_beside()
            except Unavailable as error:
                _log.info("beside a batch: %s", error)  # the next question meets it by itself
            except Exception as error:  # noqa: BLE001 - it is passed on to the main thread by the next question
                self._trouble = error
            finally:
                self._lock.release()


def _end_in_good_order(_signal: int, _frame: FrameType | None) -> None:
    """Spark ends a reader by two SIGTERMs within milliseconds, and calls `stop` only if the process exits by itself
    (spark-traps 2): the second signal must not cut that short.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)
