"""Contract of every ownership store: the lease of a group, and what its holder sees when it renews it."""

from __future__ import annotations

import contextlib
import random
import secrets

import pytest

from partq_spark.base.errors import Conflict
from partq_spark.group.model import GroupKey, Lease, Owner
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import World, a_record, delivery, last_beat, together

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


def test_of_many_that_take_the_lease_one_wins(world: World, key: GroupKey) -> None:
    stores = [world.open() for _ in range(4)]
    for _ in range(3):
        seen, won = held(stores[0], key), list[str]()

        def take(which: int, seen: Lease | None = seen, won: list[str] = won) -> None:
            lease = at(0, f"{secrets.token_hex(4)}-{which}")
            with contextlib.suppress(Conflict):
                stores[which].take_lease(key, lease, expected=seen)
                won.append(lease.token)

        together(take, len(stores))
        found = held(stores[0], key)
        assert found is not None
        assert won == [found.token]


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
