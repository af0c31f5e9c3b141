"""Queries that share a group: who they are, how they come by their partitions, and handoffs between micro-batches."""

from __future__ import annotations

import pytest

import partq
from tests.scenarios.stage import GROUP, Stage, Staged, again, begun, delivered

# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "offset", "says"),
    [
        ({"flow": "right"}, {}, "belongs to flow 'left', this query has flow='right'"),
        ({"flow": "left", "group": "shipping"}, {}, "belongs to group 'billing', this query has group='shipping'"),
        ({"flow": "left"}, {"group": None, "flow": None}, "belongs to a query without a group"),
    ],
)
def test_foreign_offsets_are_refused(stage: Stage, changed: dict[str, str], offset: dict[str, None], says: str) -> None:
    query = stage.query("left").begun().drain().stop()
    query.log[-1] |= offset
    with pytest.raises(partq.Invalid, match=says):
        stage.query(**changed).goes_on_from(query).start().trigger()


@pytest.mark.conformance("FLO-08")
def test_a_second_live_query_under_the_same_name_is_refused_and_takes_nothing(stage: Stage) -> None:
    first = stage.query("left").begun().drain()
    epochs = first.epochs
    twin = stage.query("left").begun()
    begun_s = stage.now_s
    with pytest.raises(partq.Invalid, match="in use by another live process"):
        twin.trigger()
    assert stage.now_s - begun_s < 4.0, "the first one's heart was seen to move"
    stage.publish(1, 1)
    first.drain()
    assert (delivered(first), first.epochs) == (stage.everything, epochs)


# --- joining and leaving ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-03")
def test_without_a_coordinator_a_query_waits_and_says_so(alone: Stage, caplog: pytest.LogCaptureFixture) -> None:
    query = alone.query("left").begun(2, 2).run()
    alone.sleep(30.0)
    assert query.rows == []
    assert "no coordinator has answered flow left of queue 'orders'" in caplog.text
    assert "partq coordinator run" in caplog.text
    alone.coordinated()
    alone.until(lambda: delivered(query) == alone.everything, 5.0)
    assert {row.marked for row in query.rows} == {False}


def test_a_bind_that_fails_leaves_nobody_bound(stage: Stage) -> None:
    """The state cannot be read; nobody waits for a flow that is not there."""

    def refused(_: object) -> None:
        raise partq.Invalid("not allowed (test)")

    other, query = begun(stage.query("other"), stage.query("left"))
    other.drain().stop()
    stage.instead("load", "ownership/state", refused, by="left")
    with pytest.raises(partq.Invalid, match="not allowed"):
        query.trigger()
    query.kill()
    (found,) = stage.do(lambda queue: queue.groups(ownership="store"))
    assert found.flows == ()


def test_a_damaged_state_ends_nobody_and_the_coordinator_writes_another(stage: Stage) -> None:
    query = stage.query("left").begun(2, 2).drain()
    stage.edit(f"default/orders/{GROUP}/ownership/state", lambda found: found.body[:-3] + b"x}}")
    other = stage.query("right").start().run()  # the coordinator knows this state by its token, and looks for a bind
    query.run()
    stage.until(lambda: len(other.partitions) == 1)
    stage.publish(2, 2)
    stage.until(lambda: delivered(query, other) == stage.everything)
    assert not any(row.marked for row in [*query.rows, *other.rows])


# --- how a group is shared --------------------------------------------------------------------------------------------


def way(stage: Stage) -> str | None:
    (found,) = stage.do(lambda queue: queue.groups())
    return found.ownership


def test_a_query_that_forgot_the_ownership_takes_nothing_from_those_who_share(stage: Stage) -> None:
    """The grave case: ten seconds between two writes of a checkpoint, in which the shared flow would not notice."""
    query = stage.query("a", checkpointInterval="10s").begun().run()
    stage.publish(4, 4)
    stage.until(lambda: delivered(query) == stage.everything)
    epochs = query.epochs
    with pytest.raises(partq.Invalid) as refused:
        stage.query("b", ownership="none").start().trigger()
    for part in ("group 'billing' of queue 'orders'", "ownership=store", "ownership=none", "partq group alter orders"):
        assert part in str(refused.value)
    for _ in range(20):
        stage.publish(1, 1)
        stage.sleep(0.5)
    stage.until(lambda: delivered(query) == stage.everything)
    assert (query.epochs, query.failure) == (epochs, None)


def test_the_first_flow_that_joins_says_how_and_the_second_is_held_to_it(stage: Stage) -> None:
    stage.do(lambda queue: queue.create_group(GROUP, starting="earliest"))
    assert way(stage) is None
    other = stage.query("b", ownership="none").start()
    other.plan()
    query = stage.query("a").begun()
    query.trigger()
    assert way(stage) == "store"
    with pytest.raises(partq.Invalid):
        other.commit().trigger()


@pytest.mark.parametrize(("before", "after"), [("none", "store"), ("store", "redis://elsewhere:6379/0")])
def test_a_live_query_sees_before_it_delivers_that_its_group_is_shared(stage: Stage, before: str, after: str) -> None:
    """It was idle for so long that nobody could know that it lives."""
    query = stage.query("a", ownership=before).begun().run()
    stage.publish(2, 2)
    stage.until(lambda: delivered(query) == stage.everything)
    seen = stage.everything
    query.freeze()
    stage.sleep(15.0)
    stage.do(lambda queue: queue.alter_group(GROUP, ownership=after, force=True))
    stage.publish(1, 1)
    query.thaw()
    stage.until(lambda: query.failure is not None)
    assert isinstance(query.failure, partq.Invalid)
    assert "partq group alter orders --group billing" in str(query.failure)
    assert delivered(query) == seen


@pytest.mark.conformance("HAN-03")
def test_who_gets_a_shared_group_for_himself_marks_what_its_flows_may_have_had(alone: Stage) -> None:
    """Their records say how far they came, and go when the group is shared in another way."""
    stage, coordinator = alone, alone.coordinated()
    query = stage.query("left").begun(1, 1)
    query.trigger()
    stage.publish(3, 3)
    query.announce()
    query.kill()
    coordinator.kill()
    stage.sleep(15.0)
    stage.do(lambda queue: queue.alter_group(GROUP, ownership="none"))
    other = stage.query("left", ownership="none").goes_on_from(query).start().drain()
    stage.publish(1, 1)
    other.drain()
    assert {row.offset for row in other.rows if row.marked} == {1, 2, 3}
    assert len(other.rows) == 8


# --- handoffs ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.conformance("HAN-02", "HAN-04", "HAN-05")
def test_a_handoff_waits_for_the_planned_batch_and_the_other_partition_is_delivered_meanwhile(staged: Staged) -> None:
    stage = staged(max_handoff_time_s=20.0)
    first = stage.query().begun(3, 3).plan()
    second = stage.query().begun().run()
    stage.sleep(3.0)
    assert len(first.deliver()) == 6
    stage.publish(3, 3)
    first.announce()  # sees the pause; of what it may still deliver it has not heard that it is complete
    first.commit()
    first.trigger()
    assert len({row.partition for row in first.batches[-1]}) == 1
    stage.until(lambda: first.trigger() or delivered(first, second) == stage.everything)
    assert {row.marked for row in second.rows} == {False}


@pytest.mark.conformance("HAN-10")
def test_a_partition_that_went_and_came_back_during_a_batch_is_not_acknowledged_by_it(staged: Staged) -> None:
    """The flow has it again at a higher epoch, and what another was given of it meanwhile comes again."""
    stage = staged(max_handoff_time_s=1.0)
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
