"""The queues of a namespace as their heads show them, and what a coordinator has to know of each group in them.

A head is decoded when it has changed, and kept as the bytes that it was, for metrics: some 50 kB a queue. `Heads` is
safe for use by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from coordinator.metrics import queue_samples
from coordinator.settings import Settings
from partq_spark.base.errors import Invalid
from partq_spark.base.metrics import Sample
from partq_spark.group.model import AccessType, GroupKey, GroupSettings
from partq_spark.log import layouts, names
from partq_spark.log.clocks import published_by
from partq_spark.log.codec import HEAD
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
class Seen:
    """What is kept of a head as long as it is the same: a decoded one takes some 200 kB. `facts` are for housekeeping;
    `samples`, and what each partition begins and ends with, for metrics.
    """

    document: Document
    facts: QueueFacts
    groups: Mapping[GroupKey, GroupFacts]
    samples: Sequence[Sample]
    next: tuple[int, ...]
    earliest: tuple[int, ...]


class Heads:
    """What was last seen of each queue."""

    def __init__(self, store: ObjectStore, namespace: str, *, ownership: str | None = None) -> None:
        """`ownership`: where groups keep who has what; those that are shared in another way are not seen."""
        self._store = store
        self.namespace = namespace
        self._kind = group_kind(ownership) if ownership is not None else None
        self._lock = threading.Lock()  # held while something is put there; to get or copy is one step
        self._seen: dict[str, Seen] = {}

    def seen(self) -> Mapping[str, Seen]:
        """All queues, by name, as last seen."""
        return self._seen.copy()

    def groups(self) -> dict[GroupKey, GroupFacts]:
        """All groups of all queues, as last seen."""
        return {key: facts for each in self.seen().values() for key, facts in each.groups.items()}

    def ends(self, queue: str) -> tuple[int, ...]:
        """Where each partition of a queue ended, as last seen."""
        seen = self._seen.get(queue)
        return seen.next if seen is not None else ()

    def queues(self) -> list[str]:
        """The queues to look at: those that are there by their folders, and those that were. Raises as the store."""
        present = list(filter(names.is_name, self._store.list_folders(f"{self.namespace}/")))
        return [*present, *(self.seen().keys() - set(present))]

    def look(self, queue: str) -> Seen | None:
        """Look at one head, by a conditional read; what is there, None: nothing. Raises `Unavailable`, `Corrupt`: then
        the former look stands.
        """
        name, found = names.head_name(self.namespace, queue), None
        before = self._seen.get(queue)
        document = self._store.load(name, known=before.document.etag if before is not None else None)
        if isinstance(document, Unchanged):
            return before
        if document is not None:
            head = HEAD.open(document.body, name)
            groups = {
                GroupKey(self.namespace, queue, group): group_facts(head, made)
                for group, made in head.groups.items()
                if self._kind is None or made.ownership in (None, self._kind)
            }
            found = Seen(
                document=document,
                facts=queue_facts(head),
                groups=groups,
                samples=queue_samples(head),
                next=head.next,
                earliest=head.earliest,
            )
        with self._lock:
            # Else another thread has seen one meanwhile that may be newer: the next look tells.
            if self._seen.get(queue) is before:
                if found is not None:
                    self._seen[queue] = found
                else:
                    self._seen.pop(queue, None)
        return found

    def now(self, key: GroupKey) -> GroupFacts:
        """One group, looked at now. Raises as `look`, and `Invalid` if the group is gone."""
        seen = self.look(key.queue)
        if seen is None or key not in seen.groups:
            raise Invalid(f"group {key} was deleted, or is shared in another way now: its flows end")
        return seen.groups[key]


# --- which housekeeping is due ----------------------------------------------------------------------------------------

# Which housekeeping is due for which queue: trimming by retention, compaction, collection. Pure: times are arguments.
#
# What is known of a queue is what the last look at its head showed, in a few numbers. Being wrong costs a request: each
# task decides by the head itself, and changes it by compare-and-swap. `housekeeper` does what is due here.


RETAIN_LEAST_S: Final = 5.0
RETAIN_MOST_S: Final = 60.0
COMPACT_S: Final = 30.0
COLLECT_LEAST_S: Final = 30.0


class Work(StrEnum):
    """A kind of task."""

    RETAIN = "retain"
    COMPACT = "compact"
    COLLECT = "collect"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFacts:
    """A queue as its head was last seen. Times are Unix, microseconds. `oldest_us`: when the oldest message that can
    be read was published, or earlier; None: there is none. `chunks_us`: the times up to which the first and the last
    of the head's chunks reach, which are what is compacted; None: there is no chunk.
    """

    queue_id: str
    sequence: int
    retention_s: float | None
    oldest_us: int | None
    chunks_us: tuple[int, int] | None


class Task(NamedTuple):
    """What is done for one queue at once. The queue's id is part of it: one made again under the name begins anew."""

    queue: str
    queue_id: str
    work: Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """When a task ended, by the caller's clock, and the Unix time then. `empty_at`: it found nothing to do in the head
    with this sequence number. `more`: it did something, and there may be more of it: a compaction takes one run.
    """

    at_s: float
    at_us: int
    empty_at: int | None = None
    more: bool = False


def queue_facts(head: Head) -> QueueFacts:
    """The facts of one queue."""
    # By all that the head shows, not by the first: a clock that was wrong once may have dated some years ahead.
    times = [*(ref.first_time_us for ref in head.tree), *(entry.time_us for entry in head.entries), head.time_us]
    chunks = published_by([ref.last_time_us for ref in head.tree], min(times[len(head.tree) :]))
    return QueueFacts(
        queue_id=head.queue_id,
        sequence=head.sequence,
        retention_s=head.config.retention_s,
        oldest_us=min(times) if head.messages else None,
        chunks_us=(chunks[0], chunks[-1]) if chunks else None,
    )


def interval_s(work: Work, facts: QueueFacts, settings: Settings) -> float:
    """The least time between two tasks of a kind."""
    match work:
        case Work.RETAIN:
            return max(RETAIN_LEAST_S, min((facts.retention_s or 0.0) / 4, RETAIN_MOST_S))
        case Work.COMPACT:
            return COMPACT_S
        case Work.COLLECT:
            return max(COLLECT_LEAST_S, settings.collection_grace_s / 4)


def due(
    queues: Mapping[str, QueueFacts], done: Mapping[Task, Done], settings: Settings, *, now_s: float, now_us: int
) -> list[Task]:
    """What is to be done now, longest ago first, what was never done before all else. A compaction that has more to do
    is due again at once, after all others, so that it keeps up with what is published. `now_us` is the Unix time, for
    ages of messages alone.
    """
    found: list[tuple[float, Task]] = []
    for name, facts in queues.items():
        for work in Work:
            task = Task(name, facts.queue_id, work)
            last = done.get(task)
            at_once = last is not None and last.more and work is Work.COMPACT
            if last is not None and not at_once and now_s - last.at_s < interval_s(work, facts, settings):
                continue
            if _is_worth_it(work, facts, last, settings, now_us):
                found.append((last.at_s if last is not None else float("-inf"), task))
    return [task for _, task in sorted(found)]


def _is_worth_it(work: Work, facts: QueueFacts, last: Done | None, settings: Settings, now_us: int) -> bool:
    match work:
        case Work.RETAIN:
            if facts.retention_s is None or facts.oldest_us is None:
                return False
            return facts.oldest_us + int(facts.retention_s * 1_000_000) <= now_us
        case Work.COMPACT:
            return facts.chunks_us is not None and _may_compact(facts, facts.chunks_us, last, settings, now_us)
        case Work.COLLECT:
            return True


def _may_compact(
    facts: QueueFacts, chunks_us: tuple[int, int], last: Done | None, settings: Settings, now_us: int
) -> bool:
    """Something is old enough, and the same head was not looked through before when all of it was."""
    first_us, last_us = chunks_us
    age_us = int(settings.compaction_min_age_s * 1_000_000)
    if first_us + age_us > now_us:
        return False
    return last is None or last.empty_at != facts.sequence or last_us + age_us > last.at_us
