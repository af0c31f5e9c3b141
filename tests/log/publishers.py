"""Real processes that publish to one queue at once, and the judgement of what they left. They share only the store."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partq_spark.log import tree
from partq_spark.log.publish import PublishIdentity, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.staged import stage_of
from partq_spark.objects import Document, open_store
from tests.log.queues import Row, everything, staged

NAMESPACE = "default"
QUEUE = "crowded"
ROWS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """What a crowd of publishers did."""

    publishes: int
    conflicts: int
    took_s: float  # from the first one's start to the last one's end

    def __str__(self) -> str:
        return (
            f"{self.publishes / self.took_s:.0f} publishes/s, {self.conflicts} conflicts in {self.publishes} publishes"
        )


def rows_of(writer: str, number: int) -> list[Row]:
    """The messages of one publish; keys are shared by all writers."""
    return [(f"key{(number + row) % 5}", f"{writer}:{number}:{row}".encode()) for row in range(ROWS)]


def publish_many(url: str, writer: str, publishes: int, ready: Any) -> None:
    """Publish so often with one kept handle, as a query does; leave a note of what happened."""
    store = open_store(url)
    queue = QueueLog(store, NAMESPACE, QUEUE)
    queue.refresh()
    ready.wait(60)  # everybody has opened the store
    begun_s = time.time()
    conflicts = 0
    for number in range(publishes):
        stage = stage_of(queue.refresh())
        segments = staged(queue, stage, rows_of(writer, number), seed=f"{writer}/{number}")
        done = publish(queue, stage, segments, PublishIdentity(writer=writer, batch=number))
        conflicts += done.conflicts
    note = {"begun_s": begun_s, "ended_s": time.time(), "conflicts": conflicts}
    store.swap(f"notes/{writer}", json.dumps(note).encode(), expected=None)
    store.close()


def judge(url: str, writers: Sequence[str], publishes: int) -> Together:
    """Nothing lost, nothing twice, offsets dense, each writer's order kept in every partition; then the numbers."""
    store = open_store(url)
    queue = QueueLog(store, NAMESPACE, QUEUE)
    head = queue.refresh()
    wanted = everything(head)
    found: Counter[bytes] = Counter()
    position = dict.fromkeys(wanted, 0)
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    times_us: dict[int, int] = {}
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted)).pieces():
        assert piece.offset == position[piece.partition], "offsets are dense"
        assert piece.time_us >= times_us.get(piece.partition, 0)
        position[piece.partition] += piece.batch.num_rows
        times_us[piece.partition] = piece.time_us
        for value in piece.batch.column("value").to_pylist():
            found[value] += 1
            writer, number, row = value.decode().split(":")
            place = (int(number), int(row))
            assert newest.get((writer, piece.partition), (-1, -1)) < place, f"order of {writer}"
            newest[writer, piece.partition] = place
    expected = {value for writer in writers for number in range(publishes) for _, value in rows_of(writer, number)}
    assert set(found) == expected, f"{len(expected - set(found))} messages were lost"
    assert set(found.values()) == {1}, "messages are there twice"
    assert tuple(position[p] for p in sorted(position)) == head.next
    assert head.sequence == 1 + len(writers) * publishes, "every publish is one change of the head"
    notes = [_note(store.load(f"notes/{writer}")) for writer in writers]
    store.close()
    return Together(
        publishes=len(writers) * publishes,
        conflicts=int(sum(note["conflicts"] for note in notes)),
        took_s=max(note["ended_s"] for note in notes) - min(note["begun_s"] for note in notes),
    )


def _note(document: object) -> dict[str, float]:
    assert isinstance(document, Document)
    note: dict[str, float] = json.loads(document.body)
    return note
