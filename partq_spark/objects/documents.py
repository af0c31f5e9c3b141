"""A document as one file, the same on a disk and in an S3 bucket.

Its first key is the ETag, at a fixed width, so that a look at a document reads 64 bytes:

- JSON body:  `{"etag":"<32 hex>",` then the body without its first `{`;
- metadata:   `{"metadata.etag":"<32 hex>",` then the keys and values as one JSON object without its first `{`.

The dot cannot occur in a metadata key, so neither kind can be taken for the other, whatever the document holds. Where
the body is an empty object, the comma is a space, which keeps the file valid JSON. A file that begins otherwise is no
document.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from partq_spark.base.errors import Corrupt
from partq_spark.objects.api import Document
from partq_spark.objects.names import MAX_METADATA_BYTES

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
