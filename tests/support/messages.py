"""What is in a queue, read by the log's own code and without Spark; and the numbered rows that tests publish.

Rows are numbered by file and row, so that a list of values alone shows what is missing, twice or out of order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from partq_spark.log import tree
from partq_spark.log.queue import Effects, Queue
from partq_spark.log.reading import RangeReader
from partq_spark.objects import open_store

KEYS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A message as it lies in the log."""

    partition: int
    offset: int
    time_us: int
    key: str | None
    value: bytes


def open_queue(url: str, queue: str) -> Queue:
    """A queue of the default namespace."""
    return Queue(open_store(url, retry_timeout_s=10), "default", queue, Effects(retry_timeout_s=10))


def browse(url: str, queue: str) -> list[Message]:
    """All messages, partition by partition, each in its order. Fails if a partition's offsets are not dense."""
    handle = open_queue(url, queue)
    head = handle.refresh()
    wanted = {partition: (head.earliest[partition], end) for partition, end in enumerate(head.next)}
    found: list[Message] = []
    for piece in RangeReader(handle, head.queue_id, tree.view(head, wanted)).pieces():
        columns = (piece.batch.column(name).to_pylist() for name in ("key", "value"))
        for index, (key, value) in enumerate(zip(*columns, strict=True)):
            found.append(
                Message(
                    partition=piece.partition,
                    offset=piece.offset + index,
                    time_us=piece.time_us,
                    key=key,
                    value=value,
                )
            )
    found.sort(key=lambda message: (message.partition, message.offset))
    for partition, (start, end) in wanted.items():
        assert [each.offset for each in found if each.partition == partition] == list(range(start, end))
    return found


def numbered_rows(file: int, rows: int) -> list[tuple[str | None, bytes]]:
    """The rows of one file, key and value; every sixth has no key, the others' keys are those of all files."""
    return [(None if row % 6 == 0 else f"key {row % KEYS}", b"%04d/%06d" % (file, row)) for row in range(rows)]


def write_files(folder: Path, files: int, rows: int) -> list[tuple[str | None, bytes]]:
    """Parquet files of numbered rows for Spark's file source, which takes the oldest first; returns all rows."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[tuple[str | None, bytes]] = []
    for file in range(files):
        content = numbered_rows(file, rows)
        path = folder / f"{file:04}.parquet"
        schema = pa.schema([("key", pa.string()), ("value", pa.binary())])
        pq.write_table(pa.table([list(column) for column in zip(*content, strict=True)], schema=schema), path)
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))
        written += content
    return written


def assert_published(url: str, queue: str, rows: Sequence[tuple[str | None, bytes]]) -> list[Message]:
    """The queue holds exactly these rows, each once, those of a key and those of a partition in this order."""
    messages = browse(url, queue)
    assert sorted((each.value, each.key) for each in messages) == sorted((value, key) for key, value in rows)
    place = {value: index for index, (_, value) in enumerate(rows)}
    homes: dict[str, set[int]] = {}
    for partition in {each.partition for each in messages}:
        places = [place[each.value] for each in messages if each.partition == partition]
        assert places == sorted(places), f"partition {partition} of {queue} is not in publish order"
    for each in messages:
        if each.key is not None:
            homes.setdefault(each.key, set()).add(each.partition)
    assert all(len(partitions) == 1 for partitions in homes.values()), homes
    return messages
