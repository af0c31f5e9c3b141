"""A real Redis that began anew or is another one: restarts, rollbacks, failovers, and what was flushed or evicted; and
one in trouble: no memory, no replicas, read-only; silence, within which every call ends in time; lost subscriptions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from partq_spark.base.errors import Conflict, Fenced, Unavailable
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, Reincarnated
from tests.group.ownership.conftest import KEY, ME, RECORD, a_record, begin, last_beat, token_of, verbs
from tests.group.ownership.redis_servers import STORE_ID, command, open_redis
from tests.support.waiting import wait_until
from tools.servers import RedisServer, running

pytestmark = pytest.mark.redis

LEASE = Lease(token="l", name="n", beat=0)


@pytest.fixture
def store(server: RedisServer) -> Iterator[Ownership]:
    """A user of a Redis of the test's own."""
    opened = open_redis(server)
    yield opened
    opened.close()


@pytest.fixture
def replica(server: RedisServer) -> Iterator[RedisServer]:
    """Of the server that `store` uses, with everything that is there by now."""
    with running(RedisServer()) as replica:
        for each in (server, replica):
            command(each, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        follow(replica, server)
        yield replica


def follow(replica: RedisServer, master: RedisServer) -> None:
    command(replica, "REPLICAOF", "127.0.0.1", str(master.port))
    wait_for(replica, master)


def wait_for(replica: RedisServer, master: RedisServer) -> None:
    """It has everything that is there by now."""

    def is_there() -> bool:
        wanted, found = (command(each, "INFO", "replication") for each in (master, replica))
        there = found["master_link_status"], found["slave_repl_offset"]
        return bool(there == ("up", wanted["master_repl_offset"]))

    wait_until(is_there, "replica that follows")


def promote(replica: RedisServer) -> None:
    """A client that still reaches the master writes what nobody will ever see again. No connection breaks."""
    command(replica, "REPLICAOF", "NO", "ONE")


# --- it began anew ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OWN-03", "OWN-04")
@pytest.mark.parametrize("how", ["empty", "with an old copy", "failed over and back"])
def test_that_it_began_anew_is_noticed_by_every_call_before_it_does_anything(
    server: RedisServer, store: Ownership, how: str, request: pytest.FixtureRequest
) -> None:
    """Nobody called in between. What was reported last is gone."""
    replica: RedisServer | None = request.getfixturevalue("replica") if "over" in how else None
    for name, verb in verbs(store).items():
        if token_of(store) is None:
            begin(store)
        if replica is not None:
            wait_for(replica, server)
            promote(replica)
        elif how != "empty":
            command(server, "SAVE")
        store.beat(KEY, replace(RECORD, note="slow"))
        if replica is not None:
            follow(server, replica)
            promote(server)  # under the same `run_id`, and every connection lives on
        else:
            server.kill()
            server.start()
        lives = store.documents.lives
        with pytest.raises(Reincarnated, match="restarted or replaced"):
            verb()
        assert store.documents.lives == lives + 1, name
        if how == "empty":
            assert command(server, "DBSIZE") == 0, name
            assert store.read_state(KEY) is None
            with pytest.raises(Fenced):
                store.beat(KEY, RECORD)
        else:
            assert token_of(store) == "t1", name
            assert store.read_flows(KEY)["billing-1"].note == "", name
        if replica is not None:
            follow(replica, server)


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("lost", ["FLUSHALL", "DEL {group}:beats"])
def test_what_was_flushed_or_evicted_never_was_flows_bind(server: RedisServer, store: Ownership, lost: str) -> None:
    begin(store)
    store.take_lease(KEY, LEASE, expected=None)
    command(server, *lost.format(group=f"partq:{{{STORE_ID}/{KEY}}}").split())
    other = open_redis(server)
    assert not any(record.bound for record in other.read_flows(KEY).values()), "its coordinator lets it go"
    assert other.forget_flow(KEY, "billing-1", ME, state_token="t1") is (lost != "FLUSHALL"), "it does so"
    with pytest.raises(Fenced):
        store.beat(KEY, RECORD)
    assert store.documents.lives == 0, "and nobody can tell"
    if lost == "FLUSHALL":
        assert store.read_state(KEY) is None
        with pytest.raises(Conflict):
            store.renew_lease(KEY, replace(LEASE, beat=1))
    store.bind(KEY, a_record(), replaces=None)
    assert store.read_flows(KEY)["billing-1"].bound
    other.close()


@pytest.mark.parametrize("lost", ["SCRIPT FLUSH", "CLIENT KILL TYPE normal SKIPME no"])
def test_lost_scripts_and_connections_are_replaced_first(server: RedisServer, store: Ownership, lost: str) -> None:
    begin(store)
    for _ in range(3):
        command(server, *lost.split())
        assert store.beat(KEY, RECORD) == "t1"
    assert store.read_flows(KEY) == {"billing-1": RECORD}


def test_a_process_that_is_forked_makes_its_own_connections(server: RedisServer, store: Ownership) -> None:
    def clients() -> int:
        return int(command(server, "INFO", "clients")["connected_clients"])

    begin(store)
    before = clients()
    if (child := os.fork()) == 0:
        try:
            os._exit(clients() - before if token_of(store) == "t1" else 99)
        finally:
            os._exit(98)  # whatever goes wrong, the child runs no other tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "one more"


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
    calls = verbs(store) | {"bind": lambda: store.bind(KEY, a_record("billing-2"), replaces=None)}
    for name in ("swap_state", "beat", "unbind", "take_lease", "bind", "claim_ownership"):
        with pytest.raises(Unavailable, match=says):
            calls[name]()
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", setting, usually)
    assert store.list_ownership(KEY) == {}
    assert store.beat(KEY, RECORD) == "t1"


# --- it does not answer -----------------------------------------------------------------------------------------------


def test_a_redis_that_stands_still_ends_every_call_in_time(server: RedisServer) -> None:
    store = open_redis(server, timeout_s=0.1)
    begin(store)
    server.freeze()
    try:
        for name, verb in verbs(store).items():
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match=r"did not answer within 0\.1 s"):
                verb()
            assert time.monotonic() - started_s < 0.6, name
        started_s = time.monotonic()
        assert store.wait_news(0.1) is None
        assert time.monotonic() - started_s < 0.6
    finally:
        server.thaw()
    assert token_of(store) == "t1"
    store.close()


def test_one_that_is_not_there_is_named_and_its_news_come_again_with_it(server: RedisServer, store: Ownership) -> None:
    begin(store)
    server.kill()
    with pytest.raises(Unavailable, match=rf"redis://127\.0\.0\.1:{server.port}/0 cannot be reached.*refused"):
        store.read_state(KEY)
    assert store.wait_news(0.05) is store.wait_news(0.05) is None
    server.start()
    assert store.wait_news(5) is None, "subscribed again: look at everything"
    assert store.wait_news(0.01) == frozenset()


@pytest.mark.conformance("OWN-02")
def test_what_happened_though_no_answer_came_is_settled_by_reading_or_repeating(server: RedisServer) -> None:
    """It is carried out once, when the server goes on."""
    store, new = open_redis(server, timeout_s=0.5), a_record()
    begin(store)
    claim = OwnershipRecord(partition=3, owner=None, epoch=1)
    bind = partial(store.bind, KEY, new, replaces=last_beat(store, KEY))
    later = replace(new, note="slow")
    beat = partial(store.beat, KEY, later)
    swap_state = partial(store.swap_state, KEY, b"{}", token="t2", expected="t1")
    looks: list[tuple[Callable[[], object], Callable[[], bool]]] = [
        (swap_state, lambda: token_of(store) == "t2"),
        (bind, lambda: bind() is None and store.read_flows(KEY) == {"billing-1": new}),
        (beat, lambda: beat() == "t2" and store.read_flows(KEY) == {"billing-1": later}),
        (partial(store.take_lease, KEY, LEASE, expected=None), lambda: store.read_lease(KEY) is not None),
        (partial(store.claim_ownership, KEY, [claim]), lambda: list(store.list_ownership(KEY)) == [3]),
    ]
    for act, look in looks:
        server.freeze()
        with pytest.raises(Unavailable):
            act()
        server.thaw()
        wait_until(look, "effect")
    store.close()


# --- news -------------------------------------------------------------------------------------------------------------


def test_news_come_again_after_a_subscription_is_lost_and_no_others(server: RedisServer, store: Ownership) -> None:
    flow = open_redis(server, group=KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(0.01) == frozenset()
    command(server, "CLIENT", "KILL", "TYPE", "pubsub")
    for listening in (store, flow):
        assert listening.wait_news(5) is None
        assert listening.wait_news(5) is None  # subscribed again, and looked at everything
    for channel in (
        *("partq:news", "partq:{a}:news", "partq:{a/b/c/d}:news", "partq:{a/b/c:news", "partq:{\x7f}:news"),
        f"partq:{{{STORE_ID}/a/b/c/d}}:news",
        f"partq:{{{STORE_ID[::-1]}/a/b/c}}:news",
    ):
        command(server, "PUBLISH", channel, "x")
    for listening in (store, flow):
        assert listening.wait_news(0.05) == frozenset()
    store.announce(KEY)
    for listening in (store, flow):
        assert listening.wait_news(5) == frozenset({KEY})
    flow.close()


def test_a_subscription_elsewhere_is_given_up(server: RedisServer, replica: RedisServer, store: Ownership) -> None:
    """Whose address it was may be silent for long."""
    begin(store)
    assert store.wait_news(5) is None
    assert store.wait_news(0.01) == frozenset()
    wait_for(replica, server)
    promote(replica)
    follow(server, replica)  # which the subscription lives through
    with pytest.raises(Reincarnated):
        token_of(store)
    assert store.wait_news(5) is None
    assert store.wait_news(0.01) == frozenset()


def test_closing_ends_a_wait(store: Ownership) -> None:
    assert store.wait_news(5) is None
    timer = threading.Timer(0.1, store.close)
    timer.start()
    started_s = time.monotonic()
    store.wait_news(20)
    assert time.monotonic() - started_s < 5
    timer.join()
    with pytest.raises(Unavailable, match="was closed"):
        store.read_state(KEY)
