"""A Redis that is in trouble: a line that holds a call up; no memory, no replicas, read-only, still loading; silence,
within which every call ends in time; and lost subscriptions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Lease
from partq_spark.group.ownership import Ownership, Reincarnated, StateDocument
from tests.group.ownership.conftest import (
    KEY,
    ME,
    RECORD,
    a_record,
    begin,
    delivery,
    together,
    token_of,
    verbs,
)
from tests.group.ownership.redis_servers import STORE_ID, Line, Pair, SpecialRedis, command, open_redis
from tests.support.servers import RedisServer, running

pytestmark = pytest.mark.redis


@pytest.fixture
def store(server: RedisServer) -> Iterator[Ownership]:
    """A user of a Redis of the test's own."""
    opened = open_redis(server)
    yield opened
    opened.close()


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


# --- it takes nothing for now -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "usually", "says"),
    [
        ("maxmemory", "1", "0", "maxmemory reached"),
        # A flow that still reaches a primary without its replicas must not believe that it renewed anything.
        ("min-replicas-to-write", "1", "0", "NOREPLICAS"),
    ],
)
def test_where_nothing_can_be_written_it_is_said_and_nothing_is_half_done(
    server: RedisServer, store: Ownership, setting: str, value: str, usually: str, says: str
) -> None:
    begin(store)
    before = store.read_flows(KEY), token_of(store)
    command(server, "CONFIG", "SET", setting, value)
    calls = verbs(store)
    calls["bind"] = lambda: store.bind(KEY, a_record("billing-2"), replaces=None)
    for name in ("swap_state", "beat", "deliver", "report", "unbind", "take_lease", "bind"):
        with pytest.raises(Unavailable, match=says):
            calls[name]()
    assert calls["claim_ownership"]() == {}
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", setting, usually)
    assert store.list_ownership(KEY) == {}
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_a_read_only_replica_is_read_and_not_written(server: RedisServer, store: Ownership) -> None:
    begin(store)
    with running(
        SpecialRedis("--replicaof", "127.0.0.1", str(server.port), "--repl-diskless-sync-delay", "0")
    ) as replica:
        Pair(server, replica).synced()
        other = open_redis(replica)
        assert token_of(other) == "t1"
        for name in ("swap_state", "beat", "deliver", "unbind", "take_lease"):
            with pytest.raises(Unavailable, match="read-only replica"):
                verbs(other)[name]()
        command(replica, "CONFIG", "SET", "replica-serve-stale-data", "no")
        server.kill()
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            try:
                other.read_state(KEY)
            except Unavailable as error:
                assert "lost its master" in str(error)  # noqa: PT017 - it takes a moment until it knows
                break
        command(replica, "REPLICAOF", "NO", "ONE")
        with pytest.raises(Reincarnated):
            other.beat(KEY, "billing-1", ME)
        other.incarnation()
        assert other.beat(KEY, "billing-1", ME) == "t1"
        other.close()


def test_a_redis_that_is_still_loading_is_named(server: RedisServer) -> None:
    slow = ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")
    special = SpecialRedis(*slow)
    with running(special):
        writer = open_redis(special)
        begin(writer)
        for number in range(60):
            command(special, "SET", f"more-{number}", "x" * 2000)
        command(special, "SAVE")
        special.kill()
        special.start()
        with pytest.raises(Unavailable, match="still loading"):
            open_redis(special).read_state(KEY)


# --- it does not answer -----------------------------------------------------------------------------------------------


def test_a_redis_that_stands_still_ends_every_call_in_time(server: RedisServer) -> None:
    store = open_redis(server, call_timeout_s=0.1)
    store.incarnation()
    begin(store)
    server.freeze()
    try:
        for name, verb in {**verbs(store), "incarnation": store.incarnation}.items():
            if name == "claim_ownership":
                continue  # an unknown outcome is no error there
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match=r"did not answer within 0\.1 s"):
                verb()
            assert time.monotonic() - started_s < 0.6, name
        started_s = time.monotonic()
        assert store.wait_news(0.1) is None
        assert time.monotonic() - started_s < 0.6
    finally:
        server.thaw()
    assert store.incarnation()
    assert token_of(store) == "t1"
    store.close()


def test_a_redis_that_is_not_there_is_named(server: RedisServer, store: Ownership) -> None:
    begin(store)
    server.kill()
    with pytest.raises(Unavailable, match=rf"redis://127\.0\.0\.1:{server.port}/0 cannot be reached.*refused"):
        store.read_state(KEY)
    with pytest.raises(Unavailable, match="refused"):
        store.incarnation()
    assert store.wait_news(0.1) is None


def test_more_threads_than_connections_wait_for_their_turn(server: RedisServer, store: Ownership) -> None:
    begin(store)

    def beat(_: int) -> None:
        for _ in range(50):
            assert store.beat(KEY, "billing-1", ME) == "t1"

    together(beat, 40)
    assert store.beat(KEY, "billing-1", ME) == "t1"
    assert int(command(server, "CLIENT", "LIST").count("\nid=")) <= 17


def test_a_fork_speaks_on_connections_of_its_own(store: Ownership) -> None:
    begin(store)
    child = os.fork()
    if child == 0:
        try:
            for _ in range(200):
                assert store.beat(KEY, "billing-1", ME) == "t1"
            os._exit(0)
        finally:
            os._exit(1)
    for _ in range(200):
        assert isinstance(store.read_state(KEY), StateDocument)
    _, status = os.waitpid(child, 0)
    assert status == 0


# --- news -------------------------------------------------------------------------------------------------------------


def test_news_come_again_after_the_subscription_was_lost(server: RedisServer, store: Ownership) -> None:
    flow = open_redis(server, group=KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(0.01) == frozenset()
    command(server, "CLIENT", "KILL", "TYPE", "pubsub")
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(5) is None  # subscribed again, and looked at everything
        assert listening.wait_news(0.01) == frozenset()
    store.announce(KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) == frozenset({KEY})
    server.kill()
    assert store.wait_news(0.05) is None
    assert store.wait_news(0.05) is None
    server.start()
    assert store.wait_news(5) is None
    flow.close()


def test_a_subscription_whose_server_is_silent_is_given_up(server: RedisServer) -> None:
    store = open_redis(server, call_timeout_s=0.2, ping_after_s=0.1)
    assert store.wait_news(1) is None
    assert store.wait_news(0.5) == frozenset()  # asked several times whether it is there
    server.freeze()
    try:
        started_s = time.monotonic()
        assert store.wait_news(30) is None
        assert time.monotonic() - started_s < 2
    finally:
        server.thaw()
    store.close()


def test_closing_ends_a_wait(server: RedisServer, store: Ownership) -> None:
    assert store.wait_news(5) is None
    timer = threading.Timer(0.1, store.close)
    timer.start()
    started_s = time.monotonic()
    store.wait_news(20)
    assert time.monotonic() - started_s < 5
    timer.join()
    with pytest.raises(Unavailable, match="was closed"):
        store.read_state(KEY)


def test_channels_of_others_are_no_news(server: RedisServer, store: Ownership) -> None:
    assert store.wait_news(5) is None
    for channel in (
        *("partq:news", "partq:{a}:news", "partq:{a/b/c/d}:news", "partq:{a/b/c:news", "partq:{\x7f}:news"),
        f"partq:{{{STORE_ID}/a/b/c/d}}:news",
        f"partq:{{{STORE_ID[::-1]}/a/b/c}}:news",
    ):
        command(server, "PUBLISH", channel, "x")
    assert store.wait_news(0.2) == frozenset()
