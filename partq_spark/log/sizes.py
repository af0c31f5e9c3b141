"""How large the parts of a log may become. A queue's handle carries these numbers; the functions of the log take them.

They bound the head, which every publish writes anew, and what lies behind it: chunks of entries, pages of writers, the
slices and segments that compaction writes, and the marks of collection. Readers do not depend on them: handles with
different numbers may work on one queue at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSizes:
    """The bounds of one queue's log. With the defaults a head has about 50 kB and still swaps 700 times a second on a
    local disk.
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
