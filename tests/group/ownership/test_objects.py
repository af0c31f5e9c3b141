"""Ownership as objects: as it lies in the store, what each verb costs, and what happens when somebody else steps in
between two requests, a heartbeat lands late, or a process ends half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.checksums import checksum_of
from partq_spark.group.documents.objects import ObjectDocuments
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership
from partq_spark.objects import Document
from tests.group.ownership.conftest import (
    FOLDER,
    KEY,
    RECORD,
    a_record,
    delivery,
    last_beat,
    token_of,
)
from tests.group.ownership.redis_servers import an_object_store
from tests.objects.conftest import azure_store
from tests.support.ownership import in_objects
from tests.support.servers import Azurite
from tests.support.way import Hooked

T = TypeVar("T")
ME = RECORD.instance
CLAIM = OwnershipRecord(key=KEY, partition=12, owner=None, epoch=7, version="", modified="")


class Recorded(Hooked):
    """A store that counts its requests, and lets a test step in before one of them."""

    def __init__(self) -> None:
        super().__init__(an_object_store())

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        return super().call(kind, name.removeprefix(FOLDER), effect)

    def user(self) -> Ownership:
        return in_objects(self)

    def once(self, kind: str, name: str, act: Callable[[], object]) -> None:
        """`act` happens before the next such request."""

        def step_in(found_kind: str, found_name: str) -> None:
            if found_kind == kind and found_name.startswith(name):
                self.before = None
                act()

        self.before = step_in

    def lose(self, kind: str, name: str) -> None:
        """The next such request does not arrive."""

        def fail() -> None:
            raise Unavailable("it is on its way (test)")

        self.once(kind, name, fail)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def flow(recorded: Recorded) -> Ownership:
    """Its flow is bound, and there is a state."""
    made = recorded.user()
    made.swap_state(KEY, b"{}", token="t1", expected=None)
    made.bind(KEY, RECORD, replaces=None)
    return made


@pytest.fixture
def leader(recorded: Recorded) -> Ownership:
    return recorded.user()


def test_the_names_are_those_of_seed_004(recorded: Recorded) -> None:
    claimed = recorded.user().claim_ownership([CLAIM])[12]
    (info,) = recorded.list(FOLDER)
    assert info.name == "default/orders/billing/ownership/12"
    assert info.metadata == {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "partition": "12",
        "epoch": "7",
        "modified": claimed.modified,
        "claim": info.metadata["claim"],
        "checksum": checksum_of(info.metadata),
    }
    assert claimed.version == info.etag


def test_a_claim_that_says_the_same_at_the_same_time_is_another_one(recorded: Recorded) -> None:
    first, second = (Ownership(ObjectDocuments(recorded), Effects(time_us=lambda: 7)) for _ in range(2))
    claimed = first.claim_ownership([CLAIM])
    assert second.claim_ownership([CLAIM]) == {}
    assert second.list_ownership(KEY) == claimed


def test_ages_are_the_stores_own_and_grow(recorded: Recorded) -> None:
    now_s = [100.0]
    store = in_objects(recorded, now_s=lambda: now_s[0])
    store.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)

    def age_s() -> float:
        found = store.read_lease(KEY)
        assert found is not None
        return found.age_s

    assert age_s() < 5
    now_s[0] += 50
    assert 50 <= age_s() < 55
    recorded.user().renew_lease(KEY, Lease(token="l", name="n", beat=1))
    assert age_s() == 0
    now_s[0] += 2
    assert age_s() == 2


@pytest.mark.azurite
def test_a_record_is_a_blob_without_a_body_and_a_heartbeat_too(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch)
    store = in_objects(objects)
    store.bind(KEY, RECORD, replaces=None)
    store.claim_ownership([CLAIM])
    for name in ("beats/billing-1", "12"):
        found = objects.load(FOLDER + name)
        assert isinstance(found, Document)
        assert found.metadata
        assert not found.body
    objects.close()


def test_what_each_verb_costs(recorded: Recorded, flow: Ownership, leader: Ownership) -> None:
    leader.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    flow.beat(KEY, "billing-1", ME)
    leader.renew_lease(KEY, Lease(token="l", name="n", beat=1))
    leader.read_flows(KEY)
    write, heart, look = f"swap flows/billing-1/{ME}", "swap beats/billing-1", "load state"
    costs: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: flow.beat(KEY, "billing-1", ME), [heart, look]),
        (lambda: flow.report(KEY, "billing-1", ME, {1: delivery(1)}), [write, heart]),
        (lambda: flow.deliver(KEY, "billing-1", ME, {1: delivery(2)}, state_token="t1"), [write, heart, look]),
        (lambda: flow.read_state(KEY, known="t1"), [look]),
        (lambda: leader.renew_lease(KEY, Lease(token="l", name="n", beat=2)), ["swap leader", "list beats/", look]),
        (lambda: leader.read_flows(KEY), ["list beats/", f"load flows/billing-1/{ME}"]),
        (lambda: flow.beat(KEY, "billing-1", ME), [heart, look]),
        (lambda: leader.read_flows(KEY), ["list beats/"]),
        (lambda: flow.swap_state(KEY, b"{}", token="t2", expected="t1"), ["swap state"]),
    ]
    for act, expected in costs:
        recorded.calls.clear()
        act()
        assert [f"{kind} {name}" for kind, name in recorded.calls] == expected


# --- somebody steps in ------------------------------------------------------------------------------------------------


def test_a_delivery_that_came_too_late_is_put_back(recorded: Recorded, flow: Ownership, leader: Ownership) -> None:
    """The state is swapped between the delivery's record and its look at the state."""
    seen: list[Mapping[int, object]] = []

    def step_in() -> None:
        leader.swap_state(KEY, b"{}", token="t2", expected="t1")
        seen.append(leader.read_flows(KEY)["billing-1"].deliveries)

    recorded.once("load", "state", step_in)
    assert flow.deliver(KEY, "billing-1", ME, {1: delivery(9)}, state_token="t1") is False
    assert seen == [{1: delivery(9)}]  # to be on the safe side, until it was put back
    assert leader.read_flows(KEY)["billing-1"] == RECORD
    assert flow.deliver(KEY, "billing-1", ME, {1: delivery(9)}, state_token="t2") is True


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_bind_removes_what_earlier_tries_left_behind(recorded: Recorded, lost: str) -> None:
    """The answer to a bind, or to the removal of the former instance's record, does not come."""
    store = recorded.user()
    strike = ["swap beats/billing-1", "swap beats/billing-1", "delete"]

    def fail(verb: str, name: str) -> None:
        if strike and (f"{verb} {name}" == strike[0] or verb == strike[0]):
            strike.pop(0)
            raise Unavailable("nobody knows")

    setattr(recorded, lost, fail)
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.bind(KEY, a_record(), replaces=last_beat(store, KEY))
    store.bind(KEY, a_record(), replaces=last_beat(store, KEY))
    assert not strike
    last = a_record()
    store.bind(KEY, last, replaces=last_beat(store, KEY))
    assert {info.name.rpartition("/")[2] for info in recorded.list(f"{FOLDER}flows/")} == {last.instance}
    assert store.read_flows(KEY) == {"billing-1": last}


def test_a_renewal_that_lands_late_does_not_cost_the_lease(recorded: Recorded, leader: Ownership) -> None:
    """It comes between the reading of the lease and the next renewal."""
    line = recorded.user()
    leader.take_lease(KEY, Lease(token="mine", name="n", beat=0), expected=None)
    recorded.lose("swap", "leader")
    with pytest.raises(Unavailable):
        leader.renew_lease(KEY, Lease(token="mine", name="n", beat=1))
    recorded.once("swap", "leader", lambda: line.renew_lease(KEY, Lease(token="mine", name="n", beat=1)))
    leader.renew_lease(KEY, Lease(token="mine", name="n", beat=2))
    found = line.read_lease(KEY)
    assert found is not None
    assert found.lease.beat == 2


@pytest.mark.parametrize("all_flows", [True, False])
def test_a_reader_that_meets_a_bind_follows_it(
    recorded: Recorded, flow: Ownership, leader: Ownership, all_flows: bool
) -> None:
    """Between the heartbeat and the record, another instance binds and removes its predecessor's record."""
    second = a_record()
    flow.unbind(KEY, "billing-1", ME)
    step_in = lambda: flow.bind(KEY, second, replaces=last_beat(flow, KEY))  # noqa: E731
    recorded.once("load", f"flows/billing-1/{ME}", step_in)
    if all_flows:
        assert leader.read_flows(KEY) == {"billing-1": second}
    else:
        found = leader.read_flow(KEY, "billing-1")
        assert found is not None
        assert found[0] == second


@pytest.mark.parametrize("verb", ["deliver", "report"])
def test_a_heartbeat_that_fails_while_a_record_is_written_hides_nothing(
    recorded: Recorded, flow: Ownership, leader: Ownership, verb: str
) -> None:
    """One beat fails, the next reads both documents anew and gives the record that is still there a token, which a
    leader keeps; then the record is swapped.
    """

    def beat_twice() -> None:
        recorded.lose("swap", "beats/billing-1")
        with pytest.raises(Unavailable):
            flow.beat(KEY, "billing-1", ME)
        flow.beat(KEY, "billing-1", ME)
        assert leader.read_flows(KEY)["billing-1"].deliveries == {}

    recorded.once("swap", "flows/", beat_twice)
    if verb == "deliver":
        assert flow.deliver(KEY, "billing-1", ME, {1: delivery(99, 50)}, state_token="t1")
    else:
        flow.report(KEY, "billing-1", ME, {1: delivery(99, 50)})
    assert leader.read_flows(KEY)["billing-1"].deliveries == {1: delivery(99, 50)}


@pytest.mark.parametrize("refused", ["swap", "load"])
def test_a_beat_that_counts_was_written_since_its_call_began(
    recorded: Recorded, flow: Ownership, leader: Ownership, refused: str
) -> None:
    """Else the flow takes itself for alive for longer than others who watch its heartbeat."""
    held: list[Callable[[], object]] = []
    name, swap = f"{FOLDER}beats/billing-1", recorded.store.swap

    def late(found: str, content: Mapping[str, str], *, expected: str | None) -> str:
        if found != name or held:
            return swap(found, content, expected=expected)
        held.append(lambda: swap(found, content, expected=expected))
        raise Unavailable("no answer came (test)")

    recorded.store.swap = late  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable):
        flow.beat(KEY, "billing-1", ME)
    recorded.lose(refused, "flows/")
    if refused == "load":  # nobody knows the record either
        flow._own[KEY, "billing-1"].doubt()
    with pytest.raises(Unavailable):
        flow.report(KEY, "billing-1", ME, {1: delivery(1)})
    held[0]()
    landed = leader.read_beats(KEY)["billing-1"].token
    flow.beat(KEY, "billing-1", ME)
    assert leader.read_beats(KEY)["billing-1"].token != landed


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_written_is_ones_own_whatever_the_answer_says(recorded: Recorded, times: int) -> None:
    """Changes take place and are answered with a conflict: something in between has sent them again."""
    store, other = recorded.user(), recorded.user()
    lease = Lease(token="mine", name="n", beat=0)

    def contradicted(act: Callable[[], object], expected: object = None) -> None:
        met: list[str] = []

        def after(verb: str, name: str) -> None:
            if verb in ("swap", "remove") and len(met) < times:
                met.append(name)
                raise Conflict(f"{name}: a repetition met its success (test)")

        recorded.after = after
        assert act() == expected
        recorded.after = None
        assert met

    for number, before in enumerate([None, "t0", "t1"]):
        token = f"t{number}"
        contradicted(lambda: store.swap_state(KEY, b'{"n":1}', token=token, expected=before))  # noqa: B023 - at once
    with pytest.raises(Conflict):
        other.swap_state(KEY, b'{"n":2}', token="else", expected="t1")
    assert token_of(other) == "t2"
    contradicted(lambda: store.take_lease(KEY, lease, expected=None))
    for beat in (1, 2):
        contradicted(lambda: store.renew_lease(KEY, Lease(token="mine", name="n", beat=beat)).state_token, "t2")  # noqa: B023
    with pytest.raises(Conflict):
        other.renew_lease(KEY, Lease(token="mine", name="n", beat=2))
    with pytest.raises(Conflict):
        other.take_lease(KEY, Lease(token="other", name="n", beat=0), expected=lease)
    contradicted(lambda: store.release_lease(KEY, "mine"))
    assert other.read_lease(KEY) is None

    store.bind(KEY, RECORD, replaces=None)
    contradicted(lambda: store.beat(KEY, "billing-1", ME), "t2")
    contradicted(lambda: store.deliver(KEY, "billing-1", ME, {1: delivery(10)}, state_token="t2"), True)
    contradicted(lambda: store.report(KEY, "billing-1", ME, {2: delivery(3)}))
    assert other.read_flows(KEY)["billing-1"].deliveries == {1: delivery(10), 2: delivery(3)}
    contradicted(lambda: store.unbind(KEY, "billing-1", ME))
    assert not other.read_flows(KEY)["billing-1"].bound
    contradicted(lambda: store.forget_flow(KEY, "billing-1", ME, state_token="t2"), True)
    assert other.read_flows(KEY) == {}
