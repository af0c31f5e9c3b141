"""What lives beside Spark's calls in a reader process: questions and words by its mailbox, faults that the next
question meets, and the end of the process.
"""

from __future__ import annotations

import logging

import pytest

import partq
from tests.scenarios.stage import Application, Query, Stage, begun


def by_hand(stage: Stage, **options: str) -> tuple[Query, Application]:
    """A flow that has three messages in hand."""
    options = {"ackMode": "manual", "checkpointInterval": "0s", **options}
    query = stage.query("left", ownership="none", **options).begun(3, 0)
    query.trigger()
    return query, Application(stage, "left")


def test_an_application_is_answered_while_spark_waits_in_a_long_idle_look(alone: Stage) -> None:
    query, application = by_hand(alone, pollInterval="20s")
    idle = query.asking(query._trigger)
    alone.sleep(1.0)
    assert application.acknowledge({0: 2}) == {0}
    alone.until(lambda: alone.offset(0) == 2, 2.0)
    assert not idle.is_done
    alone.publish(1, 0)
    assert idle.result(5.0)
    assert query.offsets(0) == [0, 1, 2, 3]


def test_an_application_is_told_that_the_reader_is_stuck(alone: Stage) -> None:
    query, application = by_hand(alone)
    held = alone.hold("load", "_head.json", by="left")
    query.asking(query._trigger)
    alone.until(lambda: held.is_waiting)
    with pytest.raises(partq.Unavailable, match="waits for a store that does not answer: ask again later"):
        application.in_hand()
    held.release()
    assert application.acknowledge({0: 3}) == {0}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"do": "sing"}, "'sing' is not known to this version of partq"),
        ({"do": "acknowledge", "process": "x", "p": {"0": [1, 1, 0]}}, "ackMode=auto: give it the option ackMode=manu"),
    ],
)
def test_what_is_not_known_is_refused(alone: Stage, message: dict[str, object], says: str) -> None:
    begun(alone.query("left", ownership="none"))
    with pytest.raises(partq.Invalid, match=says):
        alone.begin(lambda: alone.world.around.mailboxes.ask("left", message)).result()


def test_a_flow_that_nobody_can_tell_anything_is_refused_by_hand(alone: Stage) -> None:
    alone.world.around.mailboxes.trouble = "no socket can be made"
    query = alone.query("left", ownership="none", ackMode="manual").start()
    with pytest.raises(partq.Invalid, match=r"flow 'left' of group .* cannot be reached by its application: no socket"):
        query.drain()


def test_a_flow_that_acknowledges_by_itself_goes_on_without_a_listener(
    alone: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    alone.world.around.mailboxes.trouble = "no socket can be made"
    with caplog.at_level(logging.WARNING, "partq.flow"):
        query = alone.query("left", ownership="none", checkpointInterval="0s").begun(1, 0)
        for _ in range(3):
            query.drain()
    said = [each.getMessage() for each in caplog.records if "no listener can reach" in each.getMessage()]
    assert len(said) == 1, "once, and not at every trigger"
    assert alone.offset(0) == 1
    assert query.report["notify"] is None


def test_a_flow_that_was_taken_over_beside_a_batch_learns_it_by_the_next_question(alone: Stage) -> None:
    first = alone.query("left", ownership="none").begun(1, 0)
    first.trigger()
    other = alone.query("right", ownership="none").begun()
    other.trigger()
    alone.sleep(3.0)
    alone.line.calls.clear()
    with pytest.raises(partq.Fenced, match="right"):
        first.trigger()
    assert not [each for each in alone.line.calls if each[0] == "left"], "nothing is asked of a flow that is in trouble"


def test_a_fault_beside_a_batch_is_raised_by_the_next_question_and_the_process_lives_on(stage: Stage) -> None:
    """Not by one that is damaged: an error that nobody expects."""
    query = stage.query("left").begun().drain()
    stage.instead("load", "ownership/state", lambda _: 1 / 0, by="left")
    stage.sleep(3.0)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        query.trigger()
    stage.publish(1, 0)
    query.drain()
    assert query.offsets(0) == [0]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_stopping_writes_down_what_is_acknowledged_and_ends_everything(alone: Stage) -> None:
    query, application = by_hand(alone, checkpointInterval="1h")
    application.acknowledge({0: 2})
    assert alone.offset(0) == 0
    query.ask(query._reader.stop)
    query.ask(query._reader.stop)
    assert alone.offset(0) == 2
    alone.sleep(10.0)
    assert [each.name.rpartition("/")[2] for each in query.host.process.strands] == ["main"], "no other thread is left"
    with pytest.raises(partq.Unavailable):
        application.in_hand()


def test_stopping_does_not_wait_for_ever_for_a_thread_that_is_stuck(
    alone: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    query, _ = by_hand(alone)
    held = alone.hold("load", "_head.json", by="left")
    query.asking(query._trigger)
    alone.until(lambda: held.is_waiting)
    began_s = alone.now_s
    alone.begin(query._reader.stop, query.host).result()
    assert alone.now_s - began_s <= 6.0
    assert "the flow's group will notice that it is gone" in caplog.text
    held.release()


@pytest.mark.conformance("LOS-07")
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_reader_whose_jvm_is_frozen_or_dead_is_silent_and_does_not_come_back(stage: Stage, is_frozen: bool) -> None:
    """Not as a new instance in its name either, when its session is over; and it goes on when the JVM does."""
    query = stage.query("left").begun().drain()
    if is_frozen:
        query.freeze(jvm=True)
    else:
        stage.world.scheduler.kill(query.jvm.process)
    stage.until(lambda: stage.owner(0)[0] is None, 30.0)
    stage.line.calls.clear()
    stage.sleep(20.0)
    assert stage.line.asked("swap", by="left") == 0
    assert not any(flow.bound for flow in stage.status().flows)
    if is_frozen:
        query.thaw(jvm=True)
        stage.publish(2, 2)
        stage.until(lambda: query.trigger() or len(query.rows) == 4)
        assert stage.owner(0)[0] == "left"
