"""The checksum over small things that decide: metadata of an object, or the fields of a document in Redis. No I/O.

Neither has room for the frame of `base.json_documents`, and both are read by people. A flipped digit in an offset would
still be an offset. The checksum tells damage, and an edit by hand; it is no protection against malice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import xxhash

from partq_spark.base.errors import Corrupt

CHECKSUM: Final = "checksum"
"""The key of the checksum in metadata."""


def checksum_of(metadata: Mapping[str, str]) -> str:
    """xxh3 (64 bits, 16 hex digits) over the lines `key=value` of all keys but `checksum`, sorted by key."""
    return digest_of("".join([f"{key}={value}\n" for key, value in sorted(metadata.items()) if key != CHECKSUM]))


def digest_of(lines: str) -> str:
    """xxh3 of lines that are in order."""
    return xxhash.xxh3_64_hexdigest(lines.encode(errors="surrogatepass"))


def sealed(metadata: Mapping[str, str]) -> dict[str, str]:
    """The same with its checksum."""
    return {**metadata, CHECKSUM: checksum_of(metadata)}


def check_sealed(metadata: Mapping[str, str], what: object, repair: str) -> None:
    """Raises `Corrupt` unless the metadata is as somebody sealed it. `what` names it in the message, `repair` is the
    next step.
    """
    said = metadata.get(CHECKSUM)
    if said is None:
        raise Corrupt(
            f"{what} has no metadata key {CHECKSUM!r}: an earlier version of partq wrote it, it is damaged, or it was"
            f" edited by hand; {repair}"
        )
    found = checksum_of(metadata)
    if found != said:
        raise Corrupt(
            f"{what} is damaged, or was edited by hand: its metadata has the checksum {found}, its key {CHECKSUM!r}"
            f" says {said[:40]!a}; {repair}"
        )
