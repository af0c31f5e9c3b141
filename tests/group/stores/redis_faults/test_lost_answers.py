"""A line to Redis that breaks before the answer, or holds a call up: settled by reading or repeating."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.stores.redis import RedisOwnership
from tests.group.stores.conftest import KEY, a_record, delivery, last_beat
from tests.group.stores.redis_faults.conftest import ME, RECORD, begin, token_of, verbs
from tests.group.stores.redis_servers import Line, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture
def line(server: RedisServer) -> Iterator[Line]:
    """A line to the server."""
    with Line(server.port) as made:
        yield made


@pytest.fixture
def far(server: RedisServer, line: Line) -> Iterator[RedisOwnership]:
    """A user at the other end of the line."""
    opened = open_redis(server, port=line.port)
    yield opened
    opened.close()


def lose_answer(line: Line, act: Callable[[], object]) -> None:
    """The call ends as unknown, though the server has done it."""
    cuts = line.cuts
    line.cut_next(b"EVALSHA")
    with pytest.raises(Unavailable, match="known when it is read again"):
        act()
    assert line.cuts == cuts + 1


def test_a_lost_answer_is_settled_by_reading_or_repeating(
    server: RedisServer, store: RedisOwnership, line: Line, far: RedisOwnership
) -> None:
    begin(store)  # so that the scripts are known
    store.deliver(KEY, "billing-1", ME, {}, state_token="t1")
    store.report(KEY, "billing-1", ME, {})
    store.unbind(KEY, "billing-1", ME)
    store.take_lease(KEY, Lease(token="x", name="n", beat=0), expected=None)
    store.renew_lease(KEY, Lease(token="x", name="n", beat=1))
    store.release_lease(KEY, "x")
    far.incarnation()

    lose_answer(line, lambda: far.swap_state(KEY, b"{}", token="t2", expected="t1"))
    assert token_of(far) == "t2"
    again, former = a_record(), last_beat(far, KEY)
    lose_answer(line, lambda: far.bind(KEY, again, replaces=former))
    far.bind(KEY, again, replaces=former)
    assert far.read_flows(KEY) == {"billing-1": again}
    new = {1: delivery(5)}
    lose_answer(line, lambda: far.deliver(KEY, "billing-1", again.instance, new, state_token="t2"))
    assert far.read_flows(KEY)["billing-1"].deliveries == new
    assert far.deliver(KEY, "billing-1", again.instance, new, state_token="t2")
    lose_answer(line, lambda: far.report(KEY, "billing-1", again.instance, {1: delivery(4)}))
    assert far.read_flows(KEY)["billing-1"].deliveries == {1: delivery(4)}
    lose_answer(line, lambda: far.beat(KEY, "billing-1", again.instance))
    assert far.beat(KEY, "billing-1", again.instance) == "t2"
    lease = Lease(token="l", name="n", beat=0)
    lose_answer(line, lambda: far.take_lease(KEY, lease, expected=None))
    found = far.read_lease(KEY)
    assert found is not None
    assert found.lease == lease
    lose_answer(line, lambda: far.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert far.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"


@pytest.mark.parametrize("verb", ["deliver", "report", "bind"])
def test_a_call_that_arrives_late_does_not_undo_what_was_said_since(
    server: RedisServer, store: RedisOwnership, line: Line, verb: str
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
    store: RedisOwnership, line: Line, far: RedisOwnership, caplog: pytest.LogCaptureFixture
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


def test_every_call_is_one_round_trip(store: RedisOwnership, line: Line, far: RedisOwnership) -> None:
    begin(store)
    for some in (store, far):  # the first connection asks who is there, the first use of a script sends it
        some.incarnation()
        for name, verb in verbs(some).items():
            if name in ("swap_state", "bind", "take_lease"):
                some.drop_group(KEY)
                some.swap_state(KEY, b"{}", token="t1", expected=None)
                some.bind(KEY, RECORD, replaces=None)
            if name in ("unbind", "forget_flow", "renew_lease", "release_lease", "drop_group"):
                continue
            before = line.requests
            verb()
            if some is far:
                assert line.requests == before + 1, name
