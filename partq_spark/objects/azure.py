"""The object store in an Azure Blob container, `azure://container/prefix`. No module but this and `azure_access`
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
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.storage.blob import BlobBlock, BlobClient, BlobPrefix, BlobServiceClient, ContainerClient, ContentSettings

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.azure_access import CONNECTION_STRING, AzureIdentity, explain, find_access
from partq_spark.objects.contents import (
    changed,
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    check_whole,
    is_name,
    is_part,
)
from partq_spark.objects.service import CONNECT_TIMEOUT_S, ServiceClock, ServiceStore, without_secrets

_ONE_REQUEST_BYTES: Final = 1 << 40
"""Larger than any blob: the SDK then reads with one ranged request, instead of a first part and the rest in chunks."""

_JSON: Final = "application/json"

T = TypeVar("T")

for _name in ("azure", "msal"):  # at INFO the SDK logs every request, with its URL and headers
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


class AzureStore(ServiceStore[ContainerClient]):
    """Blobs below a prefix of one container, which is made at the first write."""

    page_size = 5000
    max_pieces = 50_000

    def probe(self) -> None:
        """Nothing: a service of one maker does what its maker says."""

    def close(self) -> None:
        self._client.close()

    # ---- immutable objects

    def put(self, name: str, data: bytes) -> None:
        with self._answers("creating", name):
            self._making_container(lambda: self._blob(name).upload_blob(data, overwrite=False))

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
        check_whole(self._shown(name), size_bytes, start, end)
        return memoryview(b"")  # an empty range: nothing was, or could be, asked for

    def delete(self, name: str) -> None:
        check_name(name)
        with suppress(ObjectMissing), self._answers("deleting", name):
            self._blob(name).delete_blob(delete_snapshots="include")

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
            raise changed(self._shown(name), expected, None) from None

    def remove(self, name: str, *, expected: str) -> None:
        check_name(name)
        try:
            with self._answers("removing", name):
                self._blob(name).delete_blob(
                    delete_snapshots="include", etag=expected, match_condition=MatchConditions.IfNotModified
                )
        except ObjectMissing:
            raise changed(self._shown(name), expected, None) from None

    # ---- listing

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        blobs = self._client.list_blobs(
            name_starts_with=self._url.base + prefix, include=["metadata"], results_per_page=self.page_size
        )
        base_chars = len(self._url.base)
        return (
            ObjectInfo(
                name=blob.name[base_chars:],
                size_bytes=blob.size,
                age_s=max(0.0, (self._clock.now() - blob.last_modified).total_seconds()),
                etag='"' + blob.etag.strip('"') + '"' if shown else "",  # unquoted there
                metadata=shown,
            )
            for blob in self._each(iter(blobs), prefix)
            for shown in [dict(blob.metadata or {}) if values and blob.size == 0 else {}]
            # In accounts with a hierarchical namespace the service also lists folders, as empty blobs with this mark.
            if "hdi_isfolder" not in (blob.metadata or {}) and is_name(blob.name[base_chars:])
        )

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        full = self._url.base + prefix
        entries = self._client.walk_blobs(name_starts_with=full, results_per_page=self.page_size)
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
        self._access = find_access(self.url, os.environ)
        options: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": self._read_timeout_s,
            "max_single_get_size": _ONE_REQUEST_BYTES,
            "raw_response_hook": partial(_hear, self._clock),
        }
        if not self._access.connection_string:
            service = BlobServiceClient(self._access.account_url, credential=AzureIdentity(self.url), **options)
        else:
            try:
                service = BlobServiceClient.from_connection_string(self._access.connection_string, **options)
            except (ValueError, KeyError):
                raise Invalid(
                    f"{CONNECTION_STRING} (not shown) is malformed: copy it again from the account's access keys"
                ) from None
        return service.get_container_client(self._url.container)

    def _blob(self, name: str) -> BlobClient:
        return self._client.get_blob_client(self._url.base + name)

    def _making_container(self, operation: Callable[[], T]) -> T:
        """The operation's result; where the container is missing, nothing was done, so it is made and tried again."""
        try:
            return operation()
        except ResourceNotFoundError as error:
            if _code(error) != "ContainerNotFound":
                raise
        try:
            self._client.create_container()
        except HttpResponseError as error:
            if _code(error) != "ContainerAlreadyExists":
                raise
        return operation()

    @contextmanager
    def _answers(self, doing: str, name: str) -> Iterator[None]:
        """Turn the SDK's errors into partq's."""
        what = f"{doing} {self._shown(name)}"
        try:
            yield
        except HttpResponseError as error:
            raise self._explain(what, error) from None
        except (AzureError, ValueError) as error:  # ValueError: an answer lacks a header, so it is a proxy's
            account, text = self._access.account, without_secrets(str(error))
            raise Unavailable(f"{what}: account {account!r} could not be reached: {text}") from None

    def _explain(self, what: str, error: HttpResponseError) -> PartqError:
        refused, account = isinstance(error, ClientAuthenticationError), self._access.account
        status, code, text = error.status_code, _code(error), str(error.message)
        return explain(what=what, account=account, status=status, code=code, text=text, refused=refused)

    # ---- the pieces of a writer

    def begin(self, name: str) -> str:
        """Were two writers ever to use one name, blocks with equal ids would mix: each has ids of its own."""
        return os.urandom(16).hex()

    def put_piece(self, name: str, upload: str, number: int, data: bytes) -> str:
        block_id = f"{upload}-{number:05}"  # all of one length
        with self._answers("writing", name):
            self._making_container(lambda: self._blob(name).stage_block(block_id, data, length=len(data)))
        return block_id

    def finish(self, name: str, upload: str, pieces: Sequence[str]) -> None:
        blocks = [BlobBlock(block_id) for block_id in pieces]
        with self._answers("creating", name):
            self._blob(name).commit_block_list(blocks, match_condition=MatchConditions.IfMissing)

    def abandon(self, name: str, upload: str) -> None:
        """As `sweep_temporary`."""


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


def _hear(clock: ServiceClock, response: PipelineResponse[Any, Any]) -> None:
    clock.hear(response.http_response.headers.get("Date"))


def _measure(clock: ServiceClock, response: PipelineResponse[Any, Any]) -> None:
    _hear(clock, response)
    headers = response.http_response.headers
    if response.http_response.status_code == 200 and "Content-Length" in headers:
        size_bytes = int(headers["Content-Length"])
        headers["Content-Range"] = f"bytes 0-{size_bytes - 1}/{size_bytes}"
