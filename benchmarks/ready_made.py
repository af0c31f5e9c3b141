"""The least that a Python source can do to deliver many rows: batches that are ready in a memory-mapped Arrow file.

What partq's reading is compared with to tell what of the time is Spark's own. Spark's workers import this module, so
it holds nothing else.
"""

# ruff: noqa: N802 - the names are Spark's
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

MOST_BATCHES: Final = 16  # in the file; they are given out again and again


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
