"""The least that a Python source and sink can do: what partq's micro-batches are compared with.

Offsets are one number, a batch is always 5 rows in one task, the sink counts what it is given. Nothing is stored.
Spark's workers import this module, so it holds nothing else.
"""

# ruff: noqa: N802, N803 - the names are Spark's
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 5


class FloorSource(DataSource):
    """`format("bench_floor")`: a stream of as many micro-batches as the option `batches` says, and a sink."""

    @classmethod
    def name(cls) -> str:
        return "bench_floor"

    def schema(self) -> str:
        return "key STRING, value BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FloorReader(BATCH_ROWS * int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> FloorWriter:
        return FloorWriter()


class FloorReader(DataSourceStreamReader):
    """Every look finds five more rows, until `end` have been given out."""

    def __init__(self, end: int) -> None:
        self._end = end

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"n": start["n"] + BATCH_ROWS} if start["n"] < self._end else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        numbers = range(*partition.value)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([f"N{number}" for number in numbers], pa.string()),
                pa.array([b"%0100d" % number for number in numbers], pa.binary()),
            ],
            names=["key", "value"],
        )


class FloorWriter(DataSourceStreamArrowWriter):
    """Looks at every batch and keeps nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            if batch.num_columns == 0:
                raise ValueError("a batch without columns came to the floor's sink")
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to make visible."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to take back."""
