"""What a group has beside its flows, over documents in memory: the leader's lease, the state and its life, the records
of seed 004; and what one notices of a store that lost something.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid
from partq_spark.group.documents.api import DocumentOperation, Found
from partq_spark.group.documents.memory import MemoryDocuments
from partq_spark.group.model import GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership import Ownership, Reincarnated, StateDocument
from partq_spark.objects.api import UNCHANGED
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


def test_a_lease_is_taken_once(world: World, key: GroupKey) -> None:
    first, second = world.open(), world.open()
    assert held(first, key) is None
    with pytest.raises(Conflict, match=str(key)):
        first.take_lease(key, MINE, expected=at(0))
    first.take_lease(key, MINE, expected=None)
    assert held(first, key) == MINE
    assert held(second, key) == MINE
    with pytest.raises(Conflict):
        second.take_lease(key, at(0, "other"), expected=None)


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


def test_a_leader_that_remembers_heartbeats_sees_what_one_sees_that_does_not(world: World, key: GroupKey) -> None:
    leader, flows = world.open(), world.open()
    leader.take_lease(key, MINE, expected=None)
    rng = random.Random(20)
    bound: dict[str, str] = {}
    lease_beat = 0
    for _ in range(150):
        name = f"billing-{rng.randrange(4)}"
        match rng.randrange(6):
            case 0:
                record = a_record(name)
                flows.bind(key, record, replaces=last_beat(flows, key, name))
                bound[name] = record.instance
            case 1 if name in bound:
                flows.unbind(key, name, bound.pop(name))
            case 2 if name in bound:
                flows.report(key, name, bound[name], {7: delivery(rng.randrange(100), epoch=3)})
            case 3 if name in bound:
                flows.forget_flow(key, name, bound.pop(name), state_token="none")
            case _ if name in bound:
                flows.beat(key, name, bound[name])
        if rng.random() < 0.7:
            lease_beat += 2
            seen = leader.renew_lease(key, at(lease_beat - 1))
            fresh = world.open().renew_lease(key, at(lease_beat))
            assert (seen.state_token, seen.records_version) == (fresh.state_token, fresh.records_version)
            assert {flow: beat[:2] for flow, beat in seen.beats.items()} == {
                flow: beat[:2] for flow, beat in fresh.beats.items()
            }


def state_of(store: Ownership, key: GroupKey) -> StateDocument:
    """The state, which is there."""
    found = store.read_state(key)
    assert isinstance(found, StateDocument)
    return found


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


def test_claims_are_of_one_group(store: Ownership, key: GroupKey) -> None:
    assert store.claim_ownership([]) == {}
    with pytest.raises(Invalid, match="several groups"):
        store.claim_ownership([claim(key, 0), claim(GroupKey("default", "orders", "else"), 0)])


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


def test_a_restart_without_data_tells_who_waits_to_look_at_everything() -> None:
    server = OwnershipServer()
    store = server.open()
    store.announce(KEY)
    assert store.wait_news(0) == frozenset({KEY})
    server.restart_empty()
    assert store.wait_news(20) is None
    assert store.wait_news(0) == frozenset()


def test_a_flush_is_noticed_by_what_is_missing_alone() -> None:
    server = OwnershipServer()
    store = server.open()
    life = store.incarnation()
    record = a_record()
    store.bind(KEY, record, replaces=None)
    server.flush()
    assert store.incarnation() == life
    assert store.read_flows(KEY) == {}
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", record.instance)


def test_a_new_incarnation_may_be_given_with_nothing_lost() -> None:
    server = OwnershipServer()
    store = server.open()
    store.swap_state(KEY, b"1", token="t1", expected=None)
    server.incarnation = "second"
    with pytest.raises(Reincarnated):
        store.read_state(KEY)
    assert store.incarnation() == "second"
    assert store.read_state(KEY) is not None


class Loads(MemoryDocuments):
    """Documents that count how often a state was loaded, body and all."""

    states = 0

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        answers = super().carry_out(group, operations)
        self.states += sum(isinstance(answer, Found) and answer.name == "state" for answer in answers)
        return answers


def test_a_state_that_a_heartbeat_met_is_not_loaded_again() -> None:
    server = OwnershipServer()
    leader, documents = server.open(), Loads(server)
    flow, record = Ownership(documents), a_record()
    leader.swap_state(KEY, b"1", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    assert flow.read_state(KEY)
    for number in (2, 3):
        loads = documents.states
        leader.swap_state(KEY, b"%d" % number, token=f"t{number}", expected=f"t{number - 1}")
        assert flow.beat(KEY, "billing-1", record.instance) == f"t{number}"
        found = flow.read_state(KEY, known=f"t{number - 1}")
        assert isinstance(found, StateDocument)
        assert (found.token, found.body) == (f"t{number}", b"%d" % number)
        assert flow.read_state(KEY, known=f"t{number}") is UNCHANGED
        assert documents.states == loads + 1
