"""What every store in a service promises: requests counted, lost answers told, what may be repeated repeated."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Conflict, Invalid, Unavailable
from partq_spark.objects import Document, ObjectStore, open_store
from partq_spark.objects.azure_access import CONNECTION_STRING
from tests.objects.conftest import FOUR_CALLS, PAGE_SIZE, service_store, set_variables, whole_text, write
from tools.proxy import Fault, Proxy
from tools.servers import Azurite, S3Server, running


@pytest.fixture
def store(server: Azurite | S3Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store behind the proxy, its container made, how it removes found out, and nothing tried again."""
    opened = service_store(server, monkeypatch, port=proxy.port)
    opened.remove("made", expected=opened.swap("made", b"{}", expected=None))
    proxy.seen.clear()
    yield opened
    opened.close()


def test_each_call_is_one_request(store: ObjectStore, proxy: Proxy) -> None:
    body = store.swap("q/doc", b'{"n":1}', expected=None)
    empty = store.swap("q/meta", {"n": "1"}, expected=None)
    store.create("q/object", b"x" * 100_000)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("GET", lambda: store.load("q/doc")),
        ("GET", lambda: store.load("q/doc", known=body)),
        ("GET", lambda: store.load("q/meta")),
        ("GET", lambda: store.load("q/meta", known=empty)),
        ("GET", lambda: store.load("q/nothing")),
        ("GET", lambda: store.read("q/object")),
        ("GET", lambda: store.read("q/object", start=7, length=90_000)),
        ("PUT", lambda: store.swap("q/doc", b'{"n":2}', expected=body)),
        ("PUT", lambda: store.swap("q/meta", {"n": "2"}, expected=empty)),
        ("PUT", lambda: store.create("q/next", b"x")),
        ("DELETE", lambda: store.delete("q/next")),
        ("GET", lambda: list(store.list("q/", values=True))),
        ("PUT", lambda: write(store, "q/small", *[b"x" * 1000] * 100)),
    ]
    for method, call in calls:
        proxy.seen.clear()
        call()
        assert [seen.method for seen in proxy.seen] == [method]


def test_a_listing_is_one_request_a_page(store: ObjectStore, proxy: Proxy) -> None:
    for i in range(PAGE_SIZE * 3):
        store.create(f"q/{i:02}", b"x")
    proxy.seen.clear()
    listing = store.list("q/")
    next(listing)
    assert len(proxy.seen) == 1
    assert len(list(listing)) == PAGE_SIZE * 3 - 1
    assert len(proxy.seen) == 3


def test_a_swap_whose_answer_was_lost_is_unavailable_and_not_repeated(store: ObjectStore, proxy: Proxy) -> None:
    first = store.swap("d", b'{"n":1}', expected=None)
    proxy.seen.clear()
    proxy.lose(Fault.LOSE_ANSWER, method="PUT")
    with pytest.raises(Unavailable, match=r"replacing (azure|s3)://.*/d: .*could not be reached"):
        store.swap("d", b'{"n":2}', expected=first)
    assert len(proxy.seen) == 1
    found = store.load("d")
    assert isinstance(found, Document)
    assert found.body == b'{"n":2}'
    proxy.next_fault = lambda request: Fault.LOSE_ANSWER if request.method != "GET" else None
    with pytest.raises(Unavailable):
        store.remove("d", expected=found.etag)
    assert store.load("d") is None


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.BUSY, Fault.TWICE])
def test_what_may_be_repeated_outlives_a_bad_network(proxy: Proxy, store: ObjectStore, fault: Fault) -> None:
    patient = open_store(store.url, retry_timeout_s=20)
    pieces = [secrets.token_bytes(1 << 20)] * 18
    azure = store.url.startswith("azure:")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("", lambda: patient.create("q/created", b"c" * 1000)),
        ("", lambda: write(patient, "q/small", b"s" * 1000)),
        ("" if azure else "uploads=", lambda: write(patient, "q/large0", *pieces)),
        ("comp=block&" if azure else "partNumber=", lambda: write(patient, "q/large1", *pieces)),
        ("comp=blocklist" if azure else "large2?uploadId=", lambda: write(patient, "q/large2", *pieces)),
    ]
    own_success = [Conflict] if fault is Fault.TWICE else []  # which the log settles
    for part, call in calls:
        faults = iter([fault] * 2)
        proxy.next_fault = lambda seen: (
            next(faults, None) if seen.method in ("PUT", "POST") and part in seen.path else None  # noqa: B023
        )
        with contextlib.suppress(*own_success):
            call()
        assert len([*faults]) < 2
    proxy.lose(fault, method="GET", times=2)
    names = [f"q/{name}" for name in ("created", "large0", "large1", "large2", "small")]
    assert [info.name for info in patient.list("q/")] == names
    assert [bytes(store.read(name)) for name in names[1:4]] == [b"".join(pieces)] * 3
    store.sweep_temporary(0)
    assert store.sweep_temporary(0) == 0


@pytest.mark.parametrize("end", [False, True])
def test_two_writers_of_one_name_never_mix(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, end: bool) -> None:
    monkeypatch.setattr("concurrent.futures.thread._shutdown", end)  # of the process: no thread takes a piece

    def write_both() -> None:
        with store.writer("q/x") as first, store.writer("q/x") as second:
            second.write(b"2" * (18 << 20))
            first.write(b"1" * (48 << 20))  # its first blocks are staged for certain, after those of the second

    with pytest.raises(Conflict):  # of the first, which ends second
        write_both()
    assert store.read("q/x") == b"2" * (18 << 20)


def test_an_answer_cut_short_is_never_taken_for_the_whole(store: ObjectStore, proxy: Proxy) -> None:
    store.create("q/object", b"x" * 100_000)
    store.swap("q/doc", b'{"n":"' + b"x" * 10_000 + b'"}', expected=None)
    proxy.lose(Fault.CUT_ANSWER, method="GET", times=1000)
    with pytest.raises(Unavailable):
        store.read("q/object", start=1, length=90_000)
    with pytest.raises(Unavailable):
        store.load("q/doc")


def test_a_server_that_does_not_answer_is_given_up(server: Azurite | S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(type(server)()) as own:
        store = service_store(own, monkeypatch, read_timeout_s=0.5)
        store.create("made", b"")
        own.freeze()
        begin_s = time.monotonic()
        for call in FOUR_CALLS:
            with pytest.raises(Unavailable):
                call(store)
        assert time.monotonic() - begin_s < 20
        own.thaw()
        with pytest.raises(Conflict):
            store.create("made", b"")


def test_a_forked_worker_and_its_parent_do_not_share_a_connection(store: ObjectStore) -> None:
    contents = {name: name.encode() * 1000 for name in ("parent", "child")}
    for name, content in contents.items():
        store.create(name, content)

    def reads(name: str) -> bool:
        return all(bytes(store.read(name)) == contents[name] for _ in range(50))

    child = os.fork()
    if child == 0:  # as a Spark worker: it inherits the store with its open connection
        os._exit(0 if reads("child") else 1)
    assert reads("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- credentials


WRONG = b64encode(b"nobody has this key: wrong secret").decode()
NOBODY = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": WRONG}
IS_STRICT = pytest.mark.skipif(not S3Server.is_strict, reason="it takes every key")


@pytest.mark.parametrize(
    ("server", "secret", "given"),
    [
        ("azurite", WRONG, lambda azurite: azurite.connection_string_with(WRONG)),
        ("azurite", "not+base64!", lambda azurite: azurite.connection_string_with("not+base64!")),
        ("azurite", "garbage+garbage", lambda _: "garbage+garbage"),
        ("azurite", "c2VjcmV0", lambda _: "AccountKey=c2VjcmV0"),
        pytest.param("s3_server", WRONG, lambda _: {"AWS_SECRET_ACCESS_KEY": WRONG}, marks=IS_STRICT),
        pytest.param("s3_server", WRONG, lambda _: NOBODY, marks=IS_STRICT),
    ],
    indirect=["server"],
)
def test_credentials_that_open_nothing_are_invalid_and_shown_nowhere(
    server: Azurite | S3Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    secret: str,
    given: Callable[[Azurite | S3Server], str | dict[str, str]],
) -> None:
    said, url, begin_s = given(server), server.fresh_url(), time.monotonic()
    set_variables(monkeypatch, server.variables() | ({CONNECTION_STRING: said} if isinstance(said, str) else said))
    with caplog.at_level(logging.DEBUG):
        for call in FOUR_CALLS:
            with pytest.raises(Invalid, match=rf"{CONNECTION_STRING}|does not allow it.*key") as caught:
                call(open_store(url, retry_timeout_s=60))
            text = whole_text(caught.value)
            assert secret not in text
            assert "hidden" not in text
            assert not re.search("azure.core|botocore", text), "the SDK's errors hold the request that failed"
            assert isinstance(server, S3Server) or secret != WRONG or server.account in text
    assert secret not in caplog.text
    assert time.monotonic() - begin_s < 20, "a wrong key does not become right by trying again"
