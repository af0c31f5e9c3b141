"""What once lost messages, or gave them out twice without a mark, where applications acknowledge by hand."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.query.manual import RoundPosition
from tests.query.test_by_hand import acknowledge, again, by_hand
from tests.query.test_losing_nothing import OWNERSHIPS, failed, one_partition
from tests.query.world import Row, World, begun, delivered, expected


@OWNERSHIPS
@pytest.mark.conformance("SEQ-01")
def test_by_hand_batches_that_fail_in_run_after_run_come_again_in_each(ownership: str) -> None:
    world = one_partition()
    query = by_hand(world, ownership=ownership, checkpointInterval="0s")
    world.publish(10)
    for _ in range(3):
        failed(query)
    seen = len(query.rows)
    query.start().drain()
    assert query.rows[seen:] == again(0, 10), "an end that is equal to its start is no batch for Spark"
    world.publish(3)
    query.drain()
    assert query.rows[seen + 10 :] == [Row(0, offset, False) for offset in range(10, 13)]
    acknowledge(query, (0, 13))
    query.stop()
    assert world.offset(0) == 13


@OWNERSHIPS
def test_by_hand_what_is_not_acknowledged_comes_again_after_each_of_many_clean_restarts(ownership: str) -> None:
    world = one_partition(delay_s=5.0)
    query = by_hand(world, ownership=ownership)
    world.publish(4)
    for _ in range(5):
        seen = len(query.rows)
        query.start().drain()
        assert [row.offset for row in query.rows[seen:]] == [0, 1, 2, 3]
        query.stop()


@OWNERSHIPS
def test_by_hand_a_reader_that_is_replaced_within_a_batch_gives_it_out_again(ownership: str) -> None:
    """`if not df.isEmpty(): df.collect()` plans a batch twice, and here each by a process of its own."""
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world, ownership=ownership))
    world.publish(4)
    query.plan()
    assert len(query.deliver()) == 4
    query.kill().start()
    assert query.deliver() == []
    query.committed += 1
    query.drain()
    assert query.rows[4:] == again(0, 4)
    query.kill().start()
    query.drain()
    assert query.rows[8:] == again(0, 4)


def test_by_hand_what_the_application_was_refused_comes_again() -> None:
    """`maxPollInterval` ends the flow while the application works; it comes back at the same epoch."""
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world, maxPollInterval="5s"))
    world.publish(4)
    query.drain()
    told = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    world.sleep(6.0)
    query.consumer.look_while_busy()
    assert query.consumer.acknowledgements.by_application(told["process"], {0: RoundPosition(1, 4, 0)}) == frozenset()
    query.drain()
    assert query.epochs == {0: 1}, "nobody else had it"
    assert query.rows[4:] == again(0, 4)
    assert acknowledge(query, (0, 4)) == {0}


def test_by_hand_what_was_refused_comes_before_what_was_announced_after_it() -> None:
    """Spark asked for the next end and did not use it; then the application is told that nothing of it counts."""
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world, maxPollInterval="5s"))
    world.publish(4)
    query.drain()
    told = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    world.publish(4)
    assert query.consumer.next_end(query.at) != query.at
    world.sleep(6.0)
    query.consumer.look_while_busy()
    assert query.consumer.acknowledgements.by_application(told["process"], {0: RoundPosition(1, 4, 0)}) == frozenset()
    query.drain()
    assert [row.offset for row in query.rows[4:]] == list(range(8))
    assert query.rows[4:8] == again(0, 4)


@OWNERSHIPS
def test_by_hand_a_batch_that_spark_forgot_after_its_reader_was_replaced_has_its_messages(ownership: str) -> None:
    """Its end is the same text, because the first of the two delivered nothing (`asyncProgressTrackingEnabled`)."""
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world, ownership=ownership))
    world.publish(4)
    query.trigger()
    for replaced in (True, False):
        query.stop().start()
        forgotten = query.plan()
        if replaced:
            query.kill().start()
        assert query.deliver() == ([] if replaced else again(0, 4))
        assert query.ends.pop() == forgotten
    assert query.batches[-2].end == query.batches[-1].end


def test_by_hand_a_lease_that_ended_before_the_batch_is_read_is_no_failure() -> None:
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world))
    world.publish(4)
    query.plan()
    query.freeze()
    world.sleep(11.0)
    query.thaw()
    assert query.deliver() == []
    query.committed += 1
    query.drain()
    assert [row.offset for row in query.rows] == [0, 1, 2, 3]


def test_by_hand_a_batch_that_is_taken_back_after_it_was_read_comes_again_marked() -> None:
    world = one_partition(delay_s=30.0)
    (query,) = begun(world, by_hand(world))
    world.publish(4)
    query.plan()
    assert len(query.deliver()) == 4
    query.freeze()
    world.sleep(11.0)
    query.thaw()
    assert query.deliver() == [], "another instance than that which announced it"
    query.committed += 1
    query.drain()
    assert query.rows[4:] == again(0, 4)
    assert query.consumer.acknowledgements.in_hand(after=-1, most=9)["p"] == {"0": [1, 0, 4, 1]}, "the second round"


def test_what_was_acknowledged_by_hand_is_not_taken_over_by_spark(world: World) -> None:
    (query,) = begun(world, by_hand(world))
    world.publish(4, 4)
    query.drain()
    query.stop()
    other = world.query("left")
    other.ends, other.committed = query.ends, query.committed
    other.start()
    with pytest.raises(Invalid, match=r"written with ackMode=manual.*give ackMode=manual, or use a new checkpoint"):
        other.trigger()
    assert [world.offset(p) for p in (0, 1)] == [0, 0]


def test_who_acknowledged_by_itself_may_go_on_by_hand(world: World) -> None:
    (query,) = begun(world, world.query("left"))
    world.publish(4, 4)
    query.drain()
    query.stop()
    other = by_hand(world)
    other.ends, other.committed = query.ends, query.committed
    world.publish(1, 1)
    other.start().drain()
    assert sorted(other.rows) == [Row(0, 4, False), Row(1, 4, False)]
    assert acknowledge(other, (0, 5), (1, 5)) == {0, 1}


def test_a_batch_that_was_not_finished_is_not_repeated_by_hand(world: World) -> None:
    """It would be empty, complete for Spark, and acknowledged by Spark's progress if the query went back to auto."""
    (query,) = begun(world, world.query("left"))
    world.publish(4, 4)
    query.plan()
    query.kill()
    other = by_hand(world)
    other.ends, other.committed = query.ends, query.committed
    other.start()
    with pytest.raises(Invalid, match=r"not finished with ackMode=auto.*start it once with ackMode=auto"):
        other.trigger()
    query.start().drain()
    assert delivered(query) == expected(world)
