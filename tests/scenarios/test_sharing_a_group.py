"""Queries that share a group: who they are, how they come by their partitions, and handoffs between micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import partq
from tests.scenarios.stage import GROUP, Stage, Staged, begun, delivered

# --- identity ---------------------------------------------------------------------------------------------------------


def test_the_first_offset_has_only_a_name_and_the_group_has_not_heard_of_it(stage: Stage) -> None:
    stage.publish(3, 2)
    query = stage.query().start().plan()
    end = query.log[-1]
    assert end["p"] == {}
    assert end["flow"].startswith("flow-")
    assert not stage.line.asked("swap", "/flows/")
    assert query.announce() == end, "asked again, it is still the same flow"
    query.commit().drain()
    assert delivered(query) == stage.everything
    assert not any(row.marked for row in query.rows)


@pytest.mark.parametrize(
    ("changed", "offset", "says"),
    [
        ({"flow": "right"}, {}, "belongs to flow 'left', this query has flow='right'"),
        ({"flow": "left"}, {"flow": "other"}, "belongs to flow 'other', this query has flow='left'"),
        ({"flow": "left", "group": "shipping"}, {}, "belongs to group 'billing', this query has group='shipping'"),
        ({"flow": "left"}, {"group": None, "flow": None}, "belongs to a query without a group"),
        (None, {}, "this query has no group"),
    ],
)
def test_offsets_of_another_flow_or_group_are_refused(
    stage: Stage, changed: dict[str, str] | None, offset: dict[str, None], says: str
) -> None:
    query = stage.query("Left").begun()
    assert query.name == "left"
    query.drain().stop()
    query.log[-1] |= offset
    other = stage.ungrouped() if changed is None else stage.query(**changed)
    with pytest.raises(partq.Invalid, match=says):
        other.goes_on_from(query).start().trigger()


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


@pytest.mark.conformance("FLO-08")
def test_a_process_that_was_replaced_while_it_was_frozen_is_the_twin_when_it_wakes(stage: Stage) -> None:
    first = stage.query("left").begun().drain()
    first.freeze()
    other = stage.query("left").begun().drain()
    first.thaw()
    stage.publish(1, 1)
    with pytest.raises(partq.Invalid, match="in use by another live process"):
        first.trigger()
    other.drain()
    assert (first.rows, delivered(other)) == ([], stage.everything)


@pytest.mark.conformance("FLO-08")
def test_a_restart_after_a_kill_is_told_from_a_twin_within_one_session_timeout(stage: Stage) -> None:
    query = stage.query("left").begun(4, 4).plan().kill().start()
    begun_s = stage.now_s
    assert len(query.deliver()) == 8
    assert stage.now_s - begun_s < 12.0
    assert query.epochs == {0: 1, 1: 1}


@pytest.mark.conformance("FLO-08")
def test_the_last_beat_of_a_killed_process_that_was_long_on_its_way_is_no_twin(stage: Stage) -> None:
    """And its whole session timeout is waited for since then: perhaps it was no last one."""
    query = stage.query("left").begun().drain()
    landing: list[Callable[[], object]] = []

    def give_up(effect: Callable[[], object]) -> None:
        landing.append(effect)
        raise partq.Unavailable("no answer came (test)")

    stage.instead("swap", "/beats/", give_up, by="left")
    stage.until(lambda: landing)
    query.kill().start()
    stage.publish(1, 1)
    going = query.asking(query._trigger)
    stage.sleep(3.0)
    begun_s = stage.now_s
    landing.pop()()
    going.result()
    assert stage.now_s - begun_s >= 9.0
    query.drain()
    assert delivered(query) == stage.everything


# --- joining and leaving ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-03")
def test_without_a_coordinator_a_query_waits_for_its_answer_and_stays_alive_and_says_so(
    alone: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    query = alone.query("left").begun(2, 2).run()
    alone.sleep(30.0)
    assert query.rows == []
    assert "no coordinator has answered flow left of queue 'orders'" in caplog.text
    assert "partq coordinator run" in caplog.text
    alone.coordinated()
    alone.until(lambda: delivered(query) == alone.everything, 5.0)
    assert {row.marked for row in query.rows} == {False}


@pytest.mark.conformance("FLO-05")
def test_a_standby_gets_the_partition_of_who_leaves_and_others_are_told_why_they_wait(staged: Staged) -> None:
    stage = staged(partitions=1, delay_s=5.0)
    left, right = begun(stage.query("left"), stage.query("right"))
    left.run(), right.run()
    stage.until(lambda: left.partitions == (0,))

    def active() -> dict[str, bool]:
        return {flow.flow: flow.active for flow in stage.status().flows}

    stage.until(lambda: active() == {"left": True, "right": False})
    left.stop()
    stage.until(lambda: right.partitions == (0,), 3.0)  # at once: no delay runs
    stage.until(lambda: active() == {"right": True})


def test_a_bind_that_fails_leaves_nobody_bound(stage: Stage) -> None:
    """The state cannot be read; nobody waits for a flow that is not there."""
    other, query = begun(stage.query("other"), stage.query("left"))
    other.drain().stop()
    for each in stage.world.actors.values():
        each.kill()
    stage.edit(f"default/orders/{GROUP}/ownership/state", lambda found: found.body[:-3] + b"x}}")
    with pytest.raises(partq.Corrupt, match="state"):
        query.trigger()
    query.kill()
    stage.world.store.delete(f"default/orders/{GROUP}/ownership/state")
    (found,) = stage.do(lambda queue: queue.groups(ownership="store"))
    assert found.flows == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"flow": "a b"}, "flow"),
        ({"flow": "-a"}, "flow"),
        ({"flow": "a" * 64}, "flow"),
        ({"sessionTimeout": "4s"}, "sessionTimeout"),
    ],
)
def test_what_cannot_be_a_flow_is_refused_by_name(stage: Stage, options: dict[str, str], says: str) -> None:
    with pytest.raises(partq.Invalid, match=says):
        stage.query(**options).start().plan()


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


@pytest.mark.parametrize("planned", [False, True])
def test_a_query_that_starts_again_another_way_is_refused(stage: Stage, planned: bool) -> None:
    """Also with a batch that it has to repeat."""
    query = stage.query().begun(2, 2).drain().stop()
    if planned:
        stage.publish(1, 1)
        query.start().plan()
        query.stop()
    other = stage.query(ownership="none").goes_on_from(query).start()
    with pytest.raises(partq.Invalid, match="partq group alter"):
        other.trigger()
    assert other.rows == []


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
def test_a_live_query_sees_that_its_group_is_shared_otherwise_before_it_delivers(
    stage: Stage, before: str, after: str
) -> None:
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
