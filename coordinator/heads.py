"""The queues of a namespace as their heads show them, and what a coordinator has to know of each group in them.

A head is read, used and kept as the bytes that it was, for metrics: some 50 kB a queue. `Heads` is safe for use by
several threads, each on another queue.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.due_housekeeping import QueueFacts, queue_facts
from partq_spark.base.errors import Invalid
from partq_spark.group.model import AccessType, GroupKey, GroupSettings
from partq_spark.log import layouts, names
from partq_spark.log.codec import decode_head
from partq_spark.log.groups import group_kind
from partq_spark.log.model import Group, Head, group_start
from partq_spark.objects.api import Document, ObjectStore, Unchanged


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """A group as the head of its queue has it. `starts`: where each partition begins for it, where nothing is
    acknowledged yet. `leaving`: partitions that the queue does not have any more, and where they end, if the group has
    something to deliver of them; the runtime adds those that are not finished to `partitions`.

    `rewinds` grows whenever checkpoints of it were rewound, or the group was removed and made again: each of that takes
    a sequence number of the head, so that the sum of both numbers never comes again.
    """

    queue_id: str
    settings: GroupSettings
    partitions: tuple[int, ...]
    starts: Mapping[int, int]
    since: int = 0  # the sequence number of the head that the group was made with
    rewinds: int = 0
    leaving: Mapping[int, int] = field(default_factory=dict)


def group_facts(head: Head, group: Group) -> GroupFacts:
    """The facts of one of the head's groups."""
    starts = {partition: group_start(group, partition) for partition in range(len(head.next))}
    leaving = layouts.leaving(head)
    if group.rewinds == 0:  # else somebody may have gone back behind the group's start
        leaving = {number: end for number, end in leaving.items() if starts[number] < end}
    return GroupFacts(
        queue_id=head.queue_id,
        settings=GroupSettings(
            rebalance_delay_s=head.config.rebalance_delay_s,
            max_handoff_time_s=head.config.max_handoff_time_s,
            access_type=AccessType(head.config.access_type),
        ),
        partitions=tuple(range(head.partitions)),
        starts=starts,
        leaving=leaving,
        since=group.since_sequence,
        rewinds=group.since_sequence + group.rewinds,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    document: Document
    queue: QueueFacts
    groups: Mapping[GroupKey, GroupFacts] = field(default_factory=dict)


class Heads:
    """What was last seen of each queue."""

    def __init__(self, store: ObjectStore, namespace: str, *, ownership: str | None = None) -> None:
        """`ownership`: where groups keep who has what; those that are shared in another way are not seen."""
        self._store = store
        self.namespace = namespace
        self._kind = group_kind(ownership) if ownership is not None else None
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def groups(self) -> dict[GroupKey, GroupFacts]:
        """All groups of all queues, as last seen."""
        with self._lock:
            seen = list(self._seen.values())
        return {key: facts for each in seen for key, facts in each.groups.items()}

    def facts(self) -> dict[str, QueueFacts]:
        """What housekeeping has to know of all queues, as last seen."""
        with self._lock:
            return {queue: each.queue for queue, each in self._seen.items()}

    def documents(self) -> dict[str, Document]:
        """The heads of all queues, as last seen."""
        with self._lock:
            return {queue: each.document for queue, each in self._seen.items()}

    def queues(self) -> list[str]:
        """The queues to look at: those that are there by their folders, and those that were. Raises as the store."""
        present = list(filter(names.is_name, self._store.list_folders(f"{self.namespace}/")))
        with self._lock:
            return [*present, *(self._seen.keys() - set(present))]

    def look(self, queue: str) -> None:
        """Look at one head, by a conditional read. Raises `Unavailable`, `Corrupt`: then the former look stands."""
        name = names.head_name(self.namespace, queue)
        with self._lock:
            before = self._seen.get(queue)
        document = self._store.load(name, known=before.document.etag if before is not None else None)
        if isinstance(document, Unchanged):
            return
        if document is None:
            with self._lock:
                self._seen.pop(queue, None)
            return
        head = decode_head(document.body, name)
        groups = {
            GroupKey(self.namespace, queue, group): group_facts(head, made)
            for group, made in head.groups.items()
            if self._kind is None or made.ownership in (None, self._kind)
        }
        with self._lock:
            self._seen[queue] = _Seen(document=document, queue=queue_facts(head), groups=groups)

    def now(self, key: GroupKey) -> GroupFacts:
        """One group, looked at now. Raises as `look`, and `Invalid` if the group is gone."""
        self.look(key.queue)
        with self._lock:
            seen = self._seen.get(key.queue)
        if seen is None or key not in seen.groups:
            raise Invalid(f"group {key} was deleted, or is shared in another way now: its flows end")
        return seen.groups[key]
