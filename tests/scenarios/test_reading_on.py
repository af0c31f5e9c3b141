"""What one query reads and when it stops: up to now, limits, where a group begins, what is gone; what it does while it
has nothing to do, while a batch takes long, and while a store does not answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest

import partq
from tests.scenarios.stage import FOLDER, Query, Stage, begun, delivered, new

Staged = Callable[..., Stage]

# --- AvailableNow -----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-06")
def test_available_now_reads_what_there_was_and_acknowledges_its_last_batch(stage: Stage) -> None:
    stage.publish(5, 4)
    query = stage.query(maxMessagesPerTrigger="4", checkpointInterval="1m").start(available_now=True)
    stage.publish(1, 1)
    query.drain()
    assert Counter(row.partition for row in query.rows) == {0: 5, 1: 4}
    assert [stage.offset(p) for p in (0, 1)] == [5, 4]
    query.stop().start(available_now=True).drain()
    assert delivered(query) == stage.everything


@pytest.mark.conformance("CHK-06")
def test_a_run_that_finds_nothing_new_acknowledges_the_one_before_also_after_a_late_answer(staged: Staged) -> None:
    stage = staged(delay_s=3.0)
    coordinator = stage.coordinated()
    (query,) = begun(stage.query(checkpointInterval="1h"))
    stage.publish(2, 2)
    query.trigger()
    query.kill()
    assert [stage.offset(p) for p in (0, 1)] == [0, 0]
    assert coordinator.process is not None
    coordinator.process.freeze(16_000_000)
    query.start(available_now=True).drain()
    assert [stage.offset(p) for p in (0, 1)] == [2, 2]


def test_available_now_waits_for_its_share_and_ends_as_a_standby(staged: Staged) -> None:
    stage = staged(delay_s=4.0)
    stage.coordinated()
    first, second, third = (stage.query(name) for name in ("first", "second", "third"))
    begun(first)
    first.run()
    stage.until(lambda: len(first.partitions) == 2)
    stage.publish(2, 2)
    begun(second)
    second.fix_target()
    stage.publish(3, 3)  # beyond the target
    began_s = stage.now_s
    second.drain()
    assert 3.0 < stage.now_s - began_s < 9.0
    assert len(second.partitions) == 1
    begun(third)
    third.fix_target()
    began_s = stage.now_s
    third.drain()
    assert stage.now_s - began_s < 3.0
    assert third.partitions == ()


def test_available_now_ends_with_an_error_if_nobody_says_what_it_has(alone: Stage) -> None:
    (query,) = begun(alone.query())
    query.fix_target()
    with pytest.raises(partq.Unavailable, match="start one with `partq coordinator run`"):
        query.trigger()


def test_a_run_up_to_now_that_was_done_waits_anew_for_what_it_has_lost(staged: Staged) -> None:
    """Other sources of the query go on: their batches may last longer than a whole wait, and its lease."""
    stage = staged(handoff_s=1.0)
    coordinator = stage.coordinated()
    (query,) = begun(stage.query("left", sessionTimeout="5s"))
    query.stop().start(available_now=True)
    assert not query.trigger()
    coordinator.kill()
    query.freeze()
    stage.sleep(30.0)
    query.thaw()
    began_s = stage.now_s
    with pytest.raises(partq.Unavailable, match="no coordinator has answered"):
        query.trigger()
    assert stage.now_s - began_s >= 5.0


def test_available_now_leaves_what_it_lost_to_the_new_owner_and_reads_what_it_gained(stage: Stage) -> None:
    stage.publish(20, 20)
    first, second = stage.query("first", maxMessagesPerTrigger="6"), stage.query("second")
    first.start(available_now=True)

    def another() -> None:
        if first.rows and not second.batches:
            begun(second)
            second.run()
            stage.sleep(1.5)

    first.during = another
    first.drain()
    stage.until(lambda: delivered(first, second) == stage.everything)
    assert {row.marked for row in second.rows} == {False}
    assert len(first.partitions) == 1


# --- limits and ends --------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
@pytest.mark.parametrize("ownership", ["store", "none"])
def test_what_is_in_hand_is_bounded_whatever_the_trigger_allows(stage: Stage, ownership: str) -> None:
    stage.publish(10, 10)
    (query,) = begun(stage.query(ownership=ownership, maxDeliveredUnackedMsgsPerFlow="7"))
    query.log.append(query.announce(limited=False))
    query.deliver()
    query.commit().drain()
    assert [len(batch) for batch in query.batches] == [0, 7, 7, 6]


def test_how_a_limit_is_shared_follows_the_backlog_with_either_option_without_a_group(alone: Stage) -> None:
    for _ in range(10):
        alone.publish(3, 9)
    for name in ("maxMessagesPerTrigger", "maxDeliveredUnackedMsgsPerFlow"):
        stream = alone.ungrouped(**{name: "40"}).start()
        stream.trigger()
        assert (len(stream.offsets(0)), len(stream.offsets(1))) == (10, 30)


def test_an_end_says_all_that_the_flow_has(stage: Stage) -> None:
    """Also partitions without news, so that a restart can present them."""
    (query,) = begun(stage.query())
    query.drain()
    stage.publish(0, 3)
    query.trigger()
    assert query.log[-1]["p"] == {"0": [1, 0, 0, 0], "1": [1, 0, 3, 0]}
    told = {"queue": "orders", "group": "billing", "flow": query.name, "notify": query.report["notify"]}
    partitions = {"0": {"epoch": 1, "end": 0, "lag": 0}, "1": {"epoch": 1, "end": 3, "lag": 0}}
    assert query.report == {**told, "partitions": partitions}
    assert query.report["notify"]


def test_without_a_group_the_end_is_a_text_that_stays_and_a_repeated_batch_is_the_same(alone: Stage) -> None:
    """Spark compares texts (spark-traps.md 6)."""
    alone.publish(3, 4)
    stream = alone.ungrouped().start()
    stream.trigger()
    end = stream.log[-1]
    assert list(end) == ["v", "queue", "group", "flow", "publish", "p"]
    assert end["p"] == {"0": [0, 0, 3, 0], "1": [0, 0, 4, 0]}
    assert (end["v"], end["group"], end["flow"]) == (1, None, None)
    alone.publish(2, 2)
    alone.alter(5)
    stream.kill().forget(1, commits=0).start()
    assert stream.deliver() == stream.batches[0]


# --- where a group begins ---------------------------------------------------------------------------------------------


def test_the_group_begins_where_its_first_query_says_and_later_ones_are_warned(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.publish(3, 3)
    (first,) = begun(stage.query(startingOffsets="latest"))
    stage.publish(1, 1)
    first.drain()
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
        timed = stage.query()
        del timed.options["startingOffsets"]
        timed.options["startingTimestamp"] = "2022-11-20T09:30:00+01:00"
        timed.start().plan()
    assert f"`{command} --to-timestamp 2022-11-20T08:30:00.000000Z --store {stage.world.url}`" in caplog.text


def test_where_a_stream_without_a_group_begins_is_fixed_at_once(alone: Stage) -> None:
    alone.publish(2, 2)
    stream = alone.ungrouped(startingOffsets="latest", pollInterval="60s").start()
    began_s = alone.now_s
    stream.trigger()
    assert alone.now_s - began_s < 5
    assert stream.rows == []
    alone.publish(1, 1)
    stream.kill().start().trigger()
    assert sorted(stream.rows) == [*new(2, 3), *new(2, 3, 1)]


def test_a_start_that_the_user_named_and_that_was_trimmed_is_an_error(stage: Stage) -> None:
    stage.publish(5, 5)
    stage.do(lambda queue: queue.trim({0: 5, 1: 5}))
    stage.publish(1, 1)
    with pytest.raises(partq.PartqError, match="have been trimmed"):
        begun(stage.query(startingOffsets='{"0": 1, "1": 5}'))[0].trigger()


def test_what_was_trimmed_is_met_once_and_said(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.publish(5, 5)
    strict, lenient = stage.ungrouped(), stage.ungrouped(failOnDataLoss="false")
    for query in (strict, lenient):
        query.start().trigger()
        query.forget(1)
        query.log[-1]["p"] = {"0": [0, 0, 2, 0], "1": [0, 0, 5, 0]}
    stage.publish(0, 1)
    stage.do(lambda queue: queue.trim({0: 5, 1: 5}))
    with pytest.raises(partq.PartqError, match=r"offsets 2 to 5 of partition 0 .* `earliest`, or set failOnDataLoss"):
        strict.trigger()
    with caplog.at_level(logging.WARNING):
        lenient.drain()
    assert "offsets 2 to 5 of partition 0" in caplog.text
    assert lenient.rows[10:] == new(5, 6, 1)


# --- idle -------------------------------------------------------------------------------------------------------------


def test_ownership_alone_never_changes_the_offset(stage: Stage) -> None:
    (first,) = begun(stage.query("first"))
    first.run()
    stage.sleep(2.0)
    begun(stage.query("second"))[0].run()
    stage.until(lambda: len(first.partitions) == 1)
    stage.sleep(1.0)
    assert len(first.log) == 1


def test_an_idle_query_looks_at_its_log_alone_and_ever_more_seldom(alone: Stage) -> None:
    """A whole look at the group is good for a second; and what wakes its process up are these looks."""
    (query,) = begun(alone.query("idle", ownership="none"))
    query.run()
    alone.sleep(10.0)
    alone.line.calls.clear()
    steps = alone.world.scheduler.steps
    alone.sleep(10.0)
    assert 8 <= alone.line.asked("list", "checkpoint/", by="idle") <= 11
    looks = alone.line.asked("load", "_head.json", by="idle")
    assert 80 <= looks <= 180
    assert alone.world.scheduler.steps - steps <= 10.0 / 0.05 + 2 * looks


def test_news_that_come_at_the_end_of_a_quiet_wait_are_not_forgotten(
    alone: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing tells the wait from one that was slept out."""
    (query,) = begun(alone.query("left", ownership="none"))
    query.drain()
    consumer = query._reader.process._consumer
    wait, observe, looks, wakes = consumer._wait_for, consumer.member.observe, list[int](), [True]

    def wait_and_hear(wait_s: float) -> None:
        wait(wait_s)
        if wakes:
            wakes.pop()
            consumer.wake()

    def look() -> object:
        looks.append(1)
        return observe()

    monkeypatch.setattr(consumer.member, "observe", look)
    query.trigger()
    looks.clear()
    query.trigger()
    assert not looks, "a whole look is good for a while"
    monkeypatch.setattr(consumer, "_wait_for", wait_and_hear)
    query.trigger()
    assert looks


def test_an_instance_that_ended_is_replaced_at_once(stage: Stage) -> None:
    (query,) = begun(stage.query())
    query.drain()
    query.freeze()
    stage.sleep(30.0)
    query.thaw()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or query.rows, 5.0)
    assert delivered(query) == stage.everything


@pytest.fixture
def paid(staged: Staged) -> Stage:
    """A store whose requests are paid for."""
    stage = staged(paid=True)
    stage.coordinated()
    return stage


def settled_alone(stage: Stage) -> Query:
    """A query that has its group to itself, and has handled and acknowledged what there was; nothing for long."""
    (query,) = begun(stage.query("alone", ownership="none", checkpointInterval="10s"))
    query.run()
    stage.publish(4, 3)
    stage.until(lambda: [stage.offset(p) for p in (0, 1)] == [4, 3])
    stage.sleep(60.0)
    stage.line.calls.clear()
    return query


def test_a_query_alone_lists_its_checkpoints_seldom_where_that_is_paid_for(paid: Stage) -> None:
    query = settled_alone(paid)
    paid.sleep(300.0)
    assert query.failure is None
    assert 3 <= paid.line.asked("list", "checkpoint/", by="alone") <= 10


@pytest.mark.parametrize("change", ["rewound", "resized"])
def test_what_people_change_is_noticed_as_soon_as_ever_where_looks_are_paid_for(paid: Stage, change: str) -> None:
    query = settled_alone(paid)
    began_s = paid.now_s
    if change == "rewound":
        paid.rewind(to=1, partitions=[0])
        paid.until(lambda: query.offsets(0) == [0, 1, 2, 3, 1, 2, 3])
    else:
        paid.alter(3)
        paid.until(lambda: query.partitions == (0, 1, 2))
    assert paid.now_s - began_s <= 12.0


@pytest.mark.parametrize(("timeout", "beats"), [("60s", (3, 5)), ("10s", (22, 26))])
def test_heartbeats_that_are_paid_for_come_four_times_in_a_session_timeout(
    paid: Stage, timeout: str, beats: tuple[int, int]
) -> None:
    (query,) = begun(paid.query("left", sessionTimeout=timeout))
    query.drain()
    paid.sleep(5.0)
    paid.line.calls.clear()
    paid.sleep(60.0)
    assert beats[0] <= paid.line.asked("swap", "/beats/", by="left") <= beats[1]


# --- while a batch takes long -----------------------------------------------------------------------------------------


def test_beside_a_long_batch_what_is_due_is_written(stage: Stage) -> None:
    (query,) = begun(stage.query())
    stage.publish(3, 3)
    query.trigger()
    stage.publish(3, 3)

    def long() -> None:
        assert [stage.offset(p) for p in (0, 1)] == [0, 0]
        stage.sleep(2.5)

    query.during = long
    query.trigger()
    assert [stage.offset(p) for p in (0, 1)] == [3, 3]


def test_a_batch_that_is_told_to_be_complete_is_acknowledged_without_another_trigger(stage: Stage) -> None:
    stage.publish(5, 4)
    (query,) = begun(stage.query(checkpointInterval="0s"))
    query.trigger()
    end = query.log[-1]
    query.log[-1] = {**end, "v": 2}
    stage.complete(query)
    assert [stage.offset(p) for p in (0, 1)] == [0, 0], "of another batch"
    query.log[-1] = end
    stage.complete(query)
    assert [stage.offset(p) for p in (0, 1)] == [5, 4]


@pytest.mark.parametrize("ownership", ["store", "none"])
def test_batches_that_take_longer_than_a_handoff_may_are_told_to_those_who_share(
    stage: Stage, caplog: pytest.LogCaptureFixture, ownership: str
) -> None:
    """Once a minute. Who has the group to himself lets nobody wait."""
    (query,) = begun(stage.query(ownership=ownership))
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
    (query,) = begun(stage.query("left", maxPollInterval="30s"))
    query.drain()
    stage.publish(1, 1)
    query.plan()
    stage.sleep(20.0)
    query.deliver()
    stage.sleep(20.0)

    def is_bound() -> bool:
        return any(each.bound for each in stage.status().flows)

    assert is_bound(), "it was asked for the batch"
    stage.sleep(12.0)
    stage.until(lambda: not is_bound() and stage.owner(0)[0] is None)
    query.commit()
    stage.publish(1, 1)
    stage.until(lambda: query.trigger() or set(delivered(query)) == set(stage.everything))


# --- while a store does not answer ------------------------------------------------------------------------------------


def test_while_the_store_is_away_nothing_is_delivered_and_then_it_goes_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    (query,) = begun(stage.query())
    query.run()
    stage.publish(2, 2)
    stage.until(lambda: delivered(query) == stage.everything)
    stage.publish(2, 2)
    with caplog.at_level(logging.WARNING, "partq.flow"):
        stage.weather.down_us = stage.now_us + 20_000_000
        stage.sleep(19.0)
        rows = len(query.rows)
        stage.until(lambda: set(delivered(query)) == set(stage.everything))
    assert rows == 4
    assert query.failure is None
    assert "nothing is delivered until the store answers again" in caplog.text
    assert "going on" in caplog.text


def test_the_store_is_not_waited_for_without_end(stage: Stage) -> None:
    (query,) = begun(stage.query(retryTimeout="20s"))
    query.drain()
    began_s = stage.now_s
    stage.weather.down_us = stage.now_us + 600_000_000
    with pytest.raises(partq.Unavailable):
        query.trigger()
    assert 20.0 <= stage.now_s - began_s < 32.0


@pytest.mark.parametrize("is_answer", [True, False])
@pytest.mark.parametrize("what", ["/flows/", "/beats/"])
def test_what_was_announced_and_not_heard_of_is_taken_back(stage: Stage, what: str, is_answer: bool) -> None:
    (query,) = begun(stage.query("left"))
    stage.publish(3, 3)
    query.drain()
    stage.publish(6, 0)
    lost = stage.lose("swap", what, by="left", answer=is_answer)
    stage.until(lambda: query.trigger() or query.offsets(0) == [*range(9)])
    assert lost() == 0
    stage.until(lambda: query.trigger() or [stage.offset(p) for p in (0, 1)] == [9, 3])
    assert query.epochs == {0: 1, 1: 1}


@pytest.mark.conformance("HAN-02")
def test_an_announcement_of_which_nobody_heard_holds_no_handoff_up(staged: Staged) -> None:
    """Its instance is over, and the next one's record says what the process knows: that nothing of it was delivered."""
    stage = staged(handoff_s=60.0)
    stage.coordinated()
    (first,) = begun(stage.query("first", checkpointInterval="0s"))
    stage.publish(3, 3)
    first.drain()
    stage.publish(6, 6)
    held = stage.hold("swap", "/flows/", by="first", after=True, lost=True)
    going = first.asking(first._trigger)
    stage.until(lambda: held.is_waiting)
    (second,) = begun(stage.query("second"))
    second.run()
    stage.sleep(2.0)
    held.release()
    going.result()
    first.run()
    stage.until(lambda: delivered(first, second) == stage.everything, 20.0)
    assert {row.marked for row in second.rows} == {False}


@pytest.mark.conformance("OWN-03", "OWN-04")
@pytest.mark.parametrize("is_older_copy", [False, True])
def test_an_ownership_store_that_comes_back_without_what_was_last_costs_nothing(
    stage: Stage, is_older_copy: bool
) -> None:
    """Empty, or as it was when the first flow had both partitions."""
    first, second = stage.query("first", checkpointInterval="0s"), stage.query("second", checkpointInterval="0s")
    begun(first)
    first.run()
    stage.until(lambda: first.partitions == (0, 1))
    put_back = stage.copy(f"{FOLDER}ownership/")
    begun(second)
    second.run()
    stage.until(lambda: len(second.partitions) == 1)
    stage.publish(10, 10)
    stage.until(lambda: delivered(first, second) == stage.everything)
    stage.until(lambda: [stage.offset(p) for p in (0, 1)] == [10, 10])
    before = [stage.owner(p) for p in (0, 1)]
    if is_older_copy:
        put_back()
    else:
        stage.wipe(f"{FOLDER}ownership/")
    stage.publish(5, 5)
    stage.until(lambda: set(delivered(first, second)) == set(stage.everything))
    rows = [row for query in (first, second) for row in query.rows if row.offset >= 10]
    assert all(count == 1 for count in Counter(row[:2] for row in rows if not row.marked).values())
    assert all(stage.owner(p)[1] >= before[p][1] for p in (0, 1))
    assert all((stage.offset(p) or 0) >= 10 for p in (0, 1))
