"""The stores of a world of queries, and each reader process' own faulty way to them, by which production code comes.

What takes effect is told at the stores' own side. A reader is known by the address of its store: that is how what
`query.joining` opens for it turns out to be the simulated one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol
from unittest.mock import patch

from msgspec import structs

from coordinator.heads import GroupFacts, group_facts
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from partq_spark.log import admin
from partq_spark.log.connect import QueueAddress
from partq_spark.log.model import Entry, Head, QueueConfig, Slice
from partq_spark.log.queue import QueueLog
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from partq_spark.query import joining
from tests.simulation.history import History
from tests.simulation.links import Link
from tests.simulation.objects import Objects, TrueObjects
from tests.simulation.queries.judge import Judge
from tests.simulation.queries.plan import QUEUE
from tests.simulation.stores import QUEUE_ID
from tests.support.scheduler import SECOND_US, Scheduler

NAMESPACE = "default"
LOOK_S = 0.5  # as on Azure
KEPT_ENTRIES = 3


def key_of(group: str) -> GroupKey:
    """A group of the simulated queue."""
    return GroupKey(NAMESPACE, QUEUE, group)


class TrueStore(TrueObjects):
    """The one object store: tells the judge of checkpoints, when they take effect."""

    def __init__(self, scheduler: Scheduler, tokens: random.Random, history: History, judge: Judge) -> None:
        super().__init__(scheduler, tokens, history)
        self._judge = judge
        self.on_head: Callable[[], None] = lambda: None
        self._folders = f"{NAMESPACE}/{QUEUE}/"

    @property
    def look_interval_s(self) -> float:
        return LOOK_S

    def swap_for(
        self, lease: str, sent_us: int, name: str, content: bytes | Mapping[str, str], *, expected: str | None
    ) -> str:
        etag = MemoryStore.swap(self, name, content, expected=expected)
        if not isinstance(content, bytes):
            group, kind, partition = name.removeprefix(self._folders).split("/")
            if kind == "checkpoint":
                self._told(group, int(partition), content)
        elif name.endswith("/_head.json"):
            self.on_head()
        return etag

    def _told(self, group: str, partition: int, content: Mapping[str, str]) -> None:
        offset, flow = content.get("offset"), content.get("flow")
        at_us = self._scheduler.now_us
        self._history.note(f"{at_us} checkpoint {group}/{partition} {content['epoch']} {flow} {offset}")
        self._judge.checkpoint(
            at_us,
            group,
            partition,
            int(content["epoch"]),
            flow,
            None if offset is None else int(offset),
            int(content["since"]),
        )

    def remove(self, name: str, *, expected: str) -> None:
        MemoryStore.remove(self, name, expected=expected)


class TheQueue:
    """The queue as an operator at the stores' own side has it, who publishes, alters and rewinds at one instant."""

    def __init__(self, store: TrueStore, scheduler: Scheduler, config: QueueConfig, partitions: int) -> None:
        self._effects = Effects(
            time_us=lambda: scheduler.now_us, now_s=lambda: scheduler.now_us / SECOND_US, sleep=_never
        )
        self.queue = admin.create_queue(store, NAMESPACE, QUEUE, partitions, config, self._effects)
        self.queue.change(lambda head: replace(head, queue_id=QUEUE_ID))  # it was drawn, and not by the seed

    @property
    def head(self) -> Head:
        """As it is now."""
        return self.queue.refresh()

    @property
    def partitions(self) -> int:
        """How many there are now."""
        return self.head.partitions

    def publish(self, keys: Sequence[int]) -> None:
        """One message for each key, into `key % partitions`: the head says so, and nobody reads its segments."""

        def published(head: Head) -> Head:
            counts = Counter(key % head.partitions for key in keys)
            pieces = tuple(
                Slice(partition, 0, 0, 100 * count, head.next[partition], count, "0" * 16)
                for partition, count in sorted(counts.items())
            )
            sequence, time_us = head.sequence + 1, head.time_us + 1
            entries = (*_merged(head.entries), _entry(sequence, time_us, head.layout.generation, pieces))
            following = tuple(end + counts[partition] for partition, end in enumerate(head.next))
            return replace(head, next=following, entries=entries, sequence=sequence, time_us=time_us)

        self.queue.change(published)

    def resize(self, partitions: int) -> None:
        """Another partition count."""
        admin.alter_queue(self.queue, partitions=partitions)


def _entry(sequence: int, time_us: int, generation: int, slices: tuple[Slice, ...]) -> Entry:
    return Entry(
        sequence=sequence,
        token=f"t{sequence}",
        writer=None,
        batch=0,
        time_us=time_us,
        generation=generation,
        headers=False,
        segments=("segment",),
        slices=slices,
    )


def _merged(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Few entries, so that a head stays small: the oldest become one."""
    if len(entries) < 2 * KEPT_ENTRIES:
        return entries
    old, kept = entries[:-KEPT_ENTRIES], entries[-KEPT_ENTRIES:]
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for entry in old:
        for piece in entry.slices:
            begins.setdefault(piece.partition, piece.offset)
            ends[piece.partition] = piece.end
    slices = tuple(
        Slice(p, 0, 0, 100 * (ends[p] - begin), begin, ends[p] - begin, "0" * 16) for p, begin in sorted(begins.items())
    )
    merged = _entry(old[-1].sequence, old[-1].time_us, old[-1].generation, slices)
    return structs.replace(merged, first=(old[0].first_sequence, old[0].first_time_us)), *kept


class GroupHead:
    """The head as a coordinator of one group takes it."""

    def __init__(self, queue: TheQueue, group: str) -> None:
        self._queue = queue
        self._group = group

    @property
    def ends(self) -> tuple[int, ...]:
        return self._queue.head.next

    def facts(self) -> GroupFacts:
        """Raises `Unavailable` as long as the group is not there, or is somebody's alone."""
        head = self._queue.head
        found = head.groups.get(self._group)
        if found is None or found.ownership == "none":
            raise Unavailable("there is no such group to lead")
        return group_facts(head, found)


def _never(_: float) -> None:
    raise RuntimeError("nobody waits at the stores' own side")


class Place(Protocol):
    """A reader process, as those see it who open stores for it."""

    @property
    def link(self) -> Link: ...

    @property
    def objects(self) -> Objects: ...

    @property
    def effects(self) -> Effects: ...

    def ownership(self, group: GroupKey) -> Ownership: ...


def url_of(number: int) -> str:
    """The address by which one reader process is known."""
    return f"file:///sim/{number}"


@contextmanager
def opened_by(find: Callable[[str], Place]) -> Iterator[None]:
    """Production code opens simulated stores. `find` gives the reader process of an address."""

    def store(url: str, retry_timeout_s: float) -> ObjectStore:
        place = find(url)
        return Retrying(_At(place, url), retry_timeout_s, place.effects)

    def queue(target: QueueAddress) -> QueueLog:
        effects = find(target.store).effects
        return QueueLog(
            store(target.store, target.retry_timeout_s),
            target.namespace,
            target.queue,
            effects,
            retry_timeout_s=target.retry_timeout_s,
        )

    def ownership(url: str, *, store: ObjectStore, group: GroupKey | None = None) -> Ownership:
        assert group is not None
        return find(store.url).ownership(group)

    with (
        patch.object(joining, "shared_store", store),
        patch.object(joining, "open_queue", queue),
        patch.object(joining, "open_ownership", ownership),
    ):
        yield


class _At(Objects):
    """A reader process' way to the objects, under its own address."""

    def __init__(self, place: Place, url: str) -> None:
        inner = place.objects
        super().__init__(inner.inner, place.link)
        self._url = url

    @property
    def url(self) -> str:
        return self._url
