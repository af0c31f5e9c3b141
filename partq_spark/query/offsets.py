"""Offsets as Spark keeps them in a query's Spark checkpoint: one meaning, one encoding. No pyspark.

`{"v":1,"queue":id,"group":…,"since":…,"flow":…,"p":{"0":[epoch, from, to, redelivered_below], …}}`: the end of a batch
says by itself what the batch reads, so a replay needs no other knowledge. `since`, only with a group, is the sequence
number of the head that the group was made with: one that was removed and made again under its name has another. Spark
compares offsets as raw JSON text (spark-traps.md 6): the order of keys below is part of the format.

`publish` is the newest publish with a message that the query has read: sequence number, time, token (`log.model`). In a
store put back from an older copy there is another one in its place, and other messages at the offsets that count as
read. It changes only where a position does.

With `ackMode=manual` there is also `"n"`, a count of the batches that had messages. What is not acknowledged comes
again, and the same messages read from the same offset would make the same text: Spark would see nothing new.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
import xxhash
from msgspec import Struct, structs

from partq_spark.base.effects import format_rfc3339
from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing
from partq_spark.log import tree
from partq_spark.log.clocks import LoadChunk
from partq_spark.log.model import Head, Origin
from partq_spark.log.queue import QueueAddress, QueueLog
from partq_spark.query.settings import Boundary, SourceOptions

_log = logging.getLogger("partq.flow")

VERSION = 1

# What a query has before its first batch. A constant, because Spark asks for it at any time and any number of times
# (5).
INITIAL: Mapping[str, int] = {"v": VERSION}


class BatchSpan(NamedTuple):
    """What a batch reads of one partition: offsets `[start, to)`, owned at `epoch`, repeats below
    `redelivered_below`.
    """

    epoch: int
    start: int
    to: int
    redelivered_below: int


_WRITTEN = {"queue_id": "queue", "deliveries": "n", "origin": "publish", "spans": "p"}


class BatchEnd(Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_WRITTEN):
    """The end offset of a batch, its fields in the order in which they are written. `group`, `since` and `flow` are
    None for a query that stands alone; its epochs are 0. `deliveries` counts the batches with messages where the
    application acknowledges by hand, and is None elsewhere. `origin` is the newest publish with a message before these
    ends, None if nobody can tell.
    """

    queue_id: str
    group: str | None
    since: int | None = None
    flow: str | None
    deliveries: int | None = None
    origin: Origin | None = None
    spans: Mapping[int, BatchSpan]

    def followed_by(self, spans: Mapping[int, BatchSpan], origin: Origin | None = None) -> BatchEnd:
        """The end of the next batch, which reads `spans`. Never equal to this one where messages are read."""
        count = self.deliveries + 1 if self.deliveries is not None else None
        return structs.replace(self, spans=spans, deliveries=count, origin=origin)

    @property
    def digest(self) -> str:
        """That of its encoding."""
        return digest(encode(self))


def encode(end: BatchEnd) -> dict[str, Any]:
    """The offset as Spark writes it down; equal ends have equal JSON text."""
    ordered = structs.replace(end, spans=dict(sorted(end.spans.items())))
    return {"v": VERSION, **msgspec.json.decode(msgspec.json.encode(ordered))}


def digest(raw: Mapping[str, Any]) -> str:
    """Short, and the same for equal offsets, however their JSON was written."""
    return xxhash.xxh3_128_hexdigest(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode())


def decode(raw: object) -> BatchEnd | None:
    """The meaning of an offset from the Spark checkpoint; None for `INITIAL`.

    Raises `Invalid` for an offset of a newer version or another source, `Corrupt` for one that is malformed.
    """
    version = raw.get("v") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or version != VERSION:
        raise Invalid(
            f"the Spark checkpoint holds an offset that this partq cannot read (version {version!r}, expected "
            f"{VERSION}): use the partq or the source that wrote it, or a new checkpoint location"
        )
    if "p" not in raw:
        return None
    if raw.get("group") is not None and "since" not in raw:
        raise Invalid(
            f"the Spark checkpoint holds an offset of group {raw['group']!r} that an earlier partq wrote, which did "
            "not say since when the group is there: use the partq that wrote it, or a new checkpoint location"
        )
    try:
        if any(name in raw and raw[name] is None for name in ("since", "n", "publish")):
            raise ValueError("nothing where something is left out")
        return msgspec.convert(raw, BatchEnd, str_keys=True)
    except ValueError as error:  # msgspec's is one
        raise Corrupt(
            f"the Spark checkpoint holds a malformed offset ({error}): use a new checkpoint location"
        ) from error


def require_same_queue(end: BatchEnd, queue_id: str, queue: str) -> None:
    """Raises `Invalid` if the offset belongs to another queue (RES-05)."""
    if end.queue_id != queue_id:
        raise Invalid(
            f"what was read so far is of a queue with id {end.queue_id}, {queue} has id {queue_id}: it is another "
            "queue, or it was deleted and created again; start anew (a query: with a new checkpoint location)"
        )


def require_same_group(end: BatchEnd, group: str | None, flow: str | None) -> None:
    """Raises `Invalid` if the offset belongs to another group than `group` (None: to any), or to another flow than
    `flow`, if that is given.
    """
    if end.group != group or (end.flow is None) != (group is None):
        whose = "a query without a group" if end.group is None else f"group {end.group!r}"
        mine, way = f"group={group!r}", "give the group it began with"
        if group is None:
            mine, way = "no group", "give the option `group`"
        raise Invalid(
            f"the Spark checkpoint belongs to {whose}, this query has {mine}: {way}, or use a new checkpoint location"
        )
    if flow is not None and end.flow != flow:
        raise Invalid(
            f"the Spark checkpoint belongs to flow {end.flow!r}, this query has flow={flow!r}: leave the option out, "
            "use a new checkpoint location, or stop the other run of the query that writes into this one"
        )


def in_ack_mode(end: BatchEnd, *, manual_acks: bool, to_read: bool = False) -> BatchEnd:
    """`end` for a query with `manual_acks`, or for one that acknowledges by itself. `to_read`: the batch up to it is
    asked for.

    A query that acknowledged by itself may go on by hand, but for a batch that it did not finish: repeated by hand it
    is empty, complete for Spark, and still an end that speaks for itself. Raises `Invalid` for that, and for the other
    way: Spark's progress says nothing of what the application has acknowledged, and would acknowledge all that it has
    in hand.
    """
    if manual_acks:
        if end.deliveries is not None:
            return end
        if to_read and any(span.start < span.to for span in end.spans.values()):
            raise Invalid(
                f"the Spark checkpoint has a batch that was not finished with ackMode=auto, flow {end.flow!r} has "
                "ackMode=manual now: start it once with ackMode=auto, or use a new checkpoint location, which goes on "
                "behind what is acknowledged"
            )
        return structs.replace(end, deliveries=0)
    if end.deliveries is not None:
        raise Invalid(
            f"the Spark checkpoint was written with ackMode=manual, flow {end.flow!r} has ackMode=auto now, which "
            "would acknowledge what the application has not: give ackMode=manual, or use a new checkpoint location, "
            "which goes on behind what the application has acknowledged"
        )
    return end


# --- whether the log still has what was read --------------------------------------------------------------------------

# Whether the log still has what a query has read, or was put back from an older copy and has grown past it. No pyspark.
#
# An offset says how many messages of a partition were read, and nothing of which: a store that was put back gives their
# numbers to other messages. So Spark's offsets and the group's checkpoints name the newest publish that was read
# (`log.model.Origin`). It is older than all that is read next: a log that has it has all that was read. Of what another
# flow had read that says nothing: it may have done so before the copy was put back, and this one after it.


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
