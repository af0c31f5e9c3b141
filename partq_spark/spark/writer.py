"""The Spark sink: tasks stage, the driver publishes. Thin: `log.destinations` says what goes where, `log.fanout` how.

A micro-batch is published under (query id, batch id) in every queue that gets something of it, so a batch that Spark
repeats adds nothing (DIS-09). Abort deletes nothing: Spark calls it also after a commit that failed halfway and may
have landed (spark-traps.md 9); collection clears up.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from partq_spark.base.errors import Invalid
from partq_spark.log import destinations, fanout
from partq_spark.log.admin import shared_namespace
from partq_spark.log.destinations import FanPlan, StagedSegment
from partq_spark.log.fanout import Unattracted
from partq_spark.log.queue import QueueLog, open_queue, shared_store
from partq_spark.log.writers import PublishIdentity
from partq_spark.spark.columns import TOPIC, TYPED_TOPIC, sink_columns
from partq_spark.spark.local import prepare_worker
from partq_spark.spark.options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class StagedTask(WriterCommitMessage):
    """What a task tells the driver: where its messages lie, and on whose behalf they were staged."""

    staged: Sequence[StagedSegment]
    unattracted: Unattracted
    task: int
    query: str | None  # Spark's query id, also inside foreachBatch; None in a batch job
    batch: int | None


class _Sink:
    """What both sinks share. Made on the driver, where it decides once what goes where if it `plans` tasks; pickled
    into them without connections.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, plans: bool = True) -> None:
        self._options = options
        # Not where a batch is ended: an abort that failed, for want of the store, would bury why the batch failed.
        self._plan = self._planned(schema.fieldNames()) if plans else None
        self._columns = sink_columns(self._plan, schema) if self._plan is not None else None
        # Without a query the choice for messages without a key still has to be the same in a task's second attempt.
        self._seed = secrets.token_hex(8)

    def _queue(self, name: str) -> QueueLog:
        return open_queue(self._options.where.target(name))

    def _planned(self, columns: Sequence[str]) -> FanPlan:
        named = self._queue(self._options.queue) if self._options.queue is not None else None
        topic, where = self._options.topic, self._options.where
        if topic is None and TOPIC not in columns and TYPED_TOPIC not in columns and named is not None:
            return destinations.plan_queue(named)
        queues = shared_namespace(where).queues()
        if topic is not None:
            return destinations.plan_topic(queues, topic, named)
        plan = destinations.plan_topics(queues, named)
        is_typed = any(each.named and each.columns is not None for each in plan.destinations)
        if TYPED_TOPIC in columns or named is None or not is_typed:
            return plan  # else a column `topic` is the named queue's own
        if self._options.fail_on_unattracted:
            raise Invalid(
                f"option failOnUnattractedTopic is for messages with topics, and these have none: {TOPIC!r} is a column"
                f" of the rows of {named}; give the option topic or a column {TYPED_TOPIC}, or leave it out"
            )
        return destinations.plan_queue(named)

    # --- Spark's calls

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        from pyspark import TaskContext

        prepare_worker()
        if self._plan is None or self._columns is None:
            raise Invalid("Spark sent a task a writer that had not planned its batch: nothing was published")
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch_id = context.getLocalProperty("streaming.sql.batchId") if context else None
        task = context.partitionId() if context else 0
        seed = f"{query}/{batch_id}/{task}" if query else f"{self._transaction_seed()}/{task}"
        where = self._options.where
        store = shared_store(where.store, where.retry_timeout_s)
        columns, compression = self._columns, self._options.compression
        with fanout.Fan(
            store, self._plan, seed=seed, headers=columns.headers, compression=compression, given=columns.given
        ) as fan:
            for batch in iterator:
                fan.add(columns.taken(batch), columns.topics(batch))
            staged, unattracted = fan.finish()
        return StagedTask(
            staged=staged, unattracted=unattracted, task=task, query=query, batch=int(batch_id) if batch_id else None
        )

    def _transaction_seed(self) -> str:
        transaction = self._options.transaction
        return f"{transaction[0]}/{transaction[1]}" if transaction else self._seed

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """A batch job has no `batchId`."""
        prepare_worker()
        tasks = sorted(
            (message for message in messages if isinstance(message, StagedTask)), key=lambda message: message.task
        )
        if len(tasks) != len(messages):
            raise Invalid(f"Spark reports {len(messages)} tasks, {len(tasks)} of them staged: nothing was published")
        missed = fanout.unattracted(task.unattracted for task in tasks)
        about = fanout.said(missed, self._options.where.namespace)
        if missed.messages and self._options.fail_on_unattracted:
            raise Invalid(
                f"the batch has {about}: nothing of it was published; let a queue attract them with `partq queue "
                "subscribe NAME TOPIC`, or leave failOnUnattractedTopic out"
            )
        if any(task.staged for task in tasks):
            self._publish([task.staged for task in tasks], tasks[0], batchId)
        if missed.messages:
            logger.warning("%s go nowhere: `partq queue subscribe NAME TOPIC` lets a queue attract later ones", about)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Deletes nothing (see the module's first paragraph)."""

    # --- what they do

    def _publish(self, staged: Sequence[Sequence[StagedSegment]], first: StagedTask, batch: int | None) -> None:
        outcomes = fanout.publish_all(
            self._queue,
            staged,
            self._identity(first, batch),
            seed=f"{first.query}/{first.batch}" if first.query else self._transaction_seed(),
            compression=self._options.compression,
        )
        for queue, done in outcomes:
            if done is None or not done.duplicate:
                continue
            number = batch if batch is not None else self._options.transaction
            if done.resolved is None:
                logger.warning(
                    "batch %s of %s had been published before (sequence %d): nothing was added",
                    number,
                    queue,
                    done.sequence,
                )
            else:
                logger.warning(
                    "batch %s of %s was skipped: %s said, by `partq queue resolve`, that from batch %d on the rows are "
                    "published already",
                    number,
                    queue,
                    done.resolved.by,
                    done.resolved.batch,
                )

    def _identity(self, task: StagedTask, batch: int | None) -> PublishIdentity | None:
        if batch is not None:
            if task.query is None:
                raise Invalid(f"Spark did not tell the tasks of batch {batch} their query id: nothing was published")
            return PublishIdentity.of_query(task.query, batch)
        if self._options.transaction is None:
            return None
        app, version = self._options.transaction
        return PublishIdentity.of_transaction(app, version, task.query)


class PartqBatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("partq").mode("append")`: one publish, made idempotent by txnAppId and txnVersion."""


class PartqStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("partq")`: one publish per micro-batch, exactly once per query."""
