"""The object store in an Azure Blob container, `azure://container/prefix`. No module but this and `azure_identity`
imports the SDK.

An immutable object is a block blob put with If-None-Match; a document is a blob replaced with If-Match: JSON bodies
have the content type application/json, metadata documents are empty blobs with metadata. The SDK's own retries are
off, because a retried swap meets its own success and reports a conflict; what may be repeated is repeated by
`retrying`. Errors are raised without their cause, because the SDK's texts and requests may hold credentials.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.storage.blob import BlobBlock, BlobClient, BlobPrefix, BlobServiceClient, ContainerClient, ContentSettings

from partq_spark.base.effects import store_effects
from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.azure_access import CONNECTION_STRING, AzureAccess, explain, find_access, without_secrets
from partq_spark.objects.azure_blocks import BLOCK_BYTES, AzureWriter
from partq_spark.objects.azure_clock import ServiceClock
from partq_spark.objects.azure_identity import AzureIdentity
from partq_spark.objects.names import (
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    is_name,
    is_part,
)
from partq_spark.objects.retrying import OperationRetry
from partq_spark.objects.urls import AzureUrl

_CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 30.0
_ONE_REQUEST_BYTES: Final = 1 << 40
"""Larger than any blob: the SDK then reads with one ranged request, instead of a first part and the rest in chunks."""

_JSON: Final = "application/json"

T = TypeVar("T")

for _name in ("azure", "msal"):  # at INFO the SDK logs every request, with its URL and headers
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


class AzureStore:
    """Blobs below a prefix of one container, which is made at the first write.

    `retry_timeout_s` is for the parts of a writer, which nobody outside can repeat: staging a block, and committing
    under a name that is unique by contract. `read_timeout_s` bounds the wait for an answer, `page_size` one answer to a
    listing.
    """

    def __init__(
        self,
        url: AzureUrl,
        access: AzureAccess,
        *,
        retry_timeout_s: float = 0.0,
        read_timeout_s: float = READ_TIMEOUT_S,
        page_size: int = 5000,
    ) -> None:
        self._url = str(url)
        self._container_name = url.container
        self._base = url.prefix + "/" if url.prefix else ""
        self._access = access
        self._retry_timeout_s = retry_timeout_s
        self._read_timeout_s = read_timeout_s
        self._page_size = page_size
        self._clock = ServiceClock()
        self._client = self._connect()
        self._client_pid = os.getpid()

    @classmethod
    def from_environment(cls, url: AzureUrl, *, retry_timeout_s: float = 0.0) -> AzureStore:
        """The store with this process's own credentials; raises `Invalid`, which says what to set, if it has none."""
        return cls(url, find_access(str(url), os.environ), retry_timeout_s=retry_timeout_s)

    def __repr__(self) -> str:
        return f"AzureStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def look_interval_s(self) -> float:
        return 0.5

    def time_us(self) -> int | None:
        return self._clock.time_us()

    def close(self) -> None:
        self._client.close()

    # ---- immutable objects

    def create(self, name: str, data: bytes | memoryview) -> None:
        check_name(name)
        view = memoryview(data).cast("B")
        if view.nbytes > BLOCK_BYTES:
            with self.writer(name) as writer:
                writer.write(view)
            return
        self._put_whole(name, bytes(view))

    def writer(self, name: str) -> AzureWriter:
        return AzureWriter(self, check_name(name))

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        check_range(name, start, length)
        check_name(name)
        data = b""
        with self._answers("reading", name):
            try:
                if length != 0:
                    whole = start == 0 and length is None
                    data = self._blob(name).download_blob(None if whole else start, length).readall()
            except HttpResponseError as error:
                if error.status_code != 416:
                    raise
            if (length is None and (data or start == 0)) or (length and len(data) == length):
                return memoryview(data)
            size_bytes: int = self._blob(name).get_blob_properties().size
        end = start if length is None else start + length
        if end <= size_bytes:
            return memoryview(b"")  # an empty range: nothing was, or could be, asked for
        raise Corrupt(
            f"object {self._shown(name)} is cut short: it has {size_bytes} bytes, and bytes {start} to {end} were asked"
            " for; restore it from a copy"
        )

    def delete(self, name: str) -> bool:
        check_name(name)
        try:
            with self._answers("deleting", name):
                self._blob(name).delete_blob(delete_snapshots="include")
        except ObjectMissing:
            return False
        return True

    # ---- documents

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        check_name(name)
        condition: dict[str, Any] = {}
        if known is not None:
            condition = {"etag": known, "match_condition": MatchConditions.IfModified}
        try:
            with self._answers("loading", name):
                try:
                    blob = self._blob(name).download_blob(
                        raw_request_hook=_ask_for_all, raw_response_hook=partial(_measure, self._clock), **condition
                    )
                    body = blob.readall()
                except HttpResponseError as error:
                    if error.status_code == 304:
                        return UNCHANGED
                    raise
        except ObjectMissing:
            return None
        found = blob.properties
        etag = str(found.etag)
        if body and found.content_settings.content_type == _JSON:
            return Document(etag=etag, body=body)
        if not body and found.metadata:
            return Document(etag=etag, metadata=dict(found.metadata))
        raise Corrupt(
            f"object {self._shown(name)} is no document of partq: it has {len(body)} bytes of content type"
            f" {found.content_settings.content_type!r}; restore it, or remove it if it is foreign"
        )

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        check_name(name)
        check_content(name, content)
        condition: dict[str, Any] = {"overwrite": expected is not None}
        if expected is not None:
            condition.update(etag=expected, match_condition=MatchConditions.IfNotModified)

        def put() -> Any:
            if isinstance(content, bytes):
                settings = ContentSettings(content_type=_JSON)
                return self._blob(name).upload_blob(content, content_settings=settings, **condition)
            return self._blob(name).upload_blob(b"", metadata=dict(content), **condition)

        try:
            with self._answers("replacing", name):
                return str((self._making_container(put) if expected is None else put())["etag"])
        except ObjectMissing:
            raise self._gone(name, expected) from None

    def remove(self, name: str, *, expected: str) -> None:
        check_name(name)
        try:
            with self._answers("removing", name):
                self._blob(name).delete_blob(
                    delete_snapshots="include", etag=expected, match_condition=MatchConditions.IfNotModified
                )
        except ObjectMissing:
            raise self._gone(name, expected) from None

    def _gone(self, name: str, expected: str | None) -> Conflict:
        shown = self._shown(name)
        return Conflict(f"document {shown} is gone, ETag {expected} was expected: load it before changing it")

    # ---- listing

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        blobs = self._client_here().list_blobs(
            name_starts_with=self._base + prefix,
            include=["metadata"],
            results_per_page=self._page_size,
        )
        base_chars = len(self._base)
        return (
            ObjectInfo(
                name=blob.name[base_chars:],
                size_bytes=blob.size,
                age_s=max(0.0, (self._clock.now() - blob.last_modified).total_seconds()),
                etag='"' + blob.etag.strip('"') + '"' if blob.metadata and blob.size == 0 else "",  # unquoted there
                metadata=dict(blob.metadata or {}) if blob.size == 0 else {},
            )
            for blob in self._each(iter(blobs), prefix)
            # In accounts with a hierarchical namespace the service also lists folders, as empty blobs with this mark.
            if "hdi_isfolder" not in (blob.metadata or {}) and is_name(blob.name[base_chars:])
        )

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        full = self._base + prefix
        entries = self._client_here().walk_blobs(name_starts_with=full, results_per_page=self._page_size)
        folders = (
            entry.name[len(full) :].rstrip("/")
            for entry in self._each(iter(entries), prefix)
            if isinstance(entry, BlobPrefix)
        )
        return filter(is_part, folders)

    def _each(self, items: Iterator[T], prefix: str) -> Iterator[T]:
        while True:
            try:
                with self._answers("listing", prefix):
                    item = next(items, None)
            except ObjectMissing:
                return  # no container: nothing was written yet
            if item is None:
                return
            yield item

    def sweep_temporary(self, older_than_s: float) -> int:
        """The service forgets blocks that nobody committed, after a week."""
        return 0

    # ---- the service

    def _connect(self) -> ContainerClient:
        options: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": self._read_timeout_s,
            "max_single_get_size": _ONE_REQUEST_BYTES,
            "raw_response_hook": self._clock.hear,
        }
        if not self._access.connection_string:
            service = BlobServiceClient(self._access.account_url, credential=AzureIdentity(self._url), **options)
        else:
            try:
                service = BlobServiceClient.from_connection_string(self._access.connection_string, **options)
            except (ValueError, KeyError):
                raise Invalid(
                    f"{CONNECTION_STRING} (not shown) is malformed: copy it again from the account's access keys"
                ) from None
        return service.get_container_client(self._container_name)

    def _client_here(self) -> ContainerClient:
        """This process's client: Spark forks its workers, and two that share a connection get each other's answers."""
        if self._client_pid != os.getpid():
            self._client, self._client_pid = self._connect(), os.getpid()
        return self._client

    def _blob(self, name: str) -> BlobClient:
        return self._client_here().get_blob_client(self._base + name)

    def _making_container(self, operation: Callable[[], T]) -> T:
        """The operation's result; where the container is missing, nothing was done, so it is made and tried again."""
        try:
            return operation()
        except ResourceNotFoundError as error:
            if _code(error) != "ContainerNotFound":
                raise
        try:
            self._client_here().create_container()
        except HttpResponseError as error:
            if _code(error) != "ContainerAlreadyExists":
                raise
        return operation()

    def _shown(self, name: str) -> str:
        return f"{self._url}/{name}"

    @contextmanager
    def _answers(self, doing: str, name: str) -> Iterator[None]:
        """Turn the SDK's errors into partq's."""
        what = f"{doing} {self._shown(name)}"
        try:
            yield
        except HttpResponseError as error:
            raise self._explain(what, error) from None
        except AzureError as error:
            raise self._unavailable(what, error) from None
        except ValueError as error:  # the SDK's way to say that an answer lacks a header: a proxy's, not Azure's
            raise self._unavailable(what, error) from None

    def _explain(self, what: str, error: HttpResponseError) -> PartqError:
        refused = isinstance(error, ClientAuthenticationError)
        return explain(
            what=what,
            account=self._access.account,
            status=error.status_code,
            code=_code(error),
            text=str(error.message),
            refused=refused,
        )

    def _unavailable(self, what: str, error: Exception) -> Unavailable:
        return Unavailable(
            f"{what}: account {self._access.account!r} could not be reached: {without_secrets(str(error))}"
        )

    # ---- what a writer needs

    def put_whole(self, name: str, data: bytes) -> None:
        """Create the object in one request, tried again within the retry time."""
        self._retry().create(lambda: self._put_whole(name, data))

    def put_block(self, name: str, block_id: str, data: bytes) -> None:
        """Stage one block, tried again within the retry time: repeating it puts the same bytes in the same place."""

        def stage() -> None:
            with self._answers("writing", name):
                self._making_container(lambda: self._blob(name).stage_block(block_id, data, length=len(data)))

        self._retry().call(stage)

    def commit_blocks(self, name: str, block_ids: Sequence[str]) -> None:
        """Create the object from staged blocks, tried again within the retry time, as a creation is."""

        def commit() -> None:
            with self._answers("creating", name):
                self._blob(name).commit_block_list(
                    [BlobBlock(block_id) for block_id in block_ids], match_condition=MatchConditions.IfMissing
                )

        self._retry().create(commit)

    def _put_whole(self, name: str, data: bytes) -> None:
        with self._answers("creating", name):
            self._making_container(lambda: self._blob(name).upload_blob(data, overwrite=False))

    def _retry(self) -> OperationRetry:
        return OperationRetry(self._url, self._retry_timeout_s, store_effects())


def _code(error: HttpResponseError) -> str:
    """The service's error code; the SDK sets it on its own errors, the generated layer leaves it in the header."""
    code = getattr(error, "error_code", None)
    if code is None:
        headers = getattr(error.response, "headers", {})
        code = headers.get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")


# The SDK always asks for a range, and for an empty blob, such as a metadata document, it is answered 416 and asks
# twice. These two of its public hooks make it one plain request: one drops the range, the other says what the SDK
# looks up instead.


def _ask_for_all(request: PipelineRequest[Any]) -> None:
    request.http_request.headers.pop("x-ms-range", None)


def _measure(clock: ServiceClock, response: PipelineResponse[Any, Any]) -> None:
    clock.hear(response)
    headers = response.http_response.headers
    if response.http_response.status_code == 200 and "Content-Length" in headers:
        size_bytes = int(headers["Content-Length"])
        headers["Content-Range"] = f"bytes 0-{size_bytes - 1}/{size_bytes}"
