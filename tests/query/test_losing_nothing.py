"""What once lost messages, or gave them out twice without a mark: restarts, repeated batches, partitions that move."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group import lifecycle, retention
from partq_spark.log import admin
from partq_spark.log.model import Head
from partq_spark.query.planning import Spans
from tests.group.session.world import KEY
from tests.query.test_by_hand import again
from tests.query.world import Query, Row, World, begun, delivered, expected

OWNERSHIPS = pytest.mark.parametrize("ownership", ["store", "none"])


def one_partition(*, delay_s: float = 0.0, handoff_s: float = 3.0) -> World:
    world = World(partitions=1, delay_s=delay_s, handoff_s=handoff_s)
    world.coordinated()
    return world


def failed(query: Query) -> None:
    """A run of the query that ends in the middle of a batch, which was read."""
    query.start()
    while True:
        while len(query.ends) > query.committed:
            query.deliver()
            query.committed += 1
        query.plan()
        if query.ends[-1] == query.at:
            query.ends.pop()
            break
        if query.deliver():
            break
        query.committed += 1
    query.kill()


# --- checkpoints=none -------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.parametrize("restarts", [1, 2])
def test_without_checkpoints_an_unfinished_batch_is_not_skipped(ownership: str, restarts: int) -> None:
    """Its partitions have moved on when it is repeated; and perhaps the repetition is killed as soon as it is done."""
    world = World()
    world.coordinated()
    query = world.query("left", checkpoints="none", ownership=ownership)
    begun(world, query)
    world.publish(3, 3)
    query.drain()
    world.publish(4, 4)
    query.plan()
    query.deliver()
    query.kill()
    if ownership == "none":
        begun(world, world.query("right", checkpoints="none", ownership=ownership))[0].plan()
    else:
        world.until(lambda: world.owner(0)[0] is None and world.owner(1)[0] is None)
    seen = len(query.rows)
    query.start()
    assert query.deliver() == []
    query.committed += 1
    for _ in range(restarts - 1):
        query.kill().start()
    world.publish(1, 1)
    world.until(lambda: query.trigger() or len(query.rows) == seen + 10)
    assert sorted(row[:2] for row in query.rows[seen:]) == [(p, offset) for p in (0, 1) for offset in range(3, 8)]
    assert {row.redelivered for row in query.rows[seen:] if row.offset < 7} == {True}


def test_without_checkpoints_a_repetition_that_is_repeated_skips_nothing(world: World) -> None:
    """What the batch before had left out is known from where the repeated one began, and no more from the object."""
    query = world.query("left", checkpoints="none", ownership="none")
    begun(world, query)
    world.publish(4, 4)
    for number in range(2):
        query.plan()
        assert len(query.deliver()) == 8
        query.kill()
        begun(world, world.query(f"right-{number}", checkpoints="none", ownership="none"))[0].plan()
        for _ in range(2):
            query.kill().start()
            assert query.deliver() == []
        query.committed += 1
    query.drain()
    assert query.rows[16:] == [Row(p, offset, True) for p in (0, 1) for offset in range(4)]


# --- what moved on between planning and reading -----------------------------------------------------------------------


def planned_when_another_joins(world: World) -> tuple[Query, Query]:
    """The end of a batch of four messages of each partition is written down, then a second query comes and runs."""
    world.coordinated()
    first, second = world.query("left"), world.query("right")
    begun(world, first)
    world.publish(4, 4)
    first.plan()
    begun(world, second)
    second.run()
    return first, second


@pytest.mark.conformance("HAN-05")
def test_what_moved_on_between_the_end_and_its_batch_is_not_read() -> None:
    """As in a union of two loads of one group, where the second one's question takes a while."""
    world = World(handoff_s=1.0)
    first, second = planned_when_another_joins(world)
    world.until(lambda: len(second.rows) == 4)
    (moved,) = second.partitions
    assert {row.partition for row in first.deliver()} == {1 - moved}
    first.committed += 1
    first.drain()
    assert delivered(first, second) == expected(world)


@pytest.mark.conformance("HAN-05")
def test_alone_what_another_took_between_the_end_and_its_batch_is_not_read(world: World) -> None:
    (first,) = begun(world, world.query("left", ownership="none"))
    world.publish(4, 4)
    first.plan()
    (second,) = begun(world, world.query("right", ownership="none"))
    second.drain()
    with pytest.raises(Exception, match="'right'"):
        first.deliver()
    assert first.rows == []


@pytest.mark.conformance("HAN-02", "HAN-05")
def test_a_pause_between_the_end_and_its_batch_waits_for_the_batch() -> None:
    world = World(handoff_s=60.0)
    first, second = planned_when_another_joins(world)
    world.sleep(3.0)
    assert len(first.deliver()) == 8
    first.committed += 1
    world.publish(1, 1)
    first.run()
    world.until(lambda: delivered(first, second) == expected(world))
    assert {row.redelivered for row in [*first.rows, *second.rows]} == {False}


@pytest.mark.conformance("HAN-05")
def test_what_moved_on_while_its_batch_was_planned_is_not_read(world: World) -> None:
    """The process stood still between its look at the group and its answer: the lease is the last thing looked at."""
    first, second = world.query("left"), world.query("right")
    begun(world, first)
    world.publish(4, 4)
    first.plan()

    def plan(_: Head, spans: Spans) -> Spans:
        if not second.batches:
            first.freeze()
            begun(world, second)
            second.run()
            world.until(lambda: len(second.rows) == 8)
            first.thaw()
        return spans

    nothing: Spans = {}
    assert first.consumer.batch(first.at, first.ends[-1], plan, nothing) == {}
    first.committed += 1
    first.run()
    world.publish(1, 1)
    world.until(lambda: delivered(first, second) == expected(world))


@pytest.mark.conformance("HAN-05")
@pytest.mark.parametrize("replaced", [False, True])
def test_alone_what_another_took_while_its_batch_was_planned_is_not_read(world: World, replaced: bool) -> None:
    """Without a lease the time since the last look counts; also where the reader is a new one that repeats a batch."""
    first, second = world.query("left", ownership="none"), world.query("right", ownership="none")
    begun(world, first)
    world.publish(4, 4)
    first.plan()
    if replaced:
        first.kill().start()

    def plan(_: Head, spans: Spans) -> Spans:
        begun(world, second)
        second.drain()
        world.sleep(6.0)
        return spans

    nothing: Spans = {}
    with pytest.raises(Fenced, match="'right'"):
        first.consumer.batch(first.at, first.ends[-1], plan, nothing)
    assert len(second.rows) == 8


# --- marks ------------------------------------------------------------------------------------------------------------


@OWNERSHIPS
@pytest.mark.conformance("HAN-03")
@pytest.mark.parametrize("ending", ["killed", "stopped"])
@pytest.mark.parametrize("checkpoints", ["none", "store"])
def test_after_an_older_spark_checkpoint_what_comes_again_is_marked(
    ownership: str, checkpoints: str, ending: str
) -> None:
    """Also what Spark forgot by itself (`asyncProgressTrackingEnabled`)."""
    world = one_partition(delay_s=30.0)
    kept = {"checkpointInterval": "1h"} if checkpoints == "store" else {}
    (query,) = begun(world, world.query("left", ownership=ownership, checkpoints=checkpoints, **kept))
    for _ in range(3):
        world.publish(5)
        query.trigger()
    if ending == "killed":
        query.kill()
    else:
        query.stop()
    del query.ends[2:]  # the copy that comes back knows of the first five
    query.committed = 2
    world.publish(5)
    query.start().drain()
    assert query.rows[15:25] == again(5, 15)
    assert [row.offset for row in query.rows[25:]] == [15, 16, 17, 18, 19]


@OWNERSHIPS
def test_a_batch_of_an_older_spark_checkpoint_is_repeated(ownership: str) -> None:
    """Its end lies before what the flow has acknowledged since."""
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, world.query("left", ownership=ownership, checkpointInterval="0s"))
    for _ in range(3):
        world.publish(5)
        query.trigger()
    query.drain()
    query.kill()
    del query.ends[2:]
    query.committed = 1
    query.start().drain()
    assert [row.offset for row in query.rows[15:]] == list(range(15))
    assert query.rows[20:] == again(5, 15)


def test_alone_a_run_that_has_read_everything_leaves_exact_marks_before_it_is_stopped(world: World) -> None:
    world.publish(5, 5)
    query = world.query("left", ownership="none").start(available_now=True)
    query.drain()
    found = world.checkpoints().read(0)
    assert found is not None
    assert (found.offset, found.delivering) == (5, False)
    query.kill()
    world.publish(1, 1)
    query.start(available_now=True).drain()
    assert {row.redelivered for row in query.rows} == {False}


@pytest.mark.parametrize("checkpoints", ["none", "store"])
def test_alone_what_no_batch_was_made_of_is_not_marked_after_a_clean_end(checkpoints: str) -> None:
    """Spark had its end, and was stopped before it wrote it down."""
    world = one_partition()
    kept = {"checkpointInterval": "1h"} if checkpoints == "store" else {}
    (query,) = begun(world, world.query("left", ownership="none", checkpoints=checkpoints, **kept))
    for _ in range(2):
        world.publish(5)
        query.trigger()
    world.publish(5)
    query.plan()
    query.stop()
    del query.ends[2:]  # the last batch that was read is forgotten too
    query.committed = 2
    query.start().drain()
    assert query.rows[10:] == [*again(5, 10), *(Row(0, offset, False) for offset in range(10, 15))]


def test_alone_a_clean_end_leaves_exact_marks(world: World) -> None:
    """And one that was killed leaves no word of how far it came: what is there when it comes back may be repeated."""
    (query,) = begun(world, world.query("left", ownership="none"))
    world.publish(5, 0)
    query.drain()
    query.stop()
    world.publish(5, 0)
    query.start().drain()
    assert {row.redelivered for row in query.rows} == {False}
    query.kill()
    world.publish(5, 0)
    query.start().drain()
    world.publish(5, 0)
    query.drain()
    assert [row.offset for row in query.rows if row.redelivered] == [10, 11, 12, 13, 14]


@pytest.mark.conformance("HAN-03")
def test_who_gets_a_shared_group_for_himself_marks_what_its_flows_may_have_had(world: World) -> None:
    """Their records say how far they came, and go when the group is shared in another way."""
    (query,) = begun(world, world.query("left"))
    world.publish(1, 1)
    query.trigger()
    world.publish(3, 3)
    query.consumer.next_end(query.at)
    query.kill()
    lifecycle.share(world.queue, lifecycle.remains(world.queue, KEY.group, None), "none", None)
    alone = world.query("left", ownership="none")
    alone.ends, alone.committed = query.ends, query.committed
    alone.start().drain()
    world.publish(1, 1)
    alone.drain()
    assert len(alone.rows) == 8
    assert {row.offset for row in alone.rows if row.redelivered} == {1, 2, 3}


# --- alone, and taken back meanwhile ----------------------------------------------------------------------------------


def test_alone_what_was_announced_beside_a_rewound_partition_is_not_skipped(world: World) -> None:
    """The rewind is met while the batch is announced: then nothing of it is delivered, and all of it comes again."""
    (former,) = begun(world, world.query("left", ownership="none"))
    world.publish(4, 4)
    former.drain()
    former.stop()
    (query,) = begun(world, world.query("right", ownership="none"))
    query.drain()
    world.publish(3, 3)
    world.checkpoints().rewind(1, 2, fence=True, delivered=4)
    query.drain()
    assert query.offsets(0) == [4, 5, 6]
    assert query.offsets(1) == [2, 3, 4, 5, 6]


@pytest.mark.conformance("HAN-03")
def test_alone_what_came_while_it_was_rewound_is_marked_also_after_a_kill(world: World) -> None:
    """A rewind marks up to the log's end as it read it, and the query may have delivered more before it noticed."""
    (query,) = begun(world, world.query("left", ownership="none", checkpointInterval="1h"))
    world.publish(6, 0)
    query.drain()
    world.checkpoints().rewind(0, 0, fence=True, delivered=5)
    query.kill().start().drain()
    assert query.rows[6:] == again(0, 6)


@pytest.mark.parametrize("trims", [False, True])
def test_alone_an_older_spark_checkpoint_may_name_a_removed_partition_that_was_finished(
    world: World, trims: bool
) -> None:
    """It was stopped before it could let the partition go, and the batch that it repeats has messages of it."""
    (query,) = begun(world, world.query("left", ownership="none"))
    world.publish(3, 3)
    query.drain()
    world.publish(2, 2)
    query.drain()
    query.stop()
    admin.alter_queue(world.open_queue(), partitions=1)
    world.queue.refresh()
    if trims:
        assert retention.trim(world.queue, [0, 5]).earliest == (0, 5)
    query.committed -= 1
    assert query.start().deliver() == [Row(0, 3, False), Row(0, 4, False)]
    query.committed += 1
    world.publish(1)
    query.drain()
    assert query.rows[-1] == Row(0, 5, False)
    assert world.owner(1) == (None, 2)


def test_a_run_up_to_now_that_was_done_waits_anew_for_what_it_has_lost() -> None:
    """Other sources of the query go on: their batches may last longer than a whole wait, and its lease."""
    world = World(handoff_s=1.0)
    world.coordinated()
    (query,) = begun(world, world.query("left", sessionTimeout="5s"))
    query.stop()
    query.start(available_now=True)
    assert not query.trigger()
    query.freeze()
    coordinator = world.tickers[0]
    coordinator.frozen = True
    world.sleep(30.0)
    query.thaw()
    before_s = world.now_s
    with pytest.raises(Unavailable, match="no coordinator has answered"):
        query.trigger()
    assert world.now_s - before_s >= 5.0
