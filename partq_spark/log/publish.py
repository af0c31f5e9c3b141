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
from partq_spark.log.destinations import Stage, StagedSegment
from partq_spark.log.model import Entry, Head, Resolution, Slice, WriterRecord
from partq_spark.log.queue import QueueLog

TRANSACTION = "txnAppId:"
PUBLISH_ID = "publish-id:"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishIdentity:
    """Who publishes which batch: batches of a `writer` only grow, and each is published once (DIS-09, DIS-10).

    `owner` is the Spark query behind a writer name that a user chose; another query under the same name is refused.
    What users name is a writer by its kind and name: a `--publish-id` repeats no batch of a `txnAppId` of that name.
    """

    writer: str
    batch: int
    owner: str | None = None

    @classmethod
    def of_query(cls, query: str, batch: int) -> PublishIdentity:
        """A micro-batch of a Spark query, whose id is unique by itself."""
        return cls(writer=query, batch=batch, owner=query)

    @classmethod
    def of_transaction(cls, app: str, version: int, owner: str | None) -> PublishIdentity:
        """A batch write with `txnAppId` and `txnVersion`, inside of the query `owner` if there is one."""
        return cls(writer=TRANSACTION + app, batch=version, owner=owner)

    @classmethod
    def of_publish_id(cls, publish_id: str) -> PublishIdentity:
        """What is published once under this id."""
        return cls(writer=PUBLISH_ID + publish_id, batch=0)

    @property
    def name(self) -> str:
        """The writer's name, as people know it."""
        return self.writer.removeprefix(TRANSACTION)

    @property
    def is_callers_word(self) -> bool:
        """Whether a repetition is what the caller calls so; of others it is judged by the number and the rows."""
        return self.writer.startswith(PUBLISH_ID)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishResult:
    """How a publish ended. `duplicate`: this writer had published this batch before, so nothing was added; `resolved`:
    a person said so.

    `per_partition`: messages added to each partition that got any, as they were placed in the end; `begin`: the offset
    of the first of them, unknown where that is not there any more, and for a duplicate.
    """

    sequence: int
    time_us: int
    rows: int = 0
    duplicate: bool = False
    conflicts: int = 0
    per_partition: Mapping[int, int] = field(default_factory=dict)
    begin: Mapping[int, int] = field(default_factory=dict)
    resolved: Resolution | None = None


def publish(
    queue: QueueLog, segments: Sequence[StagedSegment], identity: PublishIdentity | None = None
) -> PublishResult:
    """Make staged segments, of which there is one at least, visible, in their order, all at once.

    Raises `Invalid` (another queue by this name, a writer name in use), `NumberUsed` (`repetition` tells whether it is
    a repetition with other slices), `Full` (the quota is reached), `Outdated` (staged too long ago: stage again),
    `Repartitioned` (not all staged for the present partition count, and for one version of the columns: `repetition`
    places it again), `Unavailable` when the store does not answer within the queue's `retry_timeout_s`, `Unsettled`
    when it did not and can no longer tell.
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
        done = None if tried is None else _landed(queue, tried, identity)
        if done is None and identity is not None:
            done = published_before(queue, identity, segments, token)
        if done is not None:
            return replace(done if done.duplicate else _placed(done, segments, tried), conflicts=conflicts)
        check_stages(segments, head)
        check_quota(queue, head, rows)
        entry = place(head, segments, identity, token, queue.now_us())
        return entry, extended(queue, head, entry, identity)

    while True:
        try:
            if looked:
                queue.require(newest.queue_id)
            else:
                _look_first(queue, newest)
            looked = True
            decided = queue.settled(decide)
            if isinstance(decided, PublishResult):
                return decided
            entry, grown = decided
            tried = tried if tried is not None and tried.sequence == entry.sequence else entry
            queue.swap(grown)
        except (Outdated, Unsettled):
            raise  # final for what is staged, though of the kinds that are tried again
        except Conflict as error:
            conflicts += 1
            backoff.pause(error)
        except Unavailable as error:
            backoff.pause(error)
        else:
            done = PublishResult(sequence=entry.sequence, time_us=entry.time_us, rows=rows, conflicts=conflicts)
            return _placed(done, segments, entry)


class Full(Invalid):
    """The queue's quota is reached. Nothing was published; a repetition of what was published before still succeeds."""


class NumberUsed(Invalid):
    """A batch came again under a number that its writer has used, and its slices do not tell whether it is the one that
    was published. Nothing was published. `record` is the writer's last publish.
    """

    def __init__(self, identity: PublishIdentity, record: WriterRecord) -> None:
        super().__init__(
            f"writer {identity.name!r} has used the number {identity.batch} of this batch: its last one is "
            f"{record.batch}, with other slices"
        )
        self.identity = identity
        self.record = record


class Outdated(Conflict):
    """What was staged can no longer be published: stage it again from the messages. Nothing of it was published."""


class Repartitioned(Outdated):
    """What was staged lies in the partitions of another layout, or has not all the same columns. The staged messages
    are still there.
    """


class Unsettled(Unavailable):
    """It can no longer be told whether the messages were published: look for them before publishing them again."""


def _placed(done: PublishResult, segments: Sequence[StagedSegment], entry: Entry | None) -> PublishResult:
    """With where the messages lie; `entry` is the last that was tried, which need not be the one that landed."""
    rows: dict[int, int] = {}
    for segment in segments:
        for piece in segment.slices:
            rows[piece.partition] = rows.get(piece.partition, 0) + piece.rows
    begin: dict[int, int] = {}
    for each in entry.slices if entry is not None and entry.sequence == done.sequence else ():
        begin.setdefault(each.partition, each.offset)
    return replace(done, per_partition=dict(sorted(rows.items())), begin=begin)


def _look_first(queue: QueueLog, stage: Stage) -> None:
    """The head that this handle knows will do, unread: if it is stale the swap fails, so a single writer needs one
    request a publish. One that is older than the stage says nothing about it, and one that is full may no longer be.
    """
    known = queue.head if queue.etag is not None else None
    if known is None or known.queue_id != stage.queue_id or known.sequence < stage.sequence or is_full(known):
        queue.require(stage.queue_id)


def published_before(
    queue: QueueLog, identity: PublishIdentity, segments: Sequence[StagedSegment], token: str = ""
) -> PublishResult | None:
    """That the batch is in the log already, as far as the head tells that the queue's handle knows; None: it is not.
    Raises as `already`, and as reading its pages of writers does.
    """
    earlier = writers.last_batch(queue, identity.writer)
    if earlier is None:
        return None
    return already(earlier, writers.resolution(queue.head, identity.writer, earlier), identity, segments, token)


def already(
    earlier: WriterRecord,
    said: Resolution | None,
    identity: PublishIdentity,
    segments: Sequence[StagedSegment],
    token: str,
) -> PublishResult | None:
    """Guard: this writer's batch is in the log already, by this call (a lost answer) or by an earlier one. None: it is
    not, or a person said that it is new. `earlier` is the writer's last publish, `said` what was said since.
    """
    if identity.owner is not None and earlier.owner is not None and identity.owner != earlier.owner:
        raise Invalid(
            f"writer {identity.name!r} belongs to query {earlier.owner} (its last batch is {earlier.batch}); this is "
            f"query {identity.owner}, whose batches are others with the same numbers: choose another txnAppId"
        )
    if earlier.batch < identity.batch:
        return None
    if said is not None and identity.batch < said.batch:
        said = None
    if said is not None and not said.published:
        return None
    duplicate = earlier.token != token
    if duplicate and said is None and not identity.is_callers_word and not _alike(earlier, identity, segments):
        raise NumberUsed(identity, earlier)
    return PublishResult(
        sequence=earlier.sequence,
        time_us=earlier.time_us,
        rows=0 if duplicate else sum(segment.rows for segment in segments),
        duplicate=duplicate,
        resolved=said,
    )


def _alike(earlier: WriterRecord, identity: PublishIdentity, segments: Sequence[StagedSegment]) -> bool:
    """Whether the batch is the writer's last one as its slices show, without a look at the rows."""
    if earlier.batch != identity.batch or not _have_same_columns(segments):
        return False
    columns = segments[0].stage.columns
    version = columns.version if columns is not None else None
    checksums = (piece.xxh3 for segment in segments for piece in segment.slices)
    return earlier.sum == writers.slices_sum(version, any(segment.headers for segment in segments), checksums)


def _landed(queue: QueueLog, tried: Entry, identity: PublishIdentity | None) -> PublishResult | None:
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
    if entry is None:
        return None
    return PublishResult(sequence=entry.sequence, time_us=entry.time_us, rows=entry.rows)


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
    if not _have_same_columns(segments):
        raise Repartitioned(
            f"messages for queue {head.queue!r} were staged for several versions of its columns: publish them again"
        )


def _have_same_columns(segments: Sequence[StagedSegment]) -> bool:
    return all(segment.stage.columns == segments[0].stage.columns for segment in segments)


def check_floor(stage: Stage, head: Head) -> None:
    """Guard: blobs staged below the floor may be gone already."""
    if stage.sequence < head.floor.sequence:
        raise Outdated(
            f"messages for queue {head.queue!r} were staged at sequence {stage.sequence}, collection has passed "
            f"{head.floor.sequence}: publish them again"
        )


def check_version(stage: Stage, head: Head) -> None:
    """Guard: what was staged for a version of the columns that the head does not have could not be read. An earlier
    version than the present one is welcome (TYP-05).
    """
    if stage.columns is not None and (head.columns is None or head.columns.version < stage.columns.version):
        known = head.columns.version if head.columns is not None else 0
        raise Outdated(
            f"messages for queue {head.queue!r} were staged for version {stage.columns.version} of its columns, its "
            f"head knows {known} (was the store restored from an older copy?): publish them again"
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
