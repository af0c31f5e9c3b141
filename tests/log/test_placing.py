"""Messages that meet another partition count or other columns at their swap: placed again, in order, once."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log import admin, housekeeping, restaging
from partq_spark.log.model import group_start
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import Outdated, PublishIdentity, PublishResult, Repartitioned
from partq_spark.log.queue import QueueLog
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.segment import RUN_BYTES
from partq_spark.log.staged import Stage, Staged, StagedSegment, stage_of
from tests.log import typed
from tests.log.queues import Row, World, head_of, raise_floor, read, read_flat, send, staged
from tests.support.way import Hooked

KEYS = [f"key{number}" for number in range(40)]


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


def publish_staged(
    queue: QueueLog, stage: Stage, segments: Sequence[StagedSegment], identity: PublishIdentity | None = None
) -> PublishResult:
    return publish_tasks(queue, [Staged(stage, segment) for segment in segments], identity, seed="a")


@pytest.mark.conformance("RES-01")
@pytest.mark.parametrize("run_bytes", [RUN_BYTES, 500])
@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 3), (3, 16), (1, 2), (5, 1)])
def test_what_was_staged_for_another_count_is_placed_again_in_order(
    world: World, before: int, after: int, run_bytes: int
) -> None:
    """Also where the slices of a partition are of several runs."""
    queue = world.create(before)
    stage = stage_of(queue.refresh())
    segments = [s for n in (1, 2) for s in staged(queue, stage, rows_of(n), seed=f"a/{n}", run_bytes=run_bytes)]
    assert (len(segments[0].slices) > before) == (run_bytes == 500)
    admin.alter_queue(world.handle(), partitions=after)
    done = publish_staged(queue, stage, segments)
    assert (done.rows, done.duplicate) == (240, False)
    assert per_key(queue) == {key: [f"{n}/{key}/{turn}".encode() for n in (1, 2) for turn in range(3)] for key in KEYS}
    assert done.per_partition == {p: len(values) for p, values in sorted(read(queue).items())}
    assert queue.head.entries[-1].generation == 1


@pytest.mark.conformance("DIS-03")
def test_messages_without_a_key_are_placed_again_as_at_a_second_attempt(world: World) -> None:
    found = []
    for name in ("first", "second"):
        queue = world.create(2, name=name)
        stage = stage_of(queue.refresh())
        segments = staged(queue, stage, [(None, b"%d" % number) for number in range(200)], seed="w/0")
        admin.alter_queue(world.handle(name), partitions=7)
        publish_staged(queue, stage, segments)
        found.append(read(queue))
    assert found[0] == found[1]
    assert len(found[0]) == 7


def test_several_changes_in_a_row_are_followed_up_to_a_bound(world: World) -> None:
    world.create(1)
    hooked = Hooked(world.store)
    counts = iter(range(2, 100))

    def change(kind: str, name: str, most: int) -> None:
        if kind == "swap" and head_of(world.store).layout.generation < most:
            admin.alter_queue(world.handle(), partitions=next(counts))

    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    hooked.before = partial(change, most=restaging.MOST_CHANGES)
    publish_staged(queue, stage, segments)
    assert queue.head.partitions == 1 + restaging.MOST_CHANGES
    assert len(per_key(queue)) == len(KEYS)

    again = stage_of(queue.refresh())
    segments = staged(queue, again, rows_of(2))
    hooked.before = partial(change, most=100)
    with pytest.raises(Repartitioned, match="publish them again"):
        publish_staged(queue, again, segments)
    assert sum(map(len, read(world.handle()).values())) == 120


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passed", [True, False])
def test_a_staged_segment_that_is_gone_is_told_from_a_damaged_store(world: World, passed: bool) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    admin.alter_queue(world.handle(), partitions=8)

    def vanish() -> None:
        world.store.delete(queue.segment_folder + segments[0].name)
        if passed:
            raise_floor(world.handle(), stage.sequence + 1)

    with pytest.raises(Outdated if passed else Corrupt):
        publish_staged(world.meeting("before", "read", vanish, ".arrow"), stage, segments)


def test_the_floor_is_final_although_the_count_changed_too(world: World) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    admin.alter_queue(world.handle(), partitions=8)
    raise_floor(world.handle(), stage.sequence + 1)
    with pytest.raises(Outdated, match="collection has passed") as raised:
        publish_staged(queue, stage, segments)
    assert not isinstance(raised.value, Repartitioned)


@pytest.mark.conformance("RES-05")
def test_tasks_of_two_queues_by_one_name_are_refused(world: World) -> None:
    tasks = []
    for partitions in (4, 5):
        queue = world.create(partitions)
        stage = stage_of(queue.head)
        tasks += [Staged(stage, segment) for segment in staged(queue, stage, rows_of(partitions))]
        if partitions == 4:
            admin.delete_queue(queue)
    with pytest.raises(Invalid, match="deleted and created again while its tasks staged"):
        publish_tasks(world.handle(), tasks, seed="a")
    assert read_flat(world.handle()) == []


@pytest.mark.conformance("RES-05")
def test_what_is_left_of_a_former_queue_is_not_placed_into_the_one_that_has_its_name(world: World) -> None:
    """The deletion was cut off, so that what was staged is still there."""
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(0))
    admin.alter_queue(world.handle(), partitions=8)
    hooked = Hooked(world.store)
    loads = count(1)

    def anew(kind: str, name: str) -> None:
        if kind == "load" and next(loads) == 2:  # between the refusal and the look for the present layout
            former = world.handle()
            former.refresh()
            former.swap(None)
            world.create(8)
            admin.alter_queue(world.handle(), partitions=6)

    hooked.before = anew
    with pytest.raises(Invalid, match="deleted and created again"):
        publish_staged(world.handle(store=hooked), stage, segments)
    assert head_of(world.store).partitions == 6
    assert read_flat(world.handle()) == []


# --- rows of typed queues ---------------------------------------------------------------------------------------------


IDENTITY = PublishIdentity.of_query("query", 1)


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"{number}", "total": Decimal(number)} for number in range(first, end)]


def by_id(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["id"]))


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize("headers", [False, True])
def test_rows_are_placed_again_with_the_present_columns(world: World, headers: bool) -> None:
    queue = typed.create(world, partitions=3)
    stage = stage_of(queue.refresh())
    some = [[{"key": "h", "value": b"%d" % number}] for number in range(50)] if headers else None
    made = typed.staged(queue, stage, rows(0, 50), headers=some)
    other = world.handle()
    admin.alter_queue(
        other, partitions=5, add_columns="coupon STRING", widen="id BIGINT, total DECIMAL(9,3)", max_message_bytes=1
    )
    publish_tasks(queue, [Staged(stage, made[0])], IDENTITY, seed="q/1")
    entry = queue.head.entries[-1]
    assert (entry.schema_version, entry.generation, entry.headers) == (3, 1, headers)
    found = typed.read(queue)
    assert by_id([row for mine in found.values() for row in mine]) == [{**row, "coupon": None} for row in rows(0, 50)]
    for partition, mine in found.items():
        assert {partition_of(b"%d" % row["id"], 5) for row in mine} == {partition}
    if headers:
        seen = {
            row["id"]: each
            for piece in typed.pieces(queue)
            if piece.headers is not None
            for row, each in zip(typed.rows_of(piece), piece.headers.to_pylist(), strict=True)
        }
        assert seen == {number: [{"key": "h", "value": b"%d" % number}] for number in range(50)}


def test_tasks_that_saw_different_columns_are_published_together(world: World) -> None:
    queue = typed.create(world, partitions=3)
    first = stage_of(queue.refresh())
    one = typed.staged(queue, first, rows(0, 20), seed="q/1/0")
    admin.alter_queue(queue, add_columns="coupon STRING")
    second = stage_of(queue.refresh())
    two = typed.staged(queue, second, [{**row, "coupon": "c"} for row in rows(20, 40)], seed="q/1/1")
    done = publish_tasks(queue, [Staged(first, one[0]), Staged(second, two[0])], IDENTITY, seed="q/1")
    assert done.rows == 40
    assert len(queue.head.entries) == 1
    assert queue.head.entries[0].schema_version == 2
    coupons = [row["coupon"] for row in by_id(typed.read_flat(queue))]
    assert coupons == [None] * 20 + ["c"] * 20
    again = publish_tasks(queue, [Staged(first, one[0]), Staged(second, two[0])], IDENTITY, seed="q/1")
    assert again.duplicate


@pytest.mark.conformance("TYP-05")
def test_tasks_of_one_former_version_are_published_as_they_are(world: World) -> None:
    queue = typed.create(world, partitions=3)
    stage = stage_of(queue.refresh())
    tasks = [Staged(stage, typed.staged(queue, stage, rows(n, n + 5), seed=f"{n}")[0]) for n in (0, 5)]
    admin.alter_queue(world.handle(), widen="id BIGINT")
    publish_tasks(queue, tasks, IDENTITY, seed="q/1")
    entry = queue.head.entries[-1]
    assert entry.schema_version == 1
    assert entry.segments == tuple(task.segment.name for task in tasks), "nothing was written anew"


@pytest.mark.conformance("RES-02")
def test_partitions_that_come_after_a_group_are_its_own_from_their_beginning_and_kept_for_it(world: World) -> None:
    queue = world.create(2)
    send(queue, rows_of(0))
    admin.create_group(queue, "billing", queue.head.next)
    admin.alter_queue(queue, partitions=4)
    send(queue, rows_of(1))
    group = queue.head.groups["billing"]
    assert [group_start(group, p) for p in range(4)] == [*group.start, 0, 0]
    assert group_start(None, 2) == 0
    head = housekeeping.trim(queue, queue.head.next)
    assert head.earliest == (*group.start, 0, 0), "what a group needs stays"
