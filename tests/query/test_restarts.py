"""Queries of a group that come back: restarts, replays, and batches that were planned and never finished."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Fenced
from partq_spark.group.model import Owner
from tests.query.world import Query, World, begun, delivered, expected


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


@pytest.mark.conformance("HAN-03")
def test_what_was_announced_and_never_written_down_is_marked(world: World) -> None:
    """Killed between `latestOffset` and the offset log, or restarted on an older Spark checkpoint: nobody can tell."""
    (query,) = begun(world, world.query())
    world.publish(2, 2)
    query.trigger()
    world.publish(3, 3)
    query.consumer.next_end(query.at)
    query.kill()
    query.start()
    query.drain()
    assert delivered(query) == expected(world)
    assert [row.offset for row in query.rows if row.redelivered] == [2, 3, 4, 2, 3, 4]


def test_nobody_can_tell_whether_a_batch_in_an_older_spark_checkpoint_was_ever_delivered() -> None:
    """A run announced it and stood still, wrote it down when an older Spark checkpoint was in place, and had lost its
    partitions; or it delivered it. Both leave the same behind, and a repetition has the marks of its end (decision
    0035).
    """
    left = [_late(stood_still=True), _late(stood_still=False)]
    assert left[0] == left[1]


def _late(*, stood_still: bool) -> tuple[object, ...]:
    """What a third run finds, and what it repeats."""
    world = World(partitions=1)
    (first,) = begun(world, world.query(ownership="none"))
    world.publish(1)
    first.drain()
    world.publish(1)
    older = list(first.ends)
    end = first.consumer.next_end(first.at)
    if not stood_still:
        first.ends.append(end)
        first.trigger()
    first.kill()
    world.publish(2)
    second = world.query(ownership="none")
    second.ends, second.committed = list(first.ends), first.committed
    second.start().drain()
    assert {row.redelivered for row in second.rows} == {True}
    second.stop()
    if stood_still:
        first.ends.append(end)
        with pytest.raises(Fenced):
            first.deliver()
    found = world.checkpoints().read(0)
    assert found is not None
    third = world.query(ownership="none")
    third.ends, third.committed = [*older, end], len(older)
    rows = third.start().deliver()
    log = [each["p"] for each in third.ends]
    return found.epoch, found.offset, found.redelivered_below, found.delivering, log, rows


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


def overtaken(world: World) -> Query:
    """It planned a batch and stood still until another had delivered all of it; now it goes on."""
    (first,) = begun(world, world.query())
    world.publish(4, 4)
    first.plan()
    first.freeze()
    (second,) = begun(world, world.query())
    second.run()
    world.until(lambda: delivered(second) == expected(world))
    first.thaw()
    return first


def test_a_lease_that_ended_between_planning_and_partitions_is_noticed(world: World) -> None:
    first = overtaken(world)
    assert first.deliver() == []


def test_a_new_instance_that_another_thread_began_does_not_deliver_what_the_former_planned(world: World) -> None:
    first = overtaken(world)
    first.consumer.look_while_busy()
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
