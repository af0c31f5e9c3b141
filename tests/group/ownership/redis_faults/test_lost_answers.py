"""A line to Redis that breaks before the answer, or holds a call up: settled by reading or repeating."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import KEY, a_record, delivery, last_beat
from tests.group.ownership.redis_faults.conftest import ME, RECORD, begin, token_of, verbs
from tests.group.ownership.redis_servers import Line, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture
def line(server: RedisServer) -> Iterator[Line]:
    """A line to the server."""
    with Line(server.port) as made:
        yield made


@pytest.fixture
def far(server: RedisServer, line: Line) -> Iterator[Ownership]:
    """A user at the other end of the line."""
    opened = open_redis(server, port=line.port)
    yield opened
    opened.close()


def lose_answer(line: Line, act: Callable[[], object], *, to: bytes = b"EVALSHA") -> None:
    """The call ends as unknown, though the server has done it. `to` is in the request whose answer is lost."""
    cuts = line.cuts
    line.cut_next(to)
    with pytest.raises(Unavailable, match="known when it is read again"):
        act()
    assert line.cuts == cuts + 1


RECORD_SWAPPED, HEART_SWAPPED = b'"session_timeout_s"', b'"bound":"1"'


def test_a_lost_answer_is_settled_by_reading_or_repeating(
    server: RedisServer, store: Ownership, line: Line, far: Ownership
) -> None:
    begin(store)
    far.incarnation()
    lose_answer(line, lambda: far.swap_state(KEY, b"{}", token="t2", expected="t1"), to=b"swap")
    assert token_of(far) == "t2"
    again, former = a_record(), last_beat(far, KEY)
    for to in (RECORD_SWAPPED, HEART_SWAPPED):
        lose_answer(line, lambda: far.bind(KEY, again, replaces=former), to=to)
    far.bind(KEY, again, replaces=former)
    assert far.read_flows(KEY) == {"billing-1": again}
    for number, to in enumerate((RECORD_SWAPPED, HEART_SWAPPED)):
        new = {1: delivery(5 + number)}
        lose_answer(line, lambda: far.deliver(KEY, "billing-1", again.instance, new, state_token="t2"), to=to)  # noqa: B023
        assert far.deliver(KEY, "billing-1", again.instance, new, state_token="t2")
        assert store.read_flows(KEY)["billing-1"].deliveries == new
        lose_answer(line, lambda: far.report(KEY, "billing-1", again.instance, {1: delivery(4)}), to=to)
        far.beat(KEY, "billing-1", again.instance)
        assert store.read_flows(KEY)["billing-1"].deliveries == {1: delivery(4)}, "the next heartbeat tells of it"
    lose_answer(line, lambda: far.beat(KEY, "billing-1", again.instance))
    assert far.beat(KEY, "billing-1", again.instance) == "t2"
    lease = Lease(token="l", name="n", beat=0)
    lose_answer(line, lambda: far.take_lease(KEY, lease, expected=None), to=b"swap")
    found = far.read_lease(KEY)
    assert found is not None
    assert found.lease == lease
    lose_answer(line, lambda: far.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert far.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"


@pytest.mark.parametrize("verb", ["deliver", "report", "bind"])
def test_a_call_that_arrives_late_does_not_undo_what_was_said_since(
    server: RedisServer, store: Ownership, line: Line, verb: str
) -> None:
    """The caller has given it up and gone on, on another connection."""
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    if verb != "bind":
        store.bind(KEY, RECORD, replaces=None)
        store.report(KEY, "billing-1", ME, {})  # the server knows the script
    far = open_redis(server, port=line.port, call_timeout_s=0.2)
    far.incarnation()
    line.hold_next(b"EVALSHA")
    held_up: dict[str, Callable[[], object]] = {
        "deliver": lambda: far.deliver(KEY, "billing-1", ME, {1: delivery(5)}, state_token="t1"),
        "report": lambda: far.report(KEY, "billing-1", ME, {1: delivery(5)}),
        "bind": lambda: far.bind(KEY, RECORD, replaces=None),
    }
    with pytest.raises(Unavailable, match="did not answer"):
        held_up[verb]()
    if verb == "bind":
        far.bind(KEY, RECORD, replaces=None)
    assert far.deliver(KEY, "billing-1", ME, {1: delivery(10)}, state_token="t1")
    line.released.set()
    time.sleep(0.2)  # nobody waits for the late one, so nobody can say when it has come
    assert store.read_flows(KEY)["billing-1"].deliveries == {1: delivery(10)}
    far.close()


@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed(
    store: Ownership, line: Line, far: Ownership, caplog: pytest.LogCaptureFixture
) -> None:
    claim = OwnershipRecord(key=KEY, partition=3, owner=None, epoch=1, version="", modified="")
    store.claim_ownership([claim])
    store.drop_group(KEY)
    far.incarnation()
    line.cut_next(b"EVALSHA")
    assert far.claim_ownership([claim]) == {}
    assert line.cuts == 1
    assert "count as not claimed" in caplog.text
    assert list(far.list_ownership(KEY)) == [3]


def test_how_many_round_trips_a_call_takes(store: Ownership, line: Line, far: Ownership) -> None:
    """A heartbeat and a leader's look are one, a delivery or a report two, beside the first that read something."""
    begin(store)
    far.incarnation()
    far.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    calls = verbs(far)
    calls["swap_state"] = lambda: far.swap_state(KEY, b"{}", token="t1", expected="t1")
    expected = {"deliver": 2, "report": 2, "note": 2, "read_flow": 1}  # what `read_flow` finds is remembered
    wanted = ("read_state", "swap_state", "read_flows", "read_flow", "read_beats", "beat", "deliver", "report", "note")
    for name in (*wanted, "read_lease", "renew_lease", "list_ownership", "claim_ownership", "announce"):
        if name in ("beat", "deliver"):
            far.beat(KEY, "billing-1", ME)
        before = line.requests
        calls[name]()
        assert line.requests - before <= expected.get(name, 1 + (name == "read_flows")), name
