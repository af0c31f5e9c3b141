"""Contract of every ownership store: what a flow says of itself to people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partq_spark.base.errors import Fenced, Invalid
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import World, a_record, delivery
from tests.group.ownership.test_contract_flows import beat_of, record_of


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


def test_what_a_flow_says_moves_its_heart_and_needs_one(world: World, key: GroupKey) -> None:
    store = world.open()
    record = a_record()
    store.bind(key, record, replaces=None)
    seen = beat_of(store, key)
    store.note(key, "billing-1", record.instance, "slow")
    assert beat_of(store, key).token != seen.token
    for flow, instance in (("billing-1", "else"), ("billing-2", record.instance)):
        with pytest.raises(Fenced):
            store.note(key, flow, instance, "slow")
    store.unbind(key, "billing-1", record.instance)
    with pytest.raises(Fenced):
        store.note(key, "billing-1", record.instance, "slow")


@pytest.mark.parametrize("text", ["x" * 201, "two\nlines", "\x1b[2J"])
def test_what_no_terminal_should_show_is_refused(store: Ownership, key: GroupKey, text: str) -> None:
    record = a_record()
    store.bind(key, record, replaces=None)
    with pytest.raises(Invalid, match="give at most 200 printable characters"):
        store.note(key, "billing-1", record.instance, text)


def test_a_group_that_is_forgotten_leaves_no_note(world: World, key: GroupKey) -> None:
    store = world.open()
    record = a_record()
    store.swap_state(key, b"{}", token="t1", expected=None)
    store.bind(key, record, replaces=None)
    store.note(key, "billing-1", record.instance, "slow")
    assert store.forget_flow(key, "billing-1", record.instance, state_token="t1")
    assert world.open().read_flows(key) == {}
    assert world.open().read_flow(key, "billing-1") is None
