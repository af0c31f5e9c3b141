"""Short words for what the log's tests do over and over: publish these messages, read all of them back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa

from partq_spark.log import tree
from partq_spark.log.model import Head
from partq_spark.log.publish import Identity, Published, Stage, StagedSegment, publish, stage_for
from partq_spark.log.queue import Effects, Queue
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.segment import PLAIN, WITH_HEADERS, Stager
from partq_spark.objects.api import ObjectStore

Message = tuple[str | None, bytes]


class Clock:
    """True time of a test, moved by hand and by whoever sleeps."""

    def __init__(self, now_us: int = 1_790_000_000_000_000) -> None:
        self.now_us = now_us

    def move_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)

    def effects(self, *, skew_us: int = 0, retry_timeout_s: float = 120.0) -> Effects:
        return Effects(
            time_us=lambda: self.now_us + skew_us,
            monotonic_s=lambda: self.now_us / 1e6,
            sleep=self.move_s,
            uniform=random.Random(11).uniform,
            retry_timeout_s=retry_timeout_s,
        )


def plain(messages: Sequence[Message]) -> pa.RecordBatch:
    """Messages as the batch that a stager takes."""
    keys = pa.array([key for key, _ in messages], pa.string())
    values = pa.array([value for _, value in messages], pa.binary())
    return pa.record_batch([keys, values], schema=PLAIN)


def with_headers(messages: Sequence[Message], headers: Sequence[Sequence[tuple[str, bytes]] | None]) -> pa.RecordBatch:
    """Messages with their headers as the batch that a stager takes."""
    batch = plain(messages)
    column = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    arrays = [*batch.columns, pa.array(column, WITH_HEADERS.field("headers").type)]
    return pa.record_batch(arrays, schema=WITH_HEADERS)


def staged(
    store: ObjectStore,
    stage: Stage,
    messages: Sequence[Message],
    *,
    seed: str = "seed",
    compression: str = "none",
    run_bytes: int = 1 << 20,
    chunk_rows: int | None = None,
) -> StagedSegment | None:
    """One task's segment; `chunk_rows` hands the messages over in batches of so many."""
    with Stager(store, stage, seed=seed, compression=compression, run_bytes=run_bytes) as stager:
        step = chunk_rows or max(1, len(messages))
        for start in range(0, len(messages), step):
            stager.add(plain(messages[start : start + step]))
        return stager.finish()


def put(
    queue: Queue, messages: Sequence[Message], identity: Identity | None = None, *, compression: str = "none"
) -> Published:
    """Stage and publish messages as one task would."""
    stage = stage_for(queue)
    segment = staged(queue.store, stage, messages, compression=compression)
    return publish(queue, stage, [segment] if segment else [], identity)


def keyed(count: int, tag: str = "m", keys: int = 7) -> list[Message]:
    """Numbered messages over a few keys."""
    return [(f"k{number % keys}", f"{tag}{number}".encode()) for number in range(count)]


def everything(head: Head) -> dict[int, tuple[int, int]]:
    """The ranges of all that can be read."""
    return {p: (head.earliest[p], head.next[p]) for p in range(len(head.next))}


def pieces(queue: Queue, wanted: Mapping[int, tuple[int, int]] | None = None, *, fail: bool = True) -> list[Piece]:
    """Read ranges (all by default) through a view of the present head."""
    head = queue.refresh()
    log = tree.view(head, everything(head) if wanted is None else wanted)
    return list(RangeReader(queue, head.queue_id, log, fail_on_data_loss=fail).pieces())


def values(found: Sequence[Piece]) -> dict[int, list[bytes]]:
    """The values of pieces, per partition in order."""
    result: dict[int, list[bytes]] = {}
    for piece in found:
        result.setdefault(piece.partition, []).extend(piece.batch.column("value").to_pylist())
    return result


def read_values(queue: Queue, wanted: Mapping[int, tuple[int, int]] | None = None) -> dict[int, list[bytes]]:
    """All values, per partition in order."""
    return values(pieces(queue, wanted))
