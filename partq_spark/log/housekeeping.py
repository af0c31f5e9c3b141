"""Trimming messages away, and collecting objects that nothing refers to any more.

Trimming moves earliest offsets in the head, up to what the groups need. How far groups are is an argument: the log
knows no checkpoints (`partq_spark.group.retention`).

Collection deletes blobs, and must never take one that a sleeping publisher or a reader with an old plan still needs:
(1) a floor in the head refuses publishes staged too long ago, so a blob below it that the head does not name can never
be named again; (2) what is found unnamed is only marked, and deleted one grace later, for the readers' sake. Each round
has its own marks, which ripen by themselves: objects that come faster than one round takes them are taken by the next,
not a grace later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.log import clocks, codec, layouts, names, tree
from partq_spark.log.codec import Marked, Marks
from partq_spark.log.model import Chunk, ChunkRef, Group, Head, StageFloor, at, group_start
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.objects.retrying import Register

GRACE_S = 24 * 3600.0
ROUNDS_PER_GRACE = 16
"""Rounds marked less than a grace ago that are kept apart: more frequent rounds share their marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What one round of collection did. `marked` blobs, of this round and those before, are deleted by rounds at least
    one grace after their marking.
    """

    deleted: int
    deleted_bytes: int
    marked: int
    floor_sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPositions:
    """How far a group has acknowledged, as somebody read it: by partition, the offset before which it needs nothing.

    `since_sequence` and `rewinds` are those of the group in the head that was read before: what was read counts for
    that group and for that number of rewinds, and for no other.
    """

    since_sequence: int
    rewinds: int
    offsets: Mapping[int, int]


Acknowledged = Mapping[str, GroupPositions]
"""By the group's name. A group that is not in it needs everything from its start on."""


def held_back_by(group: Group, known: GroupPositions | None, partition: int) -> int:
    """The first offset of a partition that a group needs: its start, or what it has acknowledged where that is known
    of this very group. One that was rewound may have gone back behind its start.
    """
    if known is None or not still_counts(group, known):
        return group_start(group, partition) if group.rewinds == 0 else 0
    return known.offsets.get(partition, group_start(group, partition))


def still_counts(group: Group, known: GroupPositions) -> bool:
    """Guard: the group has not been rewound, or removed and made again, since its checkpoints were read.

    A rewind moves the checkpoints first and is counted in the head then. So a trim that lands between the two may take
    what is to come again (the rewind looks, and says so), but never after it was counted.
    """
    return group.since_sequence == known.since_sequence and group.rewinds == known.rewinds


def held_back_at(head: Head, acknowledged: Acknowledged | None = None) -> tuple[int, ...]:
    """Per partition, the offset that the slowest group still needs; the end where there is no group."""
    held = head.next
    for name, group in head.groups.items():
        known = (acknowledged or {}).get(name)
        held = tuple(min(offset, held_back_by(group, known, partition)) for partition, offset in enumerate(held))
    return held


def trim(queue: QueueLog, before: Sequence[int], acknowledged: Acknowledged | None = None) -> Head:
    """Make messages below `before` (one offset per partition) unreadable; never beyond the end or what a group needs.

    `acknowledged`: what is known of the groups. Returns the new head. Offsets that are below the present earliest ones
    change nothing, and a partition number that came meanwhile keeps all it has.
    """
    if len(before) != len(queue.head.next):
        raise Invalid(f"trim was given {len(before)} offsets, {queue} has {len(queue.head.next)} partitions")

    def decide(head: Head) -> Head:
        held_at = held_back_at(head, acknowledged)
        earliest = tuple(
            max(now, min(at(offsets, partition), held))
            for partition, (now, held) in enumerate(zip(head.earliest, held_at, strict=True))
        )
        if earliest == head.earliest:
            return head
        gone = tree.tokens_gone_until(head, earliest)
        trimmed = replace(head, earliest=earliest, trimmed_sequence=gone)
        return layouts.without_trimmed_layouts(tree.pruned(trimmed))

    offsets = tuple(before)
    return queue.change(decide)


def collect(queue: QueueLog, *, grace_s: float = GRACE_S) -> Collected:
    """One round: raise the floor, delete what earlier rounds marked, mark what is new. Any number may run at once.

    Deletes nothing before the second round, and nothing that was marked less than `grace_s` ago by `QueueLog.now_us`.
    Marks at most `LogSizes.marks_per_round` objects, deletes at most as many; the next round goes on.
    """
    grace_us = int(grace_s * 1_000_000)
    raise_floor(queue, grace_us)
    # Of this head or a later one, no publish can name a blob staged below this head's floor unless this head names it.
    head, now_us, named = queue.settled(lambda head: (head, queue.now_us(), reachable(queue, head)))
    unnamed = {
        item.name.removeprefix(folder): item.size_bytes
        for folder in (queue.segment_folder, queue.log_folder)
        for item in queue.store.list(folder)
        if below_floor(item.name, head) and item.name not in named
    }
    register = _marks(queue)
    marks = register.read() or Marks(rounds=())
    grown = [name for marked in marks.rounds if ripe(marked.time_us, now_us, grace_us) for name in marked.names]
    due = sorted(marks_due(grown, unnamed))[: queue.sizes.marks_per_round]
    for name in due:
        queue.store.delete(queue.blob_path(name))
    left = marked_anew(marks, {*unnamed}.difference(due), now_us, grace_us, queue.sizes)
    if left != marks:
        with suppress(Conflict):  # another collector's round is as good as this one
            register.swap(left)
    return Collected(
        deleted=len(due),
        deleted_bytes=sum(unnamed[name] for name in due),
        marked=left.count,
        floor_sequence=head.floor.sequence,
    )


def marked_anew(marks: Marks, unnamed: Set[str], now_us: int, grace_us: int, sizes: LogSizes) -> Marks:
    """The marks of what is still there and unnamed, and a round of what is newly so; bounded in names and rounds.

    A new round begins a sixteenth of a grace after the last, however often one collects. So there are at most 17 that
    are not ripe, and what is ripe keeps its time until it is deleted.
    """
    kept = (
        Marked(
            time_us=clocks.set_right_us(marked.time_us, now_us), names=tuple(n for n in marked.names if n in unnamed)
        )
        for marked in marks.rounds
    )
    rounds = tuple(marked for marked in kept if marked.names)
    if rounds and not ripe(rounds[-1].time_us, now_us, grace_us // ROUNDS_PER_GRACE):
        return Marks(rounds=rounds)
    known = {name for marked in rounds for name in marked.names}
    room = max(min(sizes.marks_per_round, sizes.marks - len(known)), 0)
    new = sorted(unnamed - known)[:room]
    return Marks(rounds=(*rounds, Marked(time_us=now_us, names=tuple(new)))) if new else Marks(rounds=rounds)


def raise_floor(queue: QueueLog, grace_us: int) -> Head:
    """Guard: the floor becomes a sequence number that was already in force one grace ago, never a younger one.

    On the way a false time of the head's is set right, for a queue that nobody publishes to any more.
    """

    def decide(head: Head) -> Head:
        # The time is taken after the head was read: its sequence number was in force by then, however long either took.
        floor, now_us = head.floor, queue.now_us()
        time_us = clocks.set_right_us(head.time_us, now_us)
        if clocks.set_right_us(floor.next_time_us, now_us) != floor.next_time_us:
            # Noted by a clock that was wrong: how long ago nobody knows, so the grace begins now.
            floor = StageFloor(sequence=floor.sequence, next_sequence=head.sequence, next_time_us=now_us)
        elif ripe(floor.next_time_us, now_us, grace_us):
            floor = StageFloor(sequence=floor.next_sequence, next_sequence=head.sequence, next_time_us=now_us)
        if floor == head.floor and time_us == head.time_us:
            return head
        return replace(head, time_us=time_us, floor=floor)

    return queue.change(decide)


def ripe(since_us: int, now_us: int, grace_us: int) -> bool:
    """Guard: one grace has passed since `since_us`."""
    return since_us + grace_us <= now_us


def below_floor(name: str, head: Head) -> bool:
    """Guard: only what was staged below the floor may be taken for abandoned."""
    staged = names.staged_at(name)
    return staged is not None and staged < head.floor.sequence


def marks_due(marks: Sequence[str], unnamed: Mapping[str, int]) -> frozenset[str]:
    """Guard: what was marked and is still not named. A mark alone is not enough, and being unnamed alone is not
    either.
    """
    return frozenset(name for name in marks if name in unnamed)


def reachable(queue: QueueLog, head: Head) -> set[str]:
    """The names of all objects that `head` leads to: chunks, writer pages, segments with a message that can be read."""
    wanted = {p: (head.earliest[p], head.next[p]) for p in range(len(head.next))}
    chunks: set[str] = set()
    result: set[str] = set()

    def load(ref: ChunkRef) -> Chunk:
        chunks.add(ref.name)
        return queue.load_chunk(ref)

    for entry in tree.walk(tree.view(head, wanted), load):
        result |= {queue.segment_folder + entry.segments[piece.segment] for piece in entry.slices}
    result |= {queue.log_folder + name for name in chunks}
    result |= {queue.log_folder + page.name for page in head.writer_pages}
    # The references that the head itself holds stay whatever their offsets: unknown outcomes are settled through them.
    result |= {queue.log_folder + ref.name for ref in head.tree}
    return result


def _marks(queue: QueueLog) -> Register[Marks]:
    name = queue.log_folder + names.MARKS
    return Register(
        queue.store,
        name,
        what=f"what collection has marked in {queue}",
        decode=lambda document: codec.MARKS.open(document.body, name),
        encode=codec.MARKS.seal,
    )
