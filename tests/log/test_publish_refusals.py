"""What a publish is refused for: too old, a queue that is full, what a head names and is gone; how its time grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.log import admin, compaction, tree
from partq_spark.log.housekeeping import GroupPositions, trim
from partq_spark.log.model import Head, QueueConfig, WriterPage
from partq_spark.log.publish import Full, Outdated, PublishIdentity, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import HOUR_US, World, everything, floor, read_flat, send, staged, through, values
from tests.support.way import Hooked

IDENTITIES = [None, PublishIdentity(writer="query-1", batch=5)]


def changed(world: World, change: Callable[[Head], Head]) -> None:
    """As another process would change the head."""
    world.handle().change(change)


# --- all at once ------------------------------------------------------------------------------------------------------


GONE = WriterPage(
    name="page-000000000001-0123456789abcdef.json", xxh3="0" * 16, level=0, writers=1, last_time_us=1, lines=1, bytes=1
)
"""A page of writer records that is not there."""


# --- time -------------------------------------------------------------------------------------------------------------


def test_timestamps_grow_although_the_clock_goes_back(world: World) -> None:
    queue = world.create(1)
    start_us = world.clock.now_us
    moved = [0, 0, 5_000_000, -3 * HOUR_US, -HOUR_US, 10_000_000]
    found = []
    for shift in moved:
        world.clock.now_us = start_us + shift
        found.append(send(queue, values(1)).time_us - start_us)
    assert found == [1, 2, 5_000_000, 5_000_001, 5_000_002, 10_000_000]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_was_staged_below_the_floor_is_refused(world: World, identity: PublishIdentity | None) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    raised = stage.sequence + 1
    changed(
        world,
        lambda head: replace(head, floor=floor(raised), sequence=head.sequence + 1),
    )
    with pytest.raises(Outdated, match=f"staged at sequence {stage.sequence}, collection has passed {raised}"):
        publish(queue, stage, segments, identity)
    assert read_flat(queue) == []
    send(queue, values(2), identity)  # staged anew
    assert read_flat(queue) == [b"2"]


def test_at_the_floor_is_not_below_it(world: World) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    changed(world, lambda head: replace(head, floor=floor(stage.sequence), sequence=9))
    publish(queue, stage, segments)
    assert read_flat(queue) == [b"1"]


# --- a head that grew old ---------------------------------------------------------------------------------------------


def test_a_page_that_only_an_old_head_names_sends_the_publish_to_the_present_head(world: World) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    calls: list[str] = []

    hooked = Hooked(world.store)
    queue = through(hooked, queue)
    calm = queue.head
    # What this handle knows names a page that is gone; the present head does not.
    assert queue.etag is not None
    queue.remember(replace(calm, writer_pages=(GONE,)), "old")
    hooked.before = lambda kind, name: calls.append(kind)
    publish(queue, stage, segments, PublishIdentity(writer="query", batch=1))
    assert calls == ["read", "load", "swap"]
    assert world.clock.pauses == 0
    assert read_flat(world.handle()) == [b"1"]


def test_a_lost_page_is_not_looked_for_as_long_as_the_head_goes_on_changing(world: World) -> None:
    queue = world.create(1)
    changed(world, lambda head: replace(head, writer_pages=(GONE,), sequence=head.sequence + 1))
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    hooked = Hooked(world.store)
    queue = through(hooked, queue)

    def busy(kind: str, name: str) -> None:
        if kind == "read":
            assert len(hooked.calls) < 1000, "it is looked for without end"
            send(world.handle(), values(2))

    hooked.before = busy
    with pytest.raises(ObjectMissing, match=GONE.name):
        publish(queue, stage, segments, PublishIdentity(writer="query", batch=1))
    assert len([kind for kind, _ in hooked.calls if kind == "load"]) < 20


def test_a_page_that_the_present_head_names_must_be_there(world: World) -> None:
    queue = world.create(1)
    changed(world, lambda head: replace(head, writer_pages=(GONE,), sequence=head.sequence + 1))
    with pytest.raises(ObjectMissing, match=GONE.name):
        send(queue, values(1), PublishIdentity(writer="query", batch=1))
    assert send(queue, values(1)).rows == 1  # without an identity it is not needed


# --- the quota --------------------------------------------------------------------------------------------------------


ME = PublishIdentity(writer="me", batch=1)


def counted(queue: QueueLog) -> int:
    """Stored bytes of what can be read, by walking the whole log."""
    head = queue.refresh()
    entries = tree.walk(tree.view(head, everything(head)), queue.load_chunk)
    return sum(piece.length for entry in entries for piece in entry.slices)


def full(world: World) -> QueueLog:
    """A queue of one message whose quota that message reaches."""
    queue = world.create(1)
    send(queue, values(1), ME)
    admin.alter_queue(queue, quota_bytes=queue.head.stored_bytes)
    return queue


def test_what_reaches_the_quota_is_taken_and_what_comes_after_is_not(world: World) -> None:
    queue = world.create(1, config=QueueConfig(quota_bytes=1))
    send(queue, values(1))
    with pytest.raises(Full) as refused:
        send(queue, values(2))
    stored = queue.head.stored_bytes
    said = str(refused.value)
    for part in ("queue 'orders'", f"{stored} bytes", "quota is 1:", "acknowledge", "partq queue trim orders"):
        assert part in said
    assert "partq queue alter orders --quota-bytes N" in said
    assert isinstance(refused.value, Invalid)
    assert read_flat(queue) == [b"1"]


def test_a_batch_that_was_published_before_is_a_repetition_also_when_the_queue_is_full(world: World) -> None:
    queue = full(world)
    assert send(world.handle(), values(1), ME).duplicate
    with pytest.raises(Full):
        send(queue, values(2), PublishIdentity(writer="me", batch=2))


@pytest.mark.parametrize("remedy", ["trim", "raise", "no quota"])
def test_after_a_remedy_a_handle_that_knew_it_full_publishes(world: World, remedy: str) -> None:
    queue = full(world)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(2))
    with pytest.raises(Full):
        publish(queue, stage, segments)
    other = world.handle()
    if remedy == "trim":
        trim(other, other.refresh().next)
    else:
        admin.alter_queue(other, quota_bytes=10**6 if remedy == "raise" else None)
    publish(queue, stage, segments)
    assert read_flat(queue)[-1] == b"2"


def test_stored_bytes_are_known_from_the_head_alone(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)
    queue = world.create(2)
    for number in range(50):
        send(queue, [(f"key {row}", b"x" * number) for row in range(5)])
        assert queue.head.stored_bytes == counted(queue)
    end = queue.head.next
    for tenth in range(1, 11):
        head = trim(queue, tuple(offset * tenth // 10 for offset in end))
        # A chunk that is trimmed in part counts in proportion, a slice in the head whole.
        assert head.stored_bytes == pytest.approx(counted(queue), rel=0.2, abs=2000)
    assert queue.head.stored_bytes == 0


@pytest.mark.parametrize("fan_out", [3, 16])
def test_what_is_compacted_while_a_slow_group_holds_back_one_partition_counts(world: World, fan_out: int) -> None:
    """Its reference goes on counting the messages that had been trimmed; its bytes are of the others alone."""
    world.sizes = LogSizes(inline_entries=4, fan_out=fan_out)
    queue = world.create(16)
    admin.create_group(queue, "slow", (0,) * 16)
    for number in range(100):
        send(queue, [(f"key {row}", b"%d" % (number * row) * 50) for row in range(64)])
    before = queue.head.stored_bytes
    read = {partition: end for partition, end in enumerate(queue.head.next) if partition > 0}
    done = {"slow": GroupPositions(since_sequence=queue.head.groups["slow"].since_sequence, rewinds=0, offsets=read)}
    trim(queue, queue.head.next, done)
    while compaction.compact(queue, min_age_s=-1.0) is not None:
        pass
    real = counted(queue)
    assert 0 < real < before / 4
    assert real / 1.5 <= queue.head.stored_bytes <= real * 1.5
    admin.alter_queue(queue, quota_bytes=real // 2)
    with pytest.raises(Full):
        send(queue, values(1))
    read[0] = queue.head.next[0] // 2
    trim(queue, queue.head.next, done)
    left = counted(queue)
    assert left / 3 <= queue.head.stored_bytes <= left * 1.5, "a slice that is trimmed in part is stored whole"
