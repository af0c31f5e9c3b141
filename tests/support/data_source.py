"""partq's data source called as Spark calls it, without a JVM: what Spark pickles is pickled, schemas travel as JSON,
and batches have the forms in which Spark hands them over and wants them back. Nothing here judges.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType, _parse_datatype_json_string
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from partq_spark.spark.reader import PartqStreamReader
from partq_spark.spark.source import PartqDataSource
from tests.log.schema.shapes import as_by_jvm

T = TypeVar("T")
QUERY = "0f8b0000-0000-0000-0000-000000000000"


def sent(value: T) -> T:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(value))  # type: ignore[no-any-return]  # noqa: S301 - made here


def by_json(schema: StructType) -> StructType:
    """As it arrives from the JVM."""
    found = _parse_datatype_json_string(schema.json())
    assert isinstance(found, StructType)
    return found


def as_spark_sends(
    rows: Sequence[Sequence[Any]], schema: StructType, *, zone: str = "UTC", large: bool = False
) -> pa.RecordBatch:
    """Rows as a sink gets them in a session with this time zone, with Spark's large types or without (traps 38)."""
    forms = to_arrow_schema(schema, timezone=zone, prefers_large_types=large)
    columns = [as_by_jvm(pa.array([row[place] for row in rows], field.type)) for place, field in enumerate(forms)]
    return pa.RecordBatch.from_arrays(columns, schema=forms)


@dataclass(kw_only=True)
class Calls:
    """Spark's calls for queues of one store."""

    url: str

    def source(self, queue: str, **options: str) -> PartqDataSource:
        given = {"path": queue, "store": self.url, **options}
        return PartqDataSource(CaseInsensitiveDict(given))

    def load(self, queue: str, **options: str) -> StructType:
        """What `.load()` says of the columns."""
        found = self.source(queue, **options).schema()
        assert isinstance(found, StructType)
        return by_json(found)

    # --- reading

    def read(self, queue: str, schema: StructType | None = None, **options: str) -> pa.Table:
        """A batch read, with `.schema(…)` or without."""
        source = sent(self.source(queue, **options))
        schema = by_json(schema) if schema is not None else self.load(queue, **options)
        reader = source.reader(schema)
        partitions = reader.partitions()
        tasks = [sent(reader).read(sent(partition)) for partition in partitions]
        return _checked(tasks, schema, source)

    def stream(self, queue: str, schema: StructType | None = None, **options: str) -> StreamCalls:
        """A streaming query, with `.schema(…)` or without."""
        options = {"startingOffsets": "earliest", "pollInterval": "10ms", **options}
        schema = by_json(schema) if schema is not None else self.load(queue, **options)
        return StreamCalls(self, queue, schema, options)

    # --- writing

    def append(self, queue: str, schema: StructType, batches: Iterable[pa.RecordBatch], **options: str) -> None:
        """A batch write with one task."""
        writer = sent(self.source(queue, **options)).writer(by_json(schema), False)
        message = sent(writer).write(iter(batches))
        sent(writer).commit([sent(message)])

    def publish(
        self, queue: str, schema: StructType, batches: Iterable[pa.RecordBatch], *, batch_id: int = 0, **options: str
    ) -> None:
        """A micro-batch with one task, of one query for each test."""
        # The process that plans makes the source anew, and so does the one that commits.
        writer = self.source(queue, **options).streamWriter(by_json(schema), False)
        with _task(batch_id):
            message: WriterCommitMessage = sent(writer).write(iter(batches))
        ending = sent(self.source(queue, **options)).streamWriter(by_json(schema), False)
        ending.commit([sent(message)], batch_id)


class StreamCalls:
    """One streaming query: its columns are what its `.load()` saw, or what `.schema()` said."""

    def __init__(self, calls: Calls, queue: str, schema: StructType, options: dict[str, str]) -> None:
        self._source = calls.source(queue, **options)
        self._make(schema)
        self.at: dict[str, Any] = self.reader.initialOffset()

    def restart(self, schema: StructType | None = None) -> None:
        """A new process, which knows the Spark checkpoint alone; perhaps with other columns."""
        self.reader.stop()
        self._make(self.schema if schema is None else by_json(schema))

    def _make(self, schema: StructType) -> None:
        self.schema = schema
        self.reader: PartqStreamReader = sent(self._source).streamReader(schema)
        self._in_tasks = sent(sent(self._source).streamReader(schema))  # the planner's (traps 3)

    def batch(self) -> pa.Table:
        """All that has come since."""
        limit = self.reader.getDefaultReadLimit()
        assert isinstance(limit, ReadAllAvailable)
        end = self.reader.latestOffset(self.at, limit)
        planned = self.reader.partitions(self.at, end) if end != self.at else []
        tasks = [self._in_tasks.read(sent(each)) for each in planned]
        found = _checked(tasks, self.schema, self._source)
        self.at = end
        return found


def _checked(tasks: Iterable[Iterator[pa.RecordBatch]], schema: StructType, source: PartqDataSource) -> pa.Table:
    """What Spark takes: it looks at each task's first batch, here all must be alike."""
    made: list[pa.RecordBatch] = []
    for task in tasks:
        made += records_to_arrow_batches(task, 10_000, schema, source)
    forms = to_arrow_schema(schema, timezone="UTC")
    for batch in made:
        batch.validate(full=True)
        assert batch.schema == forms, "spark-traps.md 11"
    return pa.Table.from_batches(made, forms)


def _task(batch_id: int) -> Any:
    """A task of a micro-batch: Spark tells it whose."""
    properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch_id)}
    context = mock.Mock(getLocalProperty=properties.get, partitionId=lambda: 0)
    return mock.patch("pyspark.TaskContext.get", return_value=context)
