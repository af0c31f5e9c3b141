"""Which of the tree's references are worth compacting: decided from them alone, without reading a chunk. No I/O.

A message is written anew only where its slice becomes at least `LogSizes.slice_gain` times as large, so a logarithmic
number of times in its life; and a step has a bound, however long the history is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partq_spark.log.clocks import published_by
from partq_spark.log.model import ChunkRef, add, at, placed
from partq_spark.log.names import LOG_SIZES, LogSizes


class ChunkRun(NamedTuple):
    """Neighbouring references of a head that are to become one. `begin`: the offset of each partition at which they
    begin.
    """

    refs: tuple[ChunkRef, ...]
    begin: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """What one step may take on. `until_us`: nothing that was published after it (Unix, microseconds)."""

    until_us: int
    longest_us: int | None = None  # from the first to the last message of a run
    sizes: LogSizes = LOG_SIZES

    def allow(self, refs: Sequence[ChunkRef]) -> bool:
        """Whether `refs` can be compacted in one step."""
        slices, size = sum(ref.slices for ref in refs), sum(ref.bytes for ref in refs)
        if slices > self.sizes.step_slices or size > self.sizes.step_bytes:
            return False
        span_us = refs[-1].last_time_us - min(ref.first_time_us for ref in refs)
        return self.longest_us is None or span_us <= self.longest_us


# --- deciding ---------------------------------------------------------------------------------------------------------


def choose(
    refs: Sequence[ChunkRef],
    begin: tuple[int, ...],
    earliest: tuple[int, ...],
    limits: RunLimits,
    skip: Collection[str] = (),
) -> ChunkRun | None:
    """The run of `refs` that saves most slices; None: none is worth it. `begin`: the offsets at which they begin.

    A run is worth it if the average slice of everything in it becomes `slice_gain` times as large. Where none is, a
    single reference that is too large for a step, or holds large and small slices, is an answer too: what it leads to
    may be worth it (`fits`).
    `skip`: names of references that were tried.
    """
    spans = list(placed(refs, begin))
    times = published_by([ref.last_time_us for ref in refs])
    may_go = [
        # What cannot be read any more may have been collected.
        time_us <= limits.until_us
        and ref.name not in skip
        and any(at(after, p) > max(at(before, p), offset) for p, offset in enumerate(earliest))
        for (ref, before, after), time_us in zip(spans, times, strict=True)
    ]
    best, best_saved, other = None, 0, None
    for first in range(len(refs)):
        rows: tuple[int, ...] = ()
        size = held = 0
        for last in range(first, len(refs)):
            run = tuple(refs[first : last + 1])
            if not may_go[last] or (last > first and not limits.allow(run)):
                break
            rows = add(rows, refs[last].rows)
            size, held = size + refs[last].bytes, held + refs[last].messages
            after = _slices_after(rows, size / max(held, 1), limits.sizes)
            saved = sum(ref.slices for ref in run) - after
            if saved <= best_saved:
                continue
            if limits.allow(run) and _gains(run, sum(rows), after, limits.sizes):
                best, best_saved = ChunkRun(run, spans[first][1]), saved
            elif first == last and other is None and _may_hold(run[0], after, limits.sizes):
                other = ChunkRun(run, spans[first][1])
    return best or other


def fits(run: Sequence[ChunkRef], limits: RunLimits) -> bool:
    """Whether a run is worth it as it is, and can be compacted in one step."""
    rows: tuple[int, ...] = ()
    for ref in run:
        rows = add(rows, ref.rows)
    each = sum(ref.bytes for ref in run) / max(sum(ref.messages for ref in run), 1)
    return limits.allow(run) and _gains(run, sum(rows), _slices_after(rows, each, limits.sizes), limits.sizes)


def _gains(run: Sequence[ChunkRef], messages: int, after: int, sizes: LogSizes) -> bool:
    """Whether also the coarsest of it becomes `slice_gain` times as coarse."""
    return messages >= sizes.slice_gain * after * max(ref.coarsest for ref in run)


def _may_hold(ref: ChunkRef, after: int, sizes: LogSizes) -> bool:
    """Whether something inside of a reference may be worth it."""
    return ref.level > 0 and ref.slices >= sizes.slice_gain * after


def _slices_after(rows: Sequence[int], each: float, sizes: LogSizes) -> int:
    """About how many slices it would become, if all messages have about `each` bytes."""
    most = max(rows, default=0)
    messages, size = sizes.slice_messages, sizes.slice_bytes
    if most <= messages and most * each <= size:
        return len(rows) - rows.count(0)  # the usual case, and fast: there may be a thousand partitions
    return sum(max(math.ceil(r / messages), math.ceil(r * each / size)) for r in rows if r)
