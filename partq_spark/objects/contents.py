"""What may be stored, and how a document is written: the rules for object names, prefixes and contents, the refusals of
the contract, the same for every store, and a document as one file, the same on a disk and in an S3 bucket.

No I/O. The rules are stricter than any one store needs, so that whatever one store takes, every other store takes too,
and a name is always one plain path below the store's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.objects.api import Document

MAX_NAME_CHARS: Final = 800
"""Azure allows 1,024 characters for prefix and name together."""

MAX_PART_CHARS: Final = 200
"""File systems allow 255 bytes for one part."""

MAX_METADATA_BYTES: Final = 8 * 1024
"""Azure's limit for all keys and values of one blob."""

_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*", re.ASCII)
_PREFIX = re.compile(r"(?:[A-Za-z0-9_=-][A-Za-z0-9._=-]*/)*(?:[A-Za-z0-9_=-][A-Za-z0-9._=-]*)?", re.ASCII)
_METADATA_KEY = re.compile(r"[a-z_]+", re.ASCII)
_METADATA_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?", re.ASCII)

_RULE = "parts of [A-Za-z0-9._=-] that do not begin with a dot, joined by single slashes"


def is_part(text: str) -> bool:
    """Whether an object's name may have this part. What a directory or a container holds under any other name is
    somebody else's: no call of a store could touch it, so no listing shows it.
    """
    return len(text) <= MAX_PART_CHARS and "/" not in text and _NAME.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether an object may have this name: the same for a whole one."""
    return len(text) <= MAX_NAME_CHARS and all(map(is_part, text.split("/")))


def check_name(name: str) -> str:
    """The name itself, if it may name an object; raises `Invalid` otherwise."""
    if len(name) > MAX_NAME_CHARS or _NAME.fullmatch(name) is None:
        raise Invalid(f"object name {_shorten(name)} is not allowed: use {_RULE}, at most {MAX_NAME_CHARS} characters")
    return _check_parts(name)


def check_prefix(prefix: str) -> str:
    """The prefix itself, if some object's name may begin with it; raises `Invalid` otherwise."""
    if len(prefix) > MAX_NAME_CHARS or _PREFIX.fullmatch(prefix) is None:
        raise Invalid(f"prefix {_shorten(prefix)} is not allowed: use the beginning of a name, that is {_RULE}")
    return _check_parts(prefix)


def _check_parts(text: str) -> str:
    if len(text) > MAX_PART_CHARS and max(map(len, text.split("/"))) > MAX_PART_CHARS:
        raise Invalid(f"object name {_shorten(text)} has a part of more than {MAX_PART_CHARS} characters: shorten it")
    return text


def check_folder_prefix(prefix: str) -> str:
    """The prefix itself, if it is empty or names a folder (ends in `/`); raises `Invalid` otherwise."""
    if prefix and not prefix.endswith("/"):
        raise Invalid(f"prefix {_shorten(prefix)} does not name a folder: end it with '/', or leave it empty")
    return check_prefix(prefix)


def check_range(name: str, start: int, length: int | None) -> None:
    """Raise `Invalid` for a byte range that no object can have."""
    if start < 0 or (length is not None and length < 0):
        raise Invalid(f"range of {length} bytes from {start} of {name!r} is not allowed: use numbers from 0 up")


def check_whole(name: str, size_bytes: int, start: int, end: int) -> None:
    """Raise `Corrupt` if an object of this size ends before the bytes `start` to `end`, or before they begin."""
    end = max(start, end)
    if end > size_bytes:
        raise Corrupt(
            f"object {name} is cut short: it has {size_bytes} bytes, and bytes {start} to {end} were asked for; restore"
            " it from a copy"
        )


def check_content(name: str, content: bytes | Mapping[str, str]) -> None:
    """Raise `Invalid` unless `content` may be a document.

    A body is only looked at from both ends: parsing a head of 48 kB at every swap would cost more than the check is
    worth.
    """
    if isinstance(content, bytes):
        if content[:1] != b"{" or content[-1:] != b"}":
            raise Invalid(f"document {name!r} is not a JSON object: its body must begin with '{{' and end with '}}'")
        return
    if not content:
        raise Invalid(f"document {name!r} has no metadata: give at least one key")
    size_bytes = 0
    for key, value in content.items():
        if _METADATA_KEY.fullmatch(key) is None:
            raise Invalid(f"document {name!r}: metadata key {_shorten(key)} is not allowed: use [a-z_]+")
        if _METADATA_VALUE.fullmatch(value) is None:
            raise Invalid(
                f"document {name!r}: the value of metadata key {key!r} is not allowed:"
                " use printable ASCII, not empty, with no space at either end"
            )
        size_bytes += len(key) + len(value)
    if size_bytes > MAX_METADATA_BYTES:
        raise Invalid(f"document {name!r} has {size_bytes} bytes of metadata: at most {MAX_METADATA_BYTES} are allowed")


def taken(name: str) -> Conflict:
    """For an immutable object whose name is another's."""
    return Conflict(f"object {name} exists already: immutable objects need a name of their own")


def changed(name: str, expected: str | None, found: str | None) -> Conflict:
    """For a document that has the ETag `found`, or is none, where another one was expected."""
    if expected is None:
        return Conflict(f"document {name} exists already: load it before changing it")
    if found is None:
        return Conflict(f"document {name} is gone, ETag {expected} was expected: load it before changing it")
    return Conflict(f"document {name} has ETag {found}, {expected} was expected: load it again before changing it")


def _shorten(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:77] + "...")


# --- a document as one file -------------------------------------------------------------------------------------------

# Its first key is the ETag, at a fixed width, so that a look at a document reads 64 bytes:
#
# - JSON body:  `{"etag":"<32 hex>",` then the body without its first `{`;
# - metadata:   `{"metadata.etag":"<32 hex>",` then the keys and values as one JSON object without its first `{`.
#
# The dot cannot occur in a metadata key, so neither kind can be taken for the other, whatever the document holds. Where
# the body is an empty object, the comma is a space, which keeps the file valid JSON. A file that begins otherwise is no
# document.

LOOK_BYTES: Final = 64
"""Enough of a document to tell its kind and its ETag."""

MAX_METADATA_FILE_BYTES: Final = 8 * MAX_METADATA_BYTES
"""JSON takes up to six bytes where the limit counts one."""

_BODY_START: Final = b'{"etag":"'
_METADATA_START: Final = b'{"metadata.etag":"'
_ETAG_CHARS: Final = 32
_METADATA: Final = msgspec.json.Decoder(dict[str, str])


def new_etag() -> str:
    """Random, never a counter or a time: the same content written again must not look unchanged."""
    return os.urandom(_ETAG_CHARS // 2).hex()


def encode_document(etag: str, content: bytes | Mapping[str, str]) -> bytes:
    """The file of a document whose content was checked."""
    if isinstance(content, bytes):
        start, body = _BODY_START, content
    else:
        start, body = _METADATA_START, msgspec.json.encode(dict(content))
    separator = b'" ' if body[1:].lstrip()[:1] == b"}" else b'",'
    return b"".join((start, etag.encode(), separator, memoryview(body)[1:]))


def find_etag(path: str, head: bytes) -> str:
    """The ETag in the first `LOOK_BYTES` of a document. Raises `Corrupt` if this is none."""
    for start in (_BODY_START, _METADATA_START):
        end = len(start) + _ETAG_CHARS
        if head.startswith(start) and head[end : end + 2] in (b'",', b'" '):
            return head[len(start) : end].decode("ascii", "replace")
    raise Corrupt(
        f"{path} is no document of partq: it does not begin with an ETag; restore it, or remove it if it is foreign"
    )


def has_etag(head: bytes, etag: bytes) -> bool:
    """Whether a document has this ETag: what an idle reader asks every few milliseconds."""
    if head[9:41] == etag:
        return head.startswith(_BODY_START)
    return head[18:50] == etag and head.startswith(_METADATA_START)


def decode_document(path: str, data: bytes) -> Document:
    """The document in a file. Raises `Corrupt` if it is none, or is cut short."""
    etag = find_etag(path, data[:LOOK_BYTES])
    if data[-1:] != b"}":
        raise Corrupt(f"{path} is cut short, its last byte is not '}}': restore it from a copy")
    if not data.startswith(_METADATA_START):
        return Document(etag=etag, body=b"{" + data[len(_BODY_START) + _ETAG_CHARS + 2 :])
    try:
        metadata = _METADATA.decode(b"{" + data[len(_METADATA_START) + _ETAG_CHARS + 2 :])
    except msgspec.ValidationError:
        raise Corrupt(f"{path} holds something else than text values: restore it from a copy") from None
    except ValueError as error:
        raise Corrupt(f"{path} is no JSON object: {error}; restore it from a copy") from None
    return Document(etag=etag, metadata=metadata)
