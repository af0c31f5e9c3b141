"""A consumer group as its queue has it: where its checkpoints lie, how far it is by them (`GroupProgress`), and, for
its flows, one life of it (`GroupInQueue`): a group may be removed and made again under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group.checkpoint import UNBOUNDED, Checkpoint, acknowledged_to, done_to, is_without_offset
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey
from partq_spark.log import admin, layouts
from partq_spark.log.groups import removed, require_group
from partq_spark.log.model import Group, Head, at, group_start
from partq_spark.log.names import checked_name
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import ObjectStore


def key_of(queue: QueueLog, group: str) -> GroupKey:
    """The group of this name of a queue. Raises `Invalid` for a name that no group can have."""
    return GroupKey(queue.namespace, queue.name, checked_name("group", group))


def checkpoints_of(queue: QueueLog, group: str, head: Head | None = None) -> CheckpointStore:
    """The checkpoints of a group as `head` has it, or else as the queue's handle last saw it; of one that is not there
    none counts.
    """
    head = head if head is not None else queue.head
    found = head.groups.get(group)
    since = found.since_sequence if found is not None else head.sequence + 1
    return CheckpointStore(queue.store, key_of(queue, group), head.queue_id, since=since)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupProgress:
    """One look. The checkpoints were read after the head. Of a partition whose checkpoint is `damaged` nothing is known
    but where the group begins; what is void counts as absent.
    """

    head: Head
    group: Group
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)
    damaged: Mapping[int, Corrupt] = field(default_factory=dict)

    def start(self, partition: int) -> int:
        """Where the group begins; 0 if somebody may have gone back behind that, and nothing says how far."""
        is_known = partition not in self.damaged or self.group.rewinds == 0
        return group_start(self.group, partition) if is_known else 0

    def acknowledged(self, partition: int) -> int:
        """The offset before which everything is acknowledged for good."""
        return acknowledged_to(self.checkpoints.get(partition), self.start(partition))

    def done(self, partition: int) -> int:
        """The same for those who wait for the partition."""
        return done_to(self.checkpoints.get(partition), self.start(partition))

    def left(self, partition: int) -> tuple[int, int]:
        """What is not acknowledged and can still be read: offsets from, to."""
        end = at(self.head.next, partition)
        return min(max(self.acknowledged(partition), at(self.head.earliest, partition)), end), end

    @property
    def done_of_all(self) -> dict[int, int]:
        """By partition, present or removed."""
        return {partition: self.done(partition) for partition in range(len(self.head.next))}

    @property
    def without_offsets(self) -> frozenset[int]:
        """Partitions whose owners write no acknowledgement down (`checkpoints=none`)."""
        return frozenset(number for number, each in self.checkpoints.items() if is_without_offset(each))


def progress_of(queue: QueueLog, name: str, head: Head | None = None) -> GroupProgress:
    """How far a group is, by `head`, or else by the head that the queue's handle saw last. Raises `Invalid` for a group
    that there is not, `Unavailable`.
    """
    head = head if head is not None else queue.head
    group = admin.group_of(queue, head, name)
    found, damaged = checkpoints_of(queue, name, head).list_readable()
    return GroupProgress(head=head, group=group, checkpoints=found, damaged=damaged)


class GroupInQueue:
    """The group `name` of the queue as `queue` saw its head last. Raises `Invalid` if that has it no more."""

    def __init__(self, queue: QueueLog, name: str) -> None:
        self.key = GroupKey(queue.namespace, queue.name, name)
        found = queue.head.groups.get(name)
        if found is None:
            raise Invalid(removed(self.key, "nothing begins"))
        self._group = found
        self._queue = queue
        self.queue_id = queue.head.queue_id

    def __str__(self) -> str:
        return str(self.key)

    @property
    def since(self) -> int:
        """The sequence number of the head that it was made with."""
        return self._group.since_sequence

    @property
    def seen(self) -> Head:
        """The head as it was read last."""
        return self._queue.head

    def head(self, flow: str) -> Head:
        """The head, now, for a flow of this life of the group. Raises `Invalid` if the group is gone, or the queue, and
        `Fenced` if another one was made under the name since.
        """
        now = self._queue.require(self.queue_id)
        require_group(now, self.key.group, self.since, f"flow {flow!r} ends")
        return now

    def start_of(self, partition: int) -> int:
        """Where the group begins in a partition."""
        return group_start(self._group, partition)

    def end_of(self, partition: int) -> int:
        """Where a partition that leaves the queue ends; the others do not."""
        return layouts.leaving(self.seen).get(partition, UNBOUNDED)

    def checkpoints(self, store: ObjectStore, effects: Effects | None = None) -> CheckpointStore:
        """Its checkpoints, by way of this store."""
        return CheckpointStore(store, self.key, self.queue_id, since=self.since, effects=effects)
