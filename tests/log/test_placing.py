"""Messages that meet another partition count or other columns at their swap: placed again, in order, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Invalid, PartqError
from partq_spark.log import admin, restaging
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import PublishIdentity, PublishResult, Repartitioned
from partq_spark.log.queue import QueueLog
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.segment import RUN_BYTES
from partq_spark.log.staged import Stage, Staged, StagedSegment, stage_of
from tests.log import typed
from tests.log.queues import Row, World, head_of, read, read_flat, staged
from tests.support.way import Hooked

KEYS = [f"key{number}" for number in range(40)]


def rows_of(number: int) -> list[Row]:
    """Three rounds over all keys."""
    return [(key, f"{number}/{key}/{turn}".encode()) for turn in range(3) for key in KEYS]


def publish_staged(queue: QueueLog, stage: Stage, segments: Sequence[StagedSegment]) -> PublishResult:
    return publish_tasks(queue, [Staged(stage, segment) for segment in segments], seed="a")


@pytest.mark.conformance("RES-01")
@pytest.mark.parametrize("run_bytes", [RUN_BYTES, 500])
@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 3), (1, 2), (5, 1)])
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
    assert (done.rows, done.duplicate, queue.head.entries[-1].generation) == (240, False, 1)
    there = read(queue)
    assert done.per_partition == {p: len(values) for p, values in sorted(there.items())}
    for key in KEYS:
        mine = [value for value in there[partition_of(key.encode(), after)] if value.split(b"/")[1] == key.encode()]
        assert mine == [f"{n}/{key}/{turn}".encode() for n in (1, 2) for turn in range(3)]


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


@pytest.mark.conformance("RES-05")
@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (restaging.MOST_CHANGES, None, ""),
        (100, Repartitioned, "publish them again"),
        (0, Corrupt, "not there"),  # what was staged is lost instead
    ],
)
def test_what_is_placed_again_comes_as_a_whole_or_says_why_not(
    world: World, changes: int, error: type[PartqError] | None, said: str
) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows_of(1))
    admin.alter_queue(world.handle(), partitions=5)
    if not changes:
        world.store.delete(queue.segment_folder + segments[0].name)
    hooked = Hooked(world.store)

    def change(kind: str, _: str) -> None:
        layout = head_of(world.store).layout
        if kind == "swap" and layout.generation < changes:
            admin.alter_queue(world.handle(), partitions=layout.partitions + 1)

    hooked.before = change
    with pytest.raises(error, match=said) if error else nullcontext():
        publish_staged(world.handle(store=hooked), stage, segments)
    assert head_of(world.store).layout.generation == min(max(changes, 1), restaging.MOST_CHANGES + (error is not None))
    assert len(read_flat(world.handle())) == (0 if error else 120)


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


# --- rows of typed queues ---------------------------------------------------------------------------------------------

COUPON = "coupon STRING"
ALTERED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "columns after both": ({}, {"widen": "id BIGINT"}, 1),
    "columns between the two": ({"add_columns": COUPON}, {}, 2),
    "columns and count": ({}, {"partitions": 5, "add_columns": COUPON, "widen": "id BIGINT, total DECIMAL(9,3)"}, 3),
}
"""What is altered after one task has staged and after the second has, and the version of what is published."""


@pytest.mark.conformance("TYP-05")
@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize(("between", "afterwards", "version"), ALTERED.values(), ids=ALTERED)
def test_rows_are_placed_again_with_the_columns_that_they_need(
    world: World, between: dict[str, Any], afterwards: dict[str, Any], version: int, headers: bool
) -> None:
    queue = typed.create(world, partitions=3)
    rows: list[dict[str, Any]] = [{"id": each, "name": f"{each}", "total": None} for each in range(40)]
    tasks = []
    for number, change in enumerate((between, afterwards)):
        stage = stage_of(queue.refresh())
        some = [{**row, "coupon": "c"} if number and between else row for row in rows[20 * number : 20 * number + 20]]
        theirs = [[{"key": "h", "value": b"%d" % row["id"]}] for row in some] if headers else None
        (segment,) = typed.staged(queue, stage, some, seed=f"q/1/{number}", headers=theirs)
        tasks.append(Staged(stage, segment))
        # What was taken once is not too large afterwards.
        admin.alter_queue(world.handle(), **change, max_message_bytes=10**6 if number == 0 else 1)
    identity = PublishIdentity.of_query("query", 1)
    assert publish_tasks(queue, tasks, identity, seed="q/1").rows == 40
    (entry,) = queue.head.entries
    assert (entry.schema_version, entry.headers) == (version, headers)
    assert (entry.segments == tuple(task.segment.name for task in tasks)) == (version == 1), "written anew if needed"
    found = typed.read(queue)
    added = {"coupon": None} if between or version > 1 else {}
    expected = [{**row, **added, **({"coupon": "c"} if between and row["id"] >= 20 else {})} for row in rows]
    assert sorted((row for mine in found.values() for row in mine), key=lambda row: int(row["id"])) == expected
    for partition, mine in found.items():
        assert {partition_of(b"%d" % row["id"], queue.head.partitions) for row in mine} == {partition}
    for piece in typed.pieces(queue):
        seen = piece.headers.to_pylist() if piece.headers is not None else []
        assert seen == [[{"key": "h", "value": b"%d" % row["id"]}] for row in typed.rows_of(piece) if headers]
    assert publish_tasks(queue, tasks, identity, seed="q/1").duplicate
