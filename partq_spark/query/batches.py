"""What a query remembers of its last look: the end that it gave to Spark, or that there was nothing to give; and which
partitions of a batch are still the query's when Spark asks for them. Pure: no I/O, no clock, no pyspark.

A partition is delivered if it is held at the epoch in the batch's end. One that has moved on is left out, because its
new owner began at or before that point (HAN-10). While that is in doubt, nothing is delivered.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from partq_spark.base.errors import ObjectMissing
from partq_spark.base.timestamps import format_rfc3339
from partq_spark.group.checkpoints import Checkpoint
from partq_spark.group.claims import View
from partq_spark.log import tree
from partq_spark.log.connect import QueueAddress
from partq_spark.log.model import Head, Origin
from partq_spark.log.queue import QueueLog
from partq_spark.log.seeking import LoadChunk
from partq_spark.query.offsets import BatchEnd
from partq_spark.query.planning import BatchPlan, Spans
from partq_spark.query.settings import Boundary, SourceOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """An end that was given to Spark, what its batch delivers, and the instance in whose name that was announced.
    `planned`: Spark has asked for its partitions, so that it may have been delivered.
    """

    end: BatchEnd
    spans: Spans
    instance: str | None
    planned: bool = False


@dataclass(frozen=True, slots=True)
class IdleLook:
    """A whole look at `at_s` after which there was nothing to do."""

    start: dict[str, Any]
    plan: BatchPlan
    at_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Of a batch: what is still held, what has moved on, and what nobody can tell yet."""

    held: Spans
    moved: frozenset[int]
    doubtful: frozenset[int]


def repetition(
    wanted: Spans, view: View, read: Callable[[int], Checkpoint | None], announced: Collection[int] = ()
) -> Repetition:
    """What of `wanted` may be delivered by `view`; `read` reads a checkpoint, and is asked for the others alone.
    `announced`: what the present instance has announced already, so that a pause waits for it and not it for a pause.
    """
    held = {
        p: span
        for p, span in wanted.items()
        if is_held(view, p, span.epoch) or (p in announced and is_claimed(view, p, span.epoch))
    }
    moved = {p for p in wanted if p not in held and has_moved_on(read(p), wanted[p].epoch)}
    return Repetition(held=held, moved=frozenset(moved), doubtful=frozenset(wanted.keys() - held.keys() - moved))


def is_held(view: View, partition: int, epoch: int) -> bool:
    """A guard: the partition is claimed, at exactly this epoch, and nothing holds it back."""
    return is_claimed(view, partition, epoch) and not view.claims[partition].paused


def is_claimed(view: View, partition: int, epoch: int) -> bool:
    """A guard: the partition is claimed, at exactly this epoch; it may be paused."""
    claim = view.claims.get(partition)
    return claim is not None and claim.epoch == epoch


def has_moved_on(found: Checkpoint | None, epoch: int) -> bool:
    """A guard: the checkpoint has a higher epoch."""
    return found is not None and found.epoch > epoch


# --- whether the log still has what was read --------------------------------------------------------------------------

# Whether the log still has what a query has read, or was put back from an older copy and has grown past it. No pyspark.
#
# An offset says how many messages of a partition were read, and nothing of which: a store that was put back gives their
# numbers to other messages. So Spark's offsets and the group's checkpoints name the newest publish that was read
# (`log.model.Origin`). It is older than all that is read next: a log that has it has all that was read. Of what another
# flow had read that says nothing: it may have done so before the copy was put back, and this one after it.

_log = logging.getLogger("partq.flow")


class Origins:
    """Of one query in one process. It reads chunks of the log only where the heads that it sees do not tell by
    themselves: at its start, or when more was published between two looks than a head names singly.
    """

    def __init__(self, queue: QueueLog, options: SourceOptions) -> None:
        self._queue = queue
        self._options = options
        self._head: Head | None = None
        self._known: set[Origin] = set()  # the log has them, by `_head`: what was asked for last, and since
        self._told: set[bool | None] = set()

    def follow(self, head: Head) -> None:
        """`head` was read."""
        if self._head is not None and head is not self._head and not tree.goes_on(self._head, head):
            self._known.clear()
        self._head = head

    def require(self, head: Head, origins: Collection[Origin | None]) -> None:
        """Raises `ObjectMissing` if `head`, which is the queue's last, does not have all of these (failOnDataLoss)."""
        self.follow(head)
        load = cache(self._queue.load_chunk)  # many partitions' publishes lie in few chunks
        asked = {origin for origin in origins if origin is not None}
        for origin in sorted(asked - self._known):
            self._look_for(origin, load)
        self._known = asked

    def of(self, head: Head, ends: Mapping[int, int]) -> Origin | None:
        """What a batch up to `ends` comes from."""
        origin = tree.origin_of(head, ends)
        if origin is not None:
            self._known.add(origin)
        return origin

    def _look_for(self, origin: Origin, load: LoadChunk) -> None:
        found = self._queue.settled(lambda now: tree.has_publish(now, origin, load))
        if found is False and self._options.fail_on_data_loss:
            raise ObjectMissing(self._missing(origin))
        if found or found in self._told:
            return
        self._told.add(found)
        if found is None:
            _log.info(
                "publish %d of %s was trimmed or compacted since it was read: whether the store was put back from an "
                "older copy cannot be told",
                origin.sequence,
                self._queue,
            )
        else:
            _log.warning("%s: skipped (failOnDataLoss=false)", self._missing(origin))

    def _missing(self, origin: Origin) -> str:
        time, group = format_rfc3339(origin.time_us), self._options.group
        if group is not None and group.keep_offsets:
            who = f"group {group.name!r} has"
            command = rewind_command(self._options.target, group.name, Boundary(time_us=origin.time_us))
            way = f"take the group back to where the copy ended: `{command} --yes`"
        else:
            who = "the query has"
            way = (
                f"use a new checkpoint location with startingTimestamp={time}, which begins where the copy ended, or "
                "set failOnDataLoss=false to go on at the offsets that were reached"
            )
        return (
            f"{who} read publish {origin.sequence} of {time}, which {self._queue} does not have: was the store "
            "restored from an older copy? There are other messages at offsets that count as read. Restore a copy "
            f"that has it, or {way}"
        )


def rewind_command(target: QueueAddress, group: str, place: Boundary) -> str:
    """What takes the group to `place`, where it is past it."""
    words = ["partq", "checkpoints", "rewind", target.queue, "--group", group]
    if place.time_us is not None:
        words += ["--to-timestamp", format_rfc3339(place.time_us)]
    elif place.offsets is not None and len(set(place.offsets.values())) > 1:
        words += ["--partition", "P", "--to", "OFFSET"]
    else:
        words += ["--to", str(next(iter(place.offsets.values()))) if place.offsets else "earliest"]
    if target.namespace != "default":
        words += ["--namespace", target.namespace]
    return shlex.join([*words, "--store", target.store])
