"""A Redis that began anew, or is another one: restarts, rollbacks, failovers, and what was flushed or evicted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partq_spark.base.errors import Conflict, Fenced
from partq_spark.group.model import Lease
from partq_spark.group.ownership import Ownership, Reincarnated
from tests.group.ownership.conftest import KEY, ME, a_record, begin, delivery, token_of, verbs
from tests.group.ownership.redis_servers import STORE_ID, Pair, command, followed, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture
def store(server: RedisServer) -> Iterator[Ownership]:
    """A user of a Redis of the test's own."""
    opened = open_redis(server)
    yield opened
    opened.close()


# --- it began anew ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OWN-03")
def test_a_restart_is_noticed_by_every_call_before_it_does_anything(server: RedisServer, store: Ownership) -> None:
    life = store.incarnation()
    begin(store)
    server.kill()
    server.start()
    for name, verb in verbs(store).items():
        with pytest.raises(Reincarnated, match=life):
            verb()
        assert command(server, "DBSIZE") == ":0\r\n", name
    new = store.incarnation()
    assert new != life
    assert store.incarnation() == new
    assert store.read_state(KEY) is None
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    begin(store)
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_a_call_after_a_restart_never_answers_with_the_old_life(server: RedisServer, store: Ownership) -> None:
    lives = {store.incarnation()}
    for _ in range(3):
        server.kill()
        server.start()
        lives.add(store.incarnation())
    assert len(lives) == 4


@pytest.mark.conformance("OWN-04")
def test_a_redis_that_came_back_with_an_old_copy_is_noticed(server: RedisServer, store: Ownership) -> None:
    life = store.incarnation()
    begin(store)
    command(server, "SAVE")
    store.swap_state(KEY, b"{}", token="t2", expected="t1")
    store.report(KEY, "billing-1", ME, {1: delivery(5)})
    server.kill()
    server.start()
    with pytest.raises(Reincarnated):
        store.deliver(KEY, "billing-1", ME, {1: delivery(6)}, state_token="t2")
    assert store.incarnation() != life
    assert token_of(store) == "t1"
    assert store.read_flows(KEY)["billing-1"].deliveries == {}
    assert store.deliver(KEY, "billing-1", ME, {1: delivery(6)}, state_token="t2") is False
    with pytest.raises(Conflict):
        store.swap_state(KEY, b"{}", token="t3", expected="t2")


@pytest.mark.conformance("OWN-03")
def test_everything_flushed_looks_like_a_group_that_never_was(server: RedisServer, store: Ownership) -> None:
    life = store.incarnation()
    begin(store)
    store.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)
    command(server, "FLUSHALL")
    assert store.incarnation() == life
    assert store.read_state(KEY) is None
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    with pytest.raises(Conflict):
        store.renew_lease(KEY, Lease(token="l", name="n", beat=1))


@pytest.mark.parametrize("lost", ["flows", "beats"])
def test_a_flow_of_which_a_part_was_evicted_binds_anew(server: RedisServer, store: Ownership, lost: str) -> None:
    begin(store)
    command(server, "DEL", f"partq:{{{STORE_ID}/{KEY}}}:{lost}")
    other = open_redis(server)
    assert not any(record.bound for record in other.read_flows(KEY).values()), "its coordinator lets it go"
    assert other.forget_flow(KEY, "billing-1", ME, state_token="t1"), "it does so"
    with pytest.raises(Fenced):
        store.beat(KEY, "billing-1", ME)
    for verb in ("deliver", "report", "note"):
        with pytest.raises(Fenced):
            verbs(store)[verb]()
    store.bind(KEY, a_record(), replaces=None)
    assert store.read_flows(KEY)["billing-1"].bound


def test_scripts_that_were_flushed_are_sent_again(server: RedisServer, store: Ownership) -> None:
    begin(store)
    for _ in range(2):
        command(server, "SCRIPT", "FLUSH")
        assert store.beat(KEY, "billing-1", ME) == "t1"
        assert store.deliver(KEY, "billing-1", ME, {1: delivery(1)}, state_token="t1")
    assert store.read_flows(KEY)["billing-1"].deliveries == {1: delivery(1)}


def test_an_idle_connection_that_was_closed_is_replaced_before_anything_is_sent(
    server: RedisServer, store: Ownership
) -> None:
    begin(store)
    for _ in range(3):
        command(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
        assert store.beat(KEY, "billing-1", ME) == "t1"


# --- a replica took over and gave back: under the same `run_id`, with an old copy of everything -----------------------


@pytest.fixture
def pair(server: RedisServer) -> Iterator[Pair]:
    """The server that `store` uses, and its replica."""
    with followed(server) as pair:
        yield pair


@pytest.mark.conformance("OWN-04")
def test_a_failover_and_a_quick_failback_are_noticed_by_every_call(pair: Pair, store: Ownership) -> None:
    """Nobody called in between, and every connection lives on."""
    begin(store)
    pair.synced()
    for name, verb in verbs(store).items():
        life = store.incarnation()
        pair.fail_over()
        store.report(KEY, "billing-1", ME, {1: delivery(30)})
        pair.fail_back()
        with pytest.raises(Reincarnated, match="restarted or replaced"):
            verb()
        assert store.incarnation() != life, name
        assert token_of(store) == "t1", name
        assert store.read_flows(KEY)["billing-1"].deliveries == {}, "the report is gone"
        pair.follow()
        store.incarnation()


def test_users_of_one_server_give_its_life_the_same_name(pair: Pair, store: Ownership) -> None:
    other = open_redis(pair.server)
    begin(store)
    life = store.incarnation()
    assert other.incarnation() == life
    pair.fail_over()
    pair.fail_back()
    assert store.incarnation() == other.incarnation() != life


def test_a_replica_that_became_the_master_while_connected_is_another_life(pair: Pair) -> None:
    """An address that leads to the replica, which is promoted under an open connection."""
    store = open_redis(pair.replica)
    assert store.read_state(KEY) is None
    pair.fail_over()
    with pytest.raises(Reincarnated):
        store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.close()
