"""Streams without a group, without Spark: the reader as Spark calls it, over a store on disk."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.spark.reader import PartqStreamReader
from tests.log.queues import send

KEYS = [f"key{number}" for number in range(12)]
COLUMNS = (
    StructType()
    .add("key", "string")
    .add("value", "binary")
    .add("queue", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "timestamp")
    .add("redelivered", "boolean")
)


class Stream:
    """Micro-batches of one query: its offsets, and what each batch delivered, partition by partition."""

    def __init__(self, url: str, **options: str) -> None:
        given = {"queue": "orders", "store": url, "startingOffsets": "earliest", "pollInterval": "10ms", **options}
        self.reader = PartqStreamReader({name.lower(): value for name, value in given.items()}, COLUMNS)
        self.start: dict[str, Any] = self.reader.initialOffset()
        self.batches: list[dict[int, list[bytes]]] = []

    def restart(self) -> None:
        """A new process, which knows the Spark checkpoint alone."""
        self.reader = PartqStreamReader(self.reader._given, COLUMNS)

    def batch(self, limit: ReadLimit | None = None) -> dict[int, list[bytes]] | None:
        """The next batch, read at once; None: there was nothing."""
        end = self.reader.latestOffset(self.start, limit or ReadAllAvailable())
        if end == self.start:
            return None
        found = self.read(self.start, end)
        self.start = end
        self.batches.append(found)
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> dict[int, list[bytes]]:
        """What the batch between these offsets delivers."""
        found: dict[int, list[bytes]] = {}
        for partition in self.reader.partitions(start, end):
            for rows in self.reader.read(partition):
                for number, value in zip(rows["partition"].to_pylist(), rows["value"].to_pylist(), strict=True):
                    found.setdefault(number, []).append(value)
        return found

    def drain(self, limit: ReadLimit | None = None, most: int = 200) -> None:
        """Batches until there is nothing."""
        for _ in range(most):
            if self.batch(limit) is None:
                return
        raise AssertionError(f"{most} batches were not enough")


def create(url: str, partitions: int) -> QueueLog:
    return admin.create_queue(open_store(url), "default", "orders", partitions)


def publish(queue: QueueLog, number: int, keys: list[str] = KEYS) -> None:
    send(queue, [(key, f"{number}/{key}".encode()) for key in keys])
