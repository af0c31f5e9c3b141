"""Publishes that meet another partition count at their swap: placed again, in order, once, whatever is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.log import admin, restaging
from partq_spark.log.model import Head, Layout
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import Outdated, PublishIdentity, Repartitioned, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import WITH_HEADERS
from partq_spark.log.staged import Staged, stage_of
from tests.log.queues import (
    Row,
    World,
    batch_of,
    floor,
    head_of,
    once,
    publish_staged,
    read,
    read_flat,
    send,
    staged,
)
from tests.support.way import Hooked

HEAD = "_head.json"
KEYS = [f"key{number}" for number in range(40)]


def resize(queue: QueueLog, partitions: int) -> None:
    """As another process would: a new layout, in which every number goes on where it was."""

    def decide(head: Head) -> Head:
        grown = (0,) * (partitions - len(head.next))
        following = head.next + grown
        layout = Layout(
            generation=head.layout.generation + 1,
            partitions=partitions,
            since_sequence=head.sequence + 1,
            begin=following[:partitions],
        )
        return replace(
            head,
            sequence=head.sequence + 1,
            layouts=(*head.layouts, layout),
            next=following,
            earliest=head.earliest + grown,
        )

    queue.change(decide)


def rows_of(number: int) -> list[Row]:
    """Three rounds over all keys."""
    return [(key, f"{number}/{key}/{turn}".encode()) for turn in range(3) for key in KEYS]


def per_key(queue: QueueLog) -> dict[str, list[bytes]]:
    """All messages by their key, in publish order; each in the partition that the present count says."""
    found: dict[str, list[bytes]] = {}
    for partition, values in read(queue).items():
        for value in values:
            key = value.decode().split("/")[1]
            assert partition_of(key.encode(), queue.head.partitions) == partition
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.conformance("RES-01")
@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 3), (3, 16), (1, 2), (5, 1)])
def test_what_was_staged_for_another_count_is_placed_again_in_order(world: World, before: int, after: int) -> None:
    queue = world.create(before)
    stage = stage_of(queue.refresh())
    segments = [*staged(queue, stage, rows_of(1), seed="a/0"), *staged(queue, stage, rows_of(2), seed="a/1")]
    resize(world.handle(), after)
    done = publish_staged(queue, stage, segments, seed="a")
    assert (done.rows, done.duplicate) == (240, False)
    assert per_key(queue) == {key: [f"{n}/{key}/{turn}".encode() for n in (1, 2) for turn in range(3)] for key in KEYS}
    assert done.per_partition == {p: len(values) for p, values in sorted(read(queue).items())}
    assert queue.head.entries[-1].generation == 1


def test_slices_of_several_runs_are_read_in_order_and_within_memory(world: World) -> None:
    queue = world.create(2)
    stage = stage_of(queue.refresh())
    with Stager(queue.store, stage, seed="a", run_bytes=500) as stager:
        for turn in range(30):
            stager.add(batch_of([(key, f"0/{key}/{turn}".encode()) for key in KEYS]))
        segment = stager.finish()
    assert segment is not None
    assert len(segment.slices) > 20
    resize(world.handle(), 5)
    publish_staged(queue, stage, [segment], seed="a")
    assert per_key(queue) == {key: [f"0/{key}/{turn}".encode() for turn in range(30)] for key in KEYS}


@pytest.mark.conformance("DIS-03")
def test_messages_without_a_key_are_placed_again_as_at_a_second_attempt(world: World) -> None:
    found = []
    for name in ("first", "second"):
        queue = world.create(2, name=name)
        stage = stage_of(queue.refresh())
        segments = staged(queue, stage, [(None, b"%d" % number) for number in range(200)], seed="w/0")
        resize(world.handle(name), 7)
        publish_staged(queue, stage, segments, seed="w")
        found.append(read(queue))
    assert found[0] == found[1]
    assert len(found[0]) == 7


def test_headers_and_the_larger_messages_of_their_time_are_kept(world: World) -> None:
    queue = world.create(2)
    stage = stage_of(queue.refresh())
    rows = pa.record_batch(
        [["a", None], [b"x" * 5000, b""], [[{"key": "trace", "value": b"1"}], None]], schema=WITH_HEADERS
    )
    with Stager(queue.store, stage, seed="a", headers=True) as stager:
        stager.add(rows)
        segment = stager.finish()
    assert segment is not None
    resize(world.handle(), 3)
    admin.alter_queue(world.handle(), max_message_bytes=100)
    publish_staged(queue, stage, [segment], seed="a")
    assert queue.head.entries[-1].headers
    assert sorted(read_flat(queue)) == [b"", b"x" * 5000]


def test_several_changes_in_a_row_are_followed_up_to_a_bound(world: World) -> None:
    world.create(1)
    hooked = Hooked(world.store)
    counts = iter(range(2, 100))

    def change(kind: str, name: str, most: int) -> None:
        if kind == "swap" and name.endswith(HEAD) and head_of(world.store).layout.generation < most:
            resize(world.handle(), next(counts))

    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    hooked.before = partial(change, most=restaging.MOST_CHANGES)
    publish_staged(queue, stage, segments, seed="a")
    assert queue.head.partitions == 1 + restaging.MOST_CHANGES
    assert len(per_key(queue)) == len(KEYS)

    again = stage_of(queue.refresh())
    segments = staged(queue, again, rows_of(2))
    hooked.before = partial(change, most=100)
    with pytest.raises(Repartitioned, match="publish them again"):
        publish_staged(queue, again, segments, seed="a")
    assert sum(map(len, read(world.handle()).values())) == 120


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_batch_that_had_landed_is_not_placed_again(world: World) -> None:
    queue = world.create(4)
    identity = PublishIdentity(writer="query-1", batch=5)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    publish(queue, stage, segments, identity)
    resize(world.handle(), 8)
    hooked = Hooked(world.store)
    done = publish_staged(world.handle(store=hooked), stage, segments, identity, seed="a")
    assert done.duplicate
    assert done.per_partition == {}
    assert not [call for call in hooked.calls if call[0] in ("read", "write", "swap")], "nothing was staged again"


@pytest.mark.parametrize("identity", [None, PublishIdentity(writer="query-1", batch=5)])
@pytest.mark.parametrize("lands", [True, False])
def test_a_lost_answer_followed_by_a_change_is_settled_before_anything_is_placed_again(
    world: World, identity: PublishIdentity | None, lands: bool
) -> None:
    world.create(4)
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))

    def lose() -> None:
        resize(world.handle(), 8)
        raise Unavailable("the answer was lost")

    hook = once("swap", HEAD, lose)
    if lands:
        hooked.after = hook
    else:
        hooked.before = hook
    done = publish_staged(queue, stage, segments, identity, seed="a")
    assert not done.duplicate
    assert sum(map(len, read(world.handle()).values())) == 120
    assert done.per_partition == {p: len(found) for p, found in sorted(read(world.handle()).items())}


# --- tasks that staged on both sides of a change ----------------------------------------------------------------------


def mixed(world: World, queue: QueueLog, change: Callable[[], None]) -> list[Staged]:
    """A task before and one after `change`."""
    first = stage_of(queue.refresh())
    before = [Staged(first, segment) for segment in staged(queue, first, rows_of(1), seed="a/0")]
    change()
    second = stage_of(world.handle().refresh())
    return before + [Staged(second, segment) for segment in staged(queue, second, rows_of(2), seed="a/1")]


def test_tasks_staged_for_different_counts_are_published_together(world: World) -> None:
    queue = world.create(4)
    tasks = mixed(world, queue, lambda: resize(world.handle(), 6))
    done = publish_tasks(queue, tasks, PublishIdentity(writer="query-1", batch=1), seed="a")
    assert done.rows == 240
    assert per_key(queue) == {key: [f"{n}/{key}/{turn}".encode() for n in (1, 2) for turn in range(3)] for key in KEYS}
    assert queue.head.entries[-1].segments[1] == tasks[1].segment.name, "what fits the present layout is taken as it is"
    again = publish_tasks(world.handle(), tasks, PublishIdentity(writer="query-1", batch=1), seed="a")
    assert again.duplicate


@pytest.mark.conformance("RES-05")
def test_tasks_of_two_queues_by_one_name_are_refused(world: World) -> None:
    queue = world.create(4)

    def anew() -> None:
        admin.delete_queue(world.handle())
        world.create(4)

    tasks = mixed(world, queue, anew)
    with pytest.raises(Invalid, match="deleted and created again while its tasks staged"):
        publish_tasks(world.handle(), tasks, seed="a")


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_the_floor_is_final_although_the_count_changed_too(world: World) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    resize(world.handle(), 8)
    world.handle().change(lambda head: replace(head, floor=floor(stage.sequence + 1), sequence=head.sequence + 1))
    with pytest.raises(Outdated, match="collection has passed") as raised:
        publish_staged(queue, stage, segments, seed="a")
    assert not isinstance(raised.value, Repartitioned)
    send(queue, rows_of(1))


@pytest.mark.parametrize("passed", [True, False])
def test_a_staged_segment_that_is_gone_is_told_from_a_damaged_store(world: World, passed: bool) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    resize(world.handle(), 8)
    hooked = Hooked(world.store)
    late = world.handle(store=hooked)

    def vanish() -> None:
        world.store.delete(queue.segment_folder + segments[0].name)
        if passed:
            world.handle().change(
                lambda head: replace(head, floor=floor(stage.sequence + 1), sequence=head.sequence + 1)
            )

    hooked.before = once("read", ".arrow", vanish)
    with pytest.raises(Outdated if passed else Corrupt):
        publish_staged(late, stage, segments, seed="a")


def test_a_damaged_staged_segment_is_noticed(world: World) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segment = staged(queue, stage, rows_of(1))[0]
    damaged = replace(segment, slices=(segment.slices[0]._replace(xxh3="0" * 16), *segment.slices[1:]))
    resize(world.handle(), 8)
    with pytest.raises(Corrupt, match="is damaged"):
        publish_staged(queue, stage, [damaged], seed="a")
