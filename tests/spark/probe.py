"""A data source that writes down each of Spark's calls, with the process that got it. Nothing here judges.

Its classes travel whole, since workers cannot import modules of tests.
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
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType


class Log:
    """Calls, a line each, appended to a file by every process that gets one: its words, and facts as JSON."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, call: str, *at: object, **facts: object) -> None:
        line = {"call": " ".join(map(str, (call, *at))), "pid": os.getpid(), **facts}
        with Path(self._path).open("a") as file:
            file.write(json.dumps(line) + "\n")


class Rows(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class ProbeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`ends`: of its batches, which are not limited where Spark wants all that there is. `shuffled`: where nothing is
    new, the same offset is said in another order.
    """

    def __init__(self, options: Any) -> None:
        self._log = Log(options["log"])
        self._ends = json.loads(options["ends"])
        self._shuffled = "shuffled" in options

    def initialOffset(self) -> dict[str, Any]:
        self._log.add("initialOffset")
        return {"at": 0, "z": 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(77)

    def prepareForTriggerAvailableNow(self) -> None:
        self._log.add("prepare")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        self._log.add("latestOffset", start["at"], "all" if everything else "some", limit=vars(limit))
        ends = [end for end in self._ends if end > start["at"]]
        if ends:
            return {"at": ends[-1 if everything else 0], "z": 1}
        return dict(reversed(start.items())) if self._shuffled else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._log.add("partitions", start["at"], end["at"])
        return [Rows(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        assert isinstance(partition, Rows)
        self._log.add("read", partition.start, partition.end)
        yield from ((number,) for number in range(partition.start, partition.end))

    def commit(self, end: dict[str, Any]) -> None:
        self._log.add("commit", end["at"])


class Wrote(WriterCommitMessage):
    pass


class ProbeWriter(DataSourceStreamArrowWriter):
    """`fails`: in the commit of which batch."""

    def __init__(self, options: Any) -> None:
        self._log = Log(options["log"])
        self._fails = json.loads(options.get("fails", "[-1, 0]"))
        self._options = sorted(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        of_task = ("sql.streaming.queryId", "streaming.sql.batchId")
        task = [context.getLocalProperty(name) for name in of_task] if context is not None else []
        sizes = [batch.num_rows for batch in iterator]
        self._log.add("write", sum(sizes), sizes=sizes, task=task)
        return Wrote()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("sink commit", batchId, len(messages), options=self._options)
        if self._fails[0] == batchId:
            raise RuntimeError("it fails on purpose")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("abort", batchId, len(messages))


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
        Log(self.options["log"]).add("reader", options=sorted(self.options))
        return ProbeReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return ProbeWriter(self.options)


def install(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(Probe)


def calls(path: Path, name: str = "") -> list[dict[str, Any]]:
    """Those whose words begin so; each line of a reader that is made is one of a process, and no call of Spark's."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [each for each in found if each["call"].startswith(name)]
