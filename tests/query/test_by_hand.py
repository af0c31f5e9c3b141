"""ackMode=manual: what the application has not acknowledged comes again, in order, marked, and nothing else does."""

from __future__ import annotations

from functools import partial

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log import admin
from partq_spark.query.manual import RoundPosition
from partq_spark.query.offsets import BatchSpan
from tests.group.session.world import KEY
from tests.query.world import Query, Row, World, begun


def by_hand(world: World, flow: str = "left", **options: str) -> Query:
    return world.query(flow, ackMode="manual", **options)


def acknowledge(query: Query, *offsets: tuple[int, int]) -> frozenset[int]:
    """As the application does: (partition, offset), at the epochs that it was told of."""
    told = query.consumer.acknowledgements.in_hand(after=-1, most=100)
    positions = {p: RoundPosition(told["p"][str(p)][0], offset, told["p"][str(p)][3]) for p, offset in offsets}
    return query.consumer.acknowledgements.by_application(told["process"], positions)


def again(first: int, to: int, partition: int = 0) -> list[Row]:
    return [Row(partition, offset, True) for offset in range(first, to)]


def _came(query: Query, row: Row) -> bool:
    query.trigger()
    return query.rows[-1] == row


def test_nothing_is_acknowledged_that_the_application_does_not_acknowledge(world: World) -> None:
    world.publish(5, 4)
    (query,) = begun(world, by_hand(world, checkpointInterval="0s"))
    query.drain()
    assert len(query.rows) == 9
    assert [world.offset(p) for p in (0, 1)] == [0, 0]
    assert acknowledge(query, (0, 3)) == {0}
    query.drain()
    assert [world.offset(p) for p in (0, 1)] == [3, 0]
    assert len(query.rows) == 9, "what is in hand does not come again by itself"


def test_what_was_not_given_out_cannot_be_acknowledged(world: World) -> None:
    world.publish(5, 4)
    (query,) = begun(world, by_hand(world))
    query.drain()
    with pytest.raises(Invalid, match="partition 0 was delivered up to 5 and cannot be acknowledged up to 6"):
        acknowledge(query, (1, 4), (0, 6))
    assert query.consumer.acknowledgements.by_application("another process", {0: RoundPosition(1, 5, 0)}) == frozenset()
    assert (
        query.consumer.acknowledgements.by_application(
            query.consumer.acknowledgements.in_hand(after=-1, most=9)["process"], {0: RoundPosition(7, 5, 0)}
        )
        == set()
    )
    query.stop()
    assert [world.offset(p) for p in (0, 1)] == [0, 0]


def test_a_flow_that_acknowledges_by_itself_refuses_the_application(world: World) -> None:
    (query,) = begun(world, world.query("left"))
    with pytest.raises(Invalid, match="give it the option ackMode=manual"):
        query.consumer.acknowledgements.by_application("any", {})


@pytest.mark.conformance("SEQ-01")
def test_a_new_process_gets_all_that_is_not_acknowledged_from_its_first_message(world: World) -> None:
    """Its application has forgotten whatever it had in memory, so Spark's own progress counts for nothing."""
    world.publish(5, 4)
    (query,) = begun(world, by_hand(world, checkpointInterval="0s"))
    query.drain()
    acknowledge(query, (0, 3))
    world.publish(1, 0)
    query.trigger()
    query.kill()
    seen = len(query.rows)
    query.start()
    query.drain()
    assert [row for row in query.rows[seen:] if row.partition == 0] == again(3, 6)
    assert [row for row in query.rows[seen:] if row.partition == 1] == again(0, 4, partition=1)
    acknowledge(query, (0, 6), (1, 4))
    query.stop()
    assert [world.offset(p) for p in (0, 1)] == [6, 4]


def test_a_batch_that_is_repeated_is_empty_and_its_messages_come_in_order_with_the_others(world: World) -> None:
    """Else those of the repeated batch would come before older ones that are not acknowledged either."""
    (query,) = begun(world, by_hand(world))
    world.publish(3, 0)
    query.trigger()
    world.publish(3, 0)
    query.plan()
    query.kill()
    query.start()
    assert query.trigger()
    assert query.batches[-1].rows == []
    query.drain()
    assert query.rows[3:] == [*again(0, 3), *again(3, 6)]


@pytest.mark.parametrize("ownership", ["store", "none"])
def test_a_restart_marks_what_was_delivered(ownership: str) -> None:
    world = World(partitions=1)
    world.coordinated()
    world.publish(4)
    (query,) = begun(world, by_hand(world, ownership=ownership))
    query.drain()
    query.stop()
    query.start()
    world.publish(1)
    query.drain()
    assert query.rows[4:] == [*again(0, 4), Row(0, 4, False)]


@pytest.mark.conformance("SEQ-01")
@pytest.mark.parametrize("ownership", ["store", "none"])
def test_what_a_restart_cannot_give_out_at_once_is_marked_when_it_comes(ownership: str) -> None:
    """A window that older messages of the other partition use up keeps it back, so that the offset has an empty span
    of it meanwhile.
    """
    world = World()
    world.coordinated()
    (query,) = begun(world, by_hand(world, ownership=ownership, maxDeliveredUnackedMsgsPerFlow="1"))
    world.publish(3, 0)
    for count in range(1, 4):
        query.drain()
        acknowledge(query, (0, count))
    world.publish(0, 1)
    query.drain()
    query.stop()
    world.checkpoints().rewind(0, 0, fence=True, delivered=3)
    admin.count_rewind(world.queue, KEY.group)
    query.start()
    for count in range(1, 4):
        world.until(partial(_came, query, Row(0, count - 1, True)))
        acknowledge(query, (0, count))
    query.drain()
    assert query.rows == [*(Row(0, n, False) for n in range(3)), Row(1, 0, False), *again(0, 3), *again(0, 1, 1)]


@pytest.mark.conformance("SEQ-01", "HAN-03")
def test_after_a_forced_handoff_the_new_flow_gets_the_whole_unfinished_sequence() -> None:
    world = World(handoff_s=2.0)
    world.coordinated()
    first, second = by_hand(world, "left", checkpointInterval="0s"), by_hand(world, "right")
    begun(world, first)
    world.publish(5, 5)
    first.trigger()
    acknowledge(first, (0, 2), (1, 2))
    first.run()
    begun(world, second)
    second.run()
    world.until(lambda: len(second.partitions) == 1)
    world.until(lambda: len(second.rows) == 3)
    (moved,) = second.partitions
    assert second.rows == again(2, 5, partition=moved)
    world.until(lambda: moved not in first.partitions)
    # What the former owner says of it now counts for nothing.
    told = first.consumer.acknowledgements.in_hand(after=-1, most=9)
    assert str(moved) not in told["p"]
    late = {moved: RoundPosition(1, 5, 0)}
    assert first.consumer.acknowledgements.by_application(told["process"], late) == frozenset()
    assert world.offset(moved) == 2


@pytest.mark.conformance("SEQ-01", "HAN-02")
def test_a_handoff_ends_as_soon_as_the_application_has_acknowledged() -> None:
    world = World(handoff_s=60.0)
    world.coordinated()
    first, second = by_hand(world, "left"), by_hand(world, "right")
    begun(world, first)
    world.publish(5, 5)
    first.trigger()
    first.run()
    begun(world, second)
    second.run()
    world.sleep(3.0)
    assert second.partitions == ()
    acknowledge(first, (0, 5), (1, 5))
    world.until(lambda: len(second.partitions) == 1, wait_s=2.0)
    world.publish(1, 1)
    world.until(lambda: len(second.rows) == 1)
    assert [row.redelivered for row in second.rows] == [False]


@pytest.mark.conformance("HAN-12")
def test_a_partition_that_nobody_acknowledges_does_not_use_up_the_window_of_the_others(world: World) -> None:
    world.publish(20, 20)
    (query,) = begun(world, by_hand(world, maxDeliveredUnackedMsgsPerFlow="6"))
    query.drain()
    assert [len(query.offsets(p)) for p in (0, 1)] == [3, 3]
    for count in range(1, 6):
        acknowledge(query, (1, 3 * count))
        query.drain()
        assert [len(query.offsets(p)) for p in (0, 1)] == [3, 3 * (count + 1)]


def test_available_now_waits_for_acknowledgements_and_then_says_what_is_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish(5, 5)
    query = by_hand(world, maxDeliveredUnackedMsgsPerFlow="4").start(available_now=True)
    query.drain()
    assert len(query.rows) == 4
    assert "6 messages are left" in caplog.text


def test_what_moved_on_is_told_as_lost_until_it_is_given_out_again() -> None:
    world = World(handoff_s=0.0)
    world.coordinated()
    first, second = by_hand(world, "left", checkpointInterval="0s"), by_hand(world, "right")
    begun(world, first)
    world.publish(5, 5)
    first.trigger()
    first.run()
    begun(world, second)
    second.run()
    world.until(lambda: len(second.partitions) == 1)
    (moved,) = second.partitions
    world.sleep(1.0)
    told = first.consumer.acknowledgements.in_hand(after=-1, most=9)
    assert told["lost"] == [moved]
    assert list(told["p"]) == [str(1 - moved)]
    assert second.consumer.acknowledgements.in_hand(after=-1, most=9)["lost"] == []
    second.stop()
    world.publish(1, 1)
    world.until(lambda: len(first.partitions) == 2)
    world.until(lambda: first.consumer.acknowledgements.in_hand(after=-1, most=9)["lost"] == [])
    assert [row for row in first.rows if row.partition == moved][5:] == [*again(0, 5, moved), Row(moved, 5, False)]


@pytest.mark.conformance("SEQ-01")
def test_what_was_told_to_be_lost_comes_again_even_at_the_same_epoch() -> None:
    """A flow that had to begin as a new instance has nothing until it is answered: an application that asks then
    forgets what it kept, and must not acknowledge what follows as if it were all there was.
    """
    world = World(partitions=1, delay_s=30.0)
    coordinator = world.coordinated()
    (query,) = begun(world, by_hand(world, checkpointInterval="0s"))
    world.publish(4)
    query.drain()
    given = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    query.freeze()
    world.sleep(10.1)
    coordinator.frozen = True
    query.thaw()
    world.publish(1)
    query.trigger()  # binds anew, unanswered
    assert query.consumer.acknowledgements.in_hand(after=-1, most=9)["lost"] == [0]
    coordinator.frozen = False
    world.until(lambda: query.trigger() or len(query.rows) > 4)
    assert query.epochs == {0: 1}, "nobody else had it"
    assert query.rows[4:] == [*again(0, 4), Row(0, 4, False)]
    assert query.consumer.acknowledgements.in_hand(after=-1, most=9)["p"] == {"0": [1, 0, 5, 1]}
    assert given["p"] == {"0": [1, 0, 4, 0]}
    assert acknowledge(query, (0, 5)) == {0}
    assert world.offset(0) == 5


def test_what_is_in_hand_is_told_in_pages(world: World) -> None:
    world.publish(2, 3)
    (query,) = begun(world, by_hand(world))
    assert query.consumer.acknowledgements.in_hand(after=-1, most=1)["p"] == {}
    query.drain()
    first = query.consumer.acknowledgements.in_hand(after=-1, most=1)
    second = query.consumer.acknowledgements.in_hand(after=0, most=1)
    assert (first["p"], first["more"]) == ({"0": [1, 0, 2, 0]}, True)
    assert (second["p"], second["more"]) == ({"1": [1, 0, 3, 0]}, False)


def test_available_now_waits_anew_for_the_next_acknowledgement(world: World) -> None:
    """Each within max-handoff-time (3 s), all of them together not."""
    world.publish(5, 0)
    query = by_hand(world, ownership="none", maxDeliveredUnackedMsgsPerFlow="1").start(available_now=True)

    def application() -> float:
        if query.rows:
            acknowledge(query, (0, len(query.rows)))
        return 2.0

    world.lives(application)
    query.drain()
    assert query.rows == [Row(0, offset, False) for offset in range(5)]


@pytest.mark.conformance("API-05")
@pytest.mark.parametrize("offset", [2, 4, 8])
def test_what_counts_no_more_cannot_be_acknowledged_by_what_was_remembered_of_it(world: World, offset: int) -> None:
    """It was given out up to 8, is void, and is given out anew up to 4: that is a new round, at the same epoch."""
    (query,) = begun(world, by_hand(world, maxPollInterval="5s", maxMessagesPerTrigger="4", checkpointInterval="0s"))
    world.publish(8, 0)
    query.drain()
    assert len(query.rows) == 8
    told = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    remembered = {0: RoundPosition(told["p"]["0"][0], offset, 0)}
    world.sleep(6.0)
    query.consumer.look_while_busy()
    assert query.consumer.acknowledgements.by_application(told["process"], remembered) == frozenset()
    query.trigger()
    assert query.rows[8:] == again(0, 4)
    assert query.consumer.acknowledgements.by_application(told["process"], remembered) == frozenset()
    assert world.offset(0) == 0
    query.trigger()
    assert query.rows[12:] == again(4, 8), "and takes nothing back"


@pytest.mark.parametrize("epoch", [1, 7])
def test_what_is_remembered_of_another_process_or_ownership_takes_nothing_back(world: World, epoch: int) -> None:
    (query,) = begun(world, by_hand(world))
    world.publish(5, 0)
    query.drain()
    told = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    process = "another process" if epoch == 1 else told["process"]
    assert query.consumer.acknowledgements.by_application(process, {0: RoundPosition(epoch, 5, 0)}) == frozenset()
    query.drain()
    assert len(query.rows) == 5, "what is in hand still is"
    assert acknowledge(query, (0, 5)) == {0}


@pytest.mark.conformance("API-05")
def test_what_is_given_back_after_the_next_batch_was_announced_is_not_left_behind_it(world: World) -> None:
    """The batch goes on where the former one ended: without this one an acknowledgement of it would cover both."""
    (query,) = begun(world, by_hand(world, checkpointInterval="0s"))
    world.publish(4, 0)
    query.drain()
    told = query.consumer.acknowledgements.in_hand(after=-1, most=9)
    world.publish(4, 0)
    end = query.consumer.next_end(query.at)
    query.consumer.acknowledgements.given_out.refuse(told["process"], {0: RoundPosition(1, 4, 0)}, ())
    nothing: dict[int, BatchSpan] = {}
    assert query.consumer.batch(query.at, end, lambda _, spans: dict(spans), nothing) == {}
    query.drain()
    assert query.rows[4:8] == again(0, 4)
    assert [row.offset for row in query.rows[8:]] == [4, 5, 6, 7]


def test_an_older_word_of_the_application_takes_no_later_one_back(world: World) -> None:
    (query,) = begun(world, by_hand(world, checkpointInterval="1h"))
    world.publish(5, 0)
    query.drain()
    assert acknowledge(query, (0, 4)) == {0}
    assert acknowledge(query, (0, 2)) == {0}
    query.stop()
    assert world.offset(0) == 4
