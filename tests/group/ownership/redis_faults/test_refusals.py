"""A Redis that takes nothing for now: no memory, no replicas, a read-only replica, still loading."""

from __future__ import annotations

import time

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import OwnershipRecord
from partq_spark.group.ownership import Ownership, Reincarnated
from tests.group.ownership.conftest import KEY, a_record
from tests.group.ownership.redis_faults.conftest import ME, begin, token_of, verbs
from tests.group.ownership.redis_servers import Pair, SpecialRedis, command, open_redis
from tests.support.servers import RedisServer, running

pytestmark = pytest.mark.redis


def test_no_memory_left_is_said_and_nothing_is_half_done(server: RedisServer, store: Ownership) -> None:
    begin(store)
    before = store.read_flows(KEY), token_of(store)
    command(server, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
    for name in ("swap_state", "beat", "deliver", "report", "unbind", "take_lease"):
        with pytest.raises(Unavailable, match="maxmemory reached"):
            verbs(store)[name]()
    with pytest.raises(Unavailable, match="maxmemory reached"):
        store.bind(KEY, a_record("billing-2"), replaces=None)
    assert (
        store.claim_ownership([OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")])
        == {}
    )
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", "maxmemory", "0")
    assert store.list_ownership(KEY) == {}
    assert store.beat(KEY, "billing-1", ME) == "t1"


def test_a_primary_without_its_replicas_takes_nothing_and_says_so(server: RedisServer, store: Ownership) -> None:
    """With `min-replicas-to-write`: a flow that still reaches it must not believe that it renewed anything."""
    begin(store)
    before = store.read_flows(KEY), token_of(store)
    command(server, "CONFIG", "SET", "min-replicas-to-write", "1")
    for name in ("swap_state", "beat", "deliver", "report", "unbind", "take_lease"):
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            verbs(store)[name]()
    assert (store.read_flows(KEY), token_of(store)) == before
    command(server, "CONFIG", "SET", "min-replicas-to-write", "0")
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
