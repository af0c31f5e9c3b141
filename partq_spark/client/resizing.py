"""What a change of a queue's partition count would mean, before it is made: which partitions come and go, how many keys
move, and what each group has to acknowledge first. Nothing is written here, and there are no words for people but
errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from partq_spark.group.lifecycle import GroupProgress, progress_of
from partq_spark.log import layouts, tree
from partq_spark.log.model import Head, at
from partq_spark.log.queue import QueueLog
from partq_spark.query import limits

SAMPLE_MESSAGES = 10_000
SAMPLE_BYTES = 64 * 1024 * 1024  # of messages; keys lie beside values, so a sample reads both


@dataclass(frozen=True, kw_only=True, slots=True)
class KeySample:
    """The keys of some of the newest messages: `keys_that_move` of the `keys` have another partition under the new
    count.
    """

    messages: int
    without_key: int
    keys: int
    keys_that_move: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """A partition of which a group has something left that was published before the change."""

    partition: int
    acknowledged: int
    end: int  # of what was published before
    messages: int  # left, without those that have been trimmed


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionWait:
    """What is published after the change to `partition` is delivered when these others are acknowledged."""

    partition: int
    waits_for: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """What one group has to acknowledge `first`, `messages` in all, and what waits for what until then.

    `unreadable_checkpoints`: partitions whose checkpoint cannot be read; they count from where the group begins.
    """

    group: str
    messages: int
    first: tuple[Drain, ...]
    waits: tuple[PartitionWait, ...]
    unreadable_checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CountChange:
    """Another number of partitions: which numbers come, and which go when they are delivered to their end."""

    from_: int
    to: int
    new: tuple[int, ...]
    removed: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizePlan:
    """A change of the partition count, as it would be now."""

    partitions: CountChange
    sample: KeySample
    groups: tuple[GroupPlan, ...]


def planned_resize(
    queue: QueueLog, partitions: int, *, sample_messages: int = SAMPLE_MESSAGES, sample_bytes: int = SAMPLE_BYTES
) -> ResizePlan:
    """What altering `queue` to `partitions` would do, by its head, its groups' checkpoints and some of its newest
    messages.

    Raises `Invalid` as altering does, and as reading the log does.
    """
    head = queue.refresh()
    changed = layouts.resized(head, partitions)
    return ResizePlan(
        partitions=count_change(head.partitions, partitions),
        sample=queue.settled(
            lambda now: sample_of(_newest_keys(queue, sample_messages, sample_bytes), now.partitions, partitions)
        ),
        groups=group_plans(queue, changed),
    )


def group_plans(queue: QueueLog, head: Head) -> tuple[GroupPlan, ...]:
    """What every group of `head` has left of earlier layouts, by its checkpoints; `head` may be one that is to come."""
    return tuple(_group_plan_of(queue, head, name) for name in sorted(head.groups))


def _group_plan_of(queue: QueueLog, head: Head, name: str) -> GroupPlan:
    progress = progress_of(queue, name, head)
    return group_plan(head, name, acknowledged(progress), unread=sorted(progress.damaged))


# --- pure -------------------------------------------------------------------------------------------------------------


def count_change(before: int, after: int) -> CountChange:
    """Which partitions come and go."""
    return CountChange(from_=before, to=after, new=tuple(range(before, after)), removed=tuple(range(after, before)))


def acknowledged(progress: GroupProgress) -> dict[int, int]:
    """How far a group is in every partition, as those see it who wait for it."""
    earliest = progress.head.earliest
    return {partition: max(done, at(earliest, partition)) for partition, done in progress.done_of_all.items()}


def group_plan(head: Head, group: str, done: Mapping[int, int], *, unread: Sequence[int] = ()) -> GroupPlan:
    """What is left of the earlier layouts of `head` for a group that has acknowledged `done`."""
    ends: dict[int, int] = {}
    for left in layouts.unfinished(head, done).values():
        for partition, end in left.items():
            ends[partition] = max(end, ends.get(partition, 0))
    # Of what comes after the change: as if everything that lies in the partitions now had been delivered.
    waits = layouts.waits(head, done, {partition: at(head.next, partition) for partition in range(head.partitions)})
    first = tuple(
        Drain(partition=partition, acknowledged=done[partition], end=end, messages=end - done[partition])
        for partition, end in sorted(ends.items())
    )
    return GroupPlan(
        group=group,
        messages=sum(each.messages for each in first),
        first=first,
        waits=tuple(
            PartitionWait(partition=partition, waits_for=tuple(sorted(wait.waits_for)))
            for partition, wait in sorted(waits.items())
        ),
        unreadable_checkpoints=tuple(unread),
    )


def sample_of(keys: Iterable[bytes | None], before: int, after: int) -> KeySample:
    """What of these messages' keys moves from `before` to `after` partitions."""
    from partq_spark.log.partitioner import partition_of

    distinct: set[bytes] = set()
    messages = without_key = 0
    for key in keys:
        messages += 1
        if key is None:
            without_key += 1
        else:
            distinct.add(key)
    moving = sum(partition_of(key, before) != partition_of(key, after) for key in distinct)
    return KeySample(messages=messages, without_key=without_key, keys=len(distinct), keys_that_move=moving)


# --- the sample -------------------------------------------------------------------------------------------------------


def _newest_keys(queue: QueueLog, most_messages: int, most_bytes: int) -> Iterable[bytes | None]:
    """The keys of the newest messages of every partition, in proportion to what it holds."""
    import pyarrow as pa

    from partq_spark.log.reading import RangeReader
    from partq_spark.log.schema.keys import keys_of

    head = queue.head
    shares = limits.split(
        {partition: end - at(head.earliest, partition) for partition, end in enumerate(head.next)}, most_messages
    )
    wanted = {partition: (head.next[partition] - share, head.next[partition]) for partition, share in shares.items()}
    size_bytes = 0
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted), fail_on_data_loss=False).pieces():
        yield from keys_of(piece.batch, head.columns).cast(pa.binary()).to_pylist()
        size_bytes += piece.batch.nbytes
        if size_bytes >= most_bytes:
            return
