"""A queue whose quota is reached takes nothing more, says what to do, and forgets nothing of what it took."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log import admin, compaction, tree
from partq_spark.log.housekeeping import GroupPositions, trim
from partq_spark.log.model import QueueConfig
from partq_spark.log.publish import Full, PublishIdentity, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import World, everything, once, read_flat, send, staged, values
from tests.support.way import Hooked

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


def test_a_batch_without_messages_is_taken(world: World) -> None:
    queue = full(world)
    assert publish(queue, stage_of(queue.refresh()), [], PublishIdentity(writer="me", batch=2)).rows == 0


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


def test_a_queue_that_fills_up_meanwhile_refuses_at_the_swap(world: World) -> None:
    queue = world.create(1, config=QueueConfig(quota_bytes=1))
    hooked = Hooked(world.store)
    hooked.before = once("swap", "_head.json", lambda: send(world.handle(), values(1)))
    with pytest.raises(Full):
        send(world.handle(store=hooked), values(2))
    assert read_flat(queue) == [b"1"]


@pytest.mark.parametrize("identity", [None, ME])
def test_a_publish_whose_answer_is_lost_and_that_filled_the_queue_is_settled(
    world: World, identity: PublishIdentity | None
) -> None:
    queue = world.create(1, config=QueueConfig(quota_bytes=1))

    def lose() -> None:
        raise Unavailable("the answer was lost (test)")

    hooked = Hooked(world.store)
    hooked.after = once("swap", "_head.json", lose)
    assert send(world.handle(store=hooked), values(1), identity).rows == 1
    assert read_flat(queue) == [b"1"]


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
