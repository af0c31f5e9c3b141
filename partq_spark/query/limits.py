"""How much a micro-batch takes of each partition: limits in messages and bytes, and how much a flow may have
unacknowledged. Pure arithmetic over backlogs and the log's entries; where a batch begins is decided in `planning`.

Every rule here keeps one promise: no message waits for ever because others are before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from partq_spark.log.model import Entry

PartitionOffsets = Mapping[int, int]
Ranges = Mapping[int, tuple[int, int]]
"""By partition, half-open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unacknowledged:
    """Messages that the flow has delivered and not acknowledged, for each of its partitions, and how many it may have
    in all (`maxDeliveredUnackedMsgsPerFlow`).
    """

    bound: int
    in_hand: Mapping[int, int]

    @property
    def room(self) -> int:
        """How many more in all."""
        return max(self.bound - sum(self.in_hand.values()), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """How much a micro-batch may take; None: no limit. All hold together."""

    messages: int | None = None
    bytes: int | None = None
    unacknowledged: Unacknowledged | None = None


def split(backlog: Mapping[int, int], budget: int) -> dict[int, int]:
    """`budget` messages shared over partitions in proportion to their backlog, whole messages, none beyond its backlog.

    The shares add up to min(budget, total backlog). Every partition with a backlog gets at least one message if the
    budget has that many, so that a busy partition never starves a quiet one (if it has not, `longest_waiting` says
    which one is served); what rounding leaves goes to the largest fractions, then backlogs.
    """
    total = sum(backlog.values())
    if total <= budget:
        return dict(backlog)
    waiting = [partition for partition, size in backlog.items() if size]
    first = 1 if budget >= len(waiting) else 0
    total -= first * len(waiting)
    budget -= first * len(waiting)
    rest = {partition: backlog[partition] - first for partition in waiting}
    shares = {partition: budget * size // total for partition, size in rest.items()}
    left = budget - sum(shares.values())
    order = sorted(rest, key=lambda p: (-(budget * rest[p] % total), -rest[p], p))
    for partition in order[:left]:
        shares[partition] += 1
    return {partition: shares[partition] + first if size else 0 for partition, size in backlog.items()}


def longest_waiting(
    starts: PartitionOffsets, waiting: Iterable[int], count: int, entries: Callable[[Ranges], Iterable[Entry]]
) -> frozenset[int]:
    """Those `count` of the partitions in `waiting` whose next message was published first; what one publish brought is
    taken in turns, the partition of which least was read first.

    The log and the query's position say it all, so a restart chooses the same. No message waits for ever: before it
    come only those of the same publish and of earlier ones, and these are not more than there are now. `entries` is
    asked for one message of each partition, and read only as far as needed.
    """
    found: dict[int, None] = {}  # in the order in which they were found
    for entry in entries({partition: (starts[partition], starts[partition] + 1) for partition in waiting}):
        for piece in sorted(entry.slices, key=lambda piece: (starts[piece.partition] - piece.offset, piece.partition)):
            found[piece.partition] = None
        if len(found) >= count:
            break
    return frozenset(list(found)[:count])


def limited_by_bytes(
    starts: PartitionOffsets, ends: PartitionOffsets, budget: int, entries: Iterable[Entry]
) -> dict[int, int]:
    """How far each partition may be read so that about `budget` stored bytes are read; always at least one message.

    `entries` are those of the log from `starts` on; they are consumed only as far as the budget reaches. The budget is
    shared in proportion to the backlog in messages; a slice that is cut counts as many bytes as its share of rows. The
    message published first of all that wait is always read, whatever its size and its partition's share, so that
    none waits for ever.
    """
    backlog = {partition: ends[partition] - start for partition, start in starts.items() if ends[partition] > start}
    total = sum(backlog.values())
    left = {partition: float(budget * size // total) for partition, size in backlog.items()}
    reached = dict(starts)
    open_partitions = set(backlog)
    oldest = 1
    for entry in entries:
        for piece in entry.slices:
            partition = piece.partition
            if partition not in open_partitions:
                continue
            first, to = max(piece.offset, reached[partition]), min(piece.end, ends[partition])
            row_bytes = piece.length / piece.rows
            taken = min(to - first, max(oldest, int(left[partition] / row_bytes)))
            oldest = 0
            reached[partition] = first + taken
            left[partition] -= taken * row_bytes
            if taken < to - first or reached[partition] >= ends[partition]:
                open_partitions.discard(partition)
        if not open_partitions:
            break
    return reached


def batch_ends(
    starts: PartitionOffsets, ends: PartitionOffsets, limits: BatchLimits, entries: Callable[[Ranges], Iterable[Entry]]
) -> dict[int, int]:
    """Where the next micro-batch ends in every partition. `entries` gives the log's entries for spans, lazily."""
    most, unacknowledged = limits.messages, limits.unacknowledged
    if unacknowledged is not None:
        ends = window_ends(starts, ends, unacknowledged)
        most = unacknowledged.room if most is None else min(most, unacknowledged.room)
    reached = dict(ends)
    if most is not None:
        backlog = {partition: ends[partition] - start for partition, start in starts.items()}
        waiting = [partition for partition, size in backlog.items() if size > 0]
        if most < len(waiting):
            chosen = longest_waiting(starts, waiting, most, entries)
            shares = {partition: int(partition in chosen) for partition in starts}
        else:
            shares = split(backlog, most)
        reached = {partition: starts[partition] + share for partition, share in shares.items()}
    if limits.bytes is not None:
        spans = {partition: (start, reached[partition]) for partition, start in starts.items()}
        reached = limited_by_bytes(starts, reached, limits.bytes, entries(spans))
    return reached


def windows(bound: int, in_hand: Mapping[int, int], backlog: Mapping[int, int]) -> dict[int, int]:
    """How many more messages each partition of `backlog` may have in hand, out of `bound` for the whole flow (HAN-12).

    An equal share for each partition that the flow has (`in_hand` names them all), so that one whose messages nobody
    acknowledges does not use up the others' part; what division leaves goes to the longest backlogs. Where a share is
    less than a message, those that wait with nothing in hand have one each before that, if it is enough for them.
    """
    share, rest = divmod(bound, max(len(in_hand), 1))
    rest -= sum(max(count - share, 0) for count in in_hand.values())
    result = {partition: max(share - in_hand.get(partition, 0), 0) for partition in backlog}
    first = _with_nothing_in_hand(in_hand, backlog) if share == 0 else ()
    if len(first) <= rest:
        result.update(dict.fromkeys(first, 1))
        rest -= len(first)
    for partition in sorted(backlog, key=lambda p: (result[p] - backlog[p], p)):
        more = min(backlog[partition] - result[partition], rest)
        if more > 0:
            result[partition] += more
            rest -= more
    return result


def window_ends(starts: Mapping[int, int], ends: Mapping[int, int], unacknowledged: Unacknowledged) -> dict[int, int]:
    """`ends` as far as the windows of the partitions reach.

    If there is not a message for each of those that wait with nothing in hand, all of them may have one, and the room
    that is left in all bounds how many do: then `longest_waiting` chooses, so that none waits for ever.
    """
    if not unacknowledged.in_hand:
        return dict(ends)  # without a group: what one batch takes is bounded, and nothing else is in hand
    backlog = {p: ends[p] - start for p, start in starts.items()}
    first = _with_nothing_in_hand(unacknowledged.in_hand, backlog)
    if unacknowledged.bound < len(unacknowledged.in_hand) and unacknowledged.room < len(first):
        return {p: start + int(p in first) for p, start in starts.items()}
    more = windows(unacknowledged.bound, unacknowledged.in_hand, backlog)
    return {p: start + min(backlog[p], more[p]) for p, start in starts.items()}


def _with_nothing_in_hand(in_hand: Mapping[int, int], backlog: Mapping[int, int]) -> frozenset[int]:
    return frozenset(p for p, size in backlog.items() if size > 0 and not in_hand.get(p))
