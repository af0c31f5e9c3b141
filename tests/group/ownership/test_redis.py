"""A real Redis that began anew or is another one: restarts, rollbacks, failovers, and what was flushed or evicted. One
that cannot be used as it is says so at once, with the next step, and no password ever shows.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base.errors import Conflict, Fenced, Invalid, Unavailable
from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_script import RIGHTS
from partq_spark.group.model import Lease
from partq_spark.group.ownership import Ownership, Reincarnated, open_ownership
from tests.group.ownership.conftest import KEY, ME, a_record, begin, delivery, token_of, verbs
from tests.group.ownership.redis_servers import (
    STORE_ID,
    Pair,
    SpecialRedis,
    an_object_store,
    command,
    followed,
    open_redis,
)
from tests.support.servers import RedisServer, free_port, running

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


@pytest.mark.parametrize("lost", ["SCRIPT FLUSH", "CLIENT KILL TYPE normal SKIPME no"])
def test_scripts_and_idle_connections_that_are_lost_are_replaced_before_anything_is_sent(
    server: RedisServer, store: Ownership, lost: str
) -> None:
    begin(store)
    for _ in range(3):
        command(server, *lost.split())
        assert store.beat(KEY, "billing-1", ME) == "t1"
        assert store.deliver(KEY, "billing-1", ME, {1: delivery(1)}, state_token="t1")
    assert store.read_flows(KEY)["billing-1"].deliveries == {1: delivery(1)}


# --- a replica took over and gave back: under the same `run_id`, with an old copy of everything -----------------------


@pytest.fixture
def pair(server: RedisServer) -> Iterator[Pair]:
    """The server that `store` uses, and its replica."""
    with followed(server) as pair:
        yield pair


@pytest.mark.conformance("OWN-04")
def test_a_failover_and_a_quick_failback_are_noticed_by_every_call(pair: Pair, store: Ownership) -> None:
    """Nobody called in between, and every connection lives on."""
    other = open_redis(pair.server)
    begin(store)
    pair.synced()
    for name, verb in verbs(store).items():
        life = store.incarnation()
        assert other.incarnation() == life, "all users give it the same name"
        pair.fail_over()
        store.report(KEY, "billing-1", ME, {1: delivery(30)})
        pair.fail_back()
        with pytest.raises(Reincarnated, match="restarted or replaced"):
            verb()
        assert store.incarnation() == other.incarnation() != life, name
        assert token_of(store) == "t1", name
        assert store.read_flows(KEY)["billing-1"].deliveries == {}, "the report is gone"
        pair.follow()
        store.incarnation()


def test_a_replica_that_became_the_master_while_connected_is_another_life(pair: Pair) -> None:
    """An address that leads to the replica, which is promoted under an open connection."""
    store = open_redis(pair.replica)
    assert store.read_state(KEY) is None
    pair.fail_over()
    with pytest.raises(Reincarnated):
        store.swap_state(KEY, b"{}", token="t1", expected=None)
    store.close()


# --- it cannot be used ------------------------------------------------------------------------------------------------


SECRET = "hunter2-is-not-shown"
WRONG = "swordfish-is-not-shown"


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


NEEDS_PASSWORD = "PARTQ_REDIS_PASSWORD"


@pytest.mark.parametrize(
    ("opened", "says"),
    [
        ({"password": WRONG}, ("refuses user or password", NEEDS_PASSWORD)),
        ({"username": "billing", "password": WRONG}, ("refuses user or password", NEEDS_PASSWORD)),
        ({"username": "nobody", "password": WRONG}, ("refuses user or password", NEEDS_PASSWORD)),
        ({}, (NEEDS_PASSWORD,)),
        ({"username": "nothing", "password": SECRET}, ("partq:*",)),
        ({"username": "elsewhere", "password": SECRET}, ("partq:*",)),
        ({"password": SECRET, "minimum_version": (99, 1)}, ("says that it is Redis 7.", "use 99.1 or newer")),
    ],
)
def test_who_may_not_is_told_what_he_needs(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture, opened: dict[str, Any], says: tuple[str, ...]
) -> None:
    said = refused(open_redis(guarded, **opened), caplog)
    assert all(words in said for words in says), said


def test_a_password_that_nobody_asked_for_is_named(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    assert "without any password configured" in refused(open_redis(redis_server, password=SECRET), caplog)


def test_the_rights_that_are_named_are_enough(guarded: RedisServer) -> None:
    deaf = open_redis(guarded, username="deaf", password=SECRET)
    with pytest.raises(Invalid, match=r"&partq:\*:news"):
        deaf.wait_news(1)
    store = open_redis(guarded, username="billing", password=SECRET)
    flow = open_redis(guarded, username="billing", password=SECRET, group=KEY)
    assert store.wait_news(5) is flow.wait_news(5) is None
    begin(store)
    for verb in verbs(store).values():
        with suppress(Conflict):  # each alone, whatever those before it did
            verb()
    assert store.wait_news(5) == flow.wait_news(5) == frozenset({KEY})
    for opened in (deaf, store, flow):
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


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[RedisServer]:
    """Something that answers the first thing it hears."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer(connection.recv(1000)))
                while connection.recv(1000):  # however many commands come at once
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        made = RedisServer()
        made.port = listener.getsockname()[1]
        yield made


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"220 mail.example.com ESMTP\r\n",
        b"\x15\x03\x03\x00\x02\x02\x46",
    ],
)
def test_what_is_not_redis_at_all_is_told(answer: bytes) -> None:
    with answering(lambda _: answer) as server:
        store = open_redis(server, call_timeout_s=0.3)
        with pytest.raises((Invalid, Unavailable), match=r"does not answer as Redis does|did not answer"):
            store.read_state(KEY)
        store.close()


def test_a_server_that_repeats_what_it_was_sent_gives_no_password_away(caplog: pytest.LogCaptureFixture) -> None:
    """Old servers and proxies do, where they do not know AUTH."""

    def repeat(heard: bytes) -> bytes:
        words = ", ".join(f"`{word}`" for word in heard.decode().split("\r\n")[4::2])
        return f"-ERR unknown command `AUTH`, with args beginning with: {words}\r\n".encode()

    with answering(repeat) as server:
        assert "lacks a command" in refused(open_redis(server, username="billing", password=SECRET), caplog)
