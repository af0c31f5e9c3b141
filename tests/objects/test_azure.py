"""What only the Azure store promises: requests counted, lost answers told as such, refusals explained, no secrets."""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.blob import ContainerClient, generate_container_sas

from partq_spark.base.errors import Conflict, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects import Document, ObjectStore, open_store
from partq_spark.objects.azure_access import CONNECTION_STRING, without_secrets
from tests.objects.conftest import FOUR_CALLS, PAGE_SIZE, azure_store, write
from tools.proxy import Fault, Proxy, Seen
from tools.servers import Azurite, free_port, running

pytestmark = pytest.mark.azurite


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    with Proxy(azurite.port).running() as running_proxy:
        yield running_proxy


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store's URL, with credentials in the environment."""
    monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
    return azurite.fresh_url()


@pytest.fixture
def store(azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store behind the proxy, its container made, nothing tried again."""
    opened = azure_store(azurite, monkeypatch, port=proxy.port)
    opened.create("made", b"")
    proxy.seen.clear()
    yield opened
    opened.close()


@pytest.fixture
def container(azurite: Azurite, url: str) -> ContainerClient:
    """The store's, as others see it."""
    return ContainerClient.from_connection_string(azurite.connection_string, url.split("/")[2])


def whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + str(error) + repr(error)


# ---- one call, one request


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
        ("GET", lambda: list(store.list("q/"))),
        ("PUT", lambda: write(store, "q/small", *[b"x" * 1000] * 100)),
    ]
    for method, call in calls:
        proxy.seen.clear()
        call()
        assert [seen.method for seen in proxy.seen] == [method]


# ---- answers that do not come


def test_a_swap_whose_answer_was_lost_is_unavailable_and_not_repeated(store: ObjectStore, proxy: Proxy) -> None:
    first = store.swap("d", b'{"n":1}', expected=None)
    proxy.seen.clear()
    proxy.lose(Fault.LOSE_ANSWER, method="PUT")
    with pytest.raises(Unavailable, match=r"replacing azure://.*/d: account .* could not be reached"):
        store.swap("d", b'{"n":2}', expected=first)
    assert len(proxy.seen) == 1
    found = store.load("d")
    assert isinstance(found, Document)
    assert found.body == b'{"n":2}'
    proxy.lose(Fault.LOSE_ANSWER, method="DELETE")
    with pytest.raises(Unavailable):
        store.remove("d", expected=found.etag)
    assert store.load("d") is None


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.BUSY])
def test_what_may_be_repeated_outlives_a_bad_network(proxy: Proxy, store: ObjectStore, fault: Fault) -> None:
    patient = open_store(store.url, retry_timeout_s=20)
    pieces = [secrets.token_bytes(1 << 20)] * 18
    calls: list[tuple[str, Callable[[], object]]] = [
        ("", lambda: patient.create("q/created", b"c" * 1000)),
        ("", lambda: write(patient, "q/small", b"s" * 1000)),
        ("comp=block&", lambda: write(patient, "q/large1", *pieces)),
        ("comp=blocklist", lambda: write(patient, "q/large2", *pieces)),
    ]
    for part, call in calls:
        hits: list[str] = []

        def lose(request: Seen, part: str = part, hits: list[str] = hits) -> Fault | None:
            if request.method == "PUT" and part in request.path and len(hits) < 2:
                hits.append(request.path)
                return fault
            return None

        proxy.next_fault = lose
        call()
        assert len(hits) == 2
    proxy.lose(fault, method="GET", times=2)
    assert [info.name for info in patient.list("q/")] == ["q/created", "q/large1", "q/large2", "q/small"]
    assert [bytes(store.read(f"q/large{number}")) for number in (1, 2)] == [b"".join(pieces)] * 2


def test_two_writers_of_one_name_never_mix(url: str) -> None:
    store = open_store(url, retry_timeout_s=0)

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


def test_a_server_that_does_not_answer_is_given_up_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Azurite()) as own:
        store = azure_store(own, monkeypatch, read_timeout_s=0.5)
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


# ---- credentials


WRONG = b64encode(secrets.token_bytes(48)).decode()


@pytest.mark.parametrize(
    ("secret", "connection"),
    [
        (WRONG, lambda azurite: azurite.connection_string_with(WRONG)),
        ("not+base64!", lambda azurite: azurite.connection_string_with("not+base64!")),
        ("garbage+garbage", lambda _: "garbage+garbage"),
        ("c2VjcmV0", lambda _: "AccountKey=c2VjcmV0"),
    ],
    ids=["wrong", "not base64", "no connection string", "no account"],
)
def test_credentials_that_open_nothing_are_invalid_and_shown_nowhere(
    azurite: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    secret: str,
    connection: Callable[[Azurite], str],
) -> None:
    monkeypatch.setenv(CONNECTION_STRING, connection(azurite))
    begin_s = time.monotonic()
    with caplog.at_level(logging.DEBUG):
        for call in FOUR_CALLS:
            with pytest.raises(Invalid, match=CONNECTION_STRING) as caught:
                call(open_store("azure://queues", retry_timeout_s=60))
            assert secret != WRONG or azurite.account in str(caught.value)
            assert secret not in whole_text(caught.value)
            assert "azure.core" not in whole_text(caught.value), "the SDK's errors hold the request that failed"
    assert secret not in caplog.text
    assert time.monotonic() - begin_s < 20, "a wrong key does not become right by trying again"


def test_a_shared_access_signature_works_and_is_shown_nowhere(
    azurite: Azurite, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(url, retry_timeout_s=0).create("made", b"x")
    sas = generate_container_sas(
        account_name=azurite.account,
        container_name=url.split("/")[2],
        account_key=azurite.key,
        permission="rl",
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    secret = dict(part.split("=", 1) for part in sas.split("&"))["sig"]

    def shown(endpoint: str, call: Callable[[ObjectStore], object]) -> str:
        monkeypatch.setenv(CONNECTION_STRING, f"BlobEndpoint={endpoint};SharedAccessSignature={sas}")
        with pytest.raises(PartqError) as caught:
            call(open_store(url, retry_timeout_s=0))
        return whole_text(caught.value)

    with caplog.at_level(logging.DEBUG):
        monkeypatch.setenv(CONNECTION_STRING, f"BlobEndpoint={azurite.endpoint};SharedAccessSignature={sas}")
        assert bytes(open_store(url, retry_timeout_s=0).read("made")) == b"x"
        unreachable = f"http://127.0.0.1:{free_port()}/{azurite.account}"
        no_tls = f"https://127.0.0.1:{azurite.port}/{azurite.account}"
        for text, error in (
            (shown(azurite.endpoint, lambda store: store.create("other", b"x")), "Invalid"),  # it allows no writing
            (shown(unreachable, lambda store: store.read("made")), "Unavailable.*could not be reached"),
            (shown(no_tls, lambda store: store.read("made")), ""),
        ):
            assert re.search(error, text)
            assert "sig=" not in text
            assert secret not in text
            assert "azure.core" not in text, "the SDK's errors hold the request that failed"
    assert "sig=" not in caplog.text
    assert secret not in caplog.text


def test_an_sdk_text_is_told_without_signatures() -> None:
    # As urllib3 words it when its own retries are on, which is a version's matter.
    text = "HTTPSConnectionPool(host='a'): Max retries exceeded with url: /c/b?sv=1&sig=abc%3D (Caused by X)\nmore"
    assert (
        without_secrets(text) == "HTTPSConnectionPool(host='a'): Max retries exceeded with url: /c/b?... (Caused by X)"
    )
    assert without_secrets("signed with sig=abc and AccountKey=def==;x") == "signed with sig=... and AccountKey=...;x"


# ---- the container


def test_a_missing_container_is_made_by_the_first_write_only(container: ContainerClient, url: str) -> None:
    store = open_store(url, retry_timeout_s=0)
    with pytest.raises(ObjectMissing, match="ContainerNotFound"):
        store.read("d")
    with pytest.raises(Conflict):
        store.swap("d", b"{}", expected='"0x1"')
    assert (store.load("d"), store.delete("d"), container.exists()) == (None, False, False)
    store.swap("d", b"{}", expected=None)
    assert container.exists()


def test_the_store_keeps_to_its_prefix_and_writes_what_others_can_read_without_a_word(
    container: ContainerClient, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        store = open_store(url, retry_timeout_s=0)
        store.swap("q/_head.json", b'{"n":1}', expected=None)
        store.swap("q/g/checkpoint/0", {"offset": "12"}, expected=None)
        store.create("q/_segments/0", b"x")
    assert caplog.messages == []
    container.upload_blob("storefront/a", b"x")
    container.upload_blob("outside", b"x")
    container.upload_blob("store/q/folder", b"", metadata={"hdi_isfolder": "true"})
    assert [info.name for info in store.list("")] == ["q/_head.json", "q/_segments/0", "q/g/checkpoint/0"]
    assert list(store.list_folders("")) == ["q"]
    head = container.get_blob_client("store/q/_head.json").get_blob_properties()
    assert (head.content_settings.content_type, head.size) == ("application/json", 7)
    checkpoint = container.get_blob_client("store/q/g/checkpoint/0").get_blob_properties()
    assert (checkpoint.metadata, checkpoint.size) == ({"offset": "12"}, 0)
    whole = open_store(f"azure://{url.split('/')[2]}", retry_timeout_s=0)
    assert list(whole.list_folders("")) == ["store", "storefront"]


def test_a_leased_document_is_not_taken_for_a_conflict(container: ContainerClient, url: str) -> None:
    store = open_store(url, retry_timeout_s=0)
    etag = store.swap("d", b"{}", expected=None)
    lease = container.get_blob_client("store/d").acquire_lease()
    with pytest.raises(Invalid, match="LeaseIdMissing"):
        store.swap("d", b'{"n":1}', expected=etag)
    lease.release()


def test_a_listing_is_one_request_a_page(store: ObjectStore, proxy: Proxy) -> None:
    for i in range(PAGE_SIZE * 3):
        store.create(f"q/{i:02}", b"x")
    proxy.seen.clear()
    listing = store.list("q/")
    next(listing)
    assert len(proxy.seen) == 1
    assert len(list(listing)) == PAGE_SIZE * 3 - 1
    assert len(proxy.seen) == 3


def test_a_forked_worker_and_its_parent_do_not_share_a_connection(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = azure_store(azurite, monkeypatch)
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
