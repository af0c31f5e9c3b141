"""A Redis that cannot be used as it is says so at once, with the next step, and no password ever shows."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_script import RIGHTS
from partq_spark.group.model import GroupKey, Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, open_ownership
from tests.group.ownership.conftest import a_record, delivery
from tests.group.ownership.redis_servers import SpecialRedis, an_object_store, open_redis
from tests.support.servers import RedisServer, free_port, running

pytestmark = pytest.mark.redis

SECRET = "hunter2-is-not-shown"
WRONG = "swordfish-is-not-shown"
KEY = GroupKey("default", "orders", "refusals")


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server that asks for a password, with users that may do less than all."""
    with running(SpecialRedis("--requirepass", SECRET)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            lines = [
                f"AUTH {SECRET}",
                f"ACL SETUSER billing on >{SECRET} {RIGHTS}",
                f"ACL SETUSER nothing on >{SECRET} ~* &* -@all",
                f"ACL SETUSER elsewhere on >{SECRET} ~other:* &other:* +@all",
                f"ACL SETUSER deaf on >{SECRET} ~partq:* resetchannels +@all",
            ]
            for line in lines:
                connection.sendall(line.encode() + b"\r\n")
                assert connection.recv(100) == b"+OK\r\n"
        yield server


def refused(store: Ownership, caplog: pytest.LogCaptureFixture) -> str:
    """What is said; no secret anywhere in it, nor in what is logged or shown of the store."""
    with caplog.at_level(logging.DEBUG), pytest.raises((Invalid, Unavailable)) as caught:
        store.read_state(KEY)
    assert isinstance(store._documents, RedisDocuments)
    client = store._documents._client
    texts = [str(caught.value), repr(caught.value), repr(store), repr(client), caplog.text]
    texts += [repr(caught.value.__context__), repr(vars(client))]
    for text in texts:
        assert SECRET not in text
        assert WRONG not in text
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, Invalid)
    assert store.url in str(caught.value)
    store.close()
    return str(caught.value)


def test_a_wrong_password_is_refused(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    for username in ("", "billing", "nobody"):
        said = refused(open_redis(guarded, username=username, password=WRONG), caplog)
        assert "refuses user or password" in said
        assert "PARTQ_REDIS_PASSWORD" in said


def test_a_missing_password_is_asked_for(guarded: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    said = refused(open_redis(guarded), caplog)
    assert "PARTQ_REDIS_PASSWORD" in said


def test_a_password_that_nobody_asked_for_is_named(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    assert "without any password configured" in refused(open_redis(redis_server, password=SECRET), caplog)


@pytest.mark.parametrize("username", ["nothing", "elsewhere"])
def test_a_user_who_may_not_is_named_with_what_he_needs(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture, username: str
) -> None:
    said = refused(open_redis(guarded, username=username, password=SECRET), caplog)
    assert "partq:*" in said


def test_a_user_who_may_not_listen_is_named(guarded: RedisServer) -> None:
    store = open_redis(guarded, username="deaf", password=SECRET)
    with pytest.raises(Invalid, match=r"&partq:\*:news"):
        store.wait_news(1)


def test_the_rights_that_are_named_are_enough(guarded: RedisServer) -> None:
    store = open_redis(guarded, username="billing", password=SECRET)
    flow = open_redis(guarded, username="billing", password=SECRET, group=KEY)
    assert store.wait_news(5) is None
    assert flow.wait_news(5) is None
    record, lease = a_record(p1=delivery(1)), Lease(token="l", name="n", beat=0)
    claim = OwnershipRecord(key=KEY, partition=0, owner=None, epoch=1, version="", modified="")
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    flow.bind(KEY, record, replaces=None)
    flow.beat(KEY, "billing-1", record.instance)
    flow.deliver(KEY, "billing-1", record.instance, {1: delivery(2)}, state_token="t1")
    flow.report(KEY, "billing-1", record.instance, {1: delivery(2, 2)})
    store.take_lease(KEY, lease, expected=None)
    store.renew_lease(KEY, replace(lease, beat=1))
    store.claim_ownership([claim])
    assert (len(store.read_flows(KEY)), len(store.list_ownership(KEY))) == (1, 1)
    assert store.read_flow(KEY, "billing-1")
    assert list(store.read_beats(KEY)) == ["billing-1"]
    assert store.read_lease(KEY)
    flow.unbind(KEY, "billing-1", record.instance)
    assert store.forget_flow(KEY, "billing-1", record.instance, state_token="t1")
    store.release_lease(KEY, "l")
    store.announce(KEY)
    assert store.wait_news(5) == flow.wait_news(5) == frozenset({KEY})
    store.drop_group(KEY)
    for opened in (store, flow):
        opened.close()


def test_the_documents_name_the_same_rights() -> None:
    assert RIGHTS in (Path(__file__).parents[3] / "docs/ownership.md").read_text(encoding="utf-8")


def test_user_and_password_come_from_the_environment(guarded: RedisServer) -> None:
    for environ in (
        {"PARTQ_REDIS_PASSWORD": SECRET},
        {"PARTQ_REDIS_USERNAME": "billing", "PARTQ_REDIS_PASSWORD": SECRET},
    ):
        store = open_ownership(guarded.url, store=an_object_store(), environ=environ)
        assert store.read_state(KEY) is None
        assert store.wait_news(5) is None
        assert store.incarnation()
        assert SECRET not in repr(store) + store.url
        store.close()


def test_a_version_that_is_too_old_is_named(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    said = refused(open_redis(redis_server, minimum_version=(99, 1)), caplog)
    assert "says that it is Redis 7." in said
    assert "use 99.1 or newer" in said


def test_a_sentinel_keeps_no_data(caplog: pytest.LogCaptureFixture) -> None:
    class Sentinel(SpecialRedis):
        def command(self) -> list[str]:
            configuration = self.folder / "sentinel.conf"
            configuration.write_text(f"port {self.port}\nbind 127.0.0.1\n")
            return [super().command()[0], str(configuration), "--sentinel"]

    with running(Sentinel()) as sentinel:
        assert "Sentinel" in refused(open_redis(sentinel), caplog)


def test_a_database_that_is_not_there_is_named(redis_server: RedisServer) -> None:
    store = open_ownership(f"redis://127.0.0.1:{redis_server.port}/99", store=an_object_store())
    with pytest.raises(Invalid, match=r"/99: there is no such database"):
        store.read_state(KEY)


def test_a_node_of_a_cluster_without_its_slots_is_unavailable() -> None:
    bus = str(free_port())  # else the port plus 10,000, which not every port has
    node = SpecialRedis("--cluster-enabled", "yes", "--cluster-port", bus)
    with running(node), pytest.raises(Unavailable, match="slot"):
        open_redis(node).read_state(KEY)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"220 mail.example.com ESMTP\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
    ],
)
def test_what_is_not_redis_at_all_is_told(answer: bytes) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(answer)
            while connection.recv(1000):  # however many commands come at once
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        store = open_ownership(f"redis://127.0.0.1:{port}/0", store=an_object_store(), call_timeout_s=0.3)
        with pytest.raises((Invalid, Unavailable), match=r"does not answer as Redis does|did not answer"):
            store.read_state(KEY)
        store.close()
        thread.join(5)


def test_a_server_that_repeats_what_it_was_sent_gives_no_password_away(caplog: pytest.LogCaptureFixture) -> None:
    """Old servers and proxies do, where they do not know AUTH."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            words = connection.recv(1000).decode().split("\r\n")[4::2]
            said = "-ERR unknown command `AUTH`, with args beginning with: " + ", ".join(f"`{word}`" for word in words)
            connection.sendall(said.encode() + b"\r\n")
            connection.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        special = RedisServer()
        special.port = listener.getsockname()[1]
        assert "lacks a command" in refused(open_redis(special, username="billing", password=SECRET), caplog)
