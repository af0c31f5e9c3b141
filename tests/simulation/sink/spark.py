"""What Spark does with a sink, in Spark's order and without a JVM: two logs, tasks that stage, a commit in another
process (spark-traps.md 8, 9, 10, 29). Nothing here knows what a sink should do with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import ArrayType, IntegerType, StructType

from partq_spark.spark.source import PartqDataSource
from partq_spark.spark.writer import PartqBatchWriter
from tests.simulation.sink.plan import Plan, Row
from tests.support.data_source import as_spark_sends, sent

Span = tuple[tuple[int, int], ...]
"""Of each partition of the source, where a batch begins and ends."""

HEADERS: Final = ArrayType(StructType().add("key", "string").add("value", "binary"))
_X: Final = (None, 0.0, -0.0, float("nan"), 1.5)


@dataclass(slots=True)
class SparkCheckpoint:
    """Offset log and commit log. `journal`: what was written, in order, as a copy made in time has it."""

    query: str
    offsets: dict[int, Span] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    journal: list[tuple[int, Span | None]] = field(default_factory=list)

    def write(self, batch: int, span: Span | None) -> None:
        """An entry of the offset log, or of the commit log (None)."""
        if span is not None:
            self.offsets[batch] = span
        else:
            self.commits.add(batch)
        self.journal.append((batch, span))

    def restore(self, entries: int) -> None:
        """Become the copy that was made so many entries ago."""
        kept = self.journal[: max(0, len(self.journal) - entries)]
        self.offsets, self.commits, self.journal = {}, set(), []
        for batch, span in kept:
            self.write(batch, span)

    def cut(self, offsets: int, commits: int) -> None:
        """The newest entries of both logs are gone, as after a power failure."""
        for batch in sorted(self.offsets)[len(self.offsets) - offsets :]:
            del self.offsets[batch]
        self.commits -= set(sorted(self.commits)[len(self.commits) - commits :])

    def next_batch(self) -> tuple[int, Span | None]:
        """Where a run begins; the span of a batch that is repeated, if it is (`populateStartOffsets`)."""
        if not self.offsets:
            return 0, None
        latest = max(self.offsets)
        committed = max(self.commits, default=-1)
        return (latest + 1, None) if latest == committed else (latest, self.offsets[latest])


def schema_of(plan: Plan) -> StructType:
    """The columns that the application gives the sink."""
    if plan.kind == "typed":
        found = StructType().add("name", "string").add("number", "integer").add("text", "string", nullable=False)
        return found.add("x", "double").add("tags", ArrayType(IntegerType()))
    found = StructType().add("key", "string").add("value", "binary")
    if plan.headers:
        found = found.add("headers", HEADERS)
    return found.add("topic", "string") if plan.kind == "fan-out" else found


def columns_of(plan: Plan, row: Row) -> tuple[Any, ...]:
    """A row as the application gives it, but for its topic."""
    text = f"{row.number}~{row.drawn}" if row.drawn else f"{row.number}"
    if plan.kind == "typed":
        return (row.key, row.number, text, _X[row.number % 5], [None, row.number][: row.number % 3])
    headers = [{"key": "h", "value": b"%d" % (row.number % 2)}][: row.number % 3]
    return (row.key, text.encode(), headers) if plan.headers else (row.key, text.encode())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Context:
    """What Spark tells a task, in place of `TaskContext.get`."""

    task: int
    properties: dict[str, str]

    def __call__(self) -> _Context:
        return self

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self.task

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self.properties.get(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """One write of a batch. `query` is None in a batch job; `batch` is the number of the query's batch or the job's.
    `application`: the txnAppId of a batch write; None: a streaming sink. `tasks`: the rows of each; `again`: those that
    Spark tries a second time.
    """

    plan: Plan
    url: str
    queue: str | None
    query: str | None
    batch: int
    application: str | None
    tasks: Sequence[Sequence[Row]]
    again: frozenset[int] = frozenset()

    def source(self) -> PartqDataSource:
        options = {"store": self.url, "retryTimeout": "20s", "compression": self.plan.compression}
        if self.queue is not None:
            options["path"] = self.queue
        if self.application is not None:
            options |= {"txnAppId": self.application, "txnVersion": str(self.batch)}
        return PartqDataSource(CaseInsensitiveDict(options))

    def run(self, between: Callable[[], None]) -> None:
        """Stage in tasks, then commit; `between` may happen in between. Raises as the sink does."""
        schema, source = schema_of(self.plan), self.source()
        streams = self.application is None
        planned = source.streamWriter(schema, False) if streams else source.writer(schema, False)
        messages = []
        for task, rows in enumerate(self.tasks):
            if task in self.again:
                self._staged(planned, task, rows, schema)
            messages.append(self._staged(planned, task, rows, schema))
        between()
        if isinstance(planned, PartqBatchWriter):
            sent(planned).commit(messages)
        else:
            sent(source).streamWriter(schema, False).commit(messages, self.batch)

    def _staged(self, planned: Any, task: int, rows: Sequence[Row], schema: StructType) -> Any:
        properties = {}
        if self.query is not None:
            properties = {"sql.streaming.queryId": self.query, "streaming.sql.batchId": str(self.batch)}
        batches: list[pa.RecordBatch] = []
        for first in range(0, len(rows), 4):
            given = [columns_of(self.plan, row) for row in rows[first : first + 4]]
            if self.plan.kind == "fan-out":
                given = [(*each, row.topic) for each, row in zip(given, rows[first : first + 4], strict=True)]
            batches.append(as_spark_sends(given, schema))
        context = _Context(task=task, properties=properties)
        with mock.patch.object(TaskContext, "get", context):
            return sent(sent(planned).write(iter(batches)))
