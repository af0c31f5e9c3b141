"""What a group has beside its flows, over documents in memory: the lease, the state, and the records of seed 004."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from partq_spark.base.errors import Conflict
from partq_spark.group.model import GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership import Ownership, Reincarnated, StateDocument
from tests.group.ownership.conftest import KEY, World, a_record, delivery, last_beat
from tests.support.ownership import OwnershipServer

MINE = Lease(token="mine", name="host-1 pid 12 ü", beat=0, timers={"holddown": 2.5, "12": 0.25}, state_token="t1")


def held(store: Ownership, key: GroupKey) -> Lease | None:
    """The lease."""
    found = store.read_lease(key)
    assert found is None or 0 <= found.age_s < 30
    return None if found is None else found.lease


def at(beat: int, token: str = "mine") -> Lease:  # noqa: S107 - no password
    """A renewal."""
    return Lease(token=token, name="host-1", beat=beat)


def test_a_lease_is_taken_from_one_that_stands_still(world: World, key: GroupKey) -> None:
    first, second = world.open(), world.open()
    first.take_lease(key, MINE, expected=None)
    seen = held(second, key)
    first.renew_lease(key, at(1))
    with pytest.raises(Conflict):
        second.take_lease(key, at(0, "other"), expected=seen)
    with pytest.raises(Conflict):
        second.take_lease(key, at(0, "other"), expected=at(1, "else"))
    second.take_lease(key, at(0, "other"), expected=held(second, key))
    with pytest.raises(Conflict, match=str(key)):
        first.renew_lease(key, at(2))
    assert held(first, key) == at(0, "other")


def test_a_renewal_only_moves_forward(world: World, key: GroupKey) -> None:
    store, other = world.open(), world.open()
    with pytest.raises(Conflict):
        store.renew_lease(key, at(1))
    store.take_lease(key, at(5), expected=None)
    for beat in (4, 5):
        for holder in (store, other):
            with pytest.raises(Conflict):
                holder.renew_lease(key, at(beat))
    with pytest.raises(Conflict):
        store.renew_lease(key, at(6, "other"))
    store.renew_lease(key, Lease(token="mine", name="n", beat=9, timers={"3": 1.0}, state_token="t7"))
    other.renew_lease(key, at(10))
    store.renew_lease(key, at(11))
    assert held(other, key) == at(11)


def test_a_lease_that_is_given_up_is_free_at_once(world: World, key: GroupKey) -> None:
    first, second = world.open(), world.open()
    first.release_lease(key, "mine")
    first.take_lease(key, MINE, expected=None)
    second.release_lease(key, "other")
    assert held(second, key) == MINE
    first.release_lease(key, "mine")
    assert held(second, key) is None
    second.take_lease(key, at(0, "other"), expected=None)
    first.release_lease(key, "mine")
    assert held(first, key) == at(0, "other")


def test_a_leader_sees_the_state_and_every_heart(world: World, key: GroupKey) -> None:
    leader, flows = world.open(), world.open()
    leader.take_lease(key, at(0), expected=None)
    pulse = leader.renew_lease(key, at(1))
    assert (pulse.state_token, pulse.beats) == (None, {})
    records = [a_record(f"billing-{number}") for number in range(20)]
    for record in records:
        flows.bind(key, record, replaces=None)
    before = leader.renew_lease(key, at(2)).beats
    flows.beat(key, "billing-3", records[3].instance)
    leader.swap_state(key, b"{}", token="t1", expected=None)
    pulse = leader.renew_lease(key, at(3))
    assert pulse.state_token == "t1"
    assert set(pulse.beats) == {Owner(record.flow, record.instance) for record in records}
    assert {owner.flow for owner in pulse.beats if pulse.beats[owner] != before[owner]} == {"billing-3"}


def test_a_leader_sees_that_records_have_changed_and_that_they_have_not(world: World, key: GroupKey) -> None:
    leader, flow = world.open(), world.open()
    leader.take_lease(key, at(0), expected=None)
    beat = 0

    def version() -> str:
        nonlocal beat
        beat += 1
        return leader.renew_lease(key, at(beat)).records_version

    record, again = a_record(), a_record()
    seen = [version()]

    def unchanged() -> None:
        assert version() == seen[-1]

    def changed() -> None:
        found = version()
        assert found not in seen
        seen.append(found)

    unchanged()
    flow.bind(key, record, replaces=None)
    changed()
    flow.beat(key, "billing-1", record.instance)
    unchanged()
    leader.swap_state(key, b"{}", token="t1", expected=None)
    unchanged()
    assert flow.deliver(key, "billing-1", record.instance, {1: delivery(1)}, state_token="t1")
    changed()
    flow.report(key, "billing-1", record.instance, {1: delivery(1, 1)})
    changed()
    flow.unbind(key, "billing-1", record.instance)
    changed()
    flow.unbind(key, "billing-1", record.instance)
    unchanged()
    flow.bind(key, again, replaces=last_beat(flow, key))
    changed()
    leader.forget_flow(key, "billing-1", record.instance, state_token="t1")
    unchanged()
    leader.forget_flow(key, "billing-1", again.instance, state_token="t1")
    assert version() != seen[-1]


# --- the state, and who has what --------------------------------------------------------------------------------------


def state_of(store: Ownership, key: GroupKey) -> StateDocument:
    """The state, which is there."""
    found = store.read_state(key)
    assert isinstance(found, StateDocument)
    return found


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


def claim(
    key: GroupKey, partition: int, *, version: str = "", epoch: int = 1, flow: str | None = "a"
) -> OwnershipRecord:
    """What somebody wants."""
    owner = None if flow is None else Owner(flow, "0123456789abcdef")
    return OwnershipRecord(key=key, partition=partition, owner=owner, epoch=epoch, version=version, modified="")


@pytest.mark.conformance("OWN-02")
def test_a_record_has_what_seed_004_asks_for(world: World, key: GroupKey) -> None:
    store = world.open()
    assert store.list_ownership(key) == {}
    claimed = store.claim_ownership([claim(key, 12), claim(key, 3, flow=None, epoch=7)])
    assert sorted(claimed) == [3, 12]
    for reader in (store, world.open()):
        assert reader.list_ownership(key) == claimed
        assert list(reader.list_ownership(key)) == [3, 12]
    found = claimed[12]
    assert (found.key, found.owner, found.epoch) == (key, Owner("a", "0123456789abcdef"), 1)
    assert found.version
    assert claimed[3].owner is None
    assert abs(datetime.fromisoformat(found.modified).timestamp() - time.time()) < 60


@pytest.mark.conformance("OWN-02")
def test_a_claim_needs_the_version_that_is_there(world: World, key: GroupKey) -> None:
    store, other = world.open(), world.open()
    first = store.claim_ownership([claim(key, 0), claim(key, 1)])
    assert other.claim_ownership([claim(key, 0), claim(key, 1, version="old")]) == {}
    second = other.claim_ownership([claim(key, 0, version=first[0].version, epoch=2), claim(key, 1), claim(key, 2)])
    assert sorted(second) == [0, 2]
    assert second[0].version != first[0].version
    assert store.claim_ownership([claim(key, 0, version=first[0].version, epoch=3)]) == {}
    assert store.list_ownership(key) == {0: second[0], 1: first[1], 2: second[2]}
    again = other.claim_ownership([claim(key, 0, version=second[0].version, epoch=3)])
    assert store.list_ownership(key)[0] == again[0]


def test_a_restore_undoes_and_is_noticed() -> None:
    server = OwnershipServer()
    store = server.open()
    life = store.incarnation()
    record = a_record()
    store.swap_state(KEY, b"1", token="t1", expected=None)
    store.bind(KEY, record, replaces=None)
    copy = server.snapshot()
    store.swap_state(KEY, b"2", token="t2", expected="t1")
    store.report(KEY, "billing-1", record.instance, {1: delivery(5)})
    store.forget_flow(KEY, "billing-1", record.instance, state_token="t2")
    for _ in range(2):  # a copy is not used up
        server.restore(copy)
        with pytest.raises(Reincarnated, match=life):
            store.read_state(KEY)
        with pytest.raises(Reincarnated):
            store.beat(KEY, "billing-1", record.instance)
        assert store.incarnation() != life
        assert store.read_flows(KEY) == {"billing-1": record}
        assert store.beat(KEY, "billing-1", record.instance) == "t1"
        life = store.incarnation()
        store.report(KEY, "billing-1", record.instance, {1: delivery(5)})
