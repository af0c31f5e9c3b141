"""What a person asks of a queue as a whole. Its housekeeping: trimming, compacting, collecting, which the coordinator
does by itself, and deleting. Which topics it attracts. And what batches are that were refused because their writer has
used their numbers: published already, or new (DIS-10).
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Final

from partq_spark.base.effects import LONGEST_WAIT_S
from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.client.arguments import check_number, checked, time_us
from partq_spark.client.describing import PartitionDescription, partitions_of
from partq_spark.client.handle import Handle
from partq_spark.group import lifecycle, retention
from partq_spark.group.retention import HeldBack
from partq_spark.log import admin, housekeeping, writers
from partq_spark.log.admin import Namespace
from partq_spark.log.destinations import checked_topic, matches
from partq_spark.log.model import Head, WriterRecord
from partq_spark.log.queue import QueueLog
from partq_spark.log.writers import PUBLISH_ID, TRANSACTION

MOST_STEPS: Final = 1000
"""Of one call of `compact`: some 60 million slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trimmed:
    """What a trim did: `trimmed` messages went, `messages` can still be read, `held_back` was asked for and stays."""

    queue: str
    trimmed: int
    messages: int
    held_back: tuple[HeldBack, ...]
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compaction:
    """What compaction did in so many steps. Bytes and slices are those of the messages that were written anew;
    `finished` is False if it ended at its bound, and there may be more.
    """

    queue: str
    steps: int
    messages: int
    slices_before: int
    slices: int
    bytes_before: int
    bytes: int
    segments: int
    finished: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection(housekeeping.Collected):
    """What one round of collection did. `temporary`: files of writers that died, in the whole store."""

    queue: str
    temporary: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What a deletion did. `deleted` False: the queue was gone, and `objects` are what had been left of it."""

    queue: str
    deleted: bool
    objects: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionChange:
    """What subscribing or unsubscribing `changed`, and the queue's `subscriptions` since."""

    queue: str
    changed: tuple[str, ...]
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSubscriptions:
    """What one queue attracts."""

    queue: str
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """What was written down: of which writer's batches, from number `batch` on, and in which queues. Those that are
    `unreadable` were passed over: their heads cannot be read.
    """

    writer: str
    batch: int
    published: bool
    queues: tuple[str, ...]
    unreadable: tuple[str, ...]


@checked
class Maintaining(Handle):
    """The part of `Queue` that keeps house, and what attracts topics."""

    def delete(self) -> Deleted:
        """Delete the queue and all that is in it, for good. A deletion that was cut off is finished by the next."""
        queue = self._opened()
        try:
            is_there = queue.look() is not None
        except Corrupt:
            is_there = True
        if is_there:
            return Deleted(queue=queue.name, deleted=True, objects=lifecycle.delete_queue(queue))
        # The head goes first, so what a deletion that was cut off left behind has none.
        objects = lifecycle.remove_remains(queue)
        if not objects:
            queue.refresh()  # says that there is no such queue
        return Deleted(queue=queue.name, deleted=False, objects=objects)

    def trim(self, before: datetime | str | Mapping[int, int]) -> Trimmed:
        """Make messages unreadable, for every reader and for good: those published before a time (RFC 3339, or a
        `datetime` with a zone), or below these offsets by partition. What a group has not acknowledged stays.
        """
        queue = self._opened()
        head = queue.refresh()
        if isinstance(before, Mapping):
            done = retention.trim(queue, _complete(before, head, str(queue)))
        else:
            done = retention.trim(queue, queue.offsets_at(time_us(before)))
        after = queue.head
        return Trimmed(
            queue=queue.name,
            trimmed=done.trimmed,
            messages=after.messages,
            held_back=done.held_back,
            partitions=partitions_of(after),
        )

    def compact(self, *, min_age_s: float | None = None) -> Compaction:
        """Join small stored pieces into large ones, but for what was published within `min_age_s` (default 300)."""
        from partq_spark.log import compaction

        min_age_s = compaction.MIN_AGE_S if min_age_s is None else min_age_s
        check_number("min_age_s", min_age_s, "seconds", most=int(LONGEST_WAIT_S))
        queue = self._opened()
        steps: list[compaction.Compacted] = []
        finished = False
        while not finished and len(steps) < MOST_STEPS:
            done = compaction.compact(queue, min_age_s=min_age_s)
            finished = done is None
            steps += [done] if done is not None else []
        sums = {each.name: sum(getattr(step, each.name) for step in steps) for each in fields(compaction.Compacted)}
        return Compaction(queue=queue.name, steps=len(steps), finished=finished, **sums)

    def collect(self, *, grace_s: float | None = None) -> Collection:
        """Delete stored objects that nothing needs: one round. An object is marked by one round and deleted by a later
        one, at least `grace_s` (default a day) after.
        """
        grace_s = housekeeping.GRACE_S if grace_s is None else grace_s
        check_number("grace_s", grace_s, "seconds", most=int(LONGEST_WAIT_S))
        queue = self._opened()
        done = housekeeping.collect(queue, grace_s=grace_s)
        # Of all queues in the store, so never younger than a day, whatever this queue's grace: a file that is swept
        # from under its writer makes that writer fail.
        temporary = queue.store.sweep_temporary(max(grace_s, housekeeping.GRACE_S))
        return Collection(queue=queue.name, temporary=temporary, **asdict(done))

    def resolve(self, *, writer: str, batch: int, published: bool) -> Resolved:
        """Say what a writer's refused batches are, from number `batch` up to its last: `published` already, or new.

        Raises `Invalid` for a writer that the queue does not know, a number that it has not used yet, and a publish id,
        `Unavailable` if it could not be written everywhere: then it is to be said again.
        """
        if batch < 0:
            raise Invalid(f"batch={batch!r} is not allowed: give the number of the first batch, 0 or more")
        if writer.startswith(PUBLISH_ID):
            raise Invalid(
                f"{writer!r} is a publish id, which says by itself what a repetition is: publish under another"
            )
        queue = self._opened()
        name, record = _known(queue, writer)
        if record.batch < batch:
            raise Invalid(
                f"the last batch of writer {writer!r} in {queue} is {record.batch}: batch {batch} is new there as it "
                "is, and there is nothing to resolve"
            )
        every = Namespace(queue.store, queue.namespace)
        by = _person()
        others = [other.name for other in every.queues(to_publish=False) if other.name != queue.name]
        done = [
            other
            for other in [queue.name, *others]
            if writers.resolve(queue.another(other), name, batch, published=published, by=by)
        ]
        return Resolved(
            writer=writer,
            batch=batch,
            published=published,
            queues=tuple(sorted(done)),
            unreadable=tuple(sorted(every.problems)),
        )

    def subscribe(self, *subscriptions: str) -> SubscriptionChange:
        """Let the queue attract messages by their topics: `*` stands for any characters within a level, `>` as the last
        level for all further ones.
        """
        queue = self._opened()
        changed = admin.subscribe(queue, *subscriptions)
        return SubscriptionChange(queue=queue.name, changed=changed, subscriptions=queue.head.subscriptions)

    def unsubscribe(self, *subscriptions: str) -> SubscriptionChange:
        """Take subscriptions back, each written as it was made."""
        queue = self._opened()
        changed = admin.unsubscribe(queue, *subscriptions)
        return SubscriptionChange(queue=queue.name, changed=changed, subscriptions=queue.head.subscriptions)

    def subscriptions(self, *, topic: str | None = None) -> tuple[str, ...]:
        """What the queue attracts; with `topic` only what attracts this topic."""
        return attracting(self._opened().refresh().subscriptions, topic)


def _complete(given: Mapping[int, int], head: Head, queue: str) -> tuple[int, ...]:
    partitions = len(head.next)
    unknown = [partition for partition in sorted(given) if not 0 <= partition < partitions]
    if unknown:
        raise Invalid(f"there is no partition {unknown[0]} to trim: {queue} has partitions 0 to {partitions - 1}")
    return tuple(given.get(partition, 0) for partition in range(partitions))


def attracting(found: Sequence[str], topic: str | None) -> tuple[str, ...]:
    """Of the subscriptions those that attract the topic; None: all. Raises `Invalid` for what is no topic."""
    if topic is None:
        return tuple(found)
    return tuple(each for each in found if matches(each, checked_topic(topic)))


def _known(queue: QueueLog, writer: str) -> tuple[str, WriterRecord]:
    """The writer's full name, and its last publish."""
    for name in (writer, TRANSACTION + writer):
        record = queue.settled(lambda _: writers.last_batch(queue, name))  # noqa: B023 (called at once)
        if record is not None:
            return name, record
    raise Invalid(
        f"{queue} knows no writer {writer!r}: give the name that the refusal says, a query's id or a txnAppId; a queue "
        "remembers its writers for 7 days at least"
    )


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
