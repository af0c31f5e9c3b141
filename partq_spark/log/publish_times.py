"""When messages that are in the log were published: the first of some, or those at some offsets.

Arrow is imported where a compacted slice is looked into, and nowhere before: coordinators ask this, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from partq_spark.log import tree
from partq_spark.log.model import Entry, Head, Slice
from partq_spark.log.queue import QueueLog

MOST_LOOKED_INTO: Final = 16
"""Slices: beyond so many partitions the time of a compacted message may be said too early."""


def oldest_us(queue: QueueLog, head: Head, wanted: tree.Wanted) -> int | None:
    """When the first of the messages in `wanted` was published (Unix, microseconds); None if there is none.

    Of a compacted entry that begins with others the times are read. Raises as `QueueLog.load_chunk` and `read_slice`.
    """
    entry = next(iter(tree.walk(tree.view(head, wanted), queue.load_chunk)), None)
    if entry is None or not entry.times:
        return entry.time_us if entry is not None else None
    first: dict[int, Slice] = {}
    for piece in entry.slices:
        first.setdefault(piece.partition, piece)
    found = [entry.time_us]
    for piece in first.values():
        start = wanted[piece.partition][0]
        if len(found) > MOST_LOOKED_INTO:
            return entry.first_time_us
        found.append(queue.times_us(entry, piece)[max(start - piece.offset, 0)])
        if found[-1] == entry.first_time_us:
            break
    return min(found)


def published_us(
    queue: QueueLog, head: Head, offsets: Mapping[int, int], *, most_looked_into: int = MOST_LOOKED_INTO
) -> dict[int, int]:
    """By partition, when the message at this offset was published (Unix, microseconds); without those that are not in
    the log. Reads only the chunks that lead there.

    Of compacted entries the times are read, first of those that span the longest time; beyond `most_looked_into`
    slices a message counts as published when its entry begins. Raises as `QueueLog.load_chunk` and `read_slice`.
    """
    wanted = {partition: (offset, offset + 1) for partition, offset in offsets.items()}
    found: dict[int, int] = {}
    compacted: list[tuple[Entry, Slice]] = []
    for entry in tree.walk(tree.view(head, wanted), queue.load_chunk):
        for piece in entry.slices:
            found[piece.partition] = entry.first_time_us
        if entry.times:
            compacted.extend((entry, piece) for piece in entry.slices)
    compacted.sort(key=lambda each: each[0].first_time_us - each[0].time_us)
    for entry, piece in compacted[:most_looked_into]:
        found[piece.partition] = queue.times_us(entry, piece)[offsets[piece.partition] - piece.offset]
    return found
