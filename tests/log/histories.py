"""All that a queue's messages are, in one list, and queues with many small publishes for compaction to work on."""

from __future__ import annotations

from typing import Any, NamedTuple

from partq_spark.log import tree
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from tests.log.queues import World, everything, send

SECOND_US = 1_000_000


class Message(NamedTuple):
    """All that a message is."""

    partition: int
    offset: int
    time_us: int
    generation: int
    key: str | None
    value: bytes
    headers: object


def messages(queue: QueueLog, view: tree.LogView | None = None) -> list[Message]:
    """All that can be read, by partition and offset."""
    head = queue.refresh()
    view = tree.view(head, everything(head)) if view is None else view
    generations: dict[tuple[int, int], int] = {}
    for entry in tree.walk(view, queue.load_chunk):
        for where in entry.slices:
            generations |= {(where.partition, offset): entry.generation for offset in range(where.offset, where.end)}
    found = []
    for piece in RangeReader(queue, head.queue_id, view).pieces():
        rows = piece.batch.to_pylist()
        for number, (row, time_us) in enumerate(zip(rows, piece.times_us(), strict=True)):
            place = (piece.partition, piece.offset + number)
            found.append(Message(*place, time_us, generations[place], row["key"], row["value"], row.get("headers")))
    return sorted(found)


def filled(world: World, publishes: int = 60, partitions: int = 2, **config: Any) -> QueueLog:
    """A publish a second, each of some messages; the head keeps few of them."""
    queue = world.create(partitions, config=QueueConfig(**config))
    for number in range(publishes):
        world.clock.now_us += SECOND_US
        send(queue, [(f"key {row % 3}", b"%d.%d" % (number, row)) for row in range(1 + number % 4)])
    return queue


def all_steps(queue: QueueLog, **limits: Any) -> list[Compacted]:
    """Until nothing is worth it."""
    steps = []
    while (done := compact(queue, min_age_s=0.0, **limits)) is not None:
        steps.append(done)
        assert len(steps) < 200
    return steps


def leaf_slices(head: Head) -> int:
    return sum(ref.slices for ref in head.tree)
