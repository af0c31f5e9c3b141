"""What a queue is and holds, as values: from its head alone, and with what has to be looked for beside it. And how a
group is: who has what. Those methods of `Queue` that look, and change nothing; there are no words for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from partq_spark.base.effects import as_datetime
from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.client.arguments import checked, opened_ownership, ownership_for, ownership_url
from partq_spark.client.handle import Handle
from partq_spark.group import codec as group_codec
from partq_spark.group import retention
from partq_spark.group.lifecycle import key_of, progress_of
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.group.retention import HeldBack
from partq_spark.group.status import GroupReading, GroupView, PartitionView, view
from partq_spark.log import codec, tree
from partq_spark.log.model import Head, Layout, at
from partq_spark.log.names import checked_name
from partq_spark.log.queue import QueueLog, oldest_us, published_us
from partq_spark.log.schema.columns import Columns
from partq_spark.log.settings import QueueConfig
from partq_spark.log.writers import TRANSACTION

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFacts:
    """Which queue, and how much it holds. `messages` can be read now; `bytes` are stored (compressed) ones,
    `quota_used` is how full the queue is, 1 being its quota; `last_published` is None if nothing ever was.
    """

    namespace: str
    queue: str
    created: datetime
    last_published: datetime | None
    messages: int
    bytes: int
    quota_used: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSummary(QueueFacts):
    """A queue, as a list shows it. So many messages were ever `published`."""

    partitions: int
    published: int
    quota_bytes: int | None
    access_type: str
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DamagedQueue:
    """A queue that is there and cannot be read: `error` says why, and what to do."""

    namespace: str
    queue: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionDescription:
    """One partition. Offsets are half-open: `next` is the offset of the next message to come. `bytes` are stored
    (compressed) ones, None if they were not counted.
    """

    partition: int
    earliest: int
    next: int
    messages: int
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogDescription:
    """The log's shape: the number of the head's last change, and its size in bytes; publishes in the head, chunks below
    it, pieces in which the messages lie, chunks on the longest way from the head to a message.
    """

    sequence: int
    head_bytes: int
    entries: int
    chunks: int
    slices: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterResolution:
    """What was said of a writer's batches from number `batch` on, `by` whom (user and machine) and when. It counts
    until the writer publishes something that is new.
    """

    writer: str
    batch: int
    published: bool
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDescription(QueueFacts):
    """What a queue is and what it holds.

    `groups` are the consumer groups, each with where the partitions begin for it. `writers` counts those whose last
    batch is remembered; one may count twice. `resolutions` are what persons said of refused batches, oldest first.
    `oldest` is when the oldest message was published, `oldest_age_s` how long ago that is. `held_back` is what groups
    have not acknowledged, most messages first; None where that was not looked for, as `oldest` then. `schema` are the
    columns of a typed queue (`ddl`, `key`, `version`, and of each its `name`, `type`, `nullable`, the version `since`
    which it is there, and `former` types), None of another. `layouts` are the partition counts of which messages are
    still there, the present one last. `problems`: what of the log cannot be read.
    """

    store: str
    queue_id: str
    config: QueueConfig
    schema: Columns | None
    layouts: tuple[Layout, ...]
    partitions: tuple[PartitionDescription, ...]
    groups: Mapping[str, tuple[int, ...]]
    subscriptions: tuple[str, ...]
    writers: int
    resolutions: tuple[WriterResolution, ...]
    log: LogDescription
    oldest: datetime | None = None
    oldest_age_s: float | None = None
    held_back: tuple[HeldBack, ...] | None = None
    problems: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """The present one."""
        return self.layouts[-1]


@checked
class Describing(Handle):
    """The part of `Queue` that says what it is and holds, and how its groups are."""

    def summary(self) -> QueueSummary | None:
        """The facts that a list shows; None if there is no such queue."""
        head = self._opened().look()
        return None if head is None else summary_of(head)

    def describe(self, *, count_bytes: bool = False) -> QueueDescription:
        """What the queue is and holds, how old, and what holds it back. With `count_bytes` the stored bytes of each
        partition, by reading the log, but not the messages.
        """
        queue = self._opened()
        head = queue.refresh()
        problems: list[str] = []

        def found(look: Callable[[Head], T]) -> T | None:
            try:
                return queue.settled(look)
            except Corrupt as problem:
                problems.append(str(problem))
                return None

        oldest = found(lambda head: oldest_us(queue, head, dict(enumerate(zip(head.earliest, head.next, strict=True)))))
        stored = found(lambda head: stored_bytes(queue, head)) if count_bytes else None
        known = queue_description(head, queue.store.url)
        return replace(
            known,
            partitions=tuple(
                replace(each, bytes=None if stored is None else stored[each.partition]) for each in known.partitions
            ),
            oldest=None if oldest is None else as_datetime(oldest),
            oldest_age_s=None if oldest is None else max(queue.now_us() - oldest, 0) / 1e6,  # clocks differ
            held_back=retention.holding_back(queue, head),
            problems=tuple(dict.fromkeys(problems)),
        )

    def status(self, group: str, *, ownership: str | None = None) -> GroupView:
        """Which flow has which partition, and why one does not flow."""
        with self.watching(group, ownership=ownership) as look:
            return look()

    @contextmanager
    def watching(self, group: str, *, ownership: str | None = None) -> Iterator[Callable[[], GroupView]]:
        """`status` for those who look again and again: a function that looks, for as long as the `with` block lasts."""
        name, queue = checked_name("group", group), self._opened()
        url = ownership_url(ownership)
        if ownership is None or url != "none":  # `none`: the checkpoints alone, however the group is shared
            url = ownership_for(queue.refresh(), name, ownership, queue.store.url)
        with opened_ownership(url, queue.store) as kept:
            yield lambda: status(queue, kept, name)


def _facts(head: Head) -> dict[str, Any]:
    quota = head.config.quota_bytes
    return {
        "namespace": head.namespace,
        "queue": head.queue,
        "created": as_datetime(head.created_us),
        "last_published": as_datetime(head.time_us) if any(head.next) else None,  # it begins as that of creation
        "messages": head.messages,
        "bytes": head.stored_bytes,
        "quota_used": None if quota is None else round(head.stored_bytes / quota, 4),
    }


def summary_of(head: Head) -> QueueSummary:
    """The facts of a list, all of them in the head."""
    return QueueSummary(
        **_facts(head),
        partitions=head.partitions,
        published=sum(head.next),
        quota_bytes=head.config.quota_bytes,
        access_type=head.config.access_type,
        groups=tuple(sorted(head.groups)),
    )


def queue_description(head: Head, store: str) -> QueueDescription:
    """What the head says. Pure."""
    return QueueDescription(
        **_facts(head),
        store=store,
        queue_id=head.queue_id,
        config=head.config,
        schema=head.columns,
        layouts=head.layouts,
        partitions=partitions_of(head),
        groups={name: head.groups[name].start for name in sorted(head.groups)},
        subscriptions=head.subscriptions,
        writers=len(head.writers) + sum(page.writers for page in head.writer_pages),
        resolutions=tuple(
            WriterResolution(
                writer=each.writer.removeprefix(TRANSACTION),
                batch=each.batch,
                published=each.published,
                by=each.by,
                at=as_datetime(each.time_us),
            )
            for each in head.resolutions
        ),
        log=LogDescription(
            sequence=head.sequence,
            head_bytes=len(codec.HEAD.seal(head)),
            entries=len(head.entries),
            chunks=len(head.tree),
            slices=sum(ref.slices for ref in head.tree) + sum(len(entry.slices) for entry in head.entries),
            depth=max((ref.level + 1 for ref in head.tree), default=0),
        ),
    )


def partitions_of(head: Head) -> tuple[PartitionDescription, ...]:
    """What the head says of each, removed ones too."""
    return tuple(
        PartitionDescription(partition=partition, earliest=earliest, next=after, messages=after - earliest)
        for partition, (earliest, after) in enumerate(zip(head.earliest, head.next, strict=True))
    )


def stored_bytes(queue: QueueLog, head: Head) -> tuple[int, ...]:
    """Stored (compressed) bytes per partition of the messages that can be read; reads the whole log, not the messages.

    A slice that is trimmed in part counts whole, as it is stored whole.
    """
    counted = [0] * len(head.next)
    wanted = {p: (head.earliest[p], head.next[p]) for p in range(len(head.next))}
    for entry in tree.walk(tree.view(head, wanted), queue.load_chunk):
        for piece in entry.slices:
            counted[piece.partition] += piece.length
    return tuple(counted)


# --- who has what -----------------------------------------------------------------------------------------------------


def status(queue: QueueLog, ownership: Ownership | None, group: str) -> GroupView:
    """One look at everything: the lease first, so that its timers are never older than what they belong to."""
    progress = progress_of(queue, group, queue.refresh())
    nothing = GroupReading(key=key_of(queue, group), progress=progress, kept=False)
    try:
        seen = nothing if ownership is None else _seen(nothing, ownership)
    except (Unavailable, Invalid) as problem:
        seen = replace(nothing, away=str(problem))
    return _with_lag_s(queue, view(seen))


def _with_lag_s(queue: QueueLog, made: GroupView) -> GroupView:
    """A look into the log for those partitions alone that have a lag; one that cannot be read hides nothing else."""
    behind = {each.partition: each.acknowledged for each in made.partitions if each.lag}
    published: dict[int, int] = {}
    if behind:

        def look(head: Head) -> dict[int, int]:
            return published_us(queue, head, {p: max(offset, at(head.earliest, p)) for p, offset in behind.items()})

        try:
            published = queue.settled(look)
        except Corrupt as error:
            made = replace(made, notes=(*made.notes, f"how old the unacknowledged messages are is not known: {error}"))
    now_us = queue.now_us()

    def lag_s(each: PartitionView) -> float | None:
        if not each.lag:
            return 0.0
        at_us = published.get(each.partition)
        return None if at_us is None else max(now_us - at_us, 0) / 1e6  # clocks differ

    return replace(made, partitions=tuple(replace(each, lag_s=lag_s(each)) for each in made.partitions))


def _seen(nothing: GroupReading, ownership: Ownership) -> GroupReading:
    """With what the ownership says. Raises `Unavailable`, and `Invalid` if it cannot be used as it was given."""
    key, queue_id = nothing.key, nothing.progress.head.queue_id
    lease = state = found = None
    lease_damage = state_damage = ""
    try:
        lease = ownership.read_lease(key, aged=True)
    except Corrupt as problem:
        lease_damage = str(problem)
    try:
        found = ownership.read_state(key, aged=True)
        if isinstance(found, StateDocument):
            state = group_codec.decode_state(found.body, 0.0, f"state of group {key}")
    except Corrupt as problem:
        state_damage = str(problem)
    if state is not None and state.queue_id != queue_id:
        state = None  # of a queue that was deleted: no coordinator has come by since
    flows = ownership.look_at_flows(key)
    return replace(
        nothing,
        kept=True,
        state=state,
        state_token=found.token if isinstance(found, StateDocument) else None,
        state_age_s=found.age_s if isinstance(found, StateDocument) else 0.0,
        records={flow: beat.value for flow, beat in flows.beats.items() if beat.value.queue_id == queue_id},
        beats_age_s={flow: beat.age_s for flow, beat in flows.beats.items()},
        damaged_flows={flow: str(problem) for flow, problem in flows.damaged.items()},
        state_damage=state_damage,
        lease_damage=lease_damage,
        lease=lease.value if lease else None,
        lease_age_s=lease.age_s if lease else None,
    )
