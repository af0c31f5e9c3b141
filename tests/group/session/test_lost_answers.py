"""Answers that are lost, reports that arrive late, and an ownership store that is empty or an older one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest

from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group import progress_writer
from partq_spark.group.claims import Standing
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import (
    Delivery,
    GroupKey,
    GroupState,
    RebalanceStatus,
)
from partq_spark.group.model import Flow as FlowValue
from partq_spark.group.ownership import StateDocument
from tests.group.session.world import KEY, Process, World, bound


@pytest.mark.parametrize("lost", ["before", "after"])
def test_what_was_announced_and_not_delivered_is_taken_back(world: World, lost: str) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)

    def lose(verb: str) -> None:
        if verb == "deliver":
            setattr(world.server, lost, lambda _: None)
            raise Unavailable("lost (test)")

    setattr(world.server, lost, lose)
    with pytest.raises(Unavailable):
        a.deliver(0, 9)
    assert a.record_entry(0) == (1, 9 if lost == "after" else 3, 0)
    world.until(lambda: a.has(0, 1), 2)
    claim = a.views[-1].claims[0]
    assert (claim.epoch, claim.position, claim.redelivered_below) == (1, 3, 3)
    assert a.record_entry(0) == (1, 3, 0)


def test_what_a_refused_announcement_left_in_the_record_is_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose record and state are two objects has written the record when it finds the state changed."""
    a = world.flow("a")
    bound(a)

    def refuse(
        key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        monkeypatch.undo()
        a.store.report(key, flow, instance, deliveries)
        return False

    monkeypatch.setattr(a.store, "deliver", refuse)
    assert not a.deliver(0, 9)
    assert a.record_entry(0) == (1, 9, 0)
    assert a.look().claims[0].position == 0
    assert a.record_entry(0) == (1, 0, 0)


def test_a_flow_that_the_coordinator_has_given_up_is_somebody_new_at_once(world: World) -> None:
    a = world.flow("a")
    instance = bound(a).instance
    world.tickers[0].frozen = True
    gone = {"a": FlowValue(name="a", instance=instance, bound=False, since=1)}
    held = {"status": RebalanceStatus.HOLDDOWN, "holddown_until_s": world.now_s + 60}
    rewrite(world, lambda state: replace(state, flows=gone, **held))  # type: ignore[arg-type] # fields by name
    view = a.look()
    assert view.instance != instance
    assert view.standing is Standing.UNANSWERED
    assert view.lost == {0: 1, 1: 1}
    world.tickers[0].frozen = False
    world.until(lambda: a.has(0, 1), 5)
    assert a.views[-1].claims[0].epoch == 1


def test_the_state_of_a_former_queue_says_nothing(world: World) -> None:
    a = world.flow("a")
    bound(a)
    world.tickers[0].frozen = True
    rewrite(world, lambda state: replace(state, queue_id="former"))
    assert a.look().paused == {0, 1}
    assert not a.deliver(0, 1)


def test_without_a_state_everything_is_held_back_and_nothing_is_forgotten(world: World) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 4)
    world.tickers[0].frozen = a.heart.frozen = True
    world.server.flush()
    view = a.look()
    assert view.paused == {0, 1}
    assert not view.deliverable
    assert view.claims[0].position == 4
    assert not a.deliver(0, 5)
    assert a.acknowledge(0, 4)
    assert world.offset(0) == 4


def rewrite(world: World, change: Callable[[GroupState], GroupState]) -> None:
    """Another state, by hand."""
    store = world.server.open()
    found = store.read_state(KEY)
    assert isinstance(found, StateDocument)
    state = change(decode_state(found.body, world.now_s, "the state"))
    store.swap_state(KEY, encode_state(state, world.now_s), token=world.token(), expected=found.token)


def lost_report(a: Process, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The next report of `a` gets no answer, and arrives when the list's only entry is called."""
    late: list[Callable[[], None]] = []
    report = a.store.report

    def lose(*arguments: object) -> None:
        monkeypatch.setattr(a.store, "report", report)
        late.append(lambda: report(*arguments))  # type: ignore[arg-type] # as they came
        raise Unavailable("on its way (test)")

    monkeypatch.setattr(a.store, "report", lose)
    return late


def test_a_report_that_arrives_late_does_not_undo_what_was_announced_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)
    late = lost_report(a, monkeypatch)
    world.sleep(1)
    with pytest.raises(Unavailable):
        a.acknowledge(0, 2)
    assert world.offset(0) == 2
    world.until(lambda: a.has(0, 1), 2)
    assert a.deliver(0, 12)
    with pytest.raises(Fenced):
        late[0]()
    assert a.record_entry(0) == (1, 12, 2)


def test_without_a_new_instance_it_would_be_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)
    late = lost_report(a, monkeypatch)
    monkeypatch.setattr(progress_writer, "ending_if_unknown", lambda _: nullcontext())
    world.sleep(1)
    with pytest.raises(Unavailable):
        a.acknowledge(0, 2)
    a.look()
    assert a.deliver(0, 12)
    late[0]()
    assert a.record_entry(0) == (1, 3, 2)


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["restart", "flush"])
def test_an_ownership_store_that_comes_back_empty_costs_no_partition_and_no_acknowledgement(
    world: World, how: str
) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    bound(b)
    world.until(lambda: len(a.look().claims) == len(b.look().claims) == 1, 10)
    before = {process: process.views[-1].claims for process in (a, b)}
    for process, (partition,) in before.items():
        assert process.deliver(partition, 10)
    if how == "restart":
        world.server.restart_empty()
    else:
        world.server.flush()
    for process, (partition,) in before.items():
        assert not process.deliver(partition, 20)
        process.acknowledge(partition, 10, epoch=before[process][partition].epoch)  # in the middle of it
    world.until(lambda: all(set(process.look().deliverable) == set(before[process]) for process in before), 30)
    for process, (partition,) in before.items():
        claim = process.views[-1].claims[partition]
        assert claim.epoch == before[process][partition].epoch
        assert claim.position == 10
        assert process.views[-1].instance != process.views[0].instance
        world.sleep(1)
        process.look()
        assert world.offset(partition) == 10
        assert process.deliver(partition, 20)


@pytest.mark.conformance("OWN-04")
def test_an_ownership_store_that_jumps_back_gives_nothing_back_to_a_former_owner(world: World) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    old = world.server.snapshot()
    bound(b)
    world.until(lambda: bool(b.look().claims), 10)
    (moved,) = b.views[-1].claims
    assert b.deliver(moved, 50)
    world.server.restore(old)  # a has both partitions, says the store
    assert not a.deliver(moved, 5)
    for _ in range(100):
        world.sleep(0.2)
        delivers = [p for p in (a, b) if moved in p.look().deliverable and p.deliver(moved, 60 + len(p.views))]
        assert len(delivers) <= 1
        for process in delivers:
            assert world.owner(moved)[0] == process.session.flow
    assert len(a.look().claims) == len(b.look().claims) == 1


def test_a_flow_says_how_long_its_lease_lasts_and_learns_of_news(world: World) -> None:
    a = world.flow("a")
    bound(a)
    world.sleep(2.0)
    assert 8.5 < a.session.lease_left_s() <= 10
    a.freeze()
    world.sleep(4.0)
    assert 4.0 < a.session.lease_left_s() < 6.1
    a.look()
    assert 4.0 < a.session.lease_left_s() < 6.1  # looking is no sign of life
    assert a.deliver(0, 1)
    assert a.session.lease_left_s() > 9.9
    a.look()
    assert not a.session.has_news
    bound(world.flow("b"))
    a.session.beat()
    assert a.session.has_news
