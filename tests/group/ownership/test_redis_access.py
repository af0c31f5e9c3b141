"""A Redis that cannot be used as it is says so at once, with the next step, and no password ever shows."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from partq_spark.base.errors import Conflict, Invalid, Unavailable
from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_script import RIGHTS
from partq_spark.group.ownership import Ownership, open_ownership
from tests.group.ownership.conftest import KEY, begin, verbs
from tests.group.ownership.redis_servers import SpecialRedis, an_object_store, open_redis
from tests.support.servers import RedisServer, running

pytestmark = pytest.mark.redis

SECRET = "hunter2-is-not-shown"
WRONG = "swordfish-is-not-shown"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server that asks for a password, with users that may do less than all."""
    with running(SpecialRedis("--requirepass", SECRET)) as server:
        users = {
            "billing": RIGHTS,
            "nothing": "~* &* -@all",
            "elsewhere": "~other:* &other:* +@all",
            "deaf": "~partq:* resetchannels +@all",
        }
        with Redis(port=server.port, password=SECRET) as raw:
            for name, rights in users.items():
                raw.execute_command("ACL", "SETUSER", name, "on", f">{SECRET}", *rights.split())
        yield server


def refused(store: Ownership, caplog: pytest.LogCaptureFixture) -> str:
    """What is said; no secret anywhere in it, nor in what is logged or shown of the store."""
    with caplog.at_level(logging.DEBUG), pytest.raises((Invalid, Unavailable)) as caught:
        store.read_state(KEY)
    assert isinstance(store._documents, RedisDocuments)
    client = store._documents._client
    texts = [str(caught.value), repr(caught.value), repr(store), repr(client), caplog.text]
    texts += [repr(caught.value.__context__), repr(vars(client))]
    assert not [text for text in texts if SECRET in text or WRONG in text]
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, Invalid)
    assert store.url in str(caught.value)
    store.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("opened", "says"),
    [
        ({"password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({"username": "billing", "password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({"username": "nobody", "password": WRONG}, "refuses user or password .*PARTQ_REDIS_PASSWORD"),
        ({}, "PARTQ_REDIS_PASSWORD"),
        ({"username": "nothing", "password": SECRET}, r"partq:\*"),
        ({"username": "elsewhere", "password": SECRET}, r"partq:\*"),
        ({"password": SECRET, "minimum_version": (99, 1)}, r"says that it is Redis 7\..*use 99\.1 or newer"),
        ({"password": SECRET, "database": 99}, "/99: there is no such database"),
    ],
)
def test_who_may_not_is_told_what_he_needs(
    guarded: RedisServer, caplog: pytest.LogCaptureFixture, opened: dict[str, Any], says: str
) -> None:
    assert re.search(says, refused(open_redis(guarded, **opened), caplog))


def test_a_password_that_nobody_asked_for_is_named(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    assert "without any password configured" in refused(open_redis(redis_server, password=SECRET), caplog)


def test_the_rights_that_are_named_are_enough(guarded: RedisServer) -> None:
    assert RIGHTS in (Path(__file__).parents[3] / "docs/ownership.md").read_text(encoding="utf-8")
    deaf = open_redis(guarded, username="deaf", password=SECRET)
    with pytest.raises(Invalid, match=r"&partq:\*:news"):
        deaf.wait_news(1)
    objects, environ = an_object_store(), {"PARTQ_REDIS_USERNAME": "billing", "PARTQ_REDIS_PASSWORD": SECRET}
    store = open_ownership(guarded.url, store=objects, environ=environ)
    flow = open_ownership(guarded.url, store=objects, environ={"PARTQ_REDIS_PASSWORD": SECRET}, group=KEY)
    assert SECRET not in repr(store) + store.url
    assert store.wait_news(5) is flow.wait_news(5) is None
    begin(store)
    for verb in verbs(store).values():
        with suppress(Conflict):  # each alone, whatever those before it did
            verb()
    assert store.wait_news(5) == flow.wait_news(5) == frozenset({KEY})
    for opened in (deaf, store, flow):
        opened.close()


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
