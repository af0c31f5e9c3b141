"""What a query does while it has nothing to do, and while a batch takes long; what lives beside Spark's calls in its
process: questions and words by its mailbox, faults that the next question meets, its end. What it reads and when it
stops: up to now, limits, where a group begins.
"""

from __future__ import annotations

import logging

import pytest

import partq
from tests.scenarios.stage import OWNERSHIPS, Application, Query, Stage, Staged, begun, delivered
from tests.scenarios.test_acknowledging_by_hand import by_hand


def test_an_idle_query_looks_at_its_log_alone_and_ever_more_seldom(alone: Stage) -> None:
    """A whole look at the group is good for a second; and what wakes its process up are these looks."""
    alone.query("idle", ownership="none").begun().run()
    alone.sleep(10.0)
    alone.line.calls.clear()
    steps = alone.world.scheduler.steps
    alone.sleep(10.0)
    assert 8 <= alone.line.asked("list", "checkpoint/", by="idle") <= 11
    looks = alone.line.asked("load", "_head.json", by="idle")
    assert 80 <= looks <= 180
    assert alone.world.scheduler.steps - steps <= 10.0 / 0.05 + 2 * looks


def test_news_at_the_end_of_a_quiet_wait_are_not_forgotten(alone: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing tells the wait from one that was slept out."""
    query = alone.query("left", ownership="none").begun().drain()
    consumer = query._reader.process._consumer
    wait, observe, looks, wakes = consumer._wait, consumer.participant.member.observe, list[int](), [True]

    def wait_and_hear(wait_s: float) -> None:
        wait(wait_s)
        if wakes:
            wakes.pop()
            consumer.wake()

    def look() -> object:
        looks.append(1)
        return observe()

    monkeypatch.setattr(consumer.participant.member, "observe", look)
    query.trigger()
    looks.clear()
    query.trigger()
    assert not looks, "a whole look is good for a while"
    monkeypatch.setattr(consumer, "_wait", wait_and_hear)
    query.trigger()
    assert looks


@pytest.fixture
def paid(staged: Staged) -> Stage:
    """A store whose requests are paid for."""
    return staged(paid=True)


@pytest.mark.parametrize("change", ["rewound", "resized"])
def test_a_query_alone_looks_seldom_where_that_is_paid_for_and_notices_changes_soon(paid: Stage, change: str) -> None:
    query = paid.query("alone", ownership="none", checkpointInterval="10s").begun().run()
    paid.publish(4, 3)
    paid.until(lambda: [paid.offset(p) for p in (0, 1)] == [4, 3])
    paid.sleep(60.0)
    paid.line.calls.clear()
    paid.sleep(300.0)
    assert 3 <= paid.line.asked("list", "checkpoint/", by="alone") <= 10
    began_s = paid.now_s
    if change == "rewound":
        paid.rewind(to=1, partitions=[0])
        paid.until(lambda: query.offsets(0) == [0, 1, 2, 3, 1, 2, 3])
    else:
        paid.alter(3)
        paid.until(lambda: query.partitions == (0, 1, 2))
    assert paid.now_s - began_s <= 12.0


@pytest.mark.parametrize(("timeout", "beats"), [("60s", (3, 5)), ("10s", (22, 26))])
def test_paid_heartbeats_come_four_times_a_session_timeout(paid: Stage, timeout: str, beats: tuple[int, int]) -> None:
    paid.query("left", sessionTimeout=timeout).begun().drain()
    paid.sleep(5.0)
    paid.line.calls.clear()
    paid.sleep(60.0)
    assert beats[0] <= paid.line.asked("swap", "/beats/", by="left") <= beats[1]


# --- while a batch takes long -----------------------------------------------------------------------------------------


def test_a_batch_that_is_told_to_be_complete_is_acknowledged_without_another_trigger(stage: Stage) -> None:
    stage.publish(5, 4)
    query = stage.query(checkpointInterval="0s").begun()
    query.trigger()
    end = query.log[-1]
    query.log[-1] = {**end, "v": 2}
    stage.complete(query)
    assert [stage.offset(p) for p in (0, 1)] == [0, 0], "of another batch"
    query.log[-1] = end
    stage.complete(query)
    assert [stage.offset(p) for p in (0, 1)] == [5, 4]


@OWNERSHIPS
def test_batches_that_take_longer_than_a_handoff_may_are_told_to_those_who_share(
    stage: Stage, caplog: pytest.LogCaptureFixture, ownership: str
) -> None:
    """Once a minute. Who has the group to himself lets nobody wait."""
    query = stage.query(ownership=ownership).begun()
    query.during = lambda: stage.sleep(4.0)
    with caplog.at_level(logging.WARNING, "partq.flow"):
        for _ in range(10):
            stage.publish(1, 1)
            query.drain()
    said = [each.getMessage() for each in caplog.records if "max-handoff-time (3 s)" in each.getMessage()]
    assert len(said) == (ownership == "store")
    for text in said:
        for part in (f"flow {query.name!r} of", "queue alter orders --max-handoff-time", "maxMessagesPerTrigger"):
            assert part in text


def test_a_query_that_spark_forgot_leaves_the_group_and_comes_back(stage: Stage) -> None:
    query = stage.query("left", maxPollInterval="15s").begun(1, 1).drain().kill().start()
    stage.publish(1, 1)
    query.plan()
    stage.sleep(10.0)
    assert stage.owner(0)[0] == "left", "a question that took long itself has just been answered"
    query.deliver()
    stage.sleep(10.0)
    assert stage.owner(0)[0] == "left", "it was asked for the batch"
    stage.sleep(10.0)
    assert stage.owner(0)[0] is None
    query.commit()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or set(delivered(query)) == set(stage.everything))


# --- beside Spark's calls ---------------------------------------------------------------------------------------------


def in_hand(stage: Stage, **options: str) -> tuple[Query, Application]:
    """A flow that has three messages in hand."""
    query, application = by_hand(stage, ownership="none", **options)
    query.begun(3, 0).trigger()
    return query, application


def test_an_application_is_answered_while_spark_waits_in_a_long_idle_look(alone: Stage) -> None:
    query, application = in_hand(alone, pollInterval="20s")
    idle = query.asking(query._trigger)
    alone.sleep(1.0)
    assert application.acknowledge({0: 2}) == {0}
    alone.until(lambda: alone.offset(0) == 2, 2.0)
    assert not idle.is_done
    alone.publish(1, 0)
    assert idle.result(5.0)
    assert query.offsets(0) == [0, 1, 2, 3]


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


def test_where_no_mailbox_can_be_made_a_flow_goes_on_without_a_listener_and_by_hand_it_is_refused(
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
    query.stop()
    other = alone.query("right", ownership="none", ackMode="manual").start()
    with pytest.raises(partq.Invalid, match=r"flow 'right' of group .* cannot be reached by its application: no sock"):
        other.drain()


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
    query, application = in_hand(alone, checkpointInterval="1h")
    application.acknowledge({0: 2})
    assert alone.offset(0) == 0
    query.ask(query._reader.stop)
    query.ask(query._reader.stop)
    assert alone.offset(0) == 2
    alone.sleep(10.0)
    assert [each.name.rpartition("/")[2] for each in query.host.process.strands] == ["main"], "no other thread is left"
    with pytest.raises(partq.Unavailable):
        application.in_hand()


def test_a_reader_that_is_stuck_says_so_and_stopping_goes_on(alone: Stage, caplog: pytest.LogCaptureFixture) -> None:
    query, application = in_hand(alone)
    held = alone.hold("load", "_head.json", by="left")
    query.asking(query._trigger)
    alone.until(lambda: held.is_waiting)
    with pytest.raises(partq.Unavailable, match="waits for a store that does not answer: ask again later"):
        application.in_hand()
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


# --- AvailableNow -----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-06")
def test_a_run_that_finds_nothing_new_acknowledges_the_one_before_also_after_a_late_answer(staged: Staged) -> None:
    stage = staged(rebalance_delay_s=3.0)
    coordinator = stage.coordinator
    query = stage.query(checkpointInterval="1h").begun(2, 2)
    query.trigger()
    query.kill()
    assert [stage.offset(p) for p in (0, 1)] == [0, 0]
    assert coordinator.process is not None
    coordinator.process.freeze(16_000_000)
    query.start(available_now=True).drain()
    assert [stage.offset(p) for p in (0, 1)] == [2, 2]


def test_available_now_waits_for_its_share_and_ends_as_a_standby(staged: Staged) -> None:
    stage = staged(rebalance_delay_s=4.0)
    first, second, third = (stage.query(name) for name in ("first", "second", "third"))
    first.begun().run()
    stage.until(lambda: len(first.partitions) == 2)
    stage.publish(2, 2)
    second.begun()
    second.fix_target()
    stage.publish(3, 3)  # beyond the target
    began_s = stage.now_s
    second.drain()
    assert 3.0 < stage.now_s - began_s < 9.0
    assert len(second.partitions) == 1
    third.begun()
    third.fix_target()
    began_s = stage.now_s
    third.drain()
    assert stage.now_s - began_s < 3.0
    assert third.partitions == ()


# --- limits and ends --------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
@OWNERSHIPS
def test_what_is_in_hand_is_bounded_whatever_the_trigger_allows(stage: Stage, ownership: str) -> None:
    stage.publish(10, 10)
    query = stage.query(ownership=ownership, maxDeliveredUnackedMsgsPerFlow="7").begun()
    query.log.append(query.announce(limited=False))
    query.deliver()
    query.commit().drain()
    assert [len(batch) for batch in query.batches] == [0, 7, 7, 6]


# --- where a group begins ---------------------------------------------------------------------------------------------


def test_a_group_begins_where_its_first_query_says(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.publish(3, 3)
    first = stage.query(startingOffsets="latest").begun(1, 1).drain()
    assert sorted(delivered(first)) == [(0, 3), (1, 3)]
    command = "partq checkpoints rewind orders --group billing"
    with caplog.at_level(logging.WARNING, "partq.flow"):
        stage.query(startingOffsets="latest").start().plan()
        assert "rewind" not in caplog.text
        for said, expected in {
            "earliest": "--to earliest",
            '{"0": 1, "1": 1}': "--to 1",
        }.items():
            stage.query(startingOffsets=said).start().plan()
            assert f"`{command} {expected} --store {stage.world.url}`" in caplog.text
        stage.alter(3)
        stage.query(startingOffsets='{"0": 3, "1": 3}').start().plan()
        assert "--to 3" not in caplog.text, "as the group began, before the resize"
        with pytest.raises(partq.Invalid, match=r"missing \[1\], unknown \[7\]"):
            stage.query(startingOffsets='{"0": 3, "7": 3}').start().plan()
        timed = stage.query()
        del timed.options["startingOffsets"]
        timed.options["startingTimestamp"] = "2022-11-20T09:30:00+01:00"
        timed.start().plan()
    assert f"`{command} --to-timestamp 2022-11-20T08:30:00.000000Z --store {stage.world.url}`" in caplog.text
