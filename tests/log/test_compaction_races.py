"""Compaction while others publish, trim, collect and read, and when it is cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.log import compaction, housekeeping, tree
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.publish import PublishIdentity, Unsettled, publish
from partq_spark.log.reading import RangeReader
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.histories import SECOND_US, all_steps, filled, messages
from tests.log.queues import HOUR_US, World, everything, head_of, once, send, staged, values
from tests.support.way import Hooked

STILL_S = 4.5  # leaves the head's own entries alone: a step is one swap then


@pytest.fixture(autouse=True)
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)


# --- while others are at work -----------------------------------------------------------------------------------------


def compacting(world: World, kind: str, name_end: str, action: Any) -> Compacted | None:
    """A step in which `action` happens before such a call."""
    hooked = Hooked(world.store)
    hooked.before = once(kind, name_end, action)
    return compact(world.handle(store=hooked), min_age_s=STILL_S)


def test_a_run_that_changed_meanwhile_is_not_swapped(world: World) -> None:
    queue = filled(world)
    before = messages(queue)
    assert compacting(world, "swap", "_head.json", lambda: compact(world.handle(), min_age_s=0.0)) is None
    assert messages(queue) == before


def test_the_heads_own_entries_that_were_written_down_too_long_ago_stay(world: World) -> None:
    world.sizes = replace(world.sizes, inline_entries=40)
    queue = filled(world, 20)
    before = messages(queue)

    def sleep() -> None:
        for _ in range(4):
            world.clock.now_us += 25 * HOUR_US
            housekeeping.collect(world.handle())

    hooked = Hooked(world.store)
    hooked.before = once("swap", "_head.json", sleep)
    compact(world.handle(store=hooked, retry_timeout_s=1e9), min_age_s=0.0)
    for _ in range(3):
        world.clock.now_us += 25 * HOUR_US
        housekeeping.collect(world.handle())
    assert messages(world.handle()) == before


def test_what_was_written_too_long_ago_is_not_swapped(world: World) -> None:
    queue = filled(world)
    before = messages(queue)

    def sleep() -> None:
        for _ in range(3):
            world.clock.now_us += 25 * HOUR_US
            housekeeping.raise_floor(world.handle(), 24 * HOUR_US)

    hooked = Hooked(world.store)
    hooked.before = once("swap", "_head.json", sleep)
    patient = world.handle(store=hooked, retry_timeout_s=1e9)
    assert compact(patient, min_age_s=STILL_S) is None
    assert messages(queue) == before


def test_a_reader_with_an_older_plan_goes_on_until_the_grace_is_over(world: World) -> None:
    queue = filled(world)
    before = messages(queue)
    for _ in range(2):
        housekeeping.collect(queue)
        world.clock.now_us += 25 * HOUR_US
    old = tree.view(queue.refresh(), everything(queue.head))
    all_steps(queue)
    end_us = world.clock.now_us + 23 * HOUR_US
    while world.clock.now_us <= end_us:
        housekeeping.collect(world.handle())
        assert messages(world.handle(), old) == before
        world.clock.now_us += HOUR_US
    for _ in range(4):
        housekeeping.collect(world.handle())
        world.clock.now_us += 25 * HOUR_US
    reader = world.handle()
    pieces = list(RangeReader(reader, reader.refresh().queue_id, old).pieces())
    assert sum(piece.batch.num_rows for piece in pieces) == len(before), "it asked the head again, by offset"


def test_a_damaged_slice_is_named_and_nothing_is_swapped(world: World) -> None:
    queue = filled(world)
    first = next(iter(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk)))
    name = queue.segment_folder + first.segments[0]
    data = bytearray(world.store.read(name))
    data[first.slices[0].start + 20] ^= 1
    world.store.delete(name)
    world.store.create(name, bytes(data))
    sequence = queue.head.sequence
    with pytest.raises(Corrupt, match=first.segments[0]):
        compact(queue, min_age_s=STILL_S)
    assert queue.refresh().sequence == sequence


def test_a_slice_that_is_gone_is_named_although_the_head_goes_on_changing(world: World) -> None:
    queue = filled(world)
    first = next(iter(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk)))
    gone = queue.segment_folder + first.segments[0]
    world.store.delete(gone)
    hooked = Hooked(world.store)

    def busy(_: str, name: str) -> None:
        if name == gone:
            send(world.handle(), values(1))

    hooked.before = busy
    with pytest.raises(Corrupt, match=first.segments[0]):
        compact(world.handle(store=hooked), min_age_s=STILL_S)
    assert len([name for _, name in hooked.calls if name == gone]) == 2


def test_what_was_trimmed_within_a_run_is_not_needed_any_more(world: World) -> None:
    """One partition lags behind, the others' part of the run has been collected."""
    queue = filled(world, partitions=2)
    end = queue.head.next
    housekeeping.trim(queue, (end[0], 0))
    for _ in range(4):
        housekeeping.collect(queue)
        world.clock.now_us += 25 * HOUR_US
    before = messages(queue)
    assert len(all_steps(queue)) == 1
    assert messages(queue) == before
    assert {message.partition for message in before} == {1}
    housekeeping.trim(queue, end)
    assert head_of(world.store).tree == ()


# --- tokens -----------------------------------------------------------------------------------------------------------


def lost_publish(world: World, identity: PublishIdentity | None) -> object:
    """A publish whose answer is lost; before it is settled what it published is compacted."""
    filled(world, partitions=1)

    def lose() -> None:
        for number in range(60):
            send(world.handle(), values(number))
        world.clock.now_us += SECOND_US
        all_steps(world.handle())
        raise Unavailable("the answer was lost (test)")

    hooked = Hooked(world.store)
    handle = world.handle(store=hooked)
    stage = stage_of(handle.refresh())
    segments = staged(handle, stage, values(99))
    hooked.after = once("swap", "_head.json", lose)
    return publish(handle, stage, segments, identity)


def test_a_publish_that_cannot_find_its_token_any_more_says_so(world: World) -> None:
    with pytest.raises(Unsettled, match="cannot be told"):
        lost_publish(world, None)
    assert [message.value for message in messages(world.handle())].count(b"99") >= 1


def test_a_handle_that_grew_old_while_others_were_compacted_publishes_after_its_conflict(world: World) -> None:
    """What was compacted is older than its own swap, so that the conflict can be nobody's but theirs."""
    filled(world, partitions=1)
    hooked = Hooked(world.store)
    handle = world.handle(store=hooked)
    stage = stage_of(handle.refresh())
    segments = staged(handle, stage, values(99))
    for number in range(60):
        send(world.handle(), values(number))
    world.clock.now_us += SECOND_US
    all_steps(world.handle())
    assert head_of(world.store).trimmed_sequence > stage.sequence
    hooked.calls.clear()
    assert publish(handle, stage, segments).conflicts == 1
    assert [message.value for message in messages(world.handle())].count(b"99") == 1
    assert len([name for kind, name in hooked.calls if kind == "read"]) <= 3, "not all that came meanwhile is read"


def test_a_publish_with_an_identity_is_settled_by_it(world: World) -> None:
    lost_publish(world, PublishIdentity(writer="me", batch=1))
    assert head_of(world.store).writers["me"].batch == 1


def test_by_default_running_publishes_are_left_alone(world: World) -> None:
    queue = filled(world)
    assert compact(queue) is None
    world.clock.now_us += 300 * SECOND_US
    assert compact(queue) is not None
    assert compaction.MIN_AGE_S > 2 * 120
