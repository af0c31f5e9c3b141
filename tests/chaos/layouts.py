"""What changes of the partition count must not do to the order of keys, and how long they made partitions wait. Pure.

Order across partitions cannot be seen in offsets, so here time counts: a batch is planned before Spark writes its
offsets down, and complete when Spark has written its commit down. What was published after a change may be planned only
when everything of its key from before it is complete in some batch (RES-03).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.evidence import Planned, Row, Times
from tests.support.judge import Message, Publications, before_its_key

CLOCK_S = 0.02
"""How far the times of two files may be apart from the order of their making: the file system's clock ticks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A partition count: since when (wall clock, s; 0: from the beginning), and where each of its partitions began."""

    at_s: float
    partitions: int
    begin: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a change of the partition count came to. `pauses_s`: by partition of the new count, from the change to the
    plan of the first batch with a message that was published after it.
    """

    before: int
    after: int
    pauses_s: Mapping[int, float]


def generation_of(row: Row, counts: Sequence[Count]) -> int:
    """Under which of the counts a row was published."""
    having = (
        number
        for number, count in enumerate(counts)
        if row.partition < count.partitions and count.begin[row.partition] <= row.offset
    )
    return max(having, default=0)


def too_early(rows: Sequence[Row], times: Mapping[tuple[str, int], Times]) -> Iterator[str]:
    """Messages that were planned before all of their key that lies in another partition under an earlier count was
    complete. Of one partition a batch may hold messages of both, in their order.
    """
    planned: dict[int, tuple[float, Row]] = {}
    complete_s: dict[int, float] = {}
    for row in rows:
        when = times[row.driver, row.batch]
        planned[row.number] = min(planned.get(row.number, (math.inf, row)), (when.planned_s, row))
        complete_s[row.number] = min(complete_s.get(row.number, math.inf), when.complete_s)
    published = Publications()
    done: dict[str, dict[int, tuple[float, int]]] = defaultdict(dict)  # by key and partition: when, and up to where
    for number in sorted(planned):  # as they were published
        at_s, row = planned[number]
        message, mine = Message(row.partition, row.offset), done[row.key]
        published.add(row.key, message)
        before_s, _ = mine.get(row.partition, (-math.inf, 0))
        mine[row.partition] = max(complete_s[number], before_s), row.offset + 1
        reached = {each: end if by_s <= at_s + CLOCK_S else 0 for each, (by_s, end) in mine.items()}
        yield from (
            f"{row} of key {row.key!r} was planned at {at_s:.3f}: {told}"
            for told in before_its_key(message, published.earlier(message), reached.__getitem__)
        )


def changes(
    planned: Sequence[Planned], counts: Sequence[Count], times: Mapping[tuple[str, int], Times]
) -> Iterator[Change]:
    """Every change, and how long each partition's new messages waited; a partition that got none is left out."""
    for before, after in pairwise(counts):
        following = counts[counts.index(after) + 1 :]
        first_s: dict[int, float] = {}
        for span in planned:
            if span.partition >= after.partitions or span.to <= max(span.start, after.begin[span.partition]):
                continue
            until = next((each.begin[span.partition] for each in following if span.partition < each.partitions), None)
            if until is not None and span.start >= until:
                continue  # of a later count
            at_s = times[span.driver, span.batch].planned_s
            first_s[span.partition] = min(first_s.get(span.partition, math.inf), at_s)
        pauses_s = {partition: max(at_s - after.at_s, 0.0) for partition, at_s in sorted(first_s.items())}
        yield Change(before=before.partitions, after=after.partitions, pauses_s=pauses_s)
