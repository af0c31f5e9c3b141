"""What only the S3 store promises: listings that read what they do not know, removal where a server ignores conditions,
servers that lack something refused by name, and bad input told apart, without a secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import partq
from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects import Document, open_store
from partq_spark.objects.local import LocalStore
from partq_spark.objects.s3 import MARK, S3Store
from partq_spark.objects.s3_client import Answer, S3Client
from partq_spark.objects.urls import ServiceUrl, parse_url
from tests.objects.conftest import service_store, set_variables, write
from tools.proxy import Proxy, Seen
from tools.servers import S3Server, free_port

pytestmark = pytest.mark.s3


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    """This one alone."""
    return s3_server


@pytest.fixture
def store(s3_server: S3Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    """A store behind the proxy that tries nothing again."""
    opened = service_store(s3_server, monkeypatch, port=proxy.port)
    assert isinstance(opened, S3Store)
    yield opened
    opened.close()


def another(store: S3Store) -> S3Store:
    """As another process has it."""
    return S3Store(store._url)


# ---- documents and listings


def test_a_listing_reads_the_values_that_it_does_not_know_and_no_others(store: S3Store, proxy: Proxy) -> None:
    store.page_size = 1000
    other = another(store)
    names = [f"q/g/{n:02}" for n in range(64)]
    etags = {name: other.swap(name, {"offset": "1"}, expected=None) for name in names}

    def asked(offsets: set[str]) -> int:
        proxy.seen.clear()
        found = {info.name: (info.etag, info.metadata["offset"]) for info in store.list("q/g/", values=True)}
        assert {name: etag for name, (etag, _) in found.items()} == etags
        assert {offset for _, offset in found.values()} == offsets
        return len(proxy.seen)

    proxy.seen.clear()
    assert [info.metadata for info in store.list("q/g/")] == [{}] * 64
    assert len(proxy.seen) == 1, "who needs no values pays for none"
    assert [asked({"1"}), asked({"1"})] == [1 + 64, 1]
    for name in names[:3]:
        etags[name] = other.swap(name, {"offset": "2"}, expected=etags[name])
    etags[names[9]] = store.swap(names[9], {"offset": "2"}, expected=etags[names[9]])
    assert asked({"1", "2"}) == 1 + 3, "one's own swap is known"


def test_it_writes_the_files_that_a_directory_holds(store: S3Store, tmp_path: Path) -> None:
    contents: dict[str, bytes | dict[str, str]] = {"doc": b'{"n":1}', "meta": {"offset": "12"}}
    for name, content in contents.items():
        store.swap(name, content, expected=None)
        (tmp_path / name).write_bytes(store.read(name))
        assert len(json.loads((tmp_path / name).read_bytes())) == 2
        found = LocalStore(str(tmp_path)).load(name)
        assert isinstance(found, Document)
        assert content in (found.body, found.metadata)


def test_somebody_elses_objects_are_left_out_and_damage_is_told(store: S3Store) -> None:
    store.swap("q/g/checkpoint/0", {"offset": "1"}, expected=None)
    for name, body in {"q/g/Copy of 0": b"x", "q/g/checkpoint/1": b'{"etag":"0123', "q/g/größe&": b"x"}.items():
        store._client.fine("", "PUT", name, body=body)
    store._client.fine("", "PUT", "../storefront/a", body=b"x")
    with pytest.raises(Corrupt, match="checkpoint/1"):
        store.load("q/g/checkpoint/1")
    listed = [(info.name, dict(info.metadata)) for info in store.list("", values=True)]
    assert listed == [("q/g/checkpoint/0", {"offset": "1"}), ("q/g/checkpoint/1", {})]
    assert list(store.list_folders("")) == ["q"]


def test_an_upload_that_nobody_completes_is_aborted_or_swept(store: S3Store, s3_server: S3Server) -> None:
    def fail() -> None:
        with store.writer("q/x") as writer:
            writer.write(b"1" * (18 << 20))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.sweep_temporary(0) == 0
    store.begin("q/left")
    if s3_server.is_strict:  # the lesser one's begin in 2010
        assert store.sweep_temporary(60) == 0
    assert store.sweep_temporary(0) == 1


def test_its_first_client_loads_no_models_and_no_chain_of_credentials() -> None:
    program = (
        "import sys; from partq_spark.objects import open_store; open_store('s3://queues');"
        "sys.exit(not {'botocore.session', 'botocore.client', 'botocore.credentials'}.isdisjoint(sys.modules))"
    )
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-north-1"}
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **variables}, check=True)


# ---- servers that lack something


def ignores_deletes(request: Seen) -> set[str]:
    """The condition of each DELETE is dropped, as MinIO does."""
    return {"if-match"} if request.method == "DELETE" else set()


def test_where_a_delete_ignores_its_condition_a_mark_counts_as_absent(store: S3Store, proxy: Proxy) -> None:
    proxy.dropped = ignores_deletes
    etag = store.swap("q/g/d", b'{"n":1}', expected=None)
    with pytest.raises(Conflict):
        store.remove("q/g/d", expected='"stale"')
    assert store.load("q/g/d") == Document(etag=etag, body=b'{"n":1}'), "nothing was removed to find out"
    store.remove("q/g/d", expected=etag)
    assert bytes(store.read("q/g/d")) == MARK
    assert store.load("q/g/d") is None
    assert list(store.list("", values=True)) == list(store.list("q/")) == []
    assert list(store.list_folders("")) == list(store.list_folders("q/")) == []
    with pytest.raises(Conflict):
        store.remove("q/g/d", expected=etag)
    with pytest.raises(Conflict):
        store.swap("q/g/d", b"{}", expected=etag)
    again = store.swap("q/g/d", {"n": "2"}, expected=None)
    assert [dict(info.metadata) for info in store.list("", values=True)] == [{"n": "2"}]
    proxy.dropped = lambda request: set()
    another(store).remove("q/g/d", expected=again)  # by a server that has learned it
    with pytest.raises(ObjectMissing):
        store.read("q/g/d")
    assert store.load("q/g/d") is None


@pytest.mark.parametrize(
    ("method", "header", "lacking"),
    [
        ("PUT", "if-none-match", "a creation on condition"),
        ("PUT", "if-match", "a swap on condition"),
        ("POST", "if-none-match", "completing an upload on condition"),
        ("GET", "range", "reading a range"),
        ("DELETE", "if-match", ""),
        ("", "", ""),
    ],
)
def test_the_probe_refuses_by_name_a_server_that_ignores_a_condition_and_leaves_nothing(
    store: S3Store, proxy: Proxy, method: str, header: str, lacking: str
) -> None:
    proxy.dropped = lambda request: {header} if request.method == method else set()
    if lacking:
        with pytest.raises(Invalid, match=rf"http://127.* does not honour {lacking}"):
            store.probe()
    else:
        store.probe()
    everything = store._client.fine("", "GET", "", query={"list-type": "2"})
    assert b"<Key>" not in everything.body, "hidden or not"


# ---- bad input


NO_ADDRESSES = ("host:9000", "ftp://host", "https://host/path", "https://u:hidden@host", "https://", "http://h?x")


@pytest.mark.parametrize(
    ("environment", "kind", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": ""}, Invalid, r"s3://missing has no credentials.*AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_PROFILE": "nobody"}, Invalid, "nobody"),
        ({}, Invalid, r"no such bucket.*create it"),
        ({"PARTQ_S3_ENDPOINT": f"http://127.0.0.1:{free_port()}"}, Unavailable, "could not be reached"),
        ({"PARTQ_S3_ENDPOINT": "https://storage.googleapis.com"}, Invalid, "Google Cloud Storage"),
        *(({"PARTQ_S3_ENDPOINT": each}, Invalid, "PARTQ_S3_ENDPOINT.*not shown") for each in NO_ADDRESSES),
    ],
)
def test_an_environment_that_opens_nothing_is_told(
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environment: dict[str, str],
    kind: type[PartqError],
    said: str,
) -> None:
    none = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    set_variables(monkeypatch, {**s3_server.variables(), **none, **environment})
    with pytest.raises(kind, match=said) as caught:
        open_store("s3://missing", retry_timeout_s=0).load("d")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (400, "ExpiredToken", Invalid, "expired: sign in again"),
        (403, "RequestTimeTooSkewed", Invalid, "clock is off"),
        (403, "AccessDenied", Invalid, "without ListBucket"),
        (301, "PermanentRedirect", Invalid, "set AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", Invalid, "set AWS_REGION"),
        (404, "", Invalid, "not S3's.*PARTQ_S3_ENDPOINT"),
        (404, "NoSuchKMSKey", Invalid, "NoSuchKMSKey"),
        (404, "NoSuchUpload", Invalid, "NoSuchUpload"),
        (200, "", Unavailable, "not S3's"),
        (200, "InternalError", Unavailable, "InternalError"),
        (503, "SlowDown", Unavailable, "SlowDown"),
        (429, "", Unavailable, "429"),
        (409, "ConditionalRequestConflict", Conflict, "load it"),
        (501, "NotImplemented", Invalid, "refuses"),
    ],
)
def test_what_a_server_answers_is_told_apart(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, status: int, code: str, kind: type[PartqError], said: str
) -> None:
    body = f"<Error><Code>{code}</Code><Message>m</Message><Region>us-west-7</Region></Error>" if code else "<html/>"
    body = "<?xml?>" + " " * 300 + body  # as S3 sends while it works
    sent: list[str] = []

    def send(_: S3Client, what: str, *__: object, **___: object) -> Answer:
        sent.append(what)
        return Answer(status, {}, body.encode())

    monkeypatch.setattr(S3Client, "_send", send)
    calls: list[Callable[[], object]] = [lambda: store.swap("d", b'{"n":1}', expected='"0"')]
    if kind is not Conflict:
        calls += [lambda: list(store.list("")), lambda: store.create("e", b"x"), lambda: store.load("d")]
        calls += [lambda: store.finish("e", "upload", ["etag"])]
    for call in calls:
        sent.clear()
        with pytest.raises(kind, match=said):
            call()
        assert len(sent) <= 2, "a region is followed, not looped"
    with pytest.raises(Unavailable if kind is Conflict else kind):  # a creation that wrote nothing may be tried again
        write(store, "e", b"x")


class Kept:
    """A bucket of its own from which its owner lets delete or not, and a queue there as a person uses it."""

    def __init__(self, by: str) -> None:
        self._by = by
        self.url = f"s3://{by}-{secrets.token_hex(8)}/store"
        url = parse_url(self.url)
        assert isinstance(url, ServiceUrl)
        self.owner = S3Store(url)
        self.owner._client.fine("", "PUT", "", headers={"x-amz-bucket-object-lock-enabled": "true"})
        self.deletes(allowed=True)

    def deletes(self, *, allowed: bool) -> None:
        bucket = self.url.split("/")[2]
        rule = "<Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days></DefaultRetention></Rule>"
        lock = f"<ObjectLockEnabled>Enabled</ObjectLockEnabled>{'' if allowed else rule}"
        granted = {"/*": ["GetObject", "PutObject", "AbortMultipartUpload"], "": ["ListBucket"]}
        granted[""] += ["ListBucketMultipartUploads"]
        granted["/*"] += ["DeleteObject"] if allowed else []
        statements = [
            {"Effect": "Allow", "Principal": "*", "Resource": f"arn:aws:s3:::{bucket}{of}", "Action": f"s3:{action}"}
            for of, actions in granted.items()
            for action in actions
        ]
        body = {
            "object-lock": f"<ObjectLockConfiguration>{lock}</ObjectLockConfiguration>",
            "policy": json.dumps({"Version": "2012-10-17", "Statement": statements}),
        }[self._by].encode()
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        self.owner._client.fine("", "PUT", "", query={self._by: ""}, headers={"Content-MD5": digest}, body=body)

    def create(self, name: str = "orders") -> partq.Queue:
        return partq.create_queue(name, partitions=2, store=self.url)

    def publish(self, *values: str) -> None:
        with partq.open_queue("orders", store=self.url).publisher() as publisher:
            for each in values:
                publisher.send(each, key=each)

    def consumed(self) -> list[bytes]:
        queue = partq.open_queue("orders", store=self.url)
        with queue.consumer(group="billing", starting="earliest", idle_timeout_s=1) as consumer:
            return sorted(message.value for batch in consumer for message in batch)


def refused(said: str, *calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(Invalid, match=rf"AccessDenied\).*{said}"):
            call()


NEEDS_POLICIES = pytest.mark.skipif(not S3Server.is_strict, reason="it takes every key, and locks versions alone")


@NEEDS_POLICIES
def test_a_policy_without_delete_refuses_deletions_alone(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, s3_server.variables())
    kept = Kept("policy")
    set_variables(monkeypatch, s3_server.somebody)
    says = "policy must allow .*DeleteObject"
    kept.deletes(allowed=False)
    refused(says, kept.create)
    assert partq.list_queues(store=kept.url) == (), "nothing is made where nothing could be collected"
    kept.deletes(allowed=True)
    queue = kept.create()
    kept.publish("a", "b")
    kept.deletes(allowed=False)
    kept.publish("c")
    assert kept.consumed() == [b"a", b"b", b"c"]
    queue.trim({0: 1, 1: 1})
    left = list(queue.browse())
    refused(says, lambda: [queue.collect(grace_s=0) for _ in range(3)])
    assert list(queue.browse()) == left
    kept.deletes(allowed=True)
    assert queue.collect(grace_s=0).deleted > 0, "the marks of what could not go are kept"
    kept.deletes(allowed=False)
    refused(says, queue.delete)
    assert partq.list_queues(store=kept.url) == ()
    kept.deletes(allowed=True)
    assert queue.delete().objects > 0, "it is finished"
    assert list(kept.owner.list("")) == []


@NEEDS_POLICIES
def test_an_object_lock_that_refuses_deletions_is_named(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """This server's stands against every new version too. AWS' keeps the old ones, of which `queue create` warns."""
    set_variables(monkeypatch, s3_server.variables())
    kept = Kept("object-lock")
    queue = kept.create()
    kept.publish("a", "b")
    assert kept.consumed() == [b"a", b"b"]
    kept.deletes(allowed=False)
    refused("protected by object lock", lambda: kept.create("more"), lambda: kept.publish("c"), queue.delete)
    refused("protected by object lock", lambda: queue.trim({0: 1, 1: 1}), lambda: queue.collect(grace_s=0))
    assert [summary.queue for summary in partq.list_queues(store=kept.url)] == ["orders"]
    assert len(list(queue.browse())) == 2
    kept.deletes(allowed=True)
    kept.publish("d")
    assert kept.consumed() == [b"d"]
    queue.delete()
    assert list(kept.owner.list("")) == []
