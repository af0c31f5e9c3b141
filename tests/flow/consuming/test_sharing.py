"""Queries that share a group: identity, handoffs between micro-batches, restarts, replays."""

from __future__ import annotations

from collections import Counter

import pytest

from partq_spark import offsets
from partq_spark.errors import Invalid
from partq_spark.flow.model import Owner
from tests.flow.consuming.world import Query, World, begun
from tests.flow.session.world import KEY


def delivered(*queries: Query) -> Counter[tuple[int, int]]:
    return Counter((row.partition, row.offset) for query in queries for row in query.rows)


def expected(world: World) -> Counter[tuple[int, int]]:
    return Counter((p, offset) for p, end in enumerate(world.queue.refresh().next) for offset in range(end))


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


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-07")
def test_a_restart_within_the_delay_gets_its_partitions_back_at_their_epochs() -> None:
    world = World(delay_s=5.0)
    world.coordinated()
    first, second = begun(world, world.query(), world.query())
    first.run(), second.run()
    world.until(lambda: len(first.partitions) == len(second.partitions) == 1)
    world.publish(5, 5)
    world.until(lambda: delivered(first, second) == expected(world))
    handoffs, epochs, name = world.handoffs(), first.epochs, first.name
    first.stop()
    world.sleep(1.0)
    world.publish(5, 5)
    first.start().run()
    world.until(lambda: delivered(first, second) == expected(world))
    assert (first.epochs, first.name) == (epochs, name)
    assert world.handoffs() == handoffs
    assert {row.redelivered for row in first.rows} == {False}


def test_a_batch_that_did_not_finish_comes_again_equal_with_its_marks(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    rows = first.deliver()
    assert len(rows) == 8
    first.kill()
    (second,) = begun(world, world.query())  # takes over, delivers them marked, and is killed in its batch too
    second.run()
    world.until(lambda: bool(second.rows))
    assert {row.redelivered for row in second.rows} == {True}
    second.stop()
    world.sleep(1.0)

    third = world.query()
    begun(world, third)
    world.publish(2, 2)
    third.plan()
    third.deliver()
    marks = [row for row in third.batches[-1].rows if row.redelivered]
    third.stop()
    world.publish(3, 3)
    third.start().trigger()
    assert third.batches[-1].rows == third.batches[-2].rows
    assert [row for row in third.batches[-1].rows if row.redelivered] == marks


def test_what_was_announced_and_never_written_down_is_not_marked(world: World) -> None:
    """Killed between `latestOffset` and the offset log: the Spark checkpoint knows that nothing was delivered."""
    (query,) = begun(world, world.query())
    world.publish(2, 2)
    query.trigger()
    world.publish(3, 3)
    query.consumer.next_end(query.at)
    query.kill()
    query.start()
    query.drain()
    assert delivered(query) == expected(world)
    assert {row.redelivered for row in query.rows} == {False}


def test_what_was_announced_and_never_became_a_batch_is_read_all_the_same(world: World) -> None:
    (query,) = begun(world, world.query())
    world.publish(2, 2)
    query.consumer.next_end(query.at)
    world.publish(3, 0)
    query.drain()
    assert delivered(query) == expected(world)


@pytest.mark.conformance("HAN-10")
def test_a_replayed_batch_delivers_nothing_of_a_partition_that_moved_on(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.kill()  # its batch is in the offset log, and nothing of it was delivered
    (second,) = begun(world, world.query())
    second.run()
    world.until(lambda: delivered(second) == expected(world))
    first.start()
    assert first.deliver() == []
    first.committed += 1
    world.publish(1, 1)
    first.run()
    world.until(lambda: len(first.partitions) == 1)
    world.until(lambda: delivered(first, second) == expected(world))


@pytest.mark.conformance("HAN-10")
def test_a_partition_that_came_back_is_not_acknowledged_by_the_replay(world: World) -> None:
    """The flow has it again, at a higher epoch: the replay must not count as its acknowledgement."""
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.kill()
    world.until(lambda: world.owner(0)[0] is None)  # expired, and nobody took over: Unassigned
    assert world.owner(0)[1] > 1
    first.start()
    assert first.deliver() == []
    first.committed += 1
    assert world.offset(0) == 0
    first.drain()
    assert delivered(first) == expected(world)
    assert {row.redelivered for row in first.rows} == {True}


def test_a_replay_in_doubt_waits_and_then_fails() -> None:
    """Without a coordinator nobody says whose the partitions are."""
    world = World()
    coordinator = world.coordinated()
    (query,) = begun(world, world.query())
    world.publish(4, 4)
    query.plan()
    query.kill()
    coordinator.frozen = True
    query.start()
    begun_s = world.now_s
    with pytest.raises(Exception, match=r"partitions \[0, 1\] are still its own: is a coordinator running\?"):
        query.deliver()
    assert 20.0 < world.now_s - begun_s < 45.0
    coordinator.frozen = False
    assert len(query.deliver()) == 8


def test_a_lease_that_ended_between_planning_and_partitions_is_noticed(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.freeze()
    (second,) = begun(world, world.query())
    second.run()
    world.until(lambda: delivered(second) == expected(world))
    first.thaw()
    assert first.deliver() == []


def test_a_new_instance_that_another_thread_began_does_not_deliver_what_the_former_planned(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.freeze()
    (second,) = begun(world, world.query())
    second.run()
    world.until(lambda: delivered(second) == expected(world))
    first.thaw()
    first.consumer.look_beside()
    member = first.consumer.member
    assert member is not None
    assert member.lease_left_s() > 0, "the new instance's"
    assert first.deliver() == []


def test_an_instance_of_the_same_epoch_in_between_is_another_owner(world: World) -> None:
    """A checkpoint rewritten behind everybody's back is not trusted."""
    (query,) = begun(world, world.query())
    world.publish(4, 4)
    query.plan()
    query.kill()
    world.seize(0, Owner("stranger", "s1"), 99)
    query.start()
    assert {row.partition for row in query.deliver()} == {1}


def test_a_replayed_batch_holds_a_handoff_up_as_any_other_does(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.kill()
    first.start()
    second = world.query()

    def meanwhile() -> None:
        second.start()
        second.trigger()
        second.run()
        world.sleep(1.0)
        assert second.rows == []

    first.during = meanwhile
    assert len(first.deliver()) == 8
    first.during = lambda: None
    first.committed += 1
    world.publish(1, 1)
    first.run()
    world.until(lambda: len(second.partitions) == 1)
    world.until(lambda: delivered(first, second) == expected(world))


def test_what_was_announced_is_planned_again_in_full(world: World) -> None:
    (query,) = begun(world, world.query(maxMessagesPerTrigger="2"))
    world.publish(5, 5)
    query.consumer.next_end(query.at, limited=False)
    query.drain()
    assert [len(batch.rows) for batch in query.batches] == [0, 10]


@pytest.mark.conformance("CHK-06")
def test_a_run_that_finds_nothing_new_acknowledges_the_one_before_also_after_a_late_answer() -> None:
    world = World(delay_s=3.0)
    coordinator = world.coordinated()
    (query,) = begun(world, world.query(checkpointInterval="1h"))
    world.publish(2, 2)
    query.trigger()
    query.kill()
    assert world.offset(0) == 0
    coordinator.frozen = True
    thawed: list[float] = []

    def thaw() -> float:
        coordinator.frozen = not thawed and world.now_s < frozen_s + 16.0
        if not coordinator.frozen:
            thawed.append(world.now_s)
        return 1.0

    frozen_s = world.now_s
    world.lives(thaw)
    query.start(available_now=True)
    query.drain()
    assert [world.offset(p) for p in (0, 1)] == [2, 2]
