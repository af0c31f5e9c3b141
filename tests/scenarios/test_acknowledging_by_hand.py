"""`ackMode=manual`: what the application has not acknowledged comes again, in order, marked, and nothing else does.
What was given out may count no more, and one may go from and to `auto`.
"""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import FOLDER, GROUP, OWNERSHIPS, Application, Query, Stage, Staged, again, delivered, new


def by_hand(stage: Stage, flow: str = "left", **options: str) -> tuple[Query, Application]:
    options = {"ackMode": "manual", "checkpointInterval": "0s", **options}
    return stage.query(flow, **options), Application(stage, flow)


def joined(stage: Stage, flow: str = "left", **options: str) -> tuple[Query, Application]:
    query, application = by_hand(stage, flow, **options)
    query.begun()
    return query, application


def test_what_was_not_given_out_cannot_be_acknowledged(stage: Stage) -> None:
    stage.publish(5, 4)
    query, application = joined(stage)
    query.drain()
    with pytest.raises(partq.Invalid, match="partition 0 cannot be acknowledged up to 6: delivered is up to 5"):
        application.acknowledge({1: 4, 0: 6})
    hand = application.in_hand()
    hand.partitions = {**hand.partitions, 0: hand.partitions[0]._replace(delivered=9)}
    with pytest.raises(partq.Invalid, match="partition 0 was delivered up to 5 and cannot be acknowledged up to 6"):
        application.acknowledge({1: 4, 0: 6}, hand)
    query.stop()
    assert [stage.offset(p) for p in (0, 1)] == [0, 0]


@pytest.mark.conformance("API-05")
def test_a_batch_that_nobody_looked_into_is_not_acknowledged_by_what_comes_after_it(alone: Stage) -> None:
    """As when a signal's exception comes between `poll` and the assignment."""
    alone.publish(6)

    def work(queue: partq.Queue) -> tuple[frozenset[int], list[tuple[int, bool]]]:
        with queue.consumer(GROUP, acknowledge="manual", starting="earliest", max_messages=2) as consumer:
            dropped, batch = consumer.poll(5.0), consumer.poll(5.0)
            assert dropped is not None
            assert batch is not None
            del dropped
            return batch.acknowledge(), [(each.offset, each.redelivered) for each in consumer.poll(5.0) or ()]

    counts, came = alone.do(work)
    assert counts == frozenset({0}), "the partition is told to have been given out anew"
    assert came[:2] == [(0, True), (1, True)]


# --- restarts ---------------------------------------------------------------------------------------------------------


@OWNERSHIPS
def test_a_restart_marks_what_was_delivered_each_time(single: Stage, ownership: str) -> None:
    query, _ = joined(single, ownership=ownership)
    single.publish(4)
    query.drain()
    for _ in range(3):
        seen = len(query.rows)
        query.stop().start().drain()
        assert query.rows[seen:] == again(0, 4)
    single.publish(1)
    seen = len(query.rows)
    query.stop().start().drain()
    assert query.rows[seen:] == [*again(0, 4), *new(4, 5)]


@OWNERSHIPS
@pytest.mark.conformance("SEQ-01")
def test_what_a_restart_cannot_give_out_at_once_is_marked_when_it_comes(stage: Stage, ownership: str) -> None:
    """A window that older messages of the other partition use up keeps it back, so that the offset has an empty span
    of it meanwhile.
    """
    query, application = joined(stage, ownership=ownership, maxDeliveredUnackedMsgsPerFlow="1")
    stage.publish(3, 0)
    for count in range(1, 4):
        query.drain()
        application.acknowledge({0: count})
    stage.publish(0, 1)
    query.drain().stop()
    stage.rewind(to=0, partitions=[0])
    query.start()
    seen = len(query.rows)
    for count in range(1, 4):
        stage.until(lambda: query.trigger() or len(query.rows) == seen + count)  # noqa: B023 - within this turn
        application.acknowledge({0: count})
    query.drain()
    assert query.rows == [*new(0, 3), *new(0, 1, 1), *again(0, 3), *again(0, 1, 1)]


@OWNERSHIPS
@pytest.mark.conformance("SEQ-01")
def test_batches_that_fail_in_run_after_run_come_again_in_each(staged: Staged, ownership: str) -> None:
    single = staged(partitions=1)
    query, application = by_hand(single, ownership=ownership)
    single.publish(10)
    for _ in range(3):
        query.start()
        while not query.rows[-1:] or query.batches[-1] == []:
            if len(query.log) == query.committed:
                query.plan()
            if not query.deliver():
                query.commit()
            else:
                break
        query.kill()
    seen = len(query.rows)
    query.start().drain()
    assert query.rows[seen:] == again(0, 10), "an end that is equal to its start is no batch for Spark"
    single.publish(3)
    query.drain()
    assert query.rows[seen + 10 :] == new(10, 13)
    application.acknowledge({0: 13})
    query.stop()
    assert single.offset(0) == 13


@OWNERSHIPS
def test_a_reader_that_is_replaced_within_a_batch_gives_it_out_again(single: Stage, ownership: str) -> None:
    """`if not df.isEmpty(): df.collect()` plans a batch twice, and here each by a process of its own."""
    query, _ = joined(single, ownership=ownership)
    single.publish(4)
    query.plan()
    assert len(query.deliver()) == 4
    query.kill().start()
    assert query.deliver() == []
    query.commit().drain()
    assert query.rows[4:] == again(0, 4)


# --- handoffs ---------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("SEQ-01", "HAN-02")
def test_a_handoff_ends_as_soon_as_the_application_has_acknowledged(staged: Staged) -> None:
    stage = staged(max_handoff_time_s=60.0)
    first, application = joined(stage)
    stage.publish(5, 5)
    first.trigger()
    first.run()
    second, _ = joined(stage, "right")
    second.run()
    stage.sleep(3.0)
    assert second.partitions == ()
    application.acknowledge({0: 5, 1: 5})
    stage.until(lambda: len(second.partitions) == 1, 2.0)
    stage.publish(1, 1)
    stage.until(lambda: len(second.rows) == 1)
    assert [row.marked for row in second.rows] == [False]


# --- what counts no more ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("SEQ-01")
def test_what_was_told_to_be_lost_comes_again_even_at_the_same_epoch(single: Stage) -> None:
    """A flow that had to begin as a new instance has nothing until it is answered: an application that asks then
    forgets what it kept, and must not acknowledge what follows as if it were all there was.
    """
    query, application = joined(single)
    single.publish(4)
    query.drain()
    query.freeze()
    single.sleep(10.5)
    query.thaw()
    single.until(lambda: application.in_hand().lost == {0} or application.in_hand().partitions[0].round == 1)
    single.publish(1)
    single.until(lambda: query.trigger() or len(query.rows) > 4)
    query.drain()
    assert query.epochs == {0: 1}, "nobody else had it"
    assert query.rows[4:] == [*again(0, 4), *new(4, 5)]
    assert application.in_hand().partitions == {0: (1, 0, 5, 1)}
    assert application.acknowledge({0: 5}) == {0}
    assert single.offset(0) == 5


@pytest.mark.conformance("API-05")
@pytest.mark.parametrize("offset", [2, 4, 8])
def test_what_counts_no_more_cannot_be_acknowledged_by_what_was_remembered_of_it(stage: Stage, offset: int) -> None:
    """It was given out up to 8, is void, and is given out anew up to 4: that is a new round, at the same epoch."""
    query, application = joined(stage, maxPollInterval="5s", maxMessagesPerTrigger="4")
    stage.publish(8, 0)
    query.drain()
    remembered = application.in_hand()
    stage.sleep(6.0)
    assert application.acknowledge({0: offset}, remembered) == frozenset()
    query.trigger()
    assert query.rows[8:] == again(0, 4)
    assert application.acknowledge({0: offset}, remembered) == frozenset()
    assert stage.offset(0) == 0
    query.trigger()
    assert query.rows[12:] == again(4, 8), "and takes nothing back"


def test_what_the_application_was_refused_comes_again_before_what_is_newer(single: Stage) -> None:
    """`maxPollInterval` ends the flow while the application works; it comes back at the same epoch."""
    query, application = joined(single, maxPollInterval="5s")
    single.publish(4)
    query.drain()
    hand = application.in_hand()
    single.publish(4)
    assert query.announce() != query.at, "Spark asks for it, and does not use it"
    single.sleep(7.0)
    assert application.acknowledge({0: 4}, hand) == frozenset()
    query.drain()
    assert (query.epochs, query.rows[4:8]) == ({0: 1}, again(0, 4))
    assert query.offsets(0)[4:] == list(range(8))
    assert application.acknowledge({0: 8}) == {0}


def test_what_was_given_out_before_the_flow_left_comes_again_when_it_is_back(staged: Staged) -> None:
    """Another process of that name may have had it meanwhile, and have told the application that it counts no more."""
    stage = staged(rebalance_delay_s=30.0)
    query, application = joined(stage, maxPollInterval="5s", maxDeliveredUnackedMsgsPerFlow="4")
    stage.publish(2, 0)
    query.drain()
    hand = application.in_hand()
    stage.publish(0, 2)
    query.plan()
    stage.sleep(7.0)
    query.drain()  # first the batch of another partition
    assert (query.epochs, query.rows) == ({0: 1, 1: 1}, [*new(0, 2), *again(0, 2), *again(0, 2, 1)])
    assert application.acknowledge({0: 2}, hand) == frozenset()
    assert application.acknowledge({0: 2}) == {0}


def test_what_was_trimmed_before_its_checkpoint_was_deleted_takes_no_room(alone: Stage) -> None:
    """Nothing of it is ever given out, so that the application never acknowledges it."""
    alone.query("left", ownership="none").begun(6, 0).drain().stop()
    alone.do(lambda queue: queue.trim({0: 6}))
    alone.world.store.delete(f"{FOLDER}checkpoint/0")
    query, _ = joined(alone, ownership="none", failOnDataLoss="false", maxDeliveredUnackedMsgsPerFlow="4")
    assert [query.trigger() for _ in range(3)] == [True, False, False]
    alone.publish(1, 1)
    query.drain()
    assert query.rows == [*new(6, 7), *new(0, 1, 1)]
    query.stop()
    alone.world.store.delete(f"{FOLDER}checkpoint/0")
    taken = alone.do(lambda queue: queue.consumer(GROUP, ownership="none", fail_on_data_loss=False).poll(5.0))
    assert sorted((each.partition, each.offset) for each in taken or ()) == [(0, 6), (1, 0)]


# --- from one way to the other ----------------------------------------------------------------------------------------


def test_what_was_acknowledged_by_hand_is_not_taken_over_by_spark(stage: Stage) -> None:
    query, _ = joined(stage)
    stage.publish(4, 4)
    query.drain().stop()
    with pytest.raises(
        partq.Invalid, match=r"written with ackMode=manual.*give ackMode=manual, or use a new checkpoin"
    ):
        stage.query("left").goes_on_from(query).start().trigger()
    assert [stage.offset(p) for p in (0, 1)] == [0, 0]


def test_who_acknowledged_by_itself_may_go_on_by_hand(stage: Stage) -> None:
    query = stage.query("left").begun(4, 4).drain().stop()
    other, application = by_hand(stage)
    stage.publish(1, 1)
    other.goes_on_from(query).start().drain()
    assert sorted(other.rows) == [*new(4, 5), *new(4, 5, 1)]
    assert application.acknowledge({0: 5, 1: 5}) == {0, 1}


def test_a_batch_that_was_not_finished_is_not_repeated_by_hand(stage: Stage) -> None:
    """It would be empty, complete for Spark, and acknowledged by Spark's progress if the query went back to auto."""
    query = stage.query("left").begun(4, 4).plan().kill()
    other, _ = by_hand(stage)
    with pytest.raises(partq.Invalid, match=r"not finished with ackMode=auto.*start it once with ackMode=auto"):
        other.goes_on_from(query).start().trigger()
    other.kill()
    query.start().drain()
    assert delivered(query) == stage.everything


# --- up to now --------------------------------------------------------------------------------------------------------


def test_available_now_waits_for_answers_and_says_what_is_left(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.publish(5, 5)
    query, _ = by_hand(stage, maxDeliveredUnackedMsgsPerFlow="4")
    query.start(available_now=True).drain()
    assert len(query.rows) == 4
    assert "6 messages are left" in caplog.text
