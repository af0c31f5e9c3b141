"""Queues in memory under a clock that tests move, how tests publish to them and read them, and a store with a hook.

Nothing here judges: what is right stands in the tests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal, NamedTuple, NoReturn

import pyarrow as pa

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.log import codec, tree
from partq_spark.log.admin import create_queue
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.destinations import Stage, StagedSegment, stage_of
from partq_spark.log.housekeeping import Collected, collect, trim
from partq_spark.log.model import Head, Slice, StageFloor
from partq_spark.log.names import LOG_SIZES
from partq_spark.log.publish import PublishResult, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.segment import segment_schema
from partq_spark.log.settings import QueueConfig
from partq_spark.log.staging import RUN_BYTES, Stager
from partq_spark.log.writers import PublishIdentity
from partq_spark.objects.api import Document, ObjectStore
from tests.support.memory_store import MemoryStore
from tests.support.way import Hook, Hooked

Row = tuple[str | None, bytes]

BEGIN_US = 1_790_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3_600_000_000
GRACE_US = 24 * HOUR_US
HEAD = "_head.json"


class Clock:
    """Time that only tests and the log's own pauses move."""

    def __init__(self) -> None:
        self.now_us = BEGIN_US
        self.pauses = 0

    def effects(self) -> Effects:
        return Effects(
            time_us=lambda: self.now_us,
            now_s=lambda: self.now_us / 1e6,
            sleep=self.sleep,
            uniform=lambda low, high: high,
        )

    def sleep(self, duration_s: float) -> None:
        self.pauses += 1
        self.now_us += math.ceil(duration_s * 1e6)  # no sleep is too short


class World:
    """One store in memory, one clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sizes = LOG_SIZES  # of handles that are made from now on
        self.store = MemoryStore(clock=lambda: self.clock.now_us / 1e6, rng=random.Random(7))

    def create(self, partitions: int = 4, name: str = "orders", config: QueueConfig | None = None) -> QueueLog:
        create_queue(self.store, "default", name, partitions, config, self.clock.effects())
        queue = self.handle(name)
        queue.refresh()
        return queue

    def handle(self, name: str = "orders", store: ObjectStore | None = None, retry_timeout_s: float = 60.0) -> QueueLog:
        """A handle of another process, which knows nothing yet."""
        effects = self.clock.effects()
        return QueueLog(
            store or self.store, "default", name, effects, retry_timeout_s=retry_timeout_s, sizes=self.sizes
        )

    def hooked(self, when: Literal["before", "after"], kind: str, act: Callable[[], object], end: str = HEAD) -> Hooked:
        """A way to the store on which something happens at the first such call of a name that ends so."""
        made = Hooked(self.store)
        setattr(made, when, once(kind, end, act))
        return made

    def meeting(
        self, when: Literal["before", "after"], kind: str, action: Callable[[], object], end: str = HEAD
    ) -> QueueLog:
        """A handle on such a way."""
        return self.handle(store=self.hooked(when, kind, action, end))

    def numbered(self, publishes: int, rows: int = 1) -> QueueLog:
        """A queue of one partition; its message n has the value n."""
        queue = self.create(1)
        for number in range(publishes):
            send(queue, values(*range(number * rows, number * rows + rows)))
        return queue


# --- publishing -------------------------------------------------------------------------------------------------------


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Messages without headers."""
    columns = [[key for key, _ in rows], [value for _, value in rows]]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, segment_schema(), strict=True)],
        schema=segment_schema(),
    )


def staged(
    queue: QueueLog, stage: Stage, rows: Sequence[Row], seed: str = "test", run_bytes: int = RUN_BYTES
) -> list[StagedSegment]:
    """One task's segment, which gets its rows some at a time."""
    with Stager(queue.store, stage, seed=seed, run_bytes=run_bytes) as stager:
        for start in range(0, len(rows), 20):
            stager.add(batch_of(rows[start : start + 20]))
        segment = stager.finish()
    return [segment] if segment is not None else []


def send(queue: QueueLog, rows: Sequence[Row], identity: PublishIdentity | None = None) -> PublishResult:
    """Stage and publish."""
    stage = stage_of(queue.refresh())
    return publish(queue, staged(queue, stage, rows) or [unread(queue.head, {})], identity)


def values(*numbers: int) -> list[Row]:
    """Numbered messages of one key."""
    return [("key", b"%d" % number) for number in numbers]


def unread(head: Head, rows: Mapping[int, int], name: str = "000000000001-0123456789abcdef.arrow") -> StagedSegment:
    """A segment that nobody will read: partition → messages."""
    return StagedSegment(
        stage=stage_of(head),
        name=name,
        headers=False,
        slices=tuple(Slice(partition, 0, 64, 100, 0, number, "0" * 16) for partition, number in rows.items()),
        bytes=1000,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def everything(head: Head) -> dict[int, tuple[int, int]]:
    """All that can be read."""
    return {partition: (head.earliest[partition], end) for partition, end in enumerate(head.next)}


def read(queue: QueueLog, wanted: Mapping[int, tuple[int, int]] | None = None) -> dict[int, list[bytes]]:
    """The values of every partition that has any; fails if offsets are not dense."""
    head = queue.refresh()
    wanted = everything(head) if wanted is None else wanted
    found: dict[int, list[bytes]] = {}
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted)).pieces():
        mine = found.setdefault(piece.partition, [])
        assert piece.offset == wanted[piece.partition][0] + len(mine)
        mine += piece.batch.column("value").to_pylist()
    return found


def read_flat(queue: QueueLog) -> list[bytes]:
    """All values, partition after partition."""
    return [value for _, mine in sorted(read(queue).items()) for value in mine]


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
            found.append(Message(*place, time_us, generations[place], row["key"], row["value"], row.get("_headers")))
    return sorted(found)


def filled(world: World, publishes: int = 60, partitions: int = 2, **config: Any) -> QueueLog:
    """A publish a second, each of some messages; the head keeps few of them."""
    queue = world.create(partitions, config=QueueConfig(**config))
    for number in range(publishes):
        world.clock.now_us += SECOND_US
        send(queue, [(f"key {row % 3}", b"%d.%d" % (number, row)) for row in range(1 + number % 4)])
    return queue


def all_steps(queue: QueueLog) -> list[Compacted]:
    """Until nothing is worth it."""
    steps = []
    while (done := compact(queue, min_age_s=0.0)) is not None:
        steps.append(done)
        assert len(steps) < 200
    return steps


def leaf_slices(head: Head) -> int:
    return sum(ref.slices for ref in head.tree)


# --- what is stored, and collecting it --------------------------------------------------------------------------------


def objects(world: World) -> set[str]:
    """All blobs of the queue."""
    return {
        item.name for item in world.store.list("default/orders/_") if not item.name.endswith(("head.json", "n.json"))
    }


def rounds(world: World, number: int, queue: QueueLog | None = None) -> list[Collected]:
    """Rounds of collection, one grace and a bit apart."""
    done = []
    for _ in range(number):
        done.append(collect(queue or world.handle()))
        world.clock.now_us += GRACE_US + 1
    return done


def trim_all(world: World) -> None:
    """What another process may do."""
    queue = world.handle()
    trim(queue, queue.refresh().next)


def raise_floor(queue: QueueLog, sequence: int) -> Head:
    """As collection does; the next floor is far away."""
    floor = StageFloor(sequence=sequence, next_sequence=sequence, next_time_us=BEGIN_US)
    queue.swap(replace(queue.refresh(), floor=floor, sequence=max(queue.head.sequence + 1, sequence)))
    return queue.head


def flip(world: World, name: str, position: int) -> None:
    """Damage one bit of a blob."""
    data = bytearray(world.store.read(name))
    data[position] ^= 0x10
    world.store.delete(name)
    world.store.create(name, bytes(data))


# --- heads without a store --------------------------------------------------------------------------------------------


def empty_head(partitions: int) -> Head:
    """A queue as it is created."""
    return Head.created("default", "orders", "00112233445566ff", partitions, config=QueueConfig(), now_us=BEGIN_US)


# --- what steps in ----------------------------------------------------------------------------------------------------


def once(kind: str, name_end: str, action: Callable[[], object]) -> Hook:
    """Do `action` at the first such call and never again."""
    left = count()

    def hook(called: str, name: str) -> None:
        if called == kind and name.endswith(name_end) and next(left) == 0:
            action()

    return hook


def lost() -> NoReturn:
    """The store is away, or its answer."""
    raise Unavailable("no answer (test)")


def document_of(store: ObjectStore, name: str) -> bytes:
    """A document's body."""
    document = store.load(name)
    assert isinstance(document, Document)
    return document.body


def head_of(store: ObjectStore, name: str = "orders") -> Head:
    """A queue's head, read by nobody's handle."""
    path = f"default/{name}/_head.json"
    return codec.HEAD.open(document_of(store, path), path)


def through(store: ObjectStore, queue: QueueLog) -> QueueLog:
    """Another handle that knows the same head, and goes through `store`."""
    made = QueueLog(
        store, queue.namespace, queue.name, queue.effects, retry_timeout_s=queue.retry_timeout_s, sizes=queue.sizes
    )
    made.remember(queue.head, queue.etag or "")
    return made
