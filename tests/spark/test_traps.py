"""What Spark's Python data source API really does, where partq leans on it: a Spark that differs fails here, loudly.

The numbers are those of docs/spark-traps.md; what a test of partq itself shows is not shown again. A probe
of the API writes down every call, with the process that got it.
"""

# ruff: noqa: N802, N803 -- Spark's data source API has its own names for methods and arguments
from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tests.support.spark import Lab, ended, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

Call = dict[str, Any]

ENDS = (3, 5)
"""The source has two batches: rows 0 to 3, and 3 to 5."""


class Log:
    """Calls, appended to a file by every process that gets one."""

    def __init__(self, options: Any) -> None:
        self._path = options["log"]

    def add(self, call: str, **facts: object) -> None:
        with Path(self._path).open("a") as file:
            file.write(json.dumps({"call": call, "pid": os.getpid(), **facts}) + "\n")


class Rows(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class ProbeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Any) -> None:
        self._log = Log(options)
        self._shuffled = options.get("shuffled") == "true"
        self._log.add("reader", options=sorted(options))

    def initialOffset(self) -> dict[str, Any]:
        self._log.add("initialOffset")
        return {"at": 0, "z": 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(77)

    def prepareForTriggerAvailableNow(self) -> None:
        self._log.add("prepare")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._log.add("latestOffset", start=start, limit=[type(limit).__name__, vars(limit)])
        ends = [end for end in ENDS if end > start["at"]]
        if ends:
            return {"at": ends[0], "z": 1}
        if self._shuffled:  # the same offset in other words
            return dict(reversed(start.items()))
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._log.add("partitions", start=start, end=end)
        return [Rows(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        assert isinstance(partition, Rows)
        self._log.add("read")
        yield from ((number,) for number in range(partition.start, partition.end))

    def commit(self, end: dict[str, Any]) -> None:
        self._log.add("commit", end=end)

    def stop(self) -> None:
        self._log.add("stop")


class Wrote(WriterCommitMessage):
    def __init__(self, **facts: Any) -> None:
        self.facts = facts


class ProbeWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Any) -> None:
        self._log = Log(options)
        self._fails = options.get("fails") == "true"
        self._log.add("writer", options=sorted(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        sizes = [batch.num_rows for batch in iterator]
        self._log.add(
            "write",
            sizes=sizes,
            query=context.getLocalProperty("sql.streaming.queryId"),
            batch=context.getLocalProperty("streaming.sql.batchId"),
        )
        return Wrote(sizes=sizes)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("commit", batch=batchId, messages=len(messages))
        if self._fails:
            raise RuntimeError("the probe's commit fails")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("abort", batch=batchId, messages=len(messages))


class LargeTypes(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["x"], pa.large_string())], names=["value"])


class Probe(DataSource):
    @classmethod
    def name(cls) -> str:
        return "probe"

    def schema(self) -> str:
        return "value string" if "large" in self.options else "number int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return LargeTypes()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ProbeStreamReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return ProbeWriter(self.options)


class Probed:
    """Runs the probe, and what it wrote down."""

    def __init__(self, lab: Lab) -> None:
        self.spark: SparkSession = lab.spark
        self.folder = lab.folder
        self.path = lab.folder / "calls"
        self.path.touch()
        # Classes of a test's module travel whole: workers cannot import it.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        self.spark.dataSource.register(Probe)

    def calls(self, name: str | None = None) -> list[Call]:
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return found if name is None else [each for each in found if each["call"] == name]

    def names(self) -> list[str]:
        return [each["call"] for each in self.calls()]

    def forget(self) -> None:
        self.path.write_text("")

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("probe").options(log=str(self.path), **options).load()

    def write(self, rows: DataFrame, **options: str) -> StreamingQuery:
        writer = rows.writeStream.format("probe").options(log=str(self.path), **options).queryName("a name")
        return writer.option("checkpointLocation", str(self.folder / "sink")).trigger(availableNow=True).start()


@pytest.fixture
def probed(lab: Lab) -> Probed:
    return Probed(lab)


def test_a_sources_life_from_its_first_batch_to_a_replay(lab: Lab, probed: Probed) -> None:
    consumer = lab.consumer()
    consumer.run(probed.stream())
    assert [row.number for row in consumer.rows] == [0, 1, 2, 3, 4]

    # 1: commit comes when a later batch has been planned, and never for the last one.
    assert [each["end"]["at"] for each in probed.calls("commit")] == [3]
    # 3: readers are made in several processes, and read() runs in none that plans.
    planners = {each["pid"] for each in probed.calls("latestOffset") + probed.calls("partitions")}
    assert len(planners) == 1
    assert planners.isdisjoint({each["pid"] for each in probed.calls("read")})
    assert len({each["pid"] for each in probed.calls("reader")}) >= 2
    # 5: the initial offset is asked for more than once, and the log stores ends only.
    assert len(probed.calls("initialOffset")) == 2
    written = [(consumer.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1] for batch in (0, 1)]
    assert [json.loads(line) for line in written] == [{"at": 3, "z": 1}, {"at": 5, "z": 1}]
    # 8: the driver-side options are the user's alone.
    assert probed.calls("reader")[0]["options"] == ["log"]
    # 13: AvailableNow hands back the default limit, in snake_case.
    assert probed.calls("latestOffset")[0]["limit"] == ["ReadMaxRows", {"max_rows": 77}]
    # 23: an end that equals the start ends the query.
    assert [each["start"]["at"] for each in probed.calls("latestOffset")] == [0, 3, 5]

    # 4: after a restart an unfinished batch is planned before anything else, and before that AvailableNow is prepared.
    consumer.forget_commit()
    probed.forget()
    consumer.run(probed.stream())
    order = [name for name in probed.names() if name in ("prepare", "partitions", "latestOffset")]
    assert order[:3] == ["prepare", "partitions", "latestOffset"]
    assert probed.calls("partitions")[0]["start"] == {"at": 3, "z": 1}
    assert probed.calls("partitions")[0]["end"] == {"at": 5, "z": 1}


def test_offsets_are_compared_as_text_so_another_order_of_keys_is_news(lab: Lab, probed: Probed) -> None:
    """6. With AvailableNow it never ends, hence a plain trigger."""
    consumer = lab.consumer()
    query = consumer.start(probed.stream(shuffled="true"))
    wait_until(lambda: len(consumer.batches) >= len(ENDS) + 3, "empty batch")
    query.stop()
    assert consumer.sizes == [3, 2]


def test_a_sinks_life(probed: Probed) -> None:
    probed.spark.range(0, 25_000, 1, 1).selectExpr("cast(id as int) number").write.parquet(str(probed.folder / "rows"))
    stream = probed.spark.readStream.schema("number int").parquet(str(probed.folder / "rows"))
    query = ended(probed.write(stream.coalesce(1)))
    (commit,) = probed.calls("commit")
    writes = probed.calls("write")
    assert commit["messages"] == len(writes)
    # 8: tasks know query and batch; the writer's options have what Spark put there.
    assert {(each["query"], each["batch"]) for each in writes} == {(str(query.id), "0")}
    assert {"checkpointlocation", "queryname"} <= set(probed.calls("writer")[0]["options"])
    # 12: batches have at most 10,000 rows.
    assert max(size for each in writes for size in each["sizes"]) <= 10_000
    assert sum(size for each in writes for size in each["sizes"]) == 25_000


def test_a_commit_that_fails_is_followed_by_abort_with_all_messages_in_another_process(probed: Probed) -> None:
    """9, and 12: a task without rows writes too."""
    probed.spark.range(0, 1, 1, 1).selectExpr("cast(id as int) number").write.parquet(str(probed.folder / "rows"))
    stream = probed.spark.readStream.schema("number int").parquet(str(probed.folder / "rows"))
    assert "the probe's commit fails" in failure(probed.write(stream.where("number < 0"), fails="true"))
    (write,) = probed.calls("write")
    assert write["sizes"] == []
    (commit,) = probed.calls("commit")
    (abort,) = probed.calls("abort")
    assert (commit["messages"], abort["messages"]) == (1, 1)
    assert write["pid"] not in (commit["pid"], abort["pid"])
    assert probed.names().index("abort") > probed.names().index("commit")


def test_the_first_batch_must_match_the_schema_to_the_letter(probed: Probed) -> None:
    """11."""
    with pytest.raises(PySparkException, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        probed.spark.read.format("probe").option("large", "yes").option("log", str(probed.path)).load().collect()


def test_partq_takes_no_filters() -> None:
    """14: an override makes every batch read fail while Spark's setting for it is off, which is its default."""
    from partq_spark.spark.reader import PartqBatchReader

    assert PartqBatchReader.pushFilters is DataSourceReader.pushFilters
