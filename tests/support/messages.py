"""What is in a queue, read without Spark; and the numbered rows that tests publish.

Rows are numbered by file and row, so that a list of values alone shows what is missing, twice or out of order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

import partq

KEYS = 5


def opened(url: str, queue: str) -> partq.Queue:
    """A queue of the default namespace."""
    return partq.open_queue(queue, store=url, retry_timeout_s=10)


def browse(url: str, queue: str) -> list[partq.Message]:
    """All messages, partition by partition, each in its order. Fails if a partition's offsets are not dense."""
    handle = opened(url, queue)
    found = sorted(handle.browse(), key=lambda message: (message.partition, message.offset))
    for each in handle.describe().partitions:
        offsets = [message.offset for message in found if message.partition == each.partition]
        assert offsets == list(range(each.earliest, each.next))
    return found


def numbered_rows(file: int, rows: int) -> list[tuple[str | None, bytes]]:
    """The rows of one file, key and value; every sixth has no key, the others' keys are those of all files."""
    return [(None if row % 6 == 0 else f"key {row % KEYS}", b"%04d/%06d" % (file, row)) for row in range(rows)]


def write_files(folder: Path, files: int, rows: int) -> list[tuple[str | None, bytes]]:
    """Parquet files of numbered rows for Spark's file source, which takes the oldest first; returns all rows."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[tuple[str | None, bytes]] = []
    schema = pa.schema([("key", pa.string()), ("value", pa.binary())])
    for file in range(files):
        content = numbered_rows(file, rows)
        written += content
        path = folder / f"{file:04}.parquet"
        draft = folder / f".{file:04}.draft"  # hidden from Spark, which takes a file only when it is whole
        pq.write_table(pa.table([list(column) for column in zip(*content, strict=True)], schema=schema), draft)
        os.utime(draft, (1_700_000_000 + file, 1_700_000_000 + file))
        draft.rename(path)
    return written


def assert_published(
    url: str, queue: str, rows: Sequence[tuple[str | None, bytes]], *, order: Literal["partition", "key"] = "partition"
) -> list[partq.Message]:
    """The queue holds exactly these rows, each once, each key in one partition; returns its messages.

    The rows of each key are in the order given, or those of each whole partition.
    """
    messages = browse(url, queue)
    assert sorted((each.value, each.key or "") for each in messages) == sorted(
        (value, key or "") for key, value in rows
    )
    place = {value: index for index, (_, value) in enumerate(rows)}
    ordered: dict[tuple[int, str | None], list[int]] = {}
    homes: dict[str, set[int]] = {}
    for each in messages:
        if each.key is not None:
            homes.setdefault(each.key, set()).add(each.partition)
        if each.key is not None or order == "partition":
            part = (each.partition, each.key if order == "key" else None)
            ordered.setdefault(part, []).append(place[each.value])
    for part, places in ordered.items():
        assert places == sorted(places), f"{part} of {queue} is not in publish order"
    assert all(len(partitions) == 1 for partitions in homes.values()), homes
    return messages
