"""The least that a Python source and sink can do: what partq is compared with to tell what of the time is Spark's own.

`FloorSource`, for micro-batches and publishing: offsets are one number, a batch is always 5 rows in one task. The sink
looks at what it is given and keeps nothing; or, bare and durable, it writes the batches of each task as they come into
one Arrow file, with partq's compression and fsync. `ReadySource`, for reading: many rows, in batches that are ready in
a memory-mapped Arrow file. Spark's workers import this module, so it holds nothing else.
"""

# ruff: noqa: N802, N803 - the names are Spark's
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 5
MOST_BATCHES: Final = 16  # in the file; they are given out again and again


class FloorSource(DataSource):
    """`format("bench_floor")`: a stream of as many micro-batches as the option `batches` says, and a sink, which keeps
    what it gets in the option `folder`, if that is given.
    """

    @classmethod
    def name(cls) -> str:
        return "bench_floor"

    def schema(self) -> str:
        return "key STRING, value BINARY"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FloorReader(BATCH_ROWS * int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> FloorWriter:
        folder = self.options.get("folder")
        return FloorWriter() if folder is None else DurableWriter(Path(folder))


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


class DurableWriter(FloorWriter):
    """Keeps the batches of each task in a file in `folder`, which is durable when the task ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        import pyarrow as pa
        from pyspark import TaskContext

        codec = pa.Codec("lz4", compression_level=-2)  # as partq's segments have it
        options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        context = TaskContext.get()
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"task-{context.taskAttemptId() if context else 0}.arrow").open("wb") as file:
            writer = None
            for batch in iterator:
                writer = writer or pa.ipc.new_file(file, batch.schema, options=options)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
            file.flush()
            os.fsync(file.fileno())
        return WriterCommitMessage()


# --- reading ----------------------------------------------------------------------------------------------------------


class ReadySource(DataSource):
    """`format("bench_ready")`: options `file` (Arrow), `ddl` (its columns), `rows` and `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "bench_ready"

    def schema(self) -> str:
        return str(self.options["ddl"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReadyReader(self.options["file"], int(self.options["rows"]), int(self.options["tasks"]))


class ReadyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One micro-batch of `rows` rows in `tasks` tasks."""

    def __init__(self, file: str, rows: int, tasks: int) -> None:
        self._file = file
        self._rows = rows
        self._tasks = tasks

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """There is nothing that could grow."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"n": self._rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        share, rest = divmod(end["n"] - start["n"], self._tasks)
        return [InputPartition(share + (task < rest)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with pa.memory_map(self._file) as mapped, pa.ipc.open_file(mapped) as ready:
            left, number = int(partition.value), 0
            while left > 0:
                batch = ready.get_batch(number % ready.num_record_batches).slice(0, left)
                left, number = left - batch.num_rows, number + 1
                yield batch


def write_ready(file: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the first few of `batches` for `ReadySource`, uncompressed."""
    import pyarrow as pa

    taken = list(islice(batches, MOST_BATCHES))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, taken[0].schema) as writer:
        for batch in taken:
            writer.write_batch(batch)
