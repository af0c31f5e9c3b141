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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import xxhash

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log.model import Origin

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


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchEnd:
    """The end offset of a batch. `group`, `since` and `flow` are None for a query that stands alone; its epochs are
    0. `deliveries` counts the batches with messages where the application acknowledges by hand, and is None elsewhere.
    `origin` is the newest publish with a message before these ends, None if nobody can tell.
    """

    queue_id: str
    spans: Mapping[int, BatchSpan]
    group: str | None = None
    since: int | None = None
    flow: str | None = None
    deliveries: int | None = None
    origin: Origin | None = None

    def followed_by(self, spans: Mapping[int, BatchSpan], origin: Origin | None = None) -> BatchEnd:
        """The end of the next batch, which reads `spans`. Never equal to this one where messages are read."""
        count = self.deliveries + 1 if self.deliveries is not None else None
        return replace(self, spans=spans, deliveries=count, origin=origin)

    @property
    def digest(self) -> str:
        """That of its encoding."""
        return digest(encode(self))


def encode(end: BatchEnd) -> dict[str, Any]:
    """The offset as Spark writes it down; equal ends have equal JSON text."""
    count = {} if end.deliveries is None else {"n": end.deliveries}
    return {
        "v": VERSION,
        "queue": end.queue_id,
        "group": end.group,
        **({"since": end.since} if end.group is not None else {}),
        "flow": end.flow,
        **count,
        **({"publish": list(end.origin)} if end.origin is not None else {}),
        "p": {str(partition): list(end.spans[partition]) for partition in sorted(end.spans)},
    }


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
        return BatchEnd(
            queue_id=raw["queue"],
            group=raw["group"],
            since=int(raw["since"]) if raw["group"] is not None else None,
            flow=raw["flow"],
            deliveries=int(raw["n"]) if "n" in raw else None,
            origin=_origin(*raw["publish"]) if "publish" in raw else None,
            spans={int(partition): BatchSpan(*map(int, span)) for partition, span in raw["p"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(
            f"the Spark checkpoint holds a malformed offset ({error!r}): use a new checkpoint location"
        ) from error


def _origin(sequence: object, time_us: object, token: object) -> Origin:
    return Origin(int(str(sequence)), int(str(time_us)), str(token))


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
        return replace(end, deliveries=0)
    if end.deliveries is not None:
        raise Invalid(
            f"the Spark checkpoint was written with ackMode=manual, flow {end.flow!r} has ackMode=auto now, which "
            "would acknowledge what the application has not: give ackMode=manual, or use a new checkpoint location, which "
            "goes on behind what the application has acknowledged"
        )
    return end
