"""A streaming query as Spark drives it, over the production source and sink: two logs, a batch that a restart repeats,
and tasks that stage before the driver commits (spark-traps.md 1, 4, 5, 8, 9, 24). Driver, reader process and tasks are
one simulated process: they die and freeze together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructType

from partq_spark.base.errors import Invalid, PartqError
from partq_spark.query.notify import Mailbox
from partq_spark.spark.source import PartqDataSource
from partq_spark.spark.worker_process import prepare_worker
from tests.support.scheduler import SECOND_US
from tests.world.facts import Given, Handled, Row, Staged
from tests.world.machine import Host, Machine
from tests.world.processes import RETRY_S, Actor

RESULTS: Final = "results"
_POLLING_S: Final = 0.05  # Spark's pause after a trigger without a batch
_LOG_S: Final = 0.05  # to write an entry of a log
_SOURCE: Final = (
    StructType()
    .add("key", StringType())
    .add("value", "binary")
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("redelivered", BooleanType())
)
_SINK: Final = StructType().add("key", "string").add("value", "binary")


@dataclass(slots=True)
class SparkCheckpoint:
    """Offset log and commit log, which outlive the driver."""

    query: str
    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)


class _Context:
    """What Spark tells the tasks of a batch, in place of `TaskContext.get`."""

    def __init__(self, query: str, batch: int) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


def _context(machine: Machine, contexts: dict[Host, _Context]) -> _Context | None:
    return contexts.get(machine.host)


@contextmanager
def as_in_spark(machine: Machine, contexts: dict[Host, _Context]) -> Iterator[None]:
    """Tasks know of their batch. Nobody can be reached by a socket."""

    def mailbox(address: object, _handle: object) -> None:
        raise Invalid(f"{address} has no mailbox (simulated)")

    machine.stand_ins |= {id(Mailbox): mailbox, id(prepare_worker): lambda: None}
    with mock.patch.object(TaskContext, "get", partial(_context, machine, contexts)):
        yield


class Query(Actor):
    """A query from the queue of the world into a second one, started again when it fails."""

    spark: SparkCheckpoint

    def live(self, host: Host) -> None:
        if self.lives == 1:
            self.spark = SparkCheckpoint(f"{self.rng.getrandbits(128):032x}")
        reader = self._source(group=self.world.GROUP, flow=self.name).streamReader(_SOURCE)
        try:
            self._run(host, reader)
        except PartqError as error:
            self.world.counts[f"a query failed: {type(error).__name__}"] += 1
            self.world.scheduler.push(self.start, SECOND_US)
        reader.stop()

    def _source(self, **options: str) -> PartqDataSource:
        plan = self.world.plan
        given = {"path": self.world.QUEUE, "store": self.world.url, "retryTimeout": f"{RETRY_S:g}s"}
        given |= {
            "ownership": plan.ownership,
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": f"{plan.max_messages}",
            "sessionTimeout": f"{plan.session_timeout_s:g}s",
        }
        return PartqDataSource(CaseInsensitiveDict({**given, **options}))

    def _run(self, host: Host, reader: Any) -> None:
        """Spark's loop."""
        limit, spark = reader.getDefaultReadLimit(), self.spark
        batch, start, end = self._populate(reader)
        while not host.stopping:
            if end is None:
                asked_us = self.world.now_us
                found = json.dumps(reader.latestOffset(start, limit))
                if json.loads(found) == start:
                    self.sleep(_POLLING_S)
                    continue
                self.sleep(_LOG_S)
                spark.offsets[batch] = found
                end = json.loads(found)
            else:
                asked_us = self.world.now_us
                self.world.counts["batches repeated"] += 1
            self._batch(host, reader, batch, start, end, asked_us)
            self.sleep(_LOG_S)
            spark.commits.add(batch)
            batch, start, end = batch + 1, end, None

    def _populate(self, reader: Any) -> tuple[int, Any, Any]:
        """Where the last run came to: the number of the next batch, its start, and its end if it is repeated."""
        spark = self.spark
        if not spark.offsets:
            return 0, reader.initialOffset(), None
        latest = max(spark.offsets)
        if latest in spark.commits:
            return latest + 1, json.loads(spark.offsets[latest]), None
        before = spark.offsets.get(latest - 1)
        start = reader.initialOffset() if before is None else json.loads(before)
        return latest, start, json.loads(spark.offsets[latest])

    def _batch(self, host: Host, reader: Any, batch: int, start: Any, end: Any, asked_us: int) -> None:
        world = self.world
        tables = [each for part in reader.partitions(start, end) for each in reader.read(part)]
        rows = tuple(
            Row(each["partition"], each["offset"], each["key"], each["value"].decode(), each["redelivered"])
            for table in tables
            for each in table.to_pylist()
        )
        name = f"{self.spark.query}/{batch}"
        if rows:
            world.take(Given(world.now_us, asked_us, world.GROUP, self.name, host.process.name, rows, name))
        self.sleep(host.rng.uniform(0.0, world.plan.handles_s))
        self._write(host, batch, rows)
        if rows:
            world.take(Handled(world.now_us, world.GROUP, self.name, rows))

    def _write(self, host: Host, batch: int, rows: tuple[Row, ...]) -> None:
        world = self.world
        sink = PartqDataSource(
            CaseInsensitiveDict({"path": RESULTS, "store": world.url, "retryTimeout": f"{RETRY_S:g}s"})
        )
        world.contexts[host] = _Context(self.spark.query, batch)
        writer: Any = sink.streamWriter(_SINK, False)
        given = pa.table(
            {"key": [row.key for row in rows], "value": [row.value.encode() for row in rows]},
            pa.schema([("key", pa.string()), ("value", pa.binary())]),
        )
        if rows:
            world.take(Staged(world.now_us, self.spark.query, batch, tuple(row.value for row in rows)))
        try:
            writer.commit([writer.write(iter(given.to_batches()))], batch)
        except Invalid as error:
            raise AssertionError(f"a query in good order was refused: {error}") from error
