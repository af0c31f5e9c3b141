"""Ownership as objects, when somebody else steps in between two requests or a process ends half-way, and what each verb
costs in requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.model import Lease
from partq_spark.group.ownership import Ownership, StateDocument
from tests.group.ownership.conftest import FOLDER, KEY, a_record, delivery, last_beat
from tests.group.ownership.redis_servers import an_object_store
from tests.support.ownership import in_objects
from tests.support.way import Hooked

T = TypeVar("T")


class Recorded(Hooked):
    """A store that counts its requests, and lets a test step in before one of them."""

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        return super().call(kind, name.removeprefix(FOLDER), effect)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(an_object_store())


def open_recorded(recorded: Recorded) -> Ownership:
    """One user of it."""
    return in_objects(recorded)


def calls(recorded: Recorded, act: Callable[[], object]) -> list[str]:
    """What was asked of the store."""
    recorded.calls.clear()
    act()
    return [f"{kind} {name}" for kind, name in recorded.calls]


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
            recorded.before = None
            leader.swap_state(KEY, b"{}", token="t2", expected="t1")
            seen.append(leader.read_flows(KEY)["billing-1"].deliveries)

    recorded.before = step_in
    assert flow.deliver(KEY, "billing-1", record.instance, {1: delivery(9)}, state_token="t1") is False
    assert seen == [{1: delivery(9)}]  # to be on the safe side, until it was put back
    assert leader.read_flows(KEY)["billing-1"] == record
    assert flow.deliver(KEY, "billing-1", record.instance, {1: delivery(9)}, state_token="t2") is True


def records(recorded: Recorded) -> set[str]:
    """The instances whose records are there."""
    return {info.name.rpartition("/")[2] for info in recorded.list(f"{FOLDER}flows/")}


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_bind_removes_what_earlier_tries_left_behind(recorded: Recorded, lost: str) -> None:
    """The answer to a bind, or to the removal of the former instance's record, does not come."""
    store = open_recorded(recorded)
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
    assert records(recorded) == {last.instance}
    assert store.read_flows(KEY) == {"billing-1": last}


def test_a_renewal_that_lands_late_does_not_cost_the_lease(recorded: Recorded) -> None:
    """It comes between the reading of the lease and the next renewal."""
    leader, line = open_recorded(recorded), open_recorded(recorded)
    leader.take_lease(KEY, Lease(token="mine", name="n", beat=0), expected=None)

    def lose(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "leader"):
            raise Unavailable("it is on its way")

    def land(verb: str, name: str) -> None:
        if (verb, name) == ("swap", "leader"):
            recorded.before = None
            line.renew_lease(KEY, Lease(token="mine", name="n", beat=1))

    recorded.before = lose
    with pytest.raises(Unavailable):
        leader.renew_lease(KEY, Lease(token="mine", name="n", beat=1))
    recorded.before = land
    leader.renew_lease(KEY, Lease(token="mine", name="n", beat=2))
    found = line.read_lease(KEY)
    assert found is not None
    assert found.lease.beat == 2


@pytest.mark.parametrize("all_flows", [True, False])
def test_a_reader_that_meets_a_bind_follows_it(recorded: Recorded, all_flows: bool) -> None:
    """Between the heartbeat and the record, another instance binds and removes its predecessor's record."""
    leader, flow = open_recorded(recorded), open_recorded(recorded)
    first, second = a_record(), a_record()
    flow.bind(KEY, first, replaces=None)
    flow.unbind(KEY, "billing-1", first.instance)

    def step_in(verb: str, name: str) -> None:
        if (verb, name) == ("load", f"flows/billing-1/{first.instance}"):
            recorded.before = None
            flow.bind(KEY, second, replaces=last_beat(flow, KEY))

    recorded.before = step_in
    if all_flows:
        assert leader.read_flows(KEY) == {"billing-1": second}
    else:
        found = leader.read_flow(KEY, "billing-1")
        assert found is not None
        assert found[0] == second


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
            recorded.before = None
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


# --- a change that took place is answered with a conflict: something in between has sent it again ---------------------


def contradict(recorded: Recorded, times: int = 1) -> list[str]:
    """Let the next changes take effect and be answered so; returns those that were, in the end."""
    met: list[str] = []

    def after(verb: str, name: str) -> None:
        if verb in ("swap", "remove") and len(met) < times:
            met.append(name)
            raise Conflict(f"{name}: a repetition met its success (test)")

    recorded.after = after
    return met


def test_a_state_that_was_written_is_ones_own_whatever_the_answer_says(recorded: Recorded) -> None:
    store, other = open_recorded(recorded), open_recorded(recorded)
    for number, expected in enumerate([None, "t0", "t1"]):
        met = contradict(recorded)
        store.swap_state(KEY, b'{"n":1}', token=f"t{number}", expected=expected)
        assert met == ["state"]
    with pytest.raises(Conflict):
        other.swap_state(KEY, b'{"n":2}', token="else", expected="t1")
    found = other.read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == "t2"


def test_a_lease_that_was_taken_or_renewed_is_ones_own_whatever_the_answer_says(recorded: Recorded) -> None:
    store, other = open_recorded(recorded), open_recorded(recorded)
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    lease = Lease(token="mine", name="n", beat=0)
    met = contradict(recorded)
    store.take_lease(KEY, lease, expected=None)
    assert met == ["leader"]
    for beat in (1, 2):
        met = contradict(recorded)
        assert store.renew_lease(KEY, Lease(token="mine", name="n", beat=beat)).state_token == "t1"
        assert met == ["leader"]
    with pytest.raises(Conflict):
        other.renew_lease(KEY, Lease(token="mine", name="n", beat=2))
    with pytest.raises(Conflict):
        other.take_lease(KEY, Lease(token="other", name="n", beat=0), expected=lease)
    contradict(recorded)
    store.release_lease(KEY, "mine")
    assert other.read_lease(KEY) is None


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_flow_writes_counts_once_whatever_the_answers_say(recorded: Recorded, times: int) -> None:
    store, other = open_recorded(recorded), open_recorded(recorded)
    record = a_record()
    flow, me = record.flow, record.instance
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.bind(KEY, record, replaces=None)
    contradict(recorded, times)
    assert store.beat(KEY, flow, me) == "t1"
    contradict(recorded, times)
    assert store.deliver(KEY, flow, me, {1: delivery(10)}, state_token="t1")
    contradict(recorded, times)
    store.report(KEY, flow, me, {2: delivery(3)})
    assert other.read_flows(KEY)[flow].deliveries == {1: delivery(10), 2: delivery(3)}
    contradict(recorded, times)
    store.unbind(KEY, flow, me)
    assert not other.read_flows(KEY)[flow].bound
    contradict(recorded, times)
    assert store.forget_flow(KEY, flow, me, state_token="t1")
    assert other.read_flows(KEY) == {}
