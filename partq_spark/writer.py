"""The Spark sink: tasks stage, the driver publishes. Thin: staging is `log.segment`, the protocol is `log.publish`.

A micro-batch is published under (query id, batch id), so a batch that Spark repeats adds nothing (DIS-09). Abort
deletes nothing: Spark calls it also after a commit that failed halfway and may have landed (spark-traps 9); collection
clears up.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from partq_spark.connect import open_queue
from partq_spark.errors import Invalid
from partq_spark.log.publish import Identity, Published, Stage, StagedSegment, stage_for
from partq_spark.log.restaging import Staged, publish_tasks
from partq_spark.options import SinkOptions
from partq_spark.workers import spare_collector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


class StagedTask(WriterCommitMessage):
    """What a task tells the driver: where its messages lie, and on whose behalf they were staged."""

    def __init__(
        self, *, stage: Stage, segment: StagedSegment | None, task: int, query: str | None, batch: int | None
    ) -> None:
        self.stage = stage
        self.segment = segment
        self.task = task
        self.query = query  # Spark's query id, also inside foreachBatch; None in a batch job
        self.batch = batch


class _Sink:
    """What both sinks share. Made on the driver, where it reads the head once if it `plans` tasks; pickled into them
    without connections.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, plans: bool = True) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        self._queue = open_queue(options.target)
        # Not where a batch is ended: an abort that failed, for want of the store, would bury why the batch failed.
        self._stage = stage_for(self._queue) if plans else None
        # Without a query the choice for messages without a key still has to be the same in a task's second attempt.
        self._seed = secrets.token_hex(8)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_queue"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._queue = open_queue(self._options.target)

    def stage(self, rows: Iterator[pa.RecordBatch]) -> StagedTask:
        from pyspark import TaskContext

        from partq_spark.log.segment import Stager
        from partq_spark.rows import normalised

        spare_collector()
        stage = self._stage or stage_for(self._queue)
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        task = context.partitionId() if context else 0
        headers = "headers" in self._columns
        seed = f"{query}/{batch}/{task}" if query else f"{self._transaction_seed()}/{task}"
        with Stager(
            self._queue.store,
            stage,
            seed=seed,
            headers=headers,
            compression=self._options.compression,
        ) as stager:
            first_row = 0
            for batch_rows in rows:
                stager.add(normalised(batch_rows, self._columns, headers, first_row))
                first_row += batch_rows.num_rows
            segment = stager.finish()
        return StagedTask(
            stage=stage,
            segment=segment,
            task=task,
            query=query,
            batch=int(batch) if batch else None,
        )

    def _transaction_seed(self) -> str:
        transaction = self._options.transaction
        return f"{transaction[0]}/{transaction[1]}" if transaction else self._seed

    def publish(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> Published | None:
        spare_collector()
        tasks = sorted(
            (message for message in messages if isinstance(message, StagedTask)), key=lambda message: message.task
        )
        if len(tasks) != len(messages):
            raise Invalid(f"Spark reports {len(messages)} tasks, {len(tasks)} of them staged: nothing was published")
        staged = [Staged(task.stage, task.segment) for task in tasks if task.segment is not None]
        if not staged:
            return None
        done = publish_tasks(
            self._queue,
            staged,
            self._identity(tasks[0], batch),
            seed=f"{tasks[0].query}/{tasks[0].batch}" if tasks[0].query else self._transaction_seed(),
            compression=self._options.compression,
        )
        if done.duplicate:
            logger.warning(
                "batch %s of %s had been published before (sequence %d): nothing was added",
                batch if batch is not None else self._options.transaction,
                self._queue,
                done.sequence,
            )
        return done

    def _identity(self, task: StagedTask, batch: int | None) -> Identity | None:
        if batch is not None:
            if task.query is None:
                raise Invalid(f"Spark did not tell the tasks of batch {batch} their query id: nothing was published")
            return Identity(writer=task.query, batch=batch, owner=task.query)
        if self._options.transaction is None:
            return None
        writer, version = self._options.transaction
        return Identity(writer=writer, batch=version, owner=task.query)


class PartqBatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("partq").mode("append")`: one publish, made idempotent by txnAppId and txnVersion."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Sink.__init__(self, options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.publish(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing (see the module's first paragraph)."""


class PartqStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("partq")`: one publish per micro-batch, exactly once per query."""

    def __init__(self, options: SinkOptions, schema: StructType, *, plans: bool) -> None:
        _Sink.__init__(self, options, schema, plans=plans)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing (see the module's first paragraph)."""
