"""`ackMode=manual`: what was given out and counts no more, the way from and to `auto`, and runs up to now."""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import Stage, again, delivered, new
from tests.scenarios.test_acknowledging_by_hand import by_hand, joined, offsets

# --- what counts no more ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("SEQ-01")
def test_what_was_told_to_be_lost_comes_again_even_at_the_same_epoch(single: Stage) -> None:
    """A flow that had to begin as a new instance has nothing until it is answered: an application that asks then
    forgets what it kept, and must not acknowledge what follows as if it were all there was.
    """
    query, application = joined(single)
    single.publish(4)
    query.drain()
    given = application.in_hand().partitions
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
    assert given == {0: (1, 0, 4, 0)}
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


@pytest.mark.parametrize("is_announced", [False, True])
def test_what_the_application_was_refused_comes_again_before_what_is_newer(single: Stage, is_announced: bool) -> None:
    """`maxPollInterval` ends the flow while the application works; it comes back at the same epoch. Perhaps Spark has
    asked for the next end and did not use it.
    """
    query, application = joined(single, maxPollInterval="5s")
    single.publish(4)
    query.drain()
    hand = application.in_hand()
    if is_announced:
        single.publish(4)
        assert query.announce() != query.at
    single.sleep(7.0)
    assert application.acknowledge({0: 4}, hand) == frozenset()
    query.drain()
    assert query.epochs == {0: 1}, "nobody else had it"
    end = 8 if is_announced else 4
    assert query.rows[4:8] == again(0, 4)
    assert query.offsets(0)[4:] == list(range(end))
    assert application.acknowledge({0: end}) == {0}


# --- from one way to the other ----------------------------------------------------------------------------------------


def test_what_was_acknowledged_by_hand_is_not_taken_over_by_spark(stage: Stage) -> None:
    query, _ = joined(stage)
    stage.publish(4, 4)
    query.drain().stop()
    with pytest.raises(
        partq.Invalid, match=r"written with ackMode=manual.*give ackMode=manual, or use a new checkpoin"
    ):
        stage.query("left").goes_on_from(query).start().trigger()
    assert offsets(stage) == [0, 0]


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


def test_available_now_waits_for_acknowledgements_and_then_says_what_is_left(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.publish(5, 5)
    query, _ = by_hand(stage, maxDeliveredUnackedMsgsPerFlow="4")
    query.start(available_now=True).drain()
    assert len(query.rows) == 4
    assert "6 messages are left" in caplog.text
