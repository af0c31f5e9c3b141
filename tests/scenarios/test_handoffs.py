"""A partition goes from one query to another, between micro-batches: what is waited for, and what comes again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.stage import Query, Stage, Staged, again, delivered, new


@pytest.mark.conformance("HAN-01", "HAN-02", "HAN-05")
def test_a_second_query_takes_its_share_between_micro_batches_and_nothing_is_lost_or_twice(stage: Stage) -> None:
    stage.publish(10, 10)
    first, second = (stage.query(name, maxMessagesPerTrigger="4") for name in ("left", "right"))
    first.begun().run()
    stage.sleep(1.0)
    second.begun().run()
    for _ in range(20):
        stage.publish(1, 1)
        stage.sleep(0.1)
    stage.until(lambda: delivered(first, second) == stage.everything)
    stage.until(lambda: len(first.partitions) == len(second.partitions) == 1)
    (moved,) = second.partitions
    assert first.offsets(moved) + second.offsets(moved) == list(range(stage.ends[moved]))
    assert {row.marked for row in first.rows + second.rows} == {False}
    assert sorted(stage.owner(p)[1] for p in (0, 1)) == [1, 2], "one handoff"


def joins_meanwhile(stage: Stage, second: Query, for_s: float = 1.0) -> Callable[[], None]:
    """While a batch runs, another query comes."""

    def meanwhile() -> None:
        if not second.batches:
            second.begun().run()
            stage.sleep(for_s)

    return meanwhile


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_read_when_they_are_claimed_and_at_no_other_time(staged: Staged) -> None:
    stage = staged(partitions=4)
    first, second = stage.query("flow-1"), stage.query("flow-2")
    first.begun().run()
    stage.publish(5, 5, 5, 5)
    stage.until(lambda: [stage.offset(p) for p in range(4)] == [5] * 4)

    def read() -> set[str]:
        calls = [each for each in stage.line.calls if "/checkpoint/" in each[2] and each[0] != "person"]
        return {f"{kind} {name.rpartition('/')[2]}" for _, kind, name in calls if kind != "swap"}

    stage.line.calls.clear()
    for _ in range(20):
        stage.publish(1, 1, 1, 1)
        stage.sleep(1.0)
    assert read() == set(), "not while it goes on, with acknowledgements by anybody"
    second.begun().run()
    stage.until(lambda: len(first.partitions) == len(second.partitions) == 2)
    stage.sleep(2.0)
    assert read() <= {f"load {p}" for p in second.partitions}, "only those that moved: fenced by the one, then claimed"
    stage.line.calls.clear()
    stage.rewind(to=3, partitions=[0])
    stage.until(lambda: stage.offset(0) == 25)
    stage.sleep(20.0)
    assert read() <= {"list ", "load 0"}
    assert stage.line.asked("list", "/checkpoint/", by="coordinator") == 1


@pytest.mark.conformance("HAN-04")
def test_the_other_partition_is_delivered_during_the_handoff(staged: Staged) -> None:
    stage = staged(handoff_s=20.0)
    first = stage.query().begun().drain()
    second = stage.query()
    stage.publish(3, 3)
    first.plan()
    first.during = joins_meanwhile(stage, second, 3.0)
    first.deliver()
    stage.publish(3, 3)
    first.announce()  # sees the pause; of what it may still deliver it has not heard that it is complete
    first.commit()
    first.trigger()
    assert len({row.partition for row in first.batches[-1]}) == 1
    stage.until(lambda: first.trigger() or delivered(first, second) == stage.everything)
    assert {row.marked for row in second.rows} == {False}


@pytest.mark.conformance("HAN-06")
def test_idle_queries_hand_over_at_once(stage: Stage) -> None:
    first, second = stage.query(), stage.query()
    first.begun().run()
    stage.sleep(2.0)
    second.begun()
    begun_s = stage.now_s
    second.run()
    stage.until(lambda: len(second.partitions) == 1)
    assert stage.now_s - begun_s < 2.0
    assert len(first.log) == len(second.log) == 1, "ownership alone makes no batch"


@pytest.mark.conformance("HAN-02")
def test_with_a_listener_a_handoff_does_not_wait_for_the_next_trigger(staged: Staged) -> None:
    stage = staged(handoff_s=60.0)
    first = stage.query("left").begun(5, 5)
    first.trigger()
    second = stage.query("right").begun().run()
    stage.sleep(3.0)
    assert second.partitions == ()
    stage.complete(first)
    stage.until(lambda: len(second.partitions) == 1, 2.0)


@pytest.mark.conformance("HAN-03")
def test_a_batch_that_takes_too_long_comes_again_marked_before_what_is_newer(stage: Stage) -> None:
    first = stage.query().begun().drain()
    stage.publish(4, 4)
    second = stage.query()

    def for_long() -> None:
        joins_meanwhile(stage, second)()
        stage.publish(2, 2)
        stage.until(lambda: len(second.rows) == 6)

    first.during = for_long
    first.trigger()
    moved = second.rows[0].partition
    assert second.rows == [*again(0, 4, moved), *new(4, 6, moved)]
    first.during = lambda: None
    first.trigger()
    assert set(first.partitions) == {1 - moved}
    assert stage.offset(moved) in (0, 6), "the former owner's acknowledgement counts for nothing"


@pytest.mark.conformance("HAN-07", "LOS-06")
def test_the_old_flow_cannot_acknowledge_after_the_move_and_learns_of_it(stage: Stage) -> None:
    first = stage.query(checkpointInterval="0s").begun(4, 4).plan()
    first.freeze()  # longer than the session timeout, before it has acknowledged anything
    second = stage.query().begun().run()
    stage.until(lambda: delivered(second) == stage.everything)
    stage.until(lambda: [stage.offset(p) for p in (0, 1)] == [4, 4])
    first.thaw()
    first.commit()  # its batch is complete, much later
    stage.publish(1, 1)
    first.run()
    stage.until(lambda: bool(first.partitions))
    assert all((stage.offset(p) or 0) >= 4 for p in (0, 1))
    stage.until(lambda: delivered(first, second) == stage.everything)


@pytest.mark.conformance("HAN-10")
def test_a_partition_that_went_and_came_back_during_a_batch_is_not_acknowledged_by_it(staged: Staged) -> None:
    """The flow has it again at a higher epoch, and what another was given of it meanwhile comes again."""
    stage = staged(handoff_s=1.0)
    first = stage.query("first", checkpointInterval="0s").begun(4, 4).plan()
    first.deliver()
    second = stage.query("second").begun()
    stage.until(lambda: second.announce() != second.at)
    second.plan()
    assert len(second.deliver()) == 4
    (moved,) = second.partitions
    second.stop()
    stage.until(lambda: stage.owner(moved) == ("first", 3))
    stage.sleep(2.0)
    first.commit()
    first.plan()
    stage.sleep(2.0)
    assert (stage.offset(moved), stage.offset(1 - moved)) == (0, 4)
    assert first.deliver() == again(0, 4, moved)
