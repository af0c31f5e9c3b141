"""Metadata documents of a local store, changed by somebody who knows how their checksum is made."""

from __future__ import annotations

import json

from partq_spark.group.checksums import sealed

ETAG = "metadata.etag"


def edited(document: str, *, etag: str | None = None, **keys: str) -> str:
    """The file with other values, and a checksum that matches; with another ETag if one is given."""
    found: dict[str, str] = json.loads(document)
    was = found.pop(ETAG)
    return json.dumps({ETAG: etag or was, **sealed({**found, **keys})}, separators=(",", ":"))
