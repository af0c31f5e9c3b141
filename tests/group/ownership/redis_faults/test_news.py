"""News by Redis: a subscription that was lost, is silent, or is closed."""

from __future__ import annotations

import threading
import time

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import KEY
from tests.group.ownership.redis_servers import STORE_ID, command, open_redis
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


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
