"""A bucket on a server that speaks S3, in memory, and the way of a process to it, request by request: equal bodies have
equal ETags, a write on condition may be answered 409, and every other server ignores the condition of a DELETE.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from typing import Any, Final

from partq_spark.base.errors import Corrupt
from partq_spark.objects.contents import decode_document
from partq_spark.objects.retrying import Retrying
from partq_spark.objects.s3 import MARK, S3Store
from partq_spark.objects.s3_client import Answer, S3Client
from partq_spark.objects.urls import ServiceUrl
from tests.support.memory_store import Stored
from tests.world.store import Journey, Seen, kind_of

_CONTENDED: Final = 0.02
_ITEM: Final = "<Contents><Key>{}</Key><Size>{}</Size><ETag>{}</ETag><LastModified>{}</LastModified></Contents>"
_FOLDER: Final = "<CommonPrefixes><Prefix>{}/</Prefix></CommonPrefixes>"
_NOTHING: Final = Stored(created_s=0.0)


class Bucket:
    """What is really there below the prefix of a store; `seen` is as `TrueStore`'s."""

    def __init__(self, url: str, unix_s: Callable[[], float], rng: random.Random, seen: Seen) -> None:
        scheme, _, container, prefix = url.split("/")
        self.url = ServiceUrl(scheme=scheme[:-1], container=container, prefix=prefix)
        self._objects: dict[str, Stored] = {}
        self._unix_s, self._rng, self._seen = unix_s, rng, seen
        self._ignores_deletes = rng.random() < 0.5

    def answer(self, verb: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        """To one request, of which all or nothing is done."""
        if not name:
            status, said = 200, self._listed(query) if "list-type" in query else b"<ListNothing/>"
        elif verb == "GET":
            status, said = self._read(name, headers)
        else:
            status, said = self._change(verb, name, headers, body)
        if status >= 400:
            said = b"<Error><Code>%b</Code></Error>" % said
        there = self._objects.get(name, _NOTHING)
        told = {"etag": there.etag or "", "content-range": f"bytes /{len(there.data)}"}
        return Answer(status, {"date": format_datetime(datetime.fromtimestamp(self._unix_s(), UTC)), **told}, said)

    def _read(self, name: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        there = self._objects.get(name)
        if there is None:
            return 404, b"NoSuchKey"
        if headers.get("If-None-Match") == there.etag:
            return 304, b""
        first, _, last = headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        data = there.data[int(first) : int(last or len(there.data)) + 1]
        return (206 if "Range" in headers else 200, data) if data else (416, b"InvalidRange")

    def _change(self, verb: str, name: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        etag = self._objects.get(name, _NOTHING).etag
        fits = headers.get("If-Match") in (None, etag) and not (etag and "If-None-Match" in headers)
        if verb == "DELETE":
            if not (fits or self._ignores_deletes):
                return 412, b"PreconditionFailed"
            if self._objects.pop(name, None) is not None and not headers:
                self._seen(name, None)
            return 204, b""
        if "If-Match" in headers and etag is None:
            return 404, b"NoSuchKey"
        if headers and self._rng.random() < _CONTENDED:
            return 409, b"ConditionalRequestConflict"
        if not fits:
            return 412, b"PreconditionFailed"
        etag = f'"{md5(body, usedforsecurity=False).hexdigest()}"'
        self._objects[name] = Stored(created_s=self._unix_s(), data=body, etag=etag)
        with suppress(Corrupt):  # an immutable object, or a mark
            found = decode_document(name, body)
            self._seen(name, found.metadata or found.body)
        return 200, b""

    def _listed(self, query: Mapping[str, str]) -> bytes:
        """All in one page."""
        page: dict[str, None] = {}
        for name, each in sorted(self._objects.items()):
            key, prefix = self.url.base + name, query["prefix"]
            folder, slash, _ = key.removeprefix(prefix).partition(query.get("delimiter", "\0"))
            if key.startswith(prefix):
                stamp = datetime.fromtimestamp(each.created_s, UTC).isoformat()
                item = _ITEM.format(key, len(each.data), each.etag, stamp)
                page[_FOLDER.format(prefix + folder) if slash else item] = None
        return f"<ListBucketResult>{''.join(page)}</ListBucketResult>".encode()


class _Client(S3Client):
    """Of the process that runs."""

    def __init__(self, bucket: Bucket, journey: Journey, clock: Any) -> None:
        self._url, self._clock, self._bucket, self._journey = bucket.url, clock, bucket, journey
        self.server, self._region, self.is_aws = "bucket", "", False

    def _send(self, what: str, method: str, key: str, **request: Any) -> Answer:
        name, query, body = key.removeprefix(self._url.base), request.get("query", {}), request.get("body", b"")
        headers = request.get("headers", {})
        kind = {"GET": "read" if "Range" in headers else "load", "DELETE": "delete"}.get(method, "create")
        if method == "PUT" and body[:1] == b"{":
            kind = "remove" if body == MARK else "swap"
        elif method == "PUT" and "_segments/" in name:
            kind = "written"
        answer: Answer = self._journey.make(
            f"{kind if name else 'list'} {kind_of(name or query.get('prefix', '').removeprefix(self._url.base))}",
            lambda: self._bucket.answer(method, name, query, headers, body),
            is_write=method != "GET",
        )
        self._clock.hear(answer.headers["date"])
        return answer


def opened(bucket: Bucket, journey: Journey, retry_timeout_s: float) -> Retrying:
    """As a process has it."""

    class Opened(S3Store):
        def _connect(self) -> S3Client:
            self._known, self._marks_stay = {}, None
            return _Client(bucket, journey, self._clock)

        def probe(self) -> None:
            """The bucket lacks nothing, and knows no uploads."""

    return Retrying(Opened(bucket.url), retry_timeout_s)
