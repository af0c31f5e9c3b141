"""Publishers, readers and collectors that sleep between two looks at the store: graces are as long as they are said to
be, and what a head leads to that is gone is looked for within bounds.
"""

from __future__ import annotations

from functools import partial

import pytest

from partq_spark.base.errors import ObjectMissing
from partq_spark.log import codec, housekeeping, tree
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import Stage, stage_of
from tests.log.queues import HOUR_US, World, everything, once, send, staged, values
from tests.support.way import Hooked

GRACE_S = housekeeping.GRACE_S


@pytest.fixture(autouse=True)
def small_head(world: World) -> None:
    """Chunks and pages after a few publishes."""
    world.sizes = LogSizes(inline_entries=2, fan_out=2, head_writers=2)


def days_of_collection(world: World, rounds: int = 4) -> None:
    """Another process collects, a round every day and a bit."""
    for _ in range(rounds):
        world.clock.now_us += int(GRACE_S * 1e6) + 1
        housekeeping.collect(world.handle())


def trim_everything(world: World) -> None:
    queue = world.handle()
    housekeeping.trim(queue, queue.refresh().next)


def everything_goes(world: World) -> None:
    trim_everything(world)
    days_of_collection(world)


# --- seeking and settling behind a trim -------------------------------------------------------------------------------


@pytest.fixture
def hollow(world: World) -> QueueLog:
    """A queue whose tree has a root that stays, over chunks that were trimmed and collected."""
    queue = world.create(partitions=1)
    for number in range(20):
        send(queue, values(number))
    housekeeping.trim(queue, [5])
    days_of_collection(world)
    ref = queue.refresh().tree[0]
    there = {item.name for item in world.store.list(queue.log_folder)}
    while queue.log_folder + ref.name in there:
        assert ref.level > 0, "nothing below the root was collected"
        ref = codec.decode_refs(queue.load_chunk(ref), ref)[0]
    return queue


def pieces_of(queue: QueueLog) -> list[Piece]:
    head = queue.refresh()
    return list(RangeReader(queue, head.queue_id, tree.view(head, everything(head))).pieces())


def test_a_seek_by_time_passes_over_what_was_collected(world: World, hollow: QueueLog) -> None:
    times_us = [piece.time_us for piece in pieces_of(hollow)]
    assert hollow.offsets_at(0) == (5,)
    assert [hollow.offsets_at(time_us)[0] for time_us in times_us] == list(range(5, 20))


def test_an_unknown_outcome_is_settled_over_what_was_collected(hollow: QueueLog) -> None:
    assert tree.find_publish(hollow.head, 2, hollow.load_chunk) is None


# --- handles that slept longer than a grace ---------------------------------------------------------------------------


def test_a_seek_that_slept_between_head_and_chunk_reads_the_head_again(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    days_of_collection(world, 3)
    hooked = Hooked(world.store)
    hooked.before = once("read", ".json", partial(everything_goes, world))
    assert world.handle(store=hooked).offsets_at(0) == (12,)


def test_a_lost_chunk_is_not_looked_for_as_long_as_the_head_goes_on_changing(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    world.store.delete(queue.log_folder + queue.refresh().tree[0].name)
    hooked = Hooked(world.store)

    def busy(kind: str, name: str) -> None:
        if kind == "read":
            assert len(hooked.calls) < 1000, "it is looked for without end"
            send(world.handle(), values(1))

    hooked.before = busy
    for use in (lambda queue: queue.offsets_at(0), housekeeping.collect):
        hooked.calls.clear()
        with pytest.raises(ObjectMissing, match="is gone"):
            use(world.handle(store=hooked))
        assert len([kind for kind, _ in hooked.calls if kind == "load"]) < 20


def test_a_head_older_than_the_stage_does_not_refuse_it(world: World) -> None:
    """A handle that knows an old head must not judge a stage by it: not as outdated, and not as published."""
    queue = world.create(partitions=1)
    old = world.handle()
    old.refresh()
    for number in range(6):
        send(queue, values(number))
    hooked = Hooked(world.store)
    late = world.handle(store=hooked)
    late.remember(old.head, old.etag or "")
    stage = stage_of(world.handle().refresh())
    publish(late, stage, staged(queue, stage, values(7)))
    assert [kind for kind, name in hooked.calls if name.endswith("_head.json")] == ["load", "swap"]


# --- collectors that slept --------------------------------------------------------------------------------------------


def test_a_collector_that_sleeps_before_it_reads_the_head_does_not_shorten_the_publishers_grace(world: World) -> None:
    """The floor's next sequence number counts from when it was in force, not from when the collector began."""
    world.create(partitions=1)
    late = world.handle()
    hooked = Hooked(world.store)
    stages: list[Stage] = []

    def meanwhile() -> None:
        world.clock.now_us += 22 * HOUR_US
        stages.append(stage_of(late.refresh()))
        send(world.handle(), values(1))  # the head's number grows past the stage's

    hooked.before = once("load", "_head.json", meanwhile)
    housekeeping.collect(world.handle(store=hooked))
    segments = staged(late, stages[0], values(2))
    world.clock.now_us += 3 * HOUR_US  # 25 h after the collector began, 3 h after the publisher did
    housekeeping.collect(world.handle())
    housekeeping.collect(world.handle())
    assert publish(late, stages[0], segments).rows == 1


def test_a_publisher_within_the_grace_is_never_outdated(world: World) -> None:
    world.create(partitions=1)
    for _ in range(6):
        late = world.handle()
        stage = stage_of(late.refresh())
        segments = staged(late, stage, values(1))
        for _ in range(5):
            world.clock.now_us += int(GRACE_S * 1e6) // 5 - 1
            housekeeping.collect(world.handle())
        assert publish(late, stage, segments).rows == 1


def test_a_collector_that_sleeps_before_it_reads_the_head_does_not_shorten_the_readers_grace(world: World) -> None:
    """What was unreferenced is marked with a time after the head was read that did not name it."""
    queue = world.create(partitions=1)
    for number in range(6):
        send(queue, values(number))
    days_of_collection(world, 3)
    world.clock.now_us += int(GRACE_S * 1e6) + 1  # what was marked is ripe
    reader = world.handle()
    head = reader.refresh()
    hooked = Hooked(world.store)

    def meanwhile() -> None:
        world.clock.now_us += 30 * HOUR_US
        trim_everything(world)

    hooked.before = once("load", "_head.json", meanwhile)
    housekeeping.collect(world.handle(store=hooked))  # begins long before the trim, marks after it
    world.clock.now_us += 23 * HOUR_US
    housekeeping.collect(world.handle())
    pieces = RangeReader(reader, head.queue_id, tree.view(head, everything(head))).pieces()
    assert sum(piece.batch.num_rows for piece in pieces) == 6
    days_of_collection(world, 2)
    with pytest.raises(ObjectMissing, match="trimmed"):
        list(RangeReader(reader, head.queue_id, tree.view(head, everything(head))).pieces())
