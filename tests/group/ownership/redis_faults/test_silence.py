"""A Redis that does not answer, or many who ask at once: every call ends in time, on a connection of its own."""

from __future__ import annotations

import os
import time

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.ownership import Ownership, StateDocument
from tests.group.ownership.conftest import KEY, together
from tests.group.ownership.redis_faults.conftest import ME, begin, token_of, verbs
from tests.group.ownership.redis_servers import an_object_store, command, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


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


def test_a_host_that_has_no_address_is_named(redis_server: RedisServer) -> None:
    from partq_spark.group.ownership import open_ownership

    with pytest.raises(Unavailable, match=r"redis://nowhere\.invalid:6379/0 cannot be reached"):
        open_ownership("redis://nowhere.invalid:6379/0", store=an_object_store()).read_state(KEY)


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
