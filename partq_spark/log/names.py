"""Where a queue's objects lie in the store, which names people may give, and how large the parts of a log may become.
Strings and numbers only, no store.

The queue's id is part of every blob's name, so that nothing of a deleted queue can be taken for its successor's
(RES-05).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from partq_spark.base.effects import new_token
from partq_spark.base.errors import Invalid

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_STAGED = re.compile(r"(?:chunk-\d+-|page-)?(\d{12})-[0-9a-f]{16}(?:\.arrow|\.json)")


def checked_name(kind: str, name: str) -> str:
    """`name` in lower case (CHK-01: lower-cased once, at the edge), or `Invalid` naming what is allowed."""
    lowered = name.lower()
    if not _NAME.fullmatch(lowered):
        raise Invalid(
            f"{kind} name {name!r} is not allowed: use 1 to 63 of a-z, 0-9, '.', '_', '-', beginning with a letter or "
            "digit"
        )
    return lowered


def is_name(text: str) -> bool:
    """Whether this is a name as stored, in lower case."""
    return _NAME.fullmatch(text) is not None


def queue_folder(namespace: str, queue: str) -> str:
    """Everything of a queue, ending in '/'."""
    return f"{namespace}/{queue}/"


def head_name(namespace: str, queue: str) -> str:
    """The queue's head."""
    return f"{namespace}/{queue}/_head.json"


def segment_folder(namespace: str, queue: str, queue_id: str) -> str:
    """Segments, ending in '/'."""
    return f"{namespace}/{queue}/_segments/{queue_id}/"


def log_folder(namespace: str, queue: str, queue_id: str) -> str:
    """Chunks and writer pages, ending in '/'."""
    return f"{namespace}/{queue}/_log/{queue_id}/"


MARKS: Final = "collection.json"
"""The document, in the folder of chunks, in which collection remembers what it has marked, and when."""


def new_segment(stage_sequence: int) -> str:
    """A new segment's name within its folder."""
    return f"{stage_sequence:012d}-{new_token()}.arrow"


def new_chunk(level: int, stage_sequence: int) -> str:
    """A new chunk's name within its folder."""
    return f"chunk-{level}-{stage_sequence:012d}-{new_token()}.json"


def new_page(stage_sequence: int) -> str:
    """A new writer page's name within its folder."""
    return f"page-{stage_sequence:012d}-{new_token()}.json"


def staged_at(name: str) -> int | None:
    """The sequence number under which a blob was staged, read from its name's last part; None for any other object."""
    match = _STAGED.fullmatch(name.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


# --- how large the parts of a log may become --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSizes:
    """The bounds of one queue's log; its handle carries them. They bound the head, which every publish writes anew, and
    what lies behind it. Readers do not depend on them: handles with different numbers may work on one queue at the same
    time. With the defaults a head has about 50 kB and still swaps 700 times a second on a local disk.
    """

    inline_bytes: int = 24 * 1024
    """Of the head's own entries, as JSON."""

    inline_entries: int = 64
    """Entries that the head itself holds."""

    fan_out: int = 16
    """Chunks of one level that become one of the next."""

    head_writers: int = 96
    """Writers that the head itself remembers."""

    page_fan_out: int = 8
    """Pages of one level that become one of the next."""

    page_writers: int = 24_576
    """Pages merge up to so many writers, 5 MB, and no publish merges more."""

    slice_bytes: int = 8 * 1024 * 1024
    slice_messages: int = 65_536
    """Of one slice that compaction writes: a ranged read of that size costs little more per byte than a larger one."""

    slice_gain: int = 4
    """A message is written anew only where its slice becomes at least so many times as large."""

    step_slices: int = 65_536
    step_bytes: int = 256 * 1024 * 1024
    """That one step of compaction writes anew, so that it takes seconds, and less memory than its index and two
    slices."""

    segment_bytes: int = 1024 * 1024
    """A compacted segment ends with its partition once it has so many; smaller partitions share one, or objects would
    multiply."""

    run_bytes: int = 64 * 1024 * 1024
    """Messages that compaction joins in memory, decompressed: what compresses well can become very large."""

    marks_per_round: int = 100_000
    """Objects that one round of collection marks, and as many that it deletes: bounds its time."""

    marks: int = 500_000
    """Names in the document of marks, about 20 MB: so many objects can go in each grace, 5.8 a second at 24 h."""


LOG_SIZES: Final = LogSizes()
