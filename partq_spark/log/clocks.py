"""Which time a queue goes by, what an entry's time is worth if the clock behind it was wrong, and the walk through a
log to the first message at or after a time. No I/O of its own.

Ages (retention, the grace of collection, how long writers are remembered) are differences between times that different
machines wrote down. One wrong clock must not lead them away, so a machine's own clock counts only as far as the
store's agrees with it, where the store has one that can be asked. Where none could be asked while a clock was wrong, a
time too far in the future is no time at all: what carries it counts as old as what was published after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from partq_spark.log.model import Chunk, ChunkRef, Entry, Slice, at, below, placed

LoadChunk = Callable[[ChunkRef], Chunk]
Times = Callable[[Entry, Slice], Sequence[int]]  # the times of a slice of a compacted entry, in microseconds, rising

MOST_OFF_US: Final = 10 * 60 * 1_000_000
"""So far may a machine's clock be off the store's: of more than 10 minutes the store's own time is taken."""

MOST_AHEAD_US: Final = 4 * 3600 * 1_000_000
"""So far may the time of an entry be ahead of now: of more than 4 hours it is false. Less heals by waiting."""


def agreed_us(own_us: int, store_us: int | None) -> int:
    """The time to go by: this machine's, unless the store's clock says that it is wrong. Unix, microseconds."""
    return store_us if store_us is not None and abs(own_us - store_us) > MOST_OFF_US else own_us


def latest_us(now_us: int) -> int:
    """The latest time that an entry can truly have."""
    return now_us + MOST_AHEAD_US


def following_us(last_us: int, now_us: int) -> int:
    """The time of what comes after an entry with `last_us`: later, unless that time is false. Then time begins anew."""
    return now_us if last_us > latest_us(now_us) else max(last_us + 1, now_us)


def set_right_us(last_us: int, now_us: int) -> int:
    """`last_us`, or now if it is false."""
    return now_us if last_us > latest_us(now_us) else last_us


def published_by(times: Sequence[int], after_us: int | None = None) -> list[int]:
    """For each of `times`, in publish order, when it was published at the latest: no later than what follows it, and
    than `after_us`, which follows all.
    """
    found = accumulate(reversed(times), min, initial=after_us)  # which begins it, unless it is None
    return [*found][::-1][: len(times)]


# --- seeking ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Seek:
    """A walk in publish order to the first message at or after a time, through the chunks and entries that it is given
    (`tree.offsets_at_time` begins with those of the head). `before`: the offset of each partition below
    which all is older. `unclear`: where the messages with false times end that came after those.
    """

    time_us: int
    latest_us: int | None
    earliest: tuple[int, ...]
    load: LoadChunk
    times: Times | None
    before: dict[int, int] = field(default_factory=dict)
    unclear: dict[int, int] = field(default_factory=dict)

    def is_false(self, time_us: int) -> bool:
        return self.latest_us is not None and time_us > self.latest_us

    def ends_in(self, chunk: Chunk, begin: tuple[int, ...]) -> bool:
        """Whether the walk ends in this chunk, which begins at `begin`; reads those below it that may have the time."""
        for ref, before, after in placed(chunk.chunks, begin):
            if below(after, before, self.earliest):
                continue  # it answers nothing, and may have been collected
            if ref.last_time_us < self.time_us:
                self._passed(enumerate(after))  # also what stood before it
            elif self.is_false(ref.first_time_us):
                self.unclear.update((p, end) for p, end in enumerate(after) if end > at(before, p))
            elif self.ends_in(self.load(ref), before):
                return True
        for entry in chunk.entries:
            # By the slices' own offsets and not by counting: a compacted leaf does without what had been trimmed.
            ends = {piece.partition: piece.end for piece in entry.slices}
            if entry.time_us < self.time_us:
                self._passed(ends.items())
            elif self.is_false(entry.first_time_us):
                self.unclear |= ends
            elif entry.first_time_us >= self.time_us or self._is_within(entry, ends):
                return True
        return False

    def _is_within(self, entry: Entry, ends: Mapping[int, int]) -> bool:
        """Whether the walk ends in a compacted entry that spans the time."""
        self._passed(())
        if self.times is None:
            if not self.is_false(entry.time_us):
                return True
            self.unclear |= ends
            return False
        ended = False
        for partition, end in ends.items():
            mine = [piece for piece in entry.slices if piece.partition == partition]
            offset, found_us = _offset_within(entry, mine, self.time_us, self.earliest[partition], self.times)
            self.before[partition] = offset
            if found_us is not None and not self.is_false(found_us):
                ended = True
            elif found_us is not None:
                self.unclear[partition] = end
        return ended

    def _passed(self, ends: Iterable[tuple[int, int]]) -> None:
        """All messages below these offsets are older, and all that were published before them."""
        self.before |= self.unclear
        self.unclear = {}
        self.before.update(ends)


def _offset_within(
    entry: Entry, mine: Sequence[Slice], time_us: int, earliest: int, times: Times
) -> tuple[int, int | None]:
    """The first offset at or after `time_us` among one partition's slices of a compacted entry, and the time of its
    message; their end and None if there is none. Reads as few of them as halving takes, and none below `earliest`.
    """
    low = next((i for i, piece in enumerate(mine) if piece.end > earliest), len(mine))
    high = len(mine)
    found_us: int | None = None
    while low < high:
        middle = (low + high) // 2
        found = times(entry, mine[middle])
        before = bisect_left(found, time_us)
        if before == len(found):
            low = middle + 1
            continue
        found_us = found[before]
        if before:
            return mine[middle].offset + before, found_us
        high = middle
    return (mine[low].offset, found_us) if low < len(mine) else (mine[-1].end, None)
