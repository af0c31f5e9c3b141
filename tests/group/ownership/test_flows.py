"""Flows, over documents in memory: they bind, beat, deliver, report, speak to people, unbind and are forgotten. That
all kinds of documents behave alike is their own contract.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group.model import FlowRecord, GroupKey
from partq_spark.group.ownership import Beat, Ownership
from tests.group.ownership.conftest import World, a_record, delivery, last_beat


def record_of(store: Ownership, key: GroupKey, flow: str = "billing-1") -> FlowRecord:
    """The flow's record, the same by both ways of reading it."""
    found = store.read_flow(key, flow)
    assert found is not None
    assert store.read_flows(key)[flow] == found[0]
    return found[0]


def beat_of(store: Ownership, key: GroupKey, flow: str = "billing-1") -> Beat:
    """The flow's heartbeat."""
    found = last_beat(store, key, flow)
    assert found is not None
    assert found.age_s >= 0
    return found


def test_a_bind_whose_answer_was_lost_may_be_repeated(world: World, key: GroupKey) -> None:
    record = a_record()
    store = world.open()
    store.bind(key, record, replaces=None)
    store.bind(key, record, replaces=None)
    world.open().bind(key, record, replaces=None)
    assert record_of(store, key) == record
    assert store.beat(key, "billing-1", record.instance) is None


@pytest.mark.conformance("FLO-08")
def test_a_name_is_taken_over_only_from_a_heart_that_stood_still(world: World, key: GroupKey) -> None:
    former, newcomer = world.open(), world.open()
    first, second = a_record(), a_record()
    former.bind(key, first, replaces=None)
    seen = beat_of(newcomer, key)
    former.beat(key, "billing-1", first.instance)
    with pytest.raises(Conflict):
        newcomer.bind(key, second, replaces=seen)
    former.beat(key, "billing-1", first.instance)
    newcomer.bind(key, second, replaces=beat_of(newcomer, key))
    assert record_of(newcomer, key) == second
    assert beat_of(newcomer, key).instance == second.instance
    with pytest.raises(Fenced, match=first.instance):
        former.beat(key, "billing-1", first.instance)


@pytest.mark.conformance("FLO-08")
def test_what_a_former_instance_delivered_before_it_left_is_not_overlooked(world: World, key: GroupKey) -> None:
    """Between the newcomer's look at the record and its bind: it would count as not delivered."""
    former, newcomer = world.open(), world.open()
    first, second = a_record(), a_record(p1=delivery(1))
    former.swap_state(key, b"{}", token="t1", expected=None)
    former.bind(key, first, replaces=None)
    seen = beat_of(newcomer, key)
    assert former.deliver(key, "billing-1", first.instance, {1: delivery(1)}, state_token="t1")
    former.unbind(key, "billing-1", first.instance)
    for replaces in (seen, None):
        with pytest.raises(Conflict, match="billing-1"):
            newcomer.bind(key, second, replaces=replaces)
    assert record_of(newcomer, key).deliveries == {1: delivery(1)}
    newcomer.bind(key, second, replaces=beat_of(newcomer, key))
    assert record_of(newcomer, key) == second


def test_a_delivery_moves_the_heart_too(world: World, key: GroupKey) -> None:
    former, newcomer = world.open(), world.open()
    record = a_record()
    former.swap_state(key, b"{}", token="t1", expected=None)
    former.bind(key, record, replaces=None)
    for act in (
        lambda: former.deliver(key, "billing-1", record.instance, {1: delivery(1)}, state_token="t1"),
        lambda: former.deliver(key, "billing-1", record.instance, {1: delivery(1)}, state_token="t0"),
        lambda: former.report(key, "billing-1", record.instance, {1: delivery(1, 1)}),
        lambda: former.report(key, "billing-1", record.instance, {}),
    ):
        seen = beat_of(newcomer, key)
        act()
        assert beat_of(newcomer, key).token != seen.token
        with pytest.raises(Conflict):
            newcomer.bind(key, a_record(), replaces=seen)


def test_a_heartbeat_tells_the_state_and_moves(world: World, key: GroupKey) -> None:
    flow, other = world.open(), world.open()
    record = a_record()
    flow.bind(key, record, replaces=None)
    assert flow.beat(key, "billing-1", record.instance) is None
    other.swap_state(key, b"{}", token="t1", expected=None)
    assert flow.beat(key, "billing-1", record.instance) == "t1"
    other.swap_state(key, b"{}", token="t2", expected="t1")
    assert flow.beat(key, "billing-1", record.instance) == "t2"
    assert beat_of(other, key).instance == record.instance


@pytest.mark.parametrize("end", ["nothing", "another", "unbound", "forgotten", "dropped"])
def test_who_is_not_bound_is_fenced_and_changes_nothing(world: World, key: GroupKey, end: str) -> None:
    store, other = world.open(), world.open()
    record = a_record(p1=delivery(5))
    instance = record.instance
    store.swap_state(key, b"{}", token="t1", expected=None)
    if end != "nothing":
        store.bind(key, record, replaces=None)
    match end:
        case "another":
            other.bind(key, a_record(), replaces=beat_of(other, key))
        case "unbound":
            other.unbind(key, "billing-1", instance)
        case "forgotten":
            assert other.forget_flow(key, "billing-1", instance, state_token="t1")
        case "dropped":
            other.drop_group(key)
    before = other.read_flows(key)
    for act in (
        lambda: store.beat(key, "billing-1", instance),
        lambda: store.deliver(key, "billing-1", instance, {1: delivery(9)}, state_token="t1"),
        lambda: store.report(key, "billing-1", instance, {1: delivery(9)}),
    ):
        with pytest.raises(Fenced, match=f"billing-1.*{key}.*{instance}"):
            act()
    assert other.read_flows(key) == before
    assert world.open().read_flows(key) == before


def test_deliveries_are_merged_by_partition(world: World, key: GroupKey) -> None:
    flow, other = world.open(), world.open()
    record = a_record(p1=delivery(1), p2=delivery(2))
    flow.swap_state(key, b"{}", token="t1", expected=None)
    flow.bind(key, record, replaces=None)
    new = {2: delivery(7, 1), 3: delivery(8)}
    assert flow.deliver(key, "billing-1", record.instance, new, state_token="t1") is True
    assert record_of(other, key) == replace(record, deliveries={**record.deliveries, **new})
    flow.report(key, "billing-1", record.instance, {3: delivery(4, 4, epoch=9)})
    expected = {1: delivery(1), 2: delivery(7, 1), 3: delivery(4, 4, epoch=9)}
    assert record_of(other, key).deliveries == expected
    assert record_of(flow, key).deliveries == expected


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_stored_where_the_state_has_changed(world: World, key: GroupKey, there: bool) -> None:
    flow, other = world.open(), world.open()
    record = a_record(p1=delivery(1))
    flow.bind(key, record, replaces=None)
    if there:
        other.swap_state(key, b"{}", token="t2", expected=None)
    assert flow.deliver(key, "billing-1", record.instance, {1: delivery(9)}, state_token="t1") is False
    assert record_of(other, key) == record
    assert record_of(flow, key) == record
    flow.report(key, "billing-1", record.instance, {2: delivery(3)})
    assert record_of(other, key).deliveries == {1: delivery(1), 2: delivery(3)}


@pytest.mark.conformance("FLO-06")
def test_who_unbinds_leaves_his_record_and_his_name(world: World, key: GroupKey) -> None:
    flow, other = world.open(), world.open()
    record = a_record(p1=delivery(3, 3))
    flow.bind(key, record, replaces=None)
    other.unbind(key, "billing-1", "somebody")
    other.unbind(key, "billing-9", record.instance)
    assert record_of(other, key).bound
    flow.unbind(key, "billing-1", record.instance)
    flow.unbind(key, "billing-1", record.instance)
    assert record_of(other, key) == replace(record, bound=False)
    second = a_record()
    other.bind(key, second, replaces=beat_of(other, key))
    flow.unbind(key, "billing-1", record.instance)
    assert record_of(flow, key) == second


def test_a_flow_is_forgotten_by_name_and_instance(world: World, key: GroupKey) -> None:
    flow, leader = world.open(), world.open()
    first, second = a_record(p1=delivery(1)), a_record("billing-2", p1=delivery(2))
    flow.bind(key, first, replaces=None)
    flow.bind(key, second, replaces=None)
    leader.swap_state(key, b"{}", token="t1", expected=None)
    assert leader.forget_flow(key, "billing-1", second.instance, state_token="t1")
    assert leader.forget_flow(key, "billing-3", first.instance, state_token="t1")
    assert sorted(leader.read_flows(key)) == ["billing-1", "billing-2"]
    for _ in range(2):
        assert leader.forget_flow(key, "billing-1", first.instance, state_token="t1")
    assert leader.read_flows(key) == {"billing-2": second}
    assert flow.read_flow(key, "billing-1") is None
    flow.bind(key, a_record(), replaces=None)
    assert record_of(leader, key).deliveries == {}


@pytest.mark.parametrize("state", ["changed", "gone"])
def test_who_does_not_lead_any_more_forgets_nobody(world: World, key: GroupKey, state: str) -> None:
    """He looked at the state long ago; since then the flow may have been given partitions again."""
    flow, stale, leader = world.open(), world.open(), world.open()
    record = a_record(p1=delivery(1))
    stale.swap_state(key, b"{}", token="t1", expected=None)
    if state == "gone":
        leader.drop_group(key)
    flow.bind(key, record, replaces=None)
    if state == "changed":
        leader.swap_state(key, b"{}", token="t2", expected="t1")
    for _ in range(2):
        assert not stale.forget_flow(key, "billing-1", record.instance, state_token="t1")
        assert not stale.forget_flow(key, "billing-2", record.instance, state_token="t1")
    assert world.open().read_flows(key) == {"billing-1": record}
    flow.beat(key, "billing-1", record.instance)


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "ä", "x" * 129, "a\n"])
def test_a_name_that_cannot_be_kept_is_refused(store: Ownership, key: GroupKey, name: str) -> None:
    with pytest.raises(Invalid, match="flow name"):
        store.bind(key, a_record(name), replaces=None)
    with pytest.raises(Invalid, match="flow name"):
        store.bind(key, replace(a_record(), instance=name), replaces=None)


def test_a_flow_says_something_to_people(world: World, key: GroupKey) -> None:
    flow, reader = world.open(), world.open()
    record = a_record(p1=delivery(5))
    flow.bind(key, replace(record, note="of a former instance"), replaces=None)
    other = a_record("billing-2")
    flow.bind(key, other, replaces=None)
    assert record_of(reader, key) == record, "a flow that binds has said nothing yet"
    for text in ("batches take 9 s", "größer als erlaubt", "x" * 200):
        flow.note(key, "billing-1", record.instance, text)
        for store in (flow, reader, world.open()):
            assert record_of(store, key) == replace(record, note=text)
    assert record_of(reader, key, "billing-2") == other
    flow.report(key, "billing-1", record.instance, {1: delivery(6, 6)})
    assert record_of(reader, key) == replace(record, note="x" * 200, deliveries={1: delivery(6, 6)})
    flow.note(key, "billing-1", record.instance, "")
    assert record_of(reader, key).note == ""
    flow.note(key, "billing-1", record.instance, "still here")
    flow.unbind(key, "billing-1", record.instance)
    second = a_record()
    flow.bind(key, second, replaces=beat_of(reader, key))
    assert record_of(reader, key) == second


@pytest.mark.parametrize("text", ["x" * 201, "two\nlines", "\x1b[2J"])
def test_what_no_terminal_should_show_is_refused(store: Ownership, key: GroupKey, text: str) -> None:
    record = a_record()
    store.bind(key, record, replaces=None)
    with pytest.raises(Invalid, match="give at most 200 printable characters"):
        store.note(key, "billing-1", record.instance, text)
