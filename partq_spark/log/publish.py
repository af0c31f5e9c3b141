"""The publish protocol: staged segments become one entry of the head, once, whatever is lost or repeated on the way.

Read the head, place the entry behind it, swap. After a conflict or an unknown outcome: read, and look for the publish's
own token before placing it again with the same token. A conflict may be the answer to one's own success too, where
something between here and the store has sent the swap a second time. Nothing is ever deleted here: `housekeeping`
collects what was staged and not published. Each guard is a function of its own, so that the interleaving check can
switch it off and must then find the damage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from partq_spark.base.effects import new_token
from partq_spark.base.errors import Conflict, Invalid, Unavailable
from partq_spark.log import clocks, tree, writers
from partq_spark.log.destinations import (
    Outdated,
    Stage,
    StagedSegment,
    check_floor,
    check_version,
    have_same_columns,
)
from partq_spark.log.model import Entry, Head, Resolution, Slice, WriterRecord
from partq_spark.log.queue import QueueGone, QueueLog
from partq_spark.log.repetition import BatchRefused, published_before
from partq_spark.log.writers import PublishIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishResult:
    """How a publish ended. `duplicate`: this writer had published this batch before, so nothing was added; `resolved`:
    a person said so.

    `per_partition`: messages added to each partition that got any, as they were placed in the end; `begin`: the offset
    of the first of them, unknown where that is not there any more, and for a duplicate.
    """

    sequence: int
    time_us: int
    duplicate: bool = False
    conflicts: int = 0
    per_partition: Mapping[int, int] = field(default_factory=dict)
    begin: Mapping[int, int] = field(default_factory=dict)
    resolved: Resolution | None = None

    @property
    def rows(self) -> int:
        """Messages that were added."""
        return sum(self.per_partition.values())


def publish(
    queue: QueueLog, segments: Sequence[StagedSegment], identity: PublishIdentity | None = None
) -> PublishResult:
    """Make staged segments, of which there is one at least, visible, in their order, all at once.

    Raises `QueueGone`, what `published_before` raises, `Full` (the quota is reached), `Outdated` (staged too long ago:
    stage again), `Repartitioned` (not all staged for the present partition count, and for one version of the columns:
    `fanout` places it again), `Unavailable` when the store does not answer within the queue's `retry_timeout_s`,
    `Unsettled` when it did not and can no longer tell, or refuses to.
    """
    newest = max((segment.stage for segment in segments), key=lambda stage: stage.sequence)
    if len({segment.headers for segment in segments}) > 1:
        raise Invalid(f"some of the messages for {queue} were staged with headers and some without: stage all alike")
    token = new_token()
    rows = sum(segment.rows for segment in segments)
    backoff = queue.backoff()
    looked = False
    conflicts = 0
    # At the last swap, and of several for one head the first: any of them may land late, while that head stands, and be
    # trimmed before it is looked for. What was tried for earlier heads is settled.
    tried: Entry | None = None

    def decide(head: Head) -> PublishResult | tuple[Entry, Head]:
        done = _known(queue, tried, identity, segments, token)
        if done is not None:
            return done
        check_stages(segments, head)
        check_quota(queue, head, rows)
        entry = place(head, segments, identity, token, queue.now_us())
        return entry, extended(queue, head, entry, identity)

    while True:
        former = tried
        try:
            _look(queue, newest, again=looked)
            looked = True
            decided = queue.settled(decide)
            if isinstance(decided, PublishResult):
                return replace(decided, conflicts=conflicts)
            entry, grown = decided
            tried = tried if tried is not None and tried.sequence == entry.sequence else entry
            queue.swap(grown)
        except (BatchRefused, Full, Outdated, QueueGone, Unsettled):
            raise  # final for what is staged, though some are of kinds that are tried again
        except Invalid as error:  # the store lets nobody look any more
            if former is None:
                raise
            raise Unsettled(f"whether it was published is unknown, look when this is repaired: {error}") from error
        except Conflict as error:
            conflicts += 1
            backoff.pause(error)
        except Unavailable as error:
            backoff.pause(error)
        else:
            return replace(_placed(entry, segments, entry), conflicts=conflicts)


class Full(Invalid):
    """The queue's quota is reached. Nothing was published; a repetition of what was published before still succeeds."""


class Repartitioned(Outdated):
    """What was staged lies in the partitions of another layout, or has not all the same columns. The staged messages
    are still there.
    """


class Unsettled(Unavailable):
    """It can no longer be told whether the messages were published: look for them before publishing them again."""


def _placed(landed: Entry | WriterRecord, segments: Sequence[StagedSegment], tried: Entry | None) -> PublishResult:
    """That the segments are in the log, and where; `tried` is the last entry for them, which need not have landed."""
    rows = tree.rows_by_partition(piece for segment in segments for piece in segment.slices)
    begin: dict[int, int] = {}
    for each in tried.slices if tried is not None and tried.sequence == landed.sequence else ():
        begin.setdefault(each.partition, each.offset)
    return PublishResult(
        sequence=landed.sequence, time_us=landed.time_us, per_partition=dict(sorted(rows.items())), begin=begin
    )


def _look(queue: QueueLog, stage: Stage, *, again: bool) -> None:
    """At first the head that this handle knows will do, unread: if it is stale the swap fails, so a single writer needs
    one request a publish. One that is older than the stage says nothing about it, one that is full may no longer be.
    """
    known = queue.head if queue.etag is not None else None
    if again or known is None or known.queue_id != stage.queue_id or known.sequence < stage.sequence or is_full(known):
        queue.require(stage.queue_id)


def _known(
    queue: QueueLog,
    tried: Entry | None,
    identity: PublishIdentity | None,
    segments: Sequence[StagedSegment],
    token: str,
) -> PublishResult | None:
    """How it ended, if it is in the log already: by this call, whose answer was lost, or by an earlier one."""
    landed = None if tried is None else _landed(queue, tried, identity)
    if landed is not None:
        return _placed(landed, segments, tried)
    found = None if identity is None else published_before(queue, identity, segments, token)
    if found is None:
        return None
    record, said = found
    if record.token == token:
        return _placed(record, segments, tried)
    return PublishResult(sequence=record.sequence, time_us=record.time_us, duplicate=True, resolved=said)


def _landed(queue: QueueLog, tried: Entry, identity: PublishIdentity | None) -> Entry | None:
    """Guard: settle what a swap did that was not answered with success, by looking for the entry that it would have
    added.

    With an identity the writer's record has the last word where there is no such entry; the token counts also if that
    record has been dropped, or is of a later batch by now.
    """
    head = queue.head
    entry = tree.find_publish(head, tried.sequence, queue.load_chunk)
    if entry is not None and entry.token != tried.token:
        entry = None
    gone = head.trimmed_sequence >= tried.sequence and tree.time_after(head, head.trimmed_sequence) > tried.time_us
    if entry is None and identity is None and gone:
        raise Unsettled(
            f"the answer to a publish to {queue} was lost or contradictory, and messages of that time have been "
            f"trimmed since, so it cannot be told whether these were among them: publish them again if a second copy "
            f"does no harm, and give a publish id next time"
        )
    return entry


def check_stages(segments: Sequence[StagedSegment], head: Head) -> None:
    """Guard: blobs staged below the floor may be gone already; messages placed for an older layout lie wrong; slices of
    one publish have the same columns.
    """
    for segment in segments:
        check_floor(segment.stage, head)
        check_version(segment.stage, head)
    for segment in segments:
        if segment.stage.generation != head.layout.generation:
            raise Repartitioned(
                f"messages for queue {head.queue!r} were placed for {segment.stage.partitions} partitions, it has "
                f"{head.partitions} now: publish them again"
            )
    if not have_same_columns(segments):
        raise Repartitioned(
            f"messages for queue {head.queue!r} were staged for several versions of its columns: publish them again"
        )


def is_full(head: Head) -> bool:
    """Whether the stored bytes of the queue's messages have reached its quota."""
    quota = head.config.quota_bytes
    return quota is not None and head.stored_bytes >= quota


def check_quota(queue: QueueLog, head: Head, rows: int) -> None:
    """Guard: nothing more comes into a queue whose quota is reached. What has no messages may come."""
    if rows and is_full(head):
        raise Full(
            f"{queue} is full: it stores {head.stored_bytes} bytes of messages, its quota is "
            f"{head.config.quota_bytes}: let its groups acknowledge (`partq queue describe {queue.name}` shows what "
            f"holds messages back), trim it with `partq queue trim {queue.name} …`, or raise the quota with `partq "
            f"queue alter {queue.name} --quota-bytes N`"
        )


def place(
    head: Head,
    segments: Sequence[StagedSegment],
    identity: PublishIdentity | None,
    token: str,
    now_us: int,
) -> Entry:
    """The entry behind `head`: dense offsets for every partition, a time later than the last entry's unless that is
    false (`clocks`).
    """
    stage = segments[0].stage
    following: dict[int, int] = {}
    slices: list[Slice] = []
    for index, segment in enumerate(segments):
        for partition, _, start, length, _, rows, xxh3 in segment.slices:
            offset = following.get(partition, head.next[partition])
            slices.append(Slice(partition, index, start, length, offset, rows, xxh3))
            following[partition] = offset + rows
    return Entry(
        sequence=head.sequence + 1,
        token=token,
        writer=identity.writer if identity else None,
        batch=identity.batch if identity else 0,
        time_us=clocks.following_us(head.time_us, now_us),
        generation=stage.generation,
        headers=any(segment.headers for segment in segments),
        schema_version=stage.columns.version if stage.columns is not None else None,
        segments=tuple(segment.name for segment in segments),
        slices=tuple(slices),
    )


def extended(queue: QueueLog, head: Head, entry: Entry, identity: PublishIdentity | None) -> Head:
    """`head` with `entry` as its newest, rolled if it grew too large (which creates chunks in the store)."""
    following = list(head.next)
    for piece in entry.slices:
        following[piece.partition] = piece.end
    grown = replace(
        head,
        sequence=entry.sequence,
        time_us=entry.time_us,
        next=tuple(following),
        entries=(*head.entries, entry),
        writers=_remembered(head.writers, entry, identity),
    )
    grown = tree.rolled(grown, head.sequence, queue.create_blob, queue.sizes)
    return writers.rolled(queue, grown, head.sequence)


def _remembered(
    known: Mapping[str, WriterRecord], entry: Entry, identity: PublishIdentity | None
) -> Mapping[str, WriterRecord]:
    if identity is None:
        return known
    record = WriterRecord(
        batch=identity.batch,
        owner=identity.owner,
        token=entry.token,
        sequence=entry.sequence,
        time_us=entry.time_us,
        sum=writers.slices_sum(entry.schema_version, entry.headers, (piece.xxh3 for piece in entry.slices)),
    )
    # Taken out and put back, so that the map's own order is oldest first.
    return {**{name: old for name, old in known.items() if name != identity.writer}, identity.writer: record}
