"""What one flow reads and when it stops: AvailableNow, limits, what is gone, stores that do not answer."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

import pytest

from partq_spark.base.errors import ObjectMissing, Unavailable
from partq_spark.base.timestamps import parse_rfc3339
from partq_spark.query import offsets
from partq_spark.query.consumer import MAX_LOOKS
from partq_spark.query.settings import Boundary
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun, delivered, expected

# --- AvailableNow -----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-06")
def test_available_now_reads_what_there_was_and_acknowledges_its_last_batch(world: World) -> None:
    world.publish(5, 4)
    query = world.query(maxMessagesPerTrigger="4", checkpointInterval="1m").start(available_now=True)
    world.publish(1, 1)
    query.drain()
    assert Counter(row.partition for row in query.rows) == {0: 5, 1: 4}
    assert [world.offset(p) for p in (0, 1)] == [5, 4]
    query.stop()
    query.start(available_now=True).drain()
    assert delivered(query) == expected(world)


def test_available_now_waits_for_its_share_and_ends_as_a_standby() -> None:
    world = World(delay_s=4.0)
    world.coordinated()
    first, second = begun(world, world.query(), world.query())
    first.run()
    world.until(lambda: len(first.partitions) == 2)
    world.publish(2, 2)
    second.consumer.fix_target()
    world.publish(3, 3)  # beyond the target
    begun_s = world.now_s
    second.drain()
    assert 3.5 < world.now_s - begun_s < 8.0
    assert delivered(first)[second.partitions[0], 0] == 1
    assert len(second.partitions) == 1

    third = world.query()
    begun(world, third)
    third.consumer.fix_target()
    begun_s = world.now_s
    third.drain()
    assert world.now_s - begun_s < 1.0
    assert third.partitions == ()


def test_available_now_ends_with_an_error_if_nobody_says_what_it_has() -> None:
    world = World(delay_s=2.0)
    (query,) = begun(world, world.query())
    query.consumer.fix_target()
    with pytest.raises(Unavailable, match="start one with `partq coordinator run`"):
        query.trigger()


def test_available_now_leaves_what_it_lost_to_the_new_owner_and_reads_what_it_gained(world: World) -> None:
    world.publish(20, 20)
    first, second = world.query(maxMessagesPerTrigger="6"), world.query()
    first.start(available_now=True)

    def another() -> None:
        first.during = lambda: None
        second.start()
        second.trigger()
        second.run()
        world.sleep(1.0)

    first.trigger()
    first.during = another
    first.drain()
    world.until(lambda: delivered(first, second) == expected(world))
    assert {row.redelivered for row in second.rows} == {False}
    assert len(first.partitions) == 1


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
def test_what_is_in_hand_is_bounded_whatever_the_trigger_allows(world: World) -> None:
    world.publish(10, 10)
    (query,) = begun(world, world.query(maxDeliveredUnackedMsgsPerFlow="7"))
    query.ends.append(query.consumer.next_end(query.at, limited=False))
    query.deliver()
    query.committed += 1
    query.drain()
    assert [len(batch.rows) for batch in query.batches] == [0, 7, 7, 6]


def test_ownership_alone_never_changes_the_offset(world: World) -> None:
    (first,) = begun(world, world.query())
    first.run()
    world.sleep(1.0)
    begun(world, world.query())[0].run()
    world.until(lambda: len(first.partitions) == 1)
    world.sleep(1.0)
    assert len(first.ends) == 1


def test_an_end_says_all_that_the_flow_has(world: World) -> None:
    """Also partitions without news, so that a restart can present them."""
    (query,) = begun(world, world.query())
    query.drain()
    world.publish(0, 3)
    query.trigger()
    end = offsets.decode(query.ends[-1])
    assert end is not None
    assert {p: tuple(span) for p, span in end.spans.items()} == {0: (1, 0, 0, 0), 1: (1, 0, 3, 0)}
    assert query.consumer.report() == {
        "queue": "orders",
        "group": "billing",
        "flow": query.name,
        "partitions": {"0": {"epoch": 1, "end": 0, "lag": 0}, "1": {"epoch": 1, "end": 3, "lag": 0}},
        "notify": None,
    }


# --- the group's start ------------------------------------------------------------------------------------------------


def test_the_group_begins_where_its_first_query_says_and_later_ones_are_warned(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(3, 3)
    (first,) = begun(world, world.query(startingOffsets="latest"))
    world.publish(1, 1)
    first.drain()
    assert sorted(delivered(first)) == [(0, 3), (1, 3)]
    with caplog.at_level(logging.WARNING, "partq.flow"):
        world.query(startingOffsets="latest").start().plan()
        assert "rewind" not in caplog.text
        world.query(startingOffsets="earliest").start().plan()
    command = "partq checkpoints rewind orders --group billing"
    assert f"`{command} --to earliest --store file:///nowhere`" in caplog.text
    with caplog.at_level(logging.WARNING, "partq.flow"):
        world.query(startingOffsets='{"0": 1, "1": 1}').start().plan()
        query = world.query()
        query.options = replace(query.options, start=Boundary(time_us=parse_rfc3339("2026-11-20T09:30:00+01:00")))
        query.start().plan()
    assert f"`{command} --to 1 --store file:///nowhere`" in caplog.text
    assert f"`{command} --to-timestamp 2026-11-20T08:30:00.000000Z --store file:///nowhere`" in caplog.text
    assert world.queue.refresh().groups[KEY.group].start == (3, 3)


def test_a_claim_below_what_was_trimmed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.publish(5, 5)
    (strict,) = begun(world, world.query())
    trim_all(world)
    world.publish(1, 1)
    with pytest.raises(ObjectMissing, match="have been trimmed: start again from `earliest`, or set failOnDataLoss"):
        strict.trigger()
    strict.stop()
    (lenient,) = begun(world, world.query(failOnDataLoss="false", checkpointInterval="0s"))
    with caplog.at_level(logging.WARNING, "partq.flow"):
        lenient.drain()
    assert "offsets 0 to 5 of partition 0" in caplog.text
    assert sorted(delivered(lenient)) == [(0, 5), (1, 5)]
    assert world.offset(0) == 6


def test_a_start_that_the_user_named_and_that_was_trimmed_is_an_error(world: World) -> None:
    world.publish(5, 5)
    trim_all(world)
    world.publish(1, 1)
    with pytest.raises(ObjectMissing, match="have been trimmed"):
        begun(world, world.query(startingOffsets='{"0": 1, "1": 5}'))[0].trigger()
    assert world.queue.refresh().groups[KEY.group].start == (1, 5)


def test_a_loss_is_met_once_and_written_down_without_messages(world: World) -> None:
    world.publish(5, 5)
    (query,) = begun(world, world.query(failOnDataLoss="false", checkpointInterval="0s"))
    trim_all(world)
    assert query.trigger()
    assert query.rows == []
    assert not query.trigger()
    assert world.offset(0) == 5


def trim_all(world: World) -> None:
    """As `partq queue trim` does with force: a group holds trimming back otherwise."""
    world.open_queue().change(lambda head: replace(head, earliest=head.next, sequence=head.sequence + 1))


# --- stores that do not answer ----------------------------------------------------------------------------------------


def test_while_the_ownership_store_is_away_nothing_is_delivered_and_then_it_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    (query,) = begun(world, world.query())
    world.publish(2, 2)
    query.drain()
    world.publish(2, 2)
    away_from_s = world.now_s

    def away(verb: str) -> None:
        if world.now_s < away_from_s + 25.0:
            raise Unavailable(f"{verb}: nobody answers")

    world.server.before = away
    with caplog.at_level(logging.WARNING, "partq.flow"):
        query.run()
        world.until(lambda: delivered(query) == expected(world))
    assert query.batches[-1].at_s > away_from_s + 25.0
    assert "nothing is delivered until the store answers again" in caplog.text
    assert "going on" in caplog.text


def test_the_ownership_store_is_not_waited_for_without_end(world: World) -> None:
    (query,) = begun(world, world.query(retryTimeout="20s"))
    query.drain()
    begun_s = world.now_s

    def away(verb: str) -> None:
        raise Unavailable(f"{verb}: nobody answers")

    world.server.before = away
    with pytest.raises(Unavailable, match="nobody answers"):
        query.trigger()
    assert 20.0 <= world.now_s - begun_s < 30.0


def test_an_empty_ownership_store_heals_by_itself(world: World) -> None:
    (query,) = begun(world, world.query())
    query.run()
    world.publish(2, 2)
    world.until(lambda: delivered(query) == expected(world))
    world.server.restart_empty()
    world.publish(2, 2)
    world.until(lambda: delivered(query) == expected(world), 60.0)
    assert query.failure is None
    assert {row.redelivered for row in query.rows} <= {False, True}


def test_a_query_that_spark_forgot_leaves_the_group_and_comes_back(world: World) -> None:
    (query,) = begun(world, world.query(maxPollInterval="30s"))
    query.drain()
    world.sleep(29.0)
    query.consumer.look_while_busy()
    assert is_bound(query)
    world.sleep(2.0)
    query.consumer.look_while_busy()
    assert not is_bound(query)
    world.until(lambda: world.owner(0)[0] is None)
    world.publish(1, 1)
    query.drain()
    assert delivered(query) == expected(world)


def test_spark_has_not_forgotten_a_query_of_which_it_reads_a_batch(world: World) -> None:
    (query,) = begun(world, world.query(maxPollInterval="30s"))
    world.publish(1, 1)
    query.plan()
    world.sleep(20.0)
    query.deliver()
    world.sleep(20.0)
    query.consumer.look_while_busy()
    assert is_bound(query)


def test_a_state_that_changes_before_each_delivery_ends_the_question(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (query,) = begun(world, world.query())
    query.drain()
    refused: list[object] = []

    def refuse(ends: object) -> bool:
        refused.append(ends)
        assert len(refused) <= 2 * MAX_LOOKS
        return False

    member = query.consumer.member
    assert member is not None
    monkeypatch.setattr(member, "deliver", refuse)
    world.publish(1, 1)
    with pytest.raises(Unavailable, match="does not hold still: try again"):
        query.plan()
    assert len(refused) == MAX_LOOKS


def is_bound(query: Query) -> bool:
    member = query.consumer.member
    return member is not None and member.is_bound


def test_beside_a_long_batch_a_pause_is_seen_and_what_is_due_is_written(world: World) -> None:
    (first,) = begun(world, world.query())
    world.publish(3, 3)
    first.trigger()
    world.publish(3, 3)

    def long() -> None:
        assert [world.offset(p) for p in (0, 1)] == [0, 0]
        world.sleep(2.0)
        first.consumer.look_while_busy()

    first.during = long
    first.trigger()
    assert [world.offset(p) for p in (0, 1)] == [3, 3]
