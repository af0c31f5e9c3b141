"""What only the Azure store promises: its container, documents as others see them, refusals explained, no secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.storage.blob import ContainerClient, generate_container_sas

from partq_spark.base.errors import Conflict, Invalid, ObjectMissing, PartqError
from partq_spark.objects import ObjectStore, open_store
from partq_spark.objects.azure_access import CONNECTION_STRING
from partq_spark.objects.service import without_secrets
from tests.objects.conftest import whole_text
from tools.servers import Azurite, free_port

pytestmark = pytest.mark.azurite


@pytest.fixture
def url(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh store's URL, with credentials in the environment."""
    monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
    return azurite.fresh_url()


@pytest.fixture
def container(azurite: Azurite, url: str) -> ContainerClient:
    """The store's, as others see it."""
    return ContainerClient.from_connection_string(azurite.connection_string, url.split("/")[2])


# ---- credentials


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
    store.delete("d")
    assert (store.load("d"), container.exists()) == (None, False)
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
