"""The publish protocol: conflicts, lost answers, repetitions, refusals; and messages that meet another partition
count or other columns at their swap: placed again, in order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable
from partq_spark.log import admin, fanout
from partq_spark.log.destinations import Outdated, Stage, StagedSegment, stage_of
from partq_spark.log.fanout import publish_tasks
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import Full, PublishResult, Repartitioned, Unsettled, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.settings import QueueConfig
from partq_spark.log.staging import RUN_BYTES
from partq_spark.log.writers import PublishIdentity
from partq_spark.objects.api import ObjectStore
from tests.log import typed
from tests.log.queues import Row, World, head_of, raise_floor, read, read_flat, send, staged, through, trim_all, values
from tests.support.way import Hooked


def of(batch: int, writer: str = "query", owner: str | None = None) -> PublishIdentity:
    return PublishIdentity(writer=writer, batch=batch, owner=owner)


ME = of(5)
plain_or_not = pytest.mark.parametrize("identity", [None, ME], ids=["plain", "identity"])


# --- one entry --------------------------------------------------------------------------------------------------------


def test_a_publish_becomes_one_entry_with_dense_offsets(world: World) -> None:
    queue = world.create(1)
    first = send(queue, values(1, 2, 3))
    stage = stage_of(queue.refresh())
    parts = [*staged(queue, stage, values(4)), *staged(queue, stage, values(5, 6))]
    second = publish(queue, parts)
    head = queue.refresh()
    assert (first.sequence, second.sequence, head.sequence) == (2, 3, 3)
    assert (first.rows, first.duplicate, first.conflicts, first.begin) == (3, False, 0, {0: 0})
    assert (second.per_partition, second.begin) == ({0: 3}, {0: 3})
    assert [[(s.segment, s.offset, s.rows) for s in e.slices] for e in head.entries] == [
        [(0, 0, 3)],
        [(0, 3, 1), (1, 4, 2)],
    ]
    assert (head.next, head.time_us) == ((6,), second.time_us)
    assert {(entry.writer, entry.batch) for entry in head.entries} == {(None, 0)}, "without an identity"
    assert read(queue) == {0: [b"1", b"2", b"3", b"4", b"5", b"6"]}


def test_segments_with_and_without_headers_are_not_mixed(world: World) -> None:
    queue = world.create()
    stage = stage_of(queue.refresh())
    (plain,) = staged(queue, stage, [("a", b"1")])
    with pytest.raises(Invalid, match="with headers and some without"):
        publish(queue, [plain, replace(plain, headers=True)])
    assert queue.refresh().messages == 0


# --- what happens at its swap -----------------------------------------------------------------------------------------


class LateSwap(Hooked):
    """The first swap is on its way until the second one is sent; then `landed` is called."""

    def __init__(self, store: ObjectStore, landed: Callable[[], object]) -> None:
        super().__init__(store)
        self._landed = landed
        self._sent: list[bytes | Mapping[str, str]] = []

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        self._sent.append(content)
        if len(self._sent) == 1:
            raise Unavailable("no answer")
        if len(self._sent) == 2:
            self.store.swap(name, self._sent[0], expected=expected)
            self._landed()
        return super().swap(name, content, expected=expected)


@plain_or_not
def test_a_swap_that_lands_late_and_is_trimmed_is_not_lost(world: World, identity: PublishIdentity | None) -> None:
    """Of several tries for one head any may land; times differ. Which one did is told by the writer's record alone."""
    queue = world.numbered(1)
    publisher = through(LateSwap(world.store, lambda: trim_all(world)), queue)
    if identity is None:
        with pytest.raises(Unsettled, match="cannot be told"):
            send(publisher, values(1))
    else:
        done = send(publisher, values(1), identity)
        assert (done.rows, done.duplicate) == (1, False)
    assert head_of(world.store).next == (2,), "it is there once"


def test_where_the_store_refuses_what_was_tried_is_unknown_and_not_refused(world: World) -> None:
    def refused() -> None:
        raise Invalid("you may no longer (test)")

    publisher = through(LateSwap(world.store, refused), world.numbered(1))
    with pytest.raises(Unsettled, match=r"whether it was published is unknown, .*you may no longer"):
        send(publisher, values(1))
    assert head_of(world.store).next == (2,), "it was"


# --- repetitions ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-10")
def test_a_number_that_its_writer_has_used_is_not_taken_for_a_repetition_of_other_messages(world: World) -> None:
    """Of what a caller names by a publish id it is: that is what the id is for."""
    queue = world.create(2)
    send(queue, values(1), ME)
    for batch in (5, 4, 0):
        with pytest.raises(BatchRefused, match=rf"batch {batch} of writer 'query' was refused .*last batch 5, "):
            send(queue, values(9), of(batch))
    assert not send(queue, values(2), of(9)).duplicate, "batches may leave numbers out"
    send(queue, [], PublishIdentity.of_publish_id("import"))
    assert send(queue, values(9), PublishIdentity.of_publish_id("import")).duplicate
    assert not send(queue, values(3), of(5, "another")).duplicate
    assert sorted(read_flat(queue)) == [b"1", b"2", b"3"]


@pytest.mark.conformance("DIS-09")
def test_a_repetition_that_races_the_first_adds_nothing(world: World) -> None:
    world.create(1)
    queue = world.meeting("before", "swap", lambda: send(world.handle(), values(1), ME))
    done = send(queue, values(1), ME)
    assert (done.duplicate, done.rows, done.conflicts) == (True, 0, 1)
    assert read_flat(queue) == [b"1"]


def test_a_writers_name_belongs_to_the_query_that_used_it_first(world: World) -> None:
    queue = world.create(1)
    send(queue, values(1), of(3, "billing", "query-a"))
    for batch in (4, 0):  # also one that would be taken for a repetition: a reset checkpoint begins again with 0
        with pytest.raises(Invalid, match=r"'billing' belongs to query query-a .*query-b.*choose another txnAppId"):
            send(queue, values(2), of(batch, "billing", "query-b"))
    send(queue, values(3), of(4, "billing", "query-a"))
    assert read_flat(queue) == [b"1", b"3"]


# --- too old ----------------------------------------------------------------------------------------------------------


@plain_or_not
def test_what_was_staged_below_the_floor_is_refused_if_new(world: World, identity: PublishIdentity | None) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    at_floor, below = staged(queue, stage, values(1)), staged(queue, stage, values(2))
    raise_floor(world.handle(), stage.sequence)
    publish(queue, at_floor, identity)
    raise_floor(world.handle(), 9)
    with pytest.raises(Outdated, match=f"staged at sequence {stage.sequence}, collection has passed 9"):
        publish(queue, below, replace(identity, batch=6) if identity else None)
    if identity is not None:
        assert publish(queue, at_floor, identity).duplicate
    send(queue, values(3))  # staged anew
    assert read_flat(queue) == [b"1", b"3"]


# --- the quota --------------------------------------------------------------------------------------------------------


def test_a_full_queue_takes_what_has_no_messages_and_the_rest_after_a_trim(world: World) -> None:
    queue = world.create(1, config=QueueConfig(quota_bytes=1))
    send(queue, values(1))
    with pytest.raises(Full, match=f"{queue.head.stored_bytes} bytes.*partq queue trim orders"):
        send(queue, values(2))
    assert send(queue, []).rows == 0
    trim_all(world)
    send(queue, values(3))
    assert read_flat(queue) == [b"3"]


# --- placed again -----------------------------------------------------------------------------------------------------

KEYS = [f"key{number}" for number in range(40)]


def rows_of(number: int) -> list[Row]:
    """Three rounds over all keys."""
    return [(key, f"{number}/{key}/{turn}".encode()) for turn in range(3) for key in KEYS]


def publish_staged(queue: QueueLog, stage: Stage, segments: Sequence[StagedSegment]) -> PublishResult:
    return publish_tasks(queue, segments, seed="a")


@pytest.mark.conformance("RES-01")
@pytest.mark.parametrize("run_bytes", [RUN_BYTES, 500])
@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 3), (1, 2), (5, 1)])
def test_what_was_staged_for_another_count_is_replaced(world: World, before: int, after: int, run_bytes: int) -> None:
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
        (fanout.MOST_CHANGES, None, ""),
        (100, Repartitioned, "publish them again"),
        (0, Corrupt, "not there"),  # what was staged is lost instead
    ],
)
def test_what_is_placed_again_is_whole(world: World, changes: int, error: type[PartqError] | None, said: str) -> None:
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
    assert head_of(world.store).layout.generation == min(max(changes, 1), fanout.MOST_CHANGES + (error is not None))
    assert len(read_flat(world.handle())) == (0 if error else 120)


@pytest.mark.conformance("RES-05")
def test_tasks_of_two_queues_by_one_name_are_refused(world: World) -> None:
    tasks = []
    for partitions in (4, 5):
        queue = world.create(partitions)
        stage = stage_of(queue.head)
        tasks += staged(queue, stage, rows_of(partitions))
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
        tasks.append(segment)
        # What was taken once is not too large afterwards.
        admin.alter_queue(world.handle(), **change, max_message_bytes=10**6 if number == 0 else 1)
    identity = PublishIdentity.of_query("query", 1)
    assert publish_tasks(queue, tasks, identity, seed="q/1").rows == 40
    (entry,) = queue.head.entries
    assert (entry.schema_version, entry.headers) == (version, headers)
    assert (entry.segments == tuple(task.name for task in tasks)) == (version == 1), "written anew if needed"
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
