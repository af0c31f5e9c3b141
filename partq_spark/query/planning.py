"""What a batch reads and which task reads it: pure decisions over a head and the query's position. No I/O, no
pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.log.layouts import waits
from partq_spark.log.model import Entry, Head, at
from partq_spark.query.settings import Place

# A task costs 5 to 10 ms, a small message next to nothing: so partitions with few messages share tasks. Few, because a
# user's own work per message may be slow and should run side by side.
TASK_ROWS = 100

Positions = Mapping[int, int]
Spans = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much a micro-batch may take; None: no limit. Both hold together."""

    messages: int | None = None
    bytes: int | None = None


def resolve(head: Head, place: Place, option: str, offsets_at: Callable[[int], Sequence[int]]) -> dict[int, int]:
    """The offset of every partition at `place`. `offsets_at` finds a time in the log.

    Raises `Invalid` if the user's offsets do not name exactly the queue's partitions, or lie beyond an end.
    """
    if place.edge == "earliest":
        return dict(enumerate(head.earliest))
    if place.edge == "latest":
        return dict(enumerate(head.next))
    if place.time_us is not None:
        return dict(enumerate(offsets_at(place.time_us)))
    given = place.offsets or {}
    expected = set(range(len(head.next)))
    if set(given) != expected:
        missing, unknown = sorted(expected - set(given)), sorted(set(given) - expected)
        raise Invalid(
            f"option {option} must name every partition of queue {head.queue!r} (0 to {len(head.next) - 1}): "
            f"missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    for partition, offset in given.items():
        if offset > head.next[partition]:
            raise Invalid(
                f"option {option} names offset {offset} of partition {partition}, which ends at "
                f"{head.next[partition]}: "
                "give an offset up to the end"
            )
    return {partition: given[partition] for partition in sorted(given)}


def without_trimmed(
    head: Head, spans: Spans, *, fail_on_data_loss: bool, warn: Callable[[str], None]
) -> dict[int, tuple[int, int]]:
    """`spans` with what has been trimmed taken out, or `ObjectMissing` if that may not be (failOnDataLoss)."""
    result: dict[int, tuple[int, int]] = {}
    for partition, (start, to) in spans.items():
        earliest, end = at(head.earliest, partition), at(head.next, partition)
        if to > end:
            _lose(_beyond_the_end(head, partition, to), fail_on_data_loss, warn)
        elif start < min(to, earliest):
            _lose(_trimmed(head, partition, start, min(to, earliest)), fail_on_data_loss, warn)
        if partition < len(head.next):
            kept = min(to, end)
            result[partition] = (min(max(start, earliest), kept), kept)
    return result


def with_new_partitions(head: Head, reached: Positions) -> dict[int, int]:
    """`reached` for the partitions of `head`: those that it does not name begin at their beginning."""
    return {partition: reached.get(partition, earliest) for partition, earliest in enumerate(head.earliest)}


def continued(
    head: Head, reached: Positions, *, fail_on_data_loss: bool, warn: Callable[[str], None]
) -> dict[int, int]:
    """Where a query goes on, in every partition that the queue has (`with_new_partitions`). No position is outside of
    what the log keeps.

    A position whose next message has been trimmed moves to the earliest one, and one beyond the end (the store was
    restored from an older copy) to the end; either is a loss, `ObjectMissing` if that may not be (failOnDataLoss).
    """
    result = with_new_partitions(head, reached)
    for partition, offset in reached.items():
        earliest, end = at(head.earliest, partition), at(head.next, partition)
        if offset > end:
            _lose(_beyond_the_end(head, partition, offset), fail_on_data_loss, warn)
        elif offset < earliest:
            _lose(_trimmed(head, partition, offset, earliest), fail_on_data_loss, warn)
        if partition in result:
            result[partition] = min(max(offset, earliest), end)
    return result


def barred_ends(head: Head, reached: Positions, ends: Positions) -> dict[int, int]:
    """`ends` as far as the order of keys allows a query that is done with everything below `reached` (RES-03).

    While the count changes, a message waits for those of an earlier layout that it may share its key with. Somebody can
    always go on: what is left of the oldest layout waits for nothing.
    """
    allowed = dict(ends)
    for partition, wait in waits(head, reached, reached).items():
        allowed[partition] = min(allowed[partition], wait.until)
    return allowed


def _trimmed(head: Head, partition: int, start: int, to: int) -> tuple[str, str]:
    return (
        f"offsets {start} to {to} of partition {partition} of queue {head.queue!r} have been trimmed",
        "start again from `earliest`, or set failOnDataLoss=false to skip them",
    )


def _beyond_the_end(head: Head, partition: int, to: int) -> tuple[str, str]:
    end = at(head.next, partition)
    return (
        f"offsets up to {to} of partition {partition} of queue {head.queue!r} are expected, it ends at {end}",
        "was the store restored from an older copy? use a new checkpoint location, or set failOnDataLoss=false",
    )


def _lose(loss: tuple[str, str], fail_on_data_loss: bool, warn: Callable[[str], None]) -> None:
    what, hint = loss
    if fail_on_data_loss:
        raise ObjectMissing(f"{what}: {hint}")
    warn(f"{what}: skipped (failOnDataLoss=false)")


def split(backlog: Mapping[int, int], budget: int) -> dict[int, int]:
    """`budget` messages shared over partitions in proportion to their backlog, whole messages, none beyond its backlog.

    The shares add up to min(budget, total backlog). Every partition with a backlog gets at least one message if the
    budget has that many, so that a busy partition never starves a quiet one (if it has not, `longest_waiting` says who
    is served); what rounding leaves goes to the largest fractions, then backlogs.
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
    starts: Positions, waiting: Iterable[int], count: int, entries: Callable[[Spans], Iterable[Entry]]
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


def limited_by_bytes(starts: Positions, ends: Positions, budget: int, entries: Iterable[Entry]) -> dict[int, int]:
    """How far each partition may be read so that about `budget` stored bytes are read; always at least one message.

    `entries` are those of the log from `starts` on; they are consumed only as far as the budget reaches. The budget is
    shared in proportion to the backlog in messages; a slice that is cut counts as many bytes as its share of rows. The
    message published first of all that wait is always read, whatever its size and its partition's share, so that
    none waits for ever.
    """
    backlog = {partition: ends[partition] - start for partition, start in starts.items() if ends[partition] > start}
    left = {partition: float(share) for partition, share in split_bytes(backlog, budget).items()}
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


def split_bytes(backlog: Mapping[int, int], budget: int) -> dict[int, int]:
    """`budget` bytes shared in proportion to the backlog in messages."""
    total = sum(backlog.values())
    return {partition: budget * size // total for partition, size in backlog.items()}


def batch_ends(
    starts: Positions, ends: Positions, limits: Limits, entries: Callable[[Spans], Iterable[Entry]]
) -> dict[int, int]:
    """Where the next micro-batch ends in every partition. `entries` gives the log's entries for spans, lazily."""
    reached = dict(ends)
    if limits.messages is not None:
        backlog = {partition: ends[partition] - start for partition, start in starts.items()}
        waiting = [partition for partition, size in backlog.items() if size > 0]
        if limits.messages < len(waiting):
            chosen = longest_waiting(starts, waiting, limits.messages, entries)
            shares = {partition: int(partition in chosen) for partition in starts}
        else:
            shares = split(backlog, limits.messages)
        reached = {partition: starts[partition] + share for partition, share in shares.items()}
    if limits.bytes is not None:
        spans = {partition: (start, reached[partition]) for partition, start in starts.items()}
        reached = limited_by_bytes(starts, reached, limits.bytes, entries(spans))
    return reached


def tasks(spans: Spans) -> list[list[int]]:
    """The partitions that have messages, grouped into tasks: each alone, unless several together have few messages."""
    grouped: list[list[int]] = []
    rows = TASK_ROWS
    for partition in sorted(spans):
        start, to = spans[partition]
        if start >= to:
            continue
        if rows + (to - start) > TASK_ROWS:
            grouped.append([])
            rows = 0
        grouped[-1].append(partition)
        rows += to - start
    return grouped
