"""The object store in an S3 bucket, `s3://bucket/prefix`, on AWS and on servers that honour conditional writes.

An immutable object is put with If-None-Match; a document is the file that `file:` writes, replaced with If-Match. It
begins with something random, because an S3 ETag is the digest of the body: equal bodies would have equal ETags, and
with metadata in headers every body would be empty. What holds metadata is therefore read where a listing is asked for
values; what this process has read or written, and whose listed ETag is the same, is not read again.

A document is removed by a swap to a mark, which counts as absent everywhere and is deleted on condition that it is one:
a DELETE on condition alone would not tell everywhere whether the document was gone before. Where a server ignores that
condition, marks stay. They are all alike, so a listing knows them by their ETag.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree

from partq_spark.base.effects import side_by_side
from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, PartqError, Unavailable
from partq_spark.objects.api import UNCHANGED, Document, ObjectInfo, Unchanged
from partq_spark.objects.contents import (
    MAX_METADATA_FILE_BYTES,
    changed,
    check_content,
    check_folder_prefix,
    check_name,
    check_prefix,
    check_range,
    check_whole,
    decode_document,
    encode_document,
    is_name,
    is_part,
    new_etag,
    taken,
)
from partq_spark.objects.s3_client import Answer, S3Client
from partq_spark.objects.service import ServiceStore

MARK: Final = b'{"removed":true}'
"""In place of a document that was removed. No document is so short."""

_MARK_ETAG: Final = f'"{hashlib.md5(MARK, usedforsecurity=False).hexdigest()}"'
"""As most servers give it; one that encrypts gives another."""

_ETAG_OF_NOTHING: Final = f'"{"0" * 32}"'
_UNREAD: Final = Document(etag="")
_SIDE_BY_SIDE: Final = 16
_MAX_KNOWN: Final = 10_000
_IN_ORDER: Final = ("a-b", "a/b", "a0", "aB", "aa")

_log = logging.getLogger("partq.objects")


class S3Store(ServiceStore[S3Client]):
    """Objects below a prefix of one bucket, which is there already."""

    page_size = 1000
    max_pieces = 10_000

    def _connect(self) -> S3Client:
        self._known: dict[str, Document] = {}
        self._marks_stay: bool | None = None
        return S3Client(self._url, self._clock, read_timeout_s=self._read_timeout_s)

    def close(self) -> None:
        self._client.close()

    # ---- immutable objects

    def put(self, name: str, data: bytes) -> None:
        self._create("creating", name, data)

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        check_range(name, start, length)
        check_name(name)
        data, size_bytes = b"", 0
        if length != 0:
            data, size_bytes = self._read_range(name, start, "" if length is None else start + length - 1)
        if not data:
            _, size_bytes = self._read_range(name, 0, 0)
        end = start + len(data) if length is None else start + length
        check_whole(self._shown(name), size_bytes, start, end)
        return memoryview(data)

    def _read_range(self, name: str, first: int, last: int | str) -> tuple[bytes, int]:
        """What there is of it, and the size of the whole, which is not told where there is nothing."""
        answer = self._client.ask("reading", "GET", name, headers={"Range": f"bytes={first}-{last}"})
        if answer.status == 416:
            return b"", 0
        if answer.status == 200 and answer.is_fine:
            what = f"object {self._shown(name)}: the server {self._client.server}"
            raise Invalid(f"{what} does not honour reading a range (GET with Range)")
        if not answer.is_fine:
            raise self._client.explain("reading", name, answer)
        return answer.body, int(answer.headers.get("content-range", "/0").rpartition("/")[2])

    def delete(self, name: str) -> None:
        check_name(name)
        with suppress(ObjectMissing):
            self._client.fine("deleting", "DELETE", name)

    # ---- documents

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        check_name(name)
        answer = self._client.ask("loading", "GET", name, headers={} if known is None else {"If-None-Match": known})
        if answer.status == 304:
            return UNCHANGED
        if answer.code == "NoSuchKey" or answer.body == MARK:
            return None
        etag = self._client.etag("loading", name, answer)
        found = decode_document(self._shown(name), answer.body)
        self._keep(name, etag, found.metadata)
        return replace(found, etag=etag)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        check_name(name)
        check_content(name, content)
        data = encode_document(new_etag(), content)
        if expected is None:
            etag = self._create("replacing", name, data)
        else:
            etag = self._replace("replacing", name, data, expected)
        self._keep(name, etag, {} if isinstance(content, bytes) else dict(content))
        return etag

    def remove(self, name: str, *, expected: str) -> None:
        check_name(name)
        marks_stay = self._finds_marks_stay()
        mark = self._replace("removing", name, MARK, expected)
        if not marks_stay:
            with suppress(PartqError):  # one that stays counts as absent too
                self._delete_if(name, mark)

    def _create(self, doing: str, name: str, data: bytes) -> str:
        """Put what is not there, or is there as a mark."""
        answer = self._client.ask(doing, "PUT", name, headers={"If-None-Match": "*"}, body=data)
        if answer.status == 412 and (there := self._peek(name)).body == MARK:
            return self._replace(doing, name, data, self._client.etag("loading", name, there))
        self._check_uncontended(doing, name, answer)
        return self._client.etag(doing, name, answer)

    def _replace(self, doing: str, name: str, data: bytes, expected: str) -> str:
        answer = self._client.ask(doing, "PUT", name, headers={"If-Match": expected}, body=data)
        if answer.code == "NoSuchKey":
            raise changed(self._shown(name), expected, None)
        return self._client.etag(doing, name, answer)

    def _delete_if(self, name: str, etag: str) -> Answer:
        return self._client.ask("removing", "DELETE", name, headers={"If-Match": etag})

    def _peek(self, name: str) -> Answer:
        """So much that it tells whether it is a mark."""
        return self._client.ask("loading", "GET", name, headers={"Range": f"bytes=0-{len(MARK)}"})

    def _check_uncontended(self, doing: str, name: str, answer: Answer) -> None:
        """A creation that is answered 409 met another one under way. It wrote nothing, and may be tried again."""
        if answer.code == "ConditionalRequestConflict":
            raise Unavailable(f"{doing} {self._shown(name)}: another creation is under way; try again later")

    def _finds_marks_stay(self) -> bool:
        """Whether a DELETE ignores its condition. Found out once, on an object of this process's own."""
        if self._marks_stay is None:
            name = f".partq-{os.urandom(16).hex()}"
            self._client.fine("creating", "PUT", name, body=MARK)
            answer = self._delete_if(name, _ETAG_OF_NOTHING)
            problem = self._client.explain("removing", name, answer)
            if not answer.is_fine and isinstance(problem, Unavailable):
                raise problem
            self._marks_stay = not isinstance(problem, Conflict)
            self._client.ask("deleting", "DELETE", name)
        return self._marks_stay

    # ---- listing

    def list(self, prefix: str, *, values: bool = False) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return self._infos(prefix, values=values)

    def _infos(self, prefix: str, *, values: bool) -> Iterator[ObjectInfo]:
        most_bytes = MAX_METADATA_FILE_BYTES if values else 0
        for page in self._pages(prefix):
            listed = [each for each in map(self._info, page.iter("Contents")) if is_name(each.name)]
            infos = [info for info in listed if info.etag != _MARK_ETAG]
            found = self._documents([i for i in infos if i.size_bytes <= most_bytes or i.size_bytes == len(MARK)])
            for info in infos:
                document = found.get(info.name, _UNREAD)
                if document is not None and values and document.metadata:
                    yield replace(info, size_bytes=0, etag=document.etag, metadata=document.metadata)
                elif document is not None:
                    yield replace(info, etag="")

    def _info(self, item: ElementTree.Element) -> ObjectInfo:
        text = {child.tag: child.text or "" for child in item}
        return ObjectInfo(
            name=unquote(text["Key"])[len(self._url.base) :],
            size_bytes=int(text["Size"]),
            age_s=self._age_s(text["LastModified"]),
            etag=text["ETag"],
        )

    def _age_s(self, stamped: str) -> float:
        return max(0.0, (self._clock.now() - datetime.fromisoformat(stamped)).total_seconds())

    def _documents(self, infos: Sequence[ObjectInfo]) -> dict[str, Document | None]:
        """Without their bodies; None: what is there is a mark, or it is gone. What is known is not read again."""
        found = {info.name: self._known.get(info.name) for info in infos}
        unknown = [i.name for i in infos if (known := found[i.name]) is None or known.etag != i.etag]
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="partq-values") as pool:
            found.update(zip(unknown, side_by_side(pool)(self._document, unknown), strict=True))
        return found

    def _document(self, name: str) -> Document | None:
        try:
            found = self.load(name)
        except (Corrupt, Invalid):  # one that is damaged, or may not be read, hides no others
            return _UNREAD
        return found if isinstance(found, Document) else None

    def _keep(self, name: str, etag: str, metadata: Mapping[str, str]) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[name] = Document(etag=etag, metadata=metadata)

    def list_folders(self, prefix: str) -> Iterator[str]:
        check_folder_prefix(prefix)
        return self._folders(prefix)

    def _folders(self, prefix: str) -> Iterator[str]:
        start = len(self._url.base + prefix)
        # On AWS, where each look would cost, marks are deleted.
        may_hold_marks = not self._client.is_aws and self._marks_stay is not False
        for page in self._pages(prefix, delimiter="/"):
            for each in page.iter("CommonPrefixes"):
                folder = unquote(each.findtext("Prefix", ""))[start:-1]
                infos = self._infos(f"{prefix}{folder}/", values=False)
                if is_part(folder) and (not may_hold_marks or next(infos, None) is not None):
                    yield folder

    def _pages(self, prefix: str, **query: str) -> Iterator[ElementTree.Element]:
        query |= {"list-type": "2", "encoding-type": "url", "max-keys": str(self.page_size)}
        return self._client.pages("listing", query | {"prefix": self._url.base + prefix})

    def sweep_temporary(self, older_than_s: float) -> int:
        """Abort uploads that were begun so long ago, and whose writer has not come to the end; a thousand at a time."""
        swept = 0
        for page in self._client.pages("sweeping", {"uploads": "", "prefix": self._url.base}):
            for upload in page.iter("Upload"):
                name = upload.findtext("Key", "")[len(self._url.base) :]
                if is_name(name) and self._age_s(upload.findtext("Initiated", "")) >= older_than_s:
                    self.abandon(name, upload.findtext("UploadId", ""))
                    swept += 1
        return swept

    # ---- the pieces of a writer

    def begin(self, name: str) -> str:
        """A multipart upload; one whose answer was lost is swept."""
        return self._client.fine("writing", "POST", name, query={"uploads": ""}).element("UploadId")

    def put_piece(self, name: str, upload: str, number: int, data: bytes) -> str:
        query = {"partNumber": str(number + 1), "uploadId": upload}
        return self._client.etag("writing", name, self._client.ask("writing", "PUT", name, query=query, body=data))

    def finish(self, name: str, upload: str, pieces: Sequence[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in enumerate(pieces, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        condition, query = {"If-None-Match": "*"}, {"uploadId": upload}
        answer = self._client.ask("creating", "POST", name, query=query, headers=condition, body=body)
        self._check_uncontended("creating", name, answer)
        if answer.code == "NoSuchUpload":  # completed before, and the answer was lost; or aborted
            there = self._peek(name)
            if there.is_fine:
                raise taken(self._shown(name))
            answer = answer if there.code == "NoSuchKey" else there
        if not answer.is_fine or not answer.element("ETag"):  # nothing else says that it is there
            raise self._client.explain("creating", name, answer)

    def abandon(self, name: str, upload: str) -> None:
        answer = self._client.ask("abandoning", "DELETE", name, query={"uploadId": upload})
        if not answer.is_fine and answer.code != "NoSuchUpload":
            raise self._client.explain("abandoning", name, answer)

    # ---- the server

    def probe(self) -> None:
        """On AWS, too: a proxy or an access point may be in between. It finds what is missing, not what is racy."""
        trial = S3Store(replace(self._url, prefix=f"{self._url.base}.partq-{os.urandom(16).hex()}"))
        try:
            lacking = _lacking(trial)
        finally:
            for name in ("doc", "upload", "none", *_IN_ORDER):
                trial.delete(name)
            trial.sweep_temporary(0)
            trial.close()
        if lacking:
            raise Invalid(
                f"the server {self._client.server} does not honour {lacking}, without which messages would be lost: no"
                " queue was made; use AWS S3, or a server that does (docs/operate.md names some)"
            )
        self._warn_of_growth()

    def _warn_of_growth(self) -> None:
        """Where this process may not look at the bucket's settings, nothing is said."""
        asked = [self._client.ask("asking about", "GET", "", query={each: ""}) for each in ("versioning", "lifecycle")]
        versioning, lifecycle = asked
        bucket = self._url.container
        if not lifecycle.is_fine and lifecycle.code != "NoSuchLifecycleConfiguration":
            return
        if versioning.element("Status") == "Enabled" and b"<NoncurrentVersionExpiration>" not in lifecycle.body:
            _log.warning("bucket %s keeps old versions, and each publish leaves one: add a rule that ends them", bucket)
        if b"<AbortIncompleteMultipartUpload>" not in lifecycle.body:
            _log.warning("bucket %s keeps uploads that nobody completes: add a rule that aborts them", bucket)


def _lacking(trial: S3Store) -> str:
    """What the server does not honour, tried out on a store below a name of its own; empty: nothing."""

    def upload() -> None:
        begun = trial.begin("upload")
        trial.finish("upload", begun, [trial.put_piece("upload", begun, 0, b"0123456789")])

    first = trial.swap("doc", b'{"n":1}', expected=None)
    trial.swap("doc", b'{"n":2}', expected=first)
    upload()
    trial.read("upload", start=3, length=3)  # which says itself where the server gives more
    for name in _IN_ORDER:
        trial.create(name, b"")
    refused: dict[str, Callable[[], object]] = {
        "a creation on condition (PUT with If-None-Match: *)": lambda: trial.create("doc", b"x"),
        "a swap on condition (PUT with If-Match)": lambda: trial.swap("doc", b'{"n":3}', expected=first),
        "a swap on condition of what is not there": lambda: trial.swap("none", b'{"n":3}', expected=first),
        "completing an upload on condition (If-None-Match: *)": upload,
    }
    for what, call in refused.items():
        try:
            call()
        except Conflict:
            continue
        return what
    return "" if [info.name for info in trial.list("a")] == [*_IN_ORDER] else "listings in the order of names"
