"""A data source that writes down each of Spark's calls. Nothing here judges.

Its classes travel whole, since workers cannot import modules of tests.
"""

# ruff: noqa: N802, N803 -- Spark's data source API has its own names for methods and arguments
from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType


class Log:
    """Calls, a line each, appended to a file by every process that gets one."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, call: str, *at: object) -> None:
        with Path(self._path).open("a") as file:
            file.write(" ".join(map(str, (call, *at))) + "\n")


class Rows(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class ProbeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`ends`: of its batches, which are not limited where Spark wants all that there is."""

    def __init__(self, options: Any) -> None:
        self._log = Log(options["log"])
        self._ends = json.loads(options["ends"])

    def initialOffset(self) -> dict[str, Any]:
        self._log.add("initialOffset")
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(77)

    def prepareForTriggerAvailableNow(self) -> None:
        self._log.add("prepare")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        everything = isinstance(limit, ReadAllAvailable)
        self._log.add("latestOffset", start["at"], "all" if everything else "some")
        ends = [end for end in self._ends if end > start["at"]]
        return {"at": ends[-1 if everything else 0]} if ends else start

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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._log.add("write", sum(batch.num_rows for batch in iterator))
        return Wrote()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("sink commit", batchId, len(messages))
        if self._fails[0] == batchId:
            raise RuntimeError("it fails on purpose")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._log.add("abort", batchId, len(messages))


class Probe(DataSource):
    @classmethod
    def name(cls) -> str:
        return "probe"

    def schema(self) -> str:
        return "number int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ProbeReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return ProbeWriter(self.options)


def install(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(Probe)
