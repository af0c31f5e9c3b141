"""A queue's housekeeping on request: trimming, compacting, collecting, deleting. The coordinator does the first three
by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.client.addresses import time_us
from partq_spark.group import lifecycle, retention
from partq_spark.group.retention import HeldBack
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog

MOST_STEPS: Final = 1000
"""Of one call of `compact`: some 60 million slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptOffsets:
    """What can be read of a partition: offsets from `earliest` to before `next`."""

    partition: int
    earliest: int
    next: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trimmed:
    """What a trim did: `trimmed` messages went, `messages` can still be read, `held_back` was asked for and stays."""

    queue: str
    trimmed: int
    messages: int
    held_back: tuple[HeldBack, ...]
    partitions: tuple[KeptOffsets, ...]


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
class Collection:
    """What one round of collection did. `marked` objects are deleted by rounds at least one grace after their marking.
    `temporary`: files of writers that died, in the whole store.
    """

    queue: str
    deleted: int
    deleted_bytes: int
    marked: int
    floor_sequence: int
    temporary: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What a deletion did. `deleted` False: the queue was gone, and `objects` are what had been left of it."""

    queue: str
    deleted: bool
    objects: int


def trim(queue: QueueLog, before: datetime | str | Mapping[int, int]) -> Trimmed:
    """Raises `Invalid` for a partition that the queue does not have, and as the stores do."""
    head = queue.refresh()
    asked = _complete(before, head, str(queue)) if isinstance(before, Mapping) else queue.offsets_at(time_us(before))
    done = retention.trim(queue, asked)
    after = queue.head
    return Trimmed(
        queue=queue.name,
        trimmed=done.trimmed,
        messages=after.messages,
        held_back=done.held_back,
        partitions=tuple(
            KeptOffsets(partition=partition, earliest=earliest, next=after.next[partition])
            for partition, earliest in enumerate(after.earliest)
        ),
    )


def _complete(given: Mapping[int, int], head: Head, queue: str) -> tuple[int, ...]:
    partitions = len(head.next)
    unknown = [partition for partition in sorted(given) if not 0 <= partition < partitions]
    if unknown:
        raise Invalid(f"there is no partition {unknown[0]} to trim: {queue} has partitions 0 to {partitions - 1}")
    return tuple(given.get(partition, 0) for partition in range(partitions))


def compact(queue: QueueLog, min_age_s: float | None) -> Compaction:
    """Until nothing is worth it, or `MOST_STEPS` are done."""
    from partq_spark.log import compaction

    min_age_s = compaction.MIN_AGE_S if min_age_s is None else min_age_s
    queue.refresh()
    steps: list[compaction.Compacted] = []
    finished = False
    while not finished and len(steps) < MOST_STEPS:
        done = compaction.compact(queue, min_age_s=min_age_s)
        finished = done is None
        steps += [done] if done is not None else []
    return Compaction(
        queue=queue.name,
        steps=len(steps),
        messages=sum(step.messages for step in steps),
        slices_before=sum(step.slices_before for step in steps),
        slices=sum(step.slices for step in steps),
        bytes_before=sum(step.bytes_before for step in steps),
        bytes=sum(step.bytes for step in steps),
        segments=sum(step.segments for step in steps),
        finished=finished,
    )


def collect(queue: QueueLog, grace_s: float | None) -> Collection:
    """One round."""
    from partq_spark.log import housekeeping

    grace_s = housekeeping.GRACE_S if grace_s is None else grace_s
    queue.refresh()
    done = housekeeping.collect(queue, grace_s=grace_s)
    # Of all queues in the store, so never younger than a day, whatever this queue's grace: a file that is swept from
    # under its writer makes that writer fail.
    temporary = queue.store.sweep_temporary(max(grace_s, housekeeping.GRACE_S))
    return Collection(
        queue=queue.name,
        deleted=done.deleted,
        deleted_bytes=done.deleted_bytes,
        marked=done.marked,
        floor_sequence=done.floor_sequence,
        temporary=temporary,
    )


def delete(queue: QueueLog) -> Deleted:
    """The queue, or what a deletion that was cut off has left. Raises `Invalid` if there is neither."""
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
