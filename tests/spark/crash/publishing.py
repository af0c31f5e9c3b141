"""Queues that a Spark driver publishes files to, for the crash tests: that driver's lives, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from partq_spark.log.admin import create_queue
from partq_spark.objects import open_store
from tests.support.faults import Faults
from tests.support.messages import browse, write_files
from tests.support.processes import Program, spark_environment

SCRIPT = Path(__file__).with_name("publisher.py")


class Publishing:
    """`queues` says how many of its files a micro-batch of each queue takes."""

    def __init__(self, folder: Path, queues: Mapping[str, int], *, files: int, rows: int, partitions: int = 3) -> None:
        self.folder = folder
        self.url = f"file://{folder}/store"
        self.queues = dict(queues)
        self.faults = Faults(folder / "faults")
        self._rows_per_file = rows
        self._lives = 0
        store = open_store(self.url)
        for queue in queues:
            create_queue(store, "default", queue, partitions)
        self.rows = {queue: write_files(folder / "input" / queue, files, rows) for queue in queues}
        """All rows of each queue, in publish order."""

    def life(self) -> Program:
        """The next driver, which publishes what is left and then ends; not started yet."""
        self._lives += 1
        plan = {"store": self.url, "input": f"{self.folder}/input", "checkpoints": f"{self.folder}/checkpoints"}
        return Program.script(
            SCRIPT,
            {"plan": plan, "queues": self.queues},
            name=f"driver-{self._lives}",
            folder=self.folder,
            environment=spark_environment(self.folder, self.faults.environment),
        )

    def spark_commits(self, queue: str) -> list[int]:
        """The batches that are complete as Spark knows it."""
        names = (path.name for path in (self._checkpoint(queue) / "commits").glob("*"))
        return sorted(int(name) for name in names if name.isdigit())

    def forget_newest_commit(self, queue: str) -> int:
        """Delete the newest batch's completion from the Spark checkpoint; returns the batch."""
        newest = self.spark_commits(queue)[-1]
        (self._checkpoint(queue) / "commits" / str(newest)).unlink()
        # Spark renames the checksum into its place after the file itself: a kill may have come between.
        (self._checkpoint(queue) / "commits" / f".{newest}.crc").unlink(missing_ok=True)
        return newest

    def whole_files(self, queue: str) -> int:
        """How many files are in the queue; fails if it holds anything but the first so many, whole and once each."""
        values = sorted(message.value for message in browse(self.url, queue))
        files, rest = divmod(len(values), self._rows_per_file)
        assert rest == 0, f"{queue} holds {len(values)} messages, which is no number of whole files"
        assert values == sorted(value for _, value in self.rows[queue][: len(values)])
        return files

    def segments(self, queue: str) -> list[Path]:
        """The segment files in the queue's folder, whether or not they were published."""
        return sorted((self.folder / "store" / "default" / queue / "_segments").rglob("*.arrow"))

    def _checkpoint(self, queue: str) -> Path:
        return self.folder / "checkpoints" / queue
