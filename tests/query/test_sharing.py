"""Queries that share a group: identity, and handoffs between micro-batches."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.query import offsets
from tests.group.session.world import KEY
from tests.query.world import World, begun, delivered, expected

# --- identity ---------------------------------------------------------------------------------------------------------


def test_the_first_offset_has_only_a_name_and_the_group_has_not_heard_of_it(world: World) -> None:
    world.publish(3, 2)
    query = world.query().start()
    end = query.plan()
    decoded = offsets.decode(end)
    assert decoded is not None
    assert decoded.spans == {}
    assert decoded.flow is not None
    assert decoded.flow.startswith("flow-")
    assert world.server.open().read_flows(KEY) == {}
    assert world.queue.refresh().groups["billing"].start == (0, 0)
    assert query.consumer.next_end(query.at) == end, "asked again, it is still the same flow"
    query.committed = 1
    query.drain()
    assert delivered(query) == expected(world)
    assert {row.redelivered for row in query.rows} == {False}


def test_a_name_that_was_lost_before_it_was_written_down_holds_nothing_up(world: World) -> None:
    world.publish(1, 1)
    world.query().start().plan()
    (other,) = begun(world, world.query())
    other.drain()
    assert delivered(other) == expected(world)


def test_a_named_flow_keeps_its_name_and_refuses_another(world: World) -> None:
    (query,) = begun(world, world.query("Left"))
    assert query.name == "left"
    query.drain()
    query.stop()
    renamed = world.query("right")
    renamed.ends, renamed.committed = query.ends, query.committed
    renamed.start()
    with pytest.raises(Invalid, match="belongs to flow 'left', this query has flow='right'"):
        renamed.trigger()


def test_an_offset_of_another_run_that_writes_into_the_same_spark_checkpoint_is_refused(world: World) -> None:
    """Two runs of one query that began at once have each a name of their own, and one offset log."""
    one, other = begun(world, world.query(), world.query())
    one.drain()
    assert one.name != other.name
    with pytest.raises(Invalid, match=f"belongs to flow '{other.name}', this query has flow='{one.name}'"):
        one.consumer.next_end(other.at)


def test_offsets_of_another_group_or_of_none_are_refused(world: World) -> None:
    (query,) = begun(world, world.query())
    other = world.query(group="shipping").start()
    with pytest.raises(Invalid, match="belongs to group 'billing', this query has group='shipping'"):
        other.consumer.next_end(query.at)
    alone = {**query.at, "group": None, "flow": None}
    with pytest.raises(Invalid, match="belongs to a query without a group"):
        query.consumer.next_end(alone)


@pytest.mark.conformance("FLO-08")
def test_a_second_live_query_under_the_same_name_is_refused(world: World) -> None:
    (first,) = begun(world, world.query("left"))
    first.drain()
    (twin,) = begun(world, world.query("left"))
    with pytest.raises(Invalid, match="in use by another live process"):
        twin.trigger()


# --- two queries ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-01", "HAN-02", "HAN-05")
def test_a_second_query_takes_its_share_between_micro_batches_and_nothing_is_lost_or_twice(world: World) -> None:
    world.publish(10, 10)
    first, second = world.query(maxMessagesPerTrigger="4"), world.query(maxMessagesPerTrigger="4")
    begun(world, first)
    first.run()
    world.sleep(1.0)
    begun(world, second)
    second.run()
    world.publish(10, 10)
    for _ in range(20):
        world.publish(1, 1)
        world.sleep(0.1)
    world.until(lambda: delivered(first, second) == expected(world))
    assert len(first.partitions) == len(second.partitions) == 1
    moved = second.partitions[0]
    assert first.offsets(moved) + second.offsets(moved) == list(range(world.ends[moved]))
    assert {row.redelivered for row in first.rows + second.rows} == {False}
    assert world.handoffs() == 1


@pytest.mark.conformance("HAN-05")
def test_a_pause_that_comes_while_a_batch_is_planned_keeps_its_messages_back(world: World) -> None:
    """The state changes between look and announcement: the announcement fails, and the batch is planned again."""
    (first,) = begun(world, world.query())
    first.drain()
    world.publish(5, 5)
    begun(world, world.query())
    member = first.consumer.member
    assert member is not None
    announce = member.deliver
    refused: list[bool] = []

    def slowly(ends: dict[int, int]) -> bool:
        if not refused:
            second = world.query("late").start()
            second.trigger()
            second.run()
            world.sleep(0.5)
        refused.append(announce(ends))
        return bool(refused[-1])

    member.deliver = slowly  # type: ignore[method-assign, assignment] # something happens in between
    first.trigger()
    assert refused[0] is False
    assert len({row.partition for row in first.batches[-1].rows}) == 1


@pytest.mark.conformance("HAN-04")
def test_the_other_partition_is_delivered_during_the_handoff(world: World) -> None:
    (first,) = begun(world, world.query())
    first.drain()
    second = world.query()
    seen: list[tuple[int, ...]] = []

    def while_it_runs() -> None:
        if not second.batches:
            second.start()
            second.trigger()
            second.run()
            world.sleep(1.0)  # the pause waits for this batch

    world.publish(3, 3)
    first.during = while_it_runs
    first.trigger()
    first.during = lambda: None
    world.publish(3, 3)
    first.trigger()
    seen.append(tuple(sorted({row.partition for row in first.batches[-1].rows})))
    assert len(seen[0]) == 1
    world.until(lambda: first.trigger() or delivered(first, second) == expected(world))
    assert {row.redelivered for row in second.rows} == {False}


@pytest.mark.conformance("HAN-06")
def test_idle_queries_hand_over_at_once(world: World) -> None:
    first, second = world.query(), world.query()
    begun(world, first)
    first.run()
    world.sleep(2.0)
    begun(world, second)
    begun_s = world.now_s
    second.run()
    world.until(lambda: len(second.partitions) == 1)
    assert world.now_s - begun_s < 1.0
    assert first.batches == [first.batches[0]], "ownership alone makes no batch"
    assert second.batches == [second.batches[0]]


@pytest.mark.conformance("HAN-03")
def test_a_batch_that_takes_too_long_comes_again_marked_before_what_is_newer(world: World) -> None:
    (first,) = begun(world, world.query())
    first.drain()
    world.publish(4, 4)
    second = world.query()

    def for_long() -> None:
        second.start()
        second.trigger()
        second.run()
        world.sleep(1.0)
        world.publish(2, 2)
        world.until(lambda: len(second.rows) == 6)

    first.during = for_long
    first.trigger()
    moved = second.rows[0].partition
    assert [row.redelivered for row in second.rows] == [True] * 4 + [False] * 2
    assert second.offsets(moved) == list(range(6))
    first.during = lambda: None
    first.trigger()
    assert set(first.partitions) == {1 - moved}


@pytest.mark.conformance("HAN-07")
def test_the_old_flow_cannot_acknowledge_after_the_move_and_learns_of_it(world: World) -> None:
    (first,) = begun(world, world.query(checkpointInterval="0s"))
    world.publish(4, 4)
    first.plan()
    first.freeze()  # longer than the session timeout, before it has acknowledged anything
    (second,) = begun(world, world.query())
    second.run()
    world.until(lambda: delivered(second) == expected(world))
    world.sleep(2.0)
    before = [world.checkpoints().read(p) for p in (0, 1)]
    assert [found.offset for found in before if found is not None] == [4, 4]
    first.thaw()
    first.committed += 1  # its batch is complete, much later
    world.publish(1, 1)
    first.run()
    world.until(lambda: bool(first.partitions))
    for p in (0, 1):
        found = world.checkpoints().read(p)
        assert found is not None
        assert (found.offset or 0) >= 4
    world.until(lambda: sum(1 for row in first.rows + second.rows if row.offset == 4) == 2)
