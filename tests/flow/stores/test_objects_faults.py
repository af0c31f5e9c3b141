"""Ownership as objects, with answers that are lost on their way from a real Azurite, processes that end half-way, and
what each verb costs in requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from partq_spark.errors import Conflict, Corrupt, Fenced, Unavailable
from partq_spark.flow.model import GroupKey, Lease, OwnershipRecord
from partq_spark.flow.stores.api import StateDocument
from partq_spark.flow.stores.objects import ObjectsOwnership
from partq_spark.objects import Document, ObjectStore
from partq_spark.objects.local import LocalStore
from tests.flow.stores.conftest import a_record, delivery, last_beat
from tests.objects.conftest import azure_store
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Azurite

KEY = GroupKey("default", "orders", "billing")
FOLDER = "default/orders/billing/ownership/"


class Recorded:
    """A local store that counts its requests, and lets a test step in before one of them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.calls: list[str] = []
        self.before: Callable[[str, str], None] = lambda verb, name: None

    def __getattr__(self, verb: str) -> object:
        found = getattr(self._store, verb)
        if verb not in ("load", "swap", "remove", "delete", "list"):
            return found

        def call(name: str, *arguments: object, **conditions: object) -> object:
            self.calls.append(f"{verb} {name.removeprefix(FOLDER)}")
            self.before(verb, name.removeprefix(FOLDER))
            return found(name, *arguments, **conditions)

        return call


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """A store in a directory."""
    return Recorded(LocalStore(str(tmp_path / "store")))


def open_recorded(recorded: Recorded) -> ObjectsOwnership:
    """One user of it."""
    return ObjectsOwnership(recorded)  # type: ignore[arg-type] # by __getattr__


def calls(recorded: Recorded, act: Callable[[], object]) -> list[str]:
    """What was asked of the store."""
    recorded.calls.clear()
    act()
    return list(recorded.calls)


def test_what_each_verb_costs(recorded: Recorded) -> None:
    flow, leader = open_recorded(recorded), open_recorded(recorded)
    record = a_record()
    me = record.instance
    leader.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    leader.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    flow.beat(KEY, "billing-1", me)
    leader.renew_lease(KEY, Lease(token="l", name="n", beat=1))
    leader.read_flows(KEY)

    write, heart, look = f"swap flows/billing-1/{me}", "swap beats/billing-1", "load state"
    assert calls(recorded, lambda: flow.beat(KEY, "billing-1", me)) == [heart, look]
    assert calls(recorded, lambda: flow.report(KEY, "billing-1", me, {1: delivery(1)})) == [write, heart]
    deliver = lambda: flow.deliver(KEY, "billing-1", me, {1: delivery(2)}, state_token="t1")  # noqa: E731
    assert calls(recorded, deliver) == [write, heart, look]
    assert calls(recorded, lambda: flow.read_state(KEY, known="t1")) == [look]
    renewal = ["swap leader", "list beats/", "load state"]
    assert calls(recorded, lambda: leader.renew_lease(KEY, Lease(token="l", name="n", beat=2))) == renewal
    assert calls(recorded, lambda: leader.read_flows(KEY)) == ["list beats/", f"load flows/billing-1/{me}"]
    flow.beat(KEY, "billing-1", me)
    assert calls(recorded, lambda: leader.read_flows(KEY)) == ["list beats/"]
    swap = lambda: leader.swap_state(KEY, b"{}", token="t2", expected="t1")  # noqa: E731
    assert calls(recorded, swap) == ["swap state"]


def test_a_delivery_that_came_too_late_is_put_back(recorded: Recorded) -> None:
    """The state is swapped between the delivery's record and its look at the state."""
    flow, leader = open_recorded(recorded), open_recorded(recorded)
    record = a_record(p1=delivery(3, 3))
    leader.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    seen: list[Mapping[int, object]] = []

    def step_in(verb: str, name: str) -> None:
        if (verb, name) == ("load", "state"):
            recorded.before = lambda verb, name: None
            leader.swap_state(KEY, b"{}", token="t2", expected="t1")
            seen.append(leader.read_flows(KEY)["billing-1"].deliveries)

    recorded.before = step_in
    assert flow.deliver(KEY, "billing-1", record.instance, {1: delivery(9)}, state_token="t1") is False
    assert seen == [{1: delivery(9)}]  # to be on the safe side, until it was put back
    assert leader.read_flows(KEY)["billing-1"] == record
    assert flow.deliver(KEY, "billing-1", record.instance, {1: delivery(9)}, state_token="t2") is True


def test_a_delivery_of_a_flow_that_was_replaced_meanwhile_is_fenced(recorded: Recorded) -> None:
    flow, newcomer = open_recorded(recorded), open_recorded(recorded)
    first, second = a_record(), a_record()
    flow.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, first, replaces=None)

    def step_in(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "beats/billing-1"):
            recorded.before = lambda verb, name: None
            found = newcomer.read_flow(KEY, "billing-1")
            assert found is not None
            newcomer.bind(KEY, second, replaces=found[1])

    recorded.before = step_in
    with pytest.raises(Fenced):
        flow.deliver(KEY, "billing-1", first.instance, {1: delivery(9)}, state_token="t1")
    assert newcomer.read_flows(KEY) == {"billing-1": second}


def test_a_former_instance_that_moves_while_another_binds_keeps_its_name(recorded: Recorded) -> None:
    flow, newcomer = open_recorded(recorded), open_recorded(recorded)
    first = a_record()
    flow.bind(KEY, first, replaces=None)
    found = newcomer.read_flow(KEY, "billing-1")
    assert found is not None

    def step_in(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "beats/billing-1"):
            recorded.before = lambda verb, name: None
            flow.beat(KEY, "billing-1", first.instance)

    recorded.before = step_in
    with pytest.raises(Conflict):
        newcomer.bind(KEY, a_record(), replaces=found[1])
    assert newcomer.read_flows(KEY) == {"billing-1": first}
    flow.beat(KEY, "billing-1", first.instance)


@pytest.mark.parametrize("prior", [True, False])
def test_a_bind_that_ended_half_way_was_none(recorded: Recorded, prior: bool) -> None:
    """The process dies after it wrote its record and before anything referred to it."""
    store = open_recorded(recorded)
    first = a_record(p1=delivery(5))
    if prior:
        store.bind(KEY, first, replaces=None)
        store.unbind(KEY, "billing-1", first.instance)

    def die(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "beats/billing-1"):
            raise KeyboardInterrupt

    recorded.before = die
    with pytest.raises(KeyboardInterrupt):
        store.bind(KEY, a_record(), replaces=last_beat(store, KEY))
    recorded.before = lambda verb, name: None
    other = open_recorded(recorded)
    assert {name: found.instance for name, found in other.read_flows(KEY).items()} == (
        {"billing-1": first.instance} if prior else {}
    )
    second = a_record()
    other.bind(KEY, second, replaces=last_beat(other, KEY))
    assert other.read_flows(KEY) == {"billing-1": second}


@pytest.mark.parametrize("all_flows", [True, False])
def test_a_reader_that_meets_a_bind_follows_it(recorded: Recorded, all_flows: bool) -> None:
    """Between the heartbeat and the record, another instance binds and removes its predecessor's record."""
    leader, flow = open_recorded(recorded), open_recorded(recorded)
    first, second = a_record(), a_record()
    flow.bind(KEY, first, replaces=None)
    flow.unbind(KEY, "billing-1", first.instance)

    def step_in(verb: str, name: str) -> None:
        if (verb, name) == ("load", f"flows/billing-1/{first.instance}"):
            recorded.before = lambda verb, name: None
            flow.bind(KEY, second, replaces=last_beat(flow, KEY))

    recorded.before = step_in
    if all_flows:
        assert leader.read_flows(KEY) == {"billing-1": second}
    else:
        found = leader.read_flow(KEY, "billing-1")
        assert found is not None
        assert found[0] == second


def test_a_record_that_somebody_removed_is_named(recorded: Recorded) -> None:
    store = open_recorded(recorded)
    record = a_record()
    store.bind(KEY, record, replaces=None)
    recorded.delete(f"{FOLDER}flows/billing-1/{record.instance}")  # type: ignore[operator] # by __getattr__
    reader = open_recorded(recorded)
    for read in (lambda: reader.read_flows(KEY), lambda: reader.read_flow(KEY, "billing-1")):
        with pytest.raises(Corrupt, match="ownership/beats/billing-1"):
            read()


@pytest.mark.parametrize("name", ["state", "leader", "beats/billing-1", "3"])
def test_a_foreign_object_is_corrupt_and_named(tmp_path: Path, name: str) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    store = ObjectsOwnership(objects)
    metadata = name in ("beats/billing-1", "3")
    objects.swap(FOLDER + name, {"x": "1"} if metadata else b'{"x":1}', expected=None)
    reads: dict[str, Callable[[], object]] = {
        "state": lambda: store.read_state(KEY),
        "leader": lambda: store.read_lease(KEY),
        "beats/billing-1": lambda: store.read_flows(KEY),
        "3": lambda: store.list_ownership(KEY),
    }
    with pytest.raises(Corrupt, match=f"{FOLDER}{name}"):
        reads[name]()


def test_the_names_are_those_of_seed_004(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    store = ObjectsOwnership(objects)
    claim = OwnershipRecord(key=KEY, partition=12, owner=None, epoch=7, version="", modified="")
    claimed = store.claim_ownership([claim])[12]
    (info,) = objects.list(FOLDER)
    assert info.name == "default/orders/billing/ownership/12"
    assert info.metadata == {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "partition": "12",
        "epoch": "7",
        "version": claimed.version,
        "modified": claimed.modified,
    }


def test_nothing_is_remembered_of_a_flow_that_was_forgotten(recorded: Recorded) -> None:
    store = open_recorded(recorded)
    record = a_record()
    store.bind(KEY, record, replaces=None)
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    assert store.read_flows(KEY) == {"billing-1": record}
    store.unbind(KEY, "billing-1", record.instance)
    assert store.forget_flow(KEY, "billing-1", record.instance, state_token="t1")
    assert store._flows._records == {}


def test_ages_are_the_stores_own_and_grow(tmp_path: Path) -> None:
    now_s = [100.0]
    objects = LocalStore(str(tmp_path / "store"))
    store = ObjectsOwnership(objects, now_s=lambda: now_s[0])
    store.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)

    def age_s() -> float:
        found = store.read_lease(KEY)
        assert found is not None
        return found.age_s

    assert age_s() < 5
    now_s[0] += 50
    assert 50 <= age_s() < 55
    ObjectsOwnership(objects).renew_lease(KEY, Lease(token="l", name="n", beat=1))
    assert age_s() == 0
    now_s[0] += 2
    assert age_s() == 2


def test_a_record_whose_heartbeat_failed_is_seen_by_all_from_the_next_heartbeat_on(recorded: Recorded) -> None:
    """Also by those who read the record before and keep it as long as its token stays."""
    flow, leader = open_recorded(recorded), open_recorded(recorded)
    record = a_record()
    flow.bind(KEY, record, replaces=None)
    assert leader.read_flows(KEY) == {"billing-1": record}

    def fail(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "beats/billing-1"):
            recorded.before = lambda verb, name: None
            raise Unavailable("the request was lost")

    recorded.before = fail
    with pytest.raises(Unavailable):
        flow.report(KEY, "billing-1", record.instance, {1: delivery(5)})
    assert leader.read_flows(KEY) == {"billing-1": record}
    flow.beat(KEY, "billing-1", record.instance)
    assert leader.read_flows(KEY)["billing-1"].deliveries == {1: delivery(5)}


@pytest.mark.parametrize("verb", ["deliver", "report"])
def test_a_heartbeat_that_fails_while_a_record_is_written_hides_nothing(recorded: Recorded, verb: str) -> None:
    """One beat fails, the next reads both documents anew and gives the record that is still there a token, which a
    leader keeps; then the record is swapped.
    """
    flow, leader = open_recorded(recorded), open_recorded(recorded)
    record = a_record(p1=delivery(50, 50))
    me = record.instance
    leader.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)

    def fail(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "beats/billing-1"):
            recorded.before = lambda verb, name: None
            raise Unavailable("the request was lost")

    def beat_twice(verb: str, name: str) -> None:
        if verb == "swap" and name.startswith("flows/"):
            recorded.before = fail
            with pytest.raises(Unavailable):
                flow.beat(KEY, "billing-1", me)
            flow.beat(KEY, "billing-1", me)
            assert leader.read_flows(KEY)["billing-1"].deliveries == {1: delivery(50, 50)}

    recorded.before = beat_twice
    if verb == "deliver":
        assert flow.deliver(KEY, "billing-1", me, {1: delivery(99, 50)}, state_token="t1")
    else:
        flow.report(KEY, "billing-1", me, {1: delivery(99, 50)})
    assert leader.read_flows(KEY)["billing-1"].deliveries == {1: delivery(99, 50)}


def test_beats_do_not_wait_for_a_delivery(recorded: Recorded) -> None:
    """A delivery whose record takes long does not end the lease of its flow."""
    flow = open_recorded(recorded)
    record = a_record()
    flow.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    go_on, waiting = threading.Event(), threading.Event()

    def hold(verb: str, name: str) -> None:
        if name.startswith("flows/") and verb == "swap":
            waiting.set()
            assert go_on.wait(20)

    recorded.before = hold
    delivered: list[bool] = []

    def deliver() -> None:
        delivered.append(flow.deliver(KEY, "billing-1", record.instance, {1: delivery(9)}, state_token="t1"))

    thread = threading.Thread(target=deliver)
    thread.start()
    assert waiting.wait(20)
    assert flow.beat(KEY, "billing-1", record.instance) == "t1"
    go_on.set()
    thread.join(20)
    assert delivered == [True]


# --- answers that are lost on the way from Azure's emulator -----------------------------------------------------------


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    """A proxy before it."""
    with Proxy(azurite.port).running() as made:
        yield made


def lose_answer(proxy: Proxy, path: str, act: Callable[[], object]) -> None:
    """The service does it, and the call ends as unknown."""
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and path in seen.path and left and left.pop() else None
    )
    with pytest.raises(Unavailable):
        act()
    assert not left


@pytest.mark.azurite
def test_a_lost_answer_is_settled_by_reading_or_repeating(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store, other = ObjectsOwnership(objects), ObjectsOwnership(objects)
    record = a_record()
    me = record.instance
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    lose_answer(proxy, "/state", lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"))
    found = store.read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == "t2"
    for path in ("/flows/", "/beats/"):
        lose_answer(proxy, path, lambda: store.bind(KEY, record, replaces=None))
    store.bind(KEY, record, replaces=None)
    assert other.read_flows(KEY) == {"billing-1": record}

    for number, path in enumerate(("/flows/", "/beats/")):
        new = {1: delivery(10 + number)}
        lose_answer(proxy, path, lambda: store.deliver(KEY, "billing-1", me, new, state_token="t2"))  # noqa: B023
        assert store.deliver(KEY, "billing-1", me, new, state_token="t2")
        assert other.read_flows(KEY)["billing-1"].deliveries == new
        lose_answer(proxy, path, lambda: store.report(KEY, "billing-1", me, {1: delivery(1)}))
        store.report(KEY, "billing-1", me, {1: delivery(1)})
        assert other.read_flows(KEY)["billing-1"].deliveries == {1: delivery(1)}
    lose_answer(proxy, "/beats/", lambda: store.beat(KEY, "billing-1", me))
    assert store.beat(KEY, "billing-1", me) == "t2"

    lease = Lease(token="l", name="n", beat=0)
    lose_answer(proxy, "/leader", lambda: store.take_lease(KEY, lease, expected=None))
    held = store.read_lease(KEY)
    assert held is not None
    assert held.lease == lease
    lose_answer(proxy, "/leader", lambda: store.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert store.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"
    objects.close()


@pytest.mark.azurite
@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store = ObjectsOwnership(objects)
    claims = [
        OwnershipRecord(key=KEY, partition=number, owner=None, epoch=1, version="", modified="") for number in range(3)
    ]
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and "ownership/1" in seen.path and left and left.pop() else None
    )
    assert sorted(store.claim_ownership(claims)) == [0, 2]
    found = store.list_ownership(KEY)
    assert sorted(found) == [0, 1, 2]
    assert sorted(store.claim_ownership([found[1]])) == [1]
    objects.close()


@pytest.mark.azurite
def test_a_record_is_a_blob_without_a_body_and_a_heartbeat_too(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch)
    store = ObjectsOwnership(objects)
    store.bind(KEY, a_record(), replaces=None)
    store.claim_ownership([OwnershipRecord(key=KEY, partition=1, owner=None, epoch=1, version="", modified="")])
    for name in ("beats/billing-1", "1"):
        found = objects.load(FOLDER + name)
        assert isinstance(found, Document)
        assert found.metadata
        assert not found.body
    objects.close()
