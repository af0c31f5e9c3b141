"""Contract of every ownership store: the group's state, its life, and the end of a group."""

from __future__ import annotations

import contextlib

import pytest

from partq_spark.base.errors import Conflict
from partq_spark.group.model import GroupKey, Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.objects.api import UNCHANGED
from tests.group.ownership.conftest import World, a_record, together


def state_of(store: Ownership, key: GroupKey) -> StateDocument:
    """The state, which is there."""
    found = store.read_state(key)
    assert isinstance(found, StateDocument)
    return found


def test_there_is_no_state_before_the_first(store: Ownership, key: GroupKey) -> None:
    assert store.read_state(key) is None
    assert store.read_state(key, known="t0") is None


def test_a_state_is_read_as_it_was_written(world: World, key: GroupKey) -> None:
    body = b'{"x":"' + b"\\u00e9" * 50_000 + b'"}'
    world.open().swap_state(key, body, token="t1", expected=None)
    for store in (world.open(), world.open()):
        found = state_of(store, key)
        assert (found.token, found.body) == ("t1", body)
        assert 0 <= found.age_s < 30


def test_a_state_that_is_known_is_not_sent_again(world: World, key: GroupKey) -> None:
    writer, reader = world.open(), world.open()
    writer.swap_state(key, b'{"x":1}', token="t1", expected=None)
    assert reader.read_state(key, known="t1") is UNCHANGED
    assert reader.read_state(key, known="t1") is UNCHANGED
    assert writer.read_state(key, known="t1") is UNCHANGED
    assert reader.read_state(key, known="t0") is not UNCHANGED
    writer.swap_state(key, b'{"x":2}', token="t2", expected="t1")
    found = reader.read_state(key, known="t1")
    assert isinstance(found, StateDocument)
    assert found.body == b'{"x":2}'


def test_a_swap_needs_the_token_that_is_there(world: World, key: GroupKey) -> None:
    store, other = world.open(), world.open()
    for expected in ("t0", "t1"):
        with pytest.raises(Conflict, match=str(key)):
            store.swap_state(key, b"{}", token="t1", expected=expected)
    assert store.read_state(key) is None
    store.swap_state(key, b'{"x":1}', token="t1", expected=None)
    with pytest.raises(Conflict):
        other.swap_state(key, b'{"x":2}', token="t2", expected=None)
    with pytest.raises(Conflict):
        other.swap_state(key, b'{"x":2}', token="t2", expected="t0")
    other.swap_state(key, b'{"x":3}', token="t3", expected="t1")
    with pytest.raises(Conflict):
        store.swap_state(key, b'{"x":4}', token="t4", expected="t1")
    assert state_of(store, key).token == "t3"


def test_of_many_swaps_of_one_state_one_wins(world: World, key: GroupKey) -> None:
    stores = [world.open() for _ in range(4)]
    stores[0].swap_state(key, b"{}", token="t0", expected=None)
    for number in range(5):
        expected, won = state_of(stores[0], key).token, list[str]()

        def swap(which: int, number: int = number, expected: str = expected, won: list[str] = won) -> None:
            token = f"t-{number}-{which}"
            with contextlib.suppress(Conflict):
                stores[which].swap_state(key, b'{"by":%d}' % which, token=token, expected=expected)
                won.append(token)

        together(swap, len(stores))
        assert [state_of(stores[0], key).token] == won


def test_all_users_see_one_life_and_it_stays(world: World, key: GroupKey) -> None:
    first, second = world.open(), world.open()
    life = first.incarnation()
    assert life
    assert second.incarnation() == life
    first.swap_state(key, b"{}", token="t1", expected=None)
    assert first.incarnation() == life


def test_a_dropped_group_leaves_nothing_and_takes_no_other_with_it(world: World, key: GroupKey) -> None:
    store = world.open()
    neighbour = GroupKey(key.namespace, key.queue, key.group + "-2")
    for group in (key, neighbour):
        record = a_record()
        store.swap_state(group, b"{}", token="t1", expected=None)
        store.bind(group, record, replaces=None)
        store.take_lease(group, Lease(token="l", name="n", beat=0), expected=None)
        store.claim_ownership([OwnershipRecord(key=group, partition=0, owner=None, epoch=1, version="", modified="")])
    store.drop_group(key)
    for reader in (store, world.open()):
        assert reader.read_state(key) is None
        assert reader.read_flows(key) == {}
        assert reader.read_flow(key, "billing-1") is None
        assert reader.read_lease(key) is None
        assert reader.list_ownership(key) == {}
        assert reader.read_state(neighbour) is not None
        assert list(reader.read_flows(neighbour)) == ["billing-1"]
        assert reader.read_lease(neighbour) is not None
        assert list(reader.list_ownership(neighbour)) == [0]
    store.swap_state(key, b"{}", token="t2", expected=None)
    store.bind(key, a_record(), replaces=None)
    store.take_lease(key, Lease(token="l2", name="n", beat=0), expected=None)
