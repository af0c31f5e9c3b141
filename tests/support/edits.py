"""Metadata documents of a local store, changed by somebody who knows how their checksum is made."""

from __future__ import annotations

import json

import xxhash

ETAG, CHECKSUM = "metadata.etag", "checksum"


def edited(document: str, *, etag: str | None = None, **keys: str) -> str:
    """The file with other values, and a checksum that matches; with another ETag if one is given."""
    found: dict[str, str] = json.loads(document)
    was = found.pop(ETAG)
    said = {**found, **keys}
    lines = "".join(f"{key}={value}\n" for key, value in sorted(said.items()) if key != CHECKSUM)
    sealed = {**said, CHECKSUM: xxhash.xxh3_64_hexdigest(lines.encode())}
    return json.dumps({ETAG: etag or was, **sealed}, separators=(",", ":"))
