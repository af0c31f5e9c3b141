"""A queue whose log was put back from an older copy and has grown past it: what its queries count as read is not there
any more, and other messages are at those offsets. Nothing of them is skipped without a word.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest

from partq_spark.base.errors import ObjectMissing
from partq_spark.client import checkpoints
from partq_spark.client.addresses import time_us
from partq_spark.group.rewinding import Goal
from partq_spark.log import admin, compaction, housekeeping
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import Document
from tests.group.session.world import KEY
from tests.query.streams import KEYS, Stream, create, publish
from tests.query.world import Query, Row, World, begun

WAYS = pytest.mark.parametrize("options", [{}, {"ownership": "none"}, {"ownership": "none", "checkpoints": "none"}])


def made(options: dict[str, str], *counts: int) -> tuple[World, Query]:
    """A query that has read everything, and has written down that it has."""
    world = World()
    world.coordinated()
    query = world.query("left", **options)
    begun(world, query)
    world.publish(*counts)
    query.drain()
    return world, query


def copied(world: World) -> Callable[[], None]:
    """The log as it is now; called, it is put back. Blobs never change, so the head is enough."""
    queue = world.open_queue()
    copy = world.objects.load(queue.head_name)
    assert isinstance(copy, Document)

    def put_back() -> None:
        there = world.objects.load(queue.head_name)
        assert isinstance(there, Document)
        world.objects.swap(queue.head_name, bytes(copy.body), expected=there.etag)
        world.sleep(1.0)

    return put_back


@WAYS
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("regrown", [5, 100])
def test_what_was_published_in_the_place_of_what_was_read_is_not_skipped(
    options: dict[str, str], restarted: bool, regrown: int
) -> None:
    """Also where the entries of the log have moved into chunks since."""
    world, query = made(options, 5, 5)
    put_back = copied(world)
    world.publish(5, 0)
    world.publish(5, 5)
    query.drain()
    if restarted:
        query.stop()
    put_back()
    for _ in range(regrown):
        world.publish(4, 2)
    if restarted:
        query.start()
    with pytest.raises(ObjectMissing, match="was the store restored from an older copy") as caught:
        world.until(lambda: query.trigger() or len(query.rows) > 30, 60)
    told = str(caught.value)
    assert "queue 'orders'" in told
    if options.get("checkpoints") == "none":
        assert "startingTimestamp=" in told
        return
    assert re.search(r"`partq checkpoints rewind orders --group billing --to-timestamp (\S+) .*--yes`", told)
    query.stop()
    at = re.search(r"--to-timestamp (\S+)", told)
    assert at is not None
    goal = Goal(time_us=time_us(at[1]))
    ownership = query.options.group.ownership if query.options.group else None
    made_up = checkpoints.rewind(world.queue, KEY.group, goal, (), ownership=ownership, dry_run=False)
    assert [(each.from_, each.to) for each in made_up.partitions] == [(15, 5), (10, 5)]
    read = len(query.rows)
    query.start()
    world.until(lambda: query.trigger() or len(query.rows) == read + 6 * regrown, 60)
    assert sorted(row[:2] for row in query.rows[read:]) == [
        *((0, offset) for offset in range(5, 5 + 4 * regrown)),
        *((1, offset) for offset in range(5, 5 + 2 * regrown)),
    ]


def test_a_partition_that_lost_nothing_needs_no_message_twice() -> None:
    """Its position is the same before and after the rewind, which all the same has to be said of it."""
    world, query = made({"ownership": "none"}, 5, 4)
    world.publish(0, 1)
    put_back = copied(world)
    world.publish(5)
    query.drain().stop()
    put_back()
    world.publish(7)
    with pytest.raises(ObjectMissing) as caught:
        query.start().trigger()
    at = re.search(r"--to-timestamp (\S+)", str(caught.value))
    assert at is not None
    rewind = checkpoints.rewind(
        world.queue, KEY.group, Goal(time_us=time_us(at[1])), (), ownership="none", dry_run=False
    )
    assert [(each.from_, each.to, each.rewound) for each in rewind.partitions] == [(10, 5, True), (5, 5, True)]
    read = len(query.rows)
    query.stop().start().drain()
    assert [row[:2] for row in query.rows[read:]] == [(0, offset) for offset in range(5, 12)]


@pytest.mark.parametrize("ownership", ["none", "store"])
def test_a_checkpoint_that_is_newer_than_the_log_is_refused_for_whoever_begins_at_it(ownership: str) -> None:
    world, query = made({"ownership": ownership}, 5, 5)
    put_back = copied(world)
    world.publish(5, 5)
    query.drain().stop()
    put_back()
    world.publish(9, 9)
    world.sleep(20.0)
    other = world.query("right", ownership=ownership).start()
    with pytest.raises(ObjectMissing, match="group 'billing' has read publish"):
        world.until(lambda: not other.trigger() and bool(other.rows), 60)
    assert other.rows == []


def test_one_that_reads_on_in_the_copy_does_not_take_over_what_counts_as_read_by_another() -> None:
    """The newest publish that it knows of is there, and says nothing of what the other one has read."""
    world = World()
    world.coordinated()
    queries = left, right = begun(world, world.query("left"), world.query("right"))
    for query in queries:
        query.run()
    world.until(lambda: len(left.partitions) == len(right.partitions) == 1, 60)
    mine = left.partitions[0]
    world.publish(3, 3)
    world.until(lambda: len(left.rows) == len(right.rows) == 3, 60)
    put_back = copied(world)
    world.publish(*(5 if p == mine else 0 for p in (0, 1)))
    world.until(lambda: len(left.rows) == 8, 60)
    world.sleep(3.0)
    left.kill()
    put_back()
    for _ in range(9):
        world.publish(1, 1)
    world.until(lambda: len(right.rows) == 12, 60)
    world.until(lambda: right.failure is not None or bool(right.offsets(mine)), 60)
    assert isinstance(right.failure, ObjectMissing)
    assert "has read publish" in str(right.failure)
    assert right.offsets(mine) == []


def test_a_batch_that_spark_repeats_is_not_made_of_other_messages() -> None:
    world, query = made({"ownership": "none"}, 5)
    put_back = copied(world)
    world.publish(5)
    query.plan()
    query.kill()
    put_back()
    world.publish(9)
    query.start()
    with pytest.raises(ObjectMissing, match="older copy"):
        query.deliver()


def test_a_query_without_a_group_is_told_too_and_may_go_on(tmp_path, caplog: pytest.LogCaptureFixture) -> None:  # type: ignore[no-untyped-def]
    store = f"file://{tmp_path}"
    queue = create(store, 1)
    publish(queue, 0)
    head = tmp_path / "default" / "orders" / "_head.json"
    copy = head.read_bytes()
    publish(queue, 1)
    stream, careless = Stream(store), Stream(store, failOnDataLoss="false")
    stream.drain()
    careless.drain()
    temporary = head.with_name("copy")
    temporary.write_bytes(copy)
    temporary.rename(head)
    for number in (2, 3):
        publish(QueueLog(queue.store, "default", "orders"), number)
    stream.restart()
    careless.restart()
    with pytest.raises(ObjectMissing, match=r"the query has read publish .*startingTimestamp=.*failOnDataLoss=false"):
        stream.batch()
    assert careless.batch() == {0: [f"3/{key}".encode() for key in KEYS]}
    assert careless.batch() is None
    assert caplog.text.count("skipped (failOnDataLoss=false)") == 1


# --- what is no loss --------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("change", ["compacted", "trimmed", "resized", "all of it"])
def test_housekeeping_and_a_resize_are_no_older_copy(
    options: dict[str, str], change: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world, query = made(options, 3, 3)
    for _ in range(20):
        world.publish(2, 1)
    query.drain().stop()
    queue = world.open_queue()
    if change in ("trimmed", "all of it"):
        housekeeping.trim(queue, queue.refresh().next, {})
    if change in ("resized", "all of it"):
        admin.alter_queue(queue, partitions=3)
    world.publish(1, 1)
    if change in ("compacted", "all of it"):
        world.sleep(600.0)
        compaction.compact(queue)
    read = len(query.rows)
    query.start()
    world.until(lambda: query.trigger() or len(query.rows) == read + 2, 60)
    assert len({row[:2] for row in query.rows[read:]}) == 2
    assert caplog.text.count("cannot be told") <= 1


def test_where_a_publish_cannot_be_told_any_more_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world, query = made({"ownership": "none"}, 1)
    world.publish(2)
    query.drain().stop()
    for _ in range(20):
        world.publish(2)
    world.sleep(600.0)
    assert compaction.compact(world.open_queue()) is not None
    query.start().drain()
    world.publish(1)
    query.drain()
    assert query.offsets(0) == list(range(44))
    assert caplog.text.count("cannot be told") == 1


def test_what_others_get_changes_no_offset_and_what_lies_far_back_costs_no_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An offset that changed whenever somebody publishes would make empty batches for ever (spark-traps.md 6)."""
    world = World()
    world.coordinated()
    one, other = begun(world, world.query("one"), world.query("other"))
    other.run()
    world.until(lambda: one.trigger() or one.partitions != (0, 1), 30)
    world.publish(1, 1)
    world.until(lambda: one.trigger() or len(one.rows) == 1, 30)
    mine = one.partitions[0]
    read: list[str] = []
    monkeypatch.setattr(QueueLog, "load_chunk", lambda _self, ref: read.append(ref.name))
    for _ in range(80):
        world.publish(*(0 if p == mine else 1 for p in (0, 1)))
        assert not one.trigger()
    world.publish(1, 1)
    assert one.trigger()
    assert one.rows[-1] == Row(mine, 1, False)
    assert read == []
