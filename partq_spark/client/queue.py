"""`Queue`: everything that a program does with one queue. Each method looks at the queue as it is then.

A queue object holds an address and nothing else: it may be pickled, used by several threads, and kept for ever. What
its methods do is written in the modules beside this one; here is what they take, return and raise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.base.errors import Invalid
from partq_spark.client.arguments import address, checked, ownership_url, place, settings_of
from partq_spark.log.names import checked_name
from partq_spark.log.queue import open_queue

if TYPE_CHECKING:
    import pyarrow as pa

    from partq_spark.client.altering import Alteration
    from partq_spark.client.consumer import Consumer
    from partq_spark.client.describing import QueueDescription, QueueSummary
    from partq_spark.client.groups import GroupAlteration, GroupCheckpoints, GroupRemoval, Rewind
    from partq_spark.client.maintaining import Collection as CollectionRound
    from partq_spark.client.maintaining import Compaction, Deleted, Resolved, SubscriptionChange, Trimmed
    from partq_spark.client.messages import Message
    from partq_spark.client.publication import Publication
    from partq_spark.client.publisher import Publisher
    from partq_spark.group.lifecycle import GroupSummary
    from partq_spark.group.status import GroupView
    from partq_spark.log.queue import QueueLog


@checked
class Queue:
    """One queue, by name. `create_queue` and `open_queue` make one and look whether it is there; this does not look.
    Methods that speak of a group take `ownership`, where its flows keep who has what: `redis://host:port/db`,
    `rediss://…`, `store` or `none`. None: as `$PARTQ_OWNERSHIP` says, if that fits the group.

    Every method raises `Invalid` if there is no such queue, and `Unavailable` if a store does not answer for
    `retry_timeout_s`.
    """

    @checked
    def __init__(
        self,
        name: str,
        *,
        store: str | None = None,
        namespace: str = "default",
        retry_timeout_s: float = RETRY_TIMEOUT_S,
    ) -> None:
        """`store`: `file:///absolute/dir`, `azure://container/prefix` or `s3://bucket/prefix`; None:
        `$PARTQ_STORE`, else `file://$HOME/.partq`. Raises `Invalid` for a name or URL that cannot be.
        """
        self._where = address(store, namespace, retry_timeout_s)
        self._name = checked_name("queue", name)

    @property
    def name(self) -> str:
        """The queue's name, in lower case."""
        return self._name

    @property
    def namespace(self) -> str:
        """The namespace that it is in."""
        return self._where.namespace

    @property
    def store(self) -> str:
        """The URL of the store, in the one way in which partq writes it."""
        return self._where.store

    def __str__(self) -> str:
        return f"queue {self.name!r} (namespace {self.namespace!r}, store {self.store})"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and (self._where, self._name) == (other._where, other._name)

    def __hash__(self) -> int:
        return hash((self._where, self._name))

    # --- the queue ----------------------------------------------------------------------------------------------------

    def summary(self) -> QueueSummary | None:
        """The facts that a list shows; None if there is no such queue."""
        from partq_spark.client import describing

        head = self._opened().look()
        return None if head is None else describing.summary_of(head)

    def describe(self, *, count_bytes: bool = False) -> QueueDescription:
        """What the queue is and holds, how old, and what holds it back. With `count_bytes` the stored bytes of each
        partition, by reading the log, but not the messages.
        """
        from partq_spark.client import describing

        return describing.description(self._opened(), count_bytes=count_bytes)

    def alter(
        self,
        *,
        partitions: int | None = None,
        add_column: str | None = None,
        widen: str | None = None,
        schema: Any = None,
        dry_run: bool = False,
        ownership: str | None = None,
        rebalance_delay_s: float | EllipsisType = ...,
        max_handoff_time_s: float | EllipsisType = ...,
        access_type: Literal["non-exclusive", "exclusive"] | EllipsisType = ...,
        max_message_bytes: int | EllipsisType = ...,
        retention_s: float | EllipsisType | None = ...,
        quota_bytes: int | EllipsisType | None = ...,
    ) -> Alteration:
        """Change the partition count, columns and settings, those that are given, in one swap, while everything runs.
        Settings are those of `create_queue`; None takes away `retention_s` or `quota_bytes`, and what is left out
        (`...`) stays. With `dry_run` it is only said what would change and what would wait for what. Coordinators hear
        of it at once by `ownership`.

        Of a typed queue: `add_column` is the DDL of new columns (`"coupon STRING"`), which are null in the messages
        that are there; `widen` names columns with wider types (`"count BIGINT"`). Streaming queries go on with the
        columns that they loaded; one that keeps whole rows or a widened column in Spark's state must name its columns
        with `.schema()` before it is started again. `schema` are all columns: if the queue does not have them, it is
        said what to do.

        Raises `Invalid` for what is out of its range or could lose or change a value, and where nothing is given.
        """
        settings = settings_of(locals())
        from partq_spark.client import altering

        return altering.alter(
            self._opened(),
            partitions=partitions,
            add_column=add_column,
            widen=widen,
            schema=schema,
            settings=settings,
            dry_run=dry_run,
            ownership=ownership,
        )

    def delete(self) -> Deleted:
        """Delete the queue and all that is in it, for good. A deletion that was cut off is finished by the next."""
        from partq_spark.client import maintaining

        return maintaining.delete(self._opened())

    def trim(self, before: datetime | str | Mapping[int, int]) -> Trimmed:
        """Make messages unreadable, for every reader and for good: those published before a time (RFC 3339, or a
        `datetime` with a zone), or below these offsets by partition. What a group has not acknowledged stays.
        """
        from partq_spark.client import maintaining

        return maintaining.trim(self._opened(), before)

    def compact(self, *, min_age_s: float | None = None) -> Compaction:
        """Join small stored pieces into large ones, but for what was published within `min_age_s` (default 300)."""
        from partq_spark.client import maintaining

        return maintaining.compact(self._opened(), min_age_s)

    def resolve(self, *, writer: str, batch: int, published: bool) -> Resolved:
        """Say what a writer's refused batches are, from number `batch` up to its last: `published` already, or new."""
        from partq_spark.client import maintaining

        return maintaining.resolve(self._opened(), writer, batch, published)

    def collect(self, *, grace_s: float | None = None) -> CollectionRound:
        """Delete stored objects that nothing needs: one round. An object is marked by one round and deleted by a later
        one, at least `grace_s` (default a day) after.
        """
        from partq_spark.client import maintaining

        return maintaining.collect(self._opened(), grace_s)

    def subscribe(self, *subscriptions: str) -> SubscriptionChange:
        """Let the queue attract messages by their topics: `*` stands for any characters within a level, `>` as the last
        level for all further ones.
        """
        from partq_spark.client import maintaining

        return maintaining.subscribe(self._opened(), subscriptions)

    def unsubscribe(self, *subscriptions: str) -> SubscriptionChange:
        """Take subscriptions back, each written as it was made."""
        from partq_spark.client import maintaining

        return maintaining.unsubscribe(self._opened(), subscriptions)

    def subscriptions(self, *, topic: str | None = None) -> tuple[str, ...]:
        """What the queue attracts; with `topic` only what attracts this topic."""
        from partq_spark.client import maintaining

        return maintaining.attracting(self._opened().refresh().subscriptions, topic)

    # --- messages -----------------------------------------------------------------------------------------------------

    def publisher(
        self,
        *,
        linger_s: float = 0.05,
        max_batch_bytes: int = 4 * 1024 * 1024,
        max_pending_bytes: int = 64 * 1024 * 1024,
        publish_id: str | None = None,
    ) -> Publisher:
        """For messages that are sent one by one: a context manager. A message waits up to `linger_s` for others, or
        until `max_batch_bytes` are there; what was sent and is not done takes at most `max_pending_bytes` in memory.

        With a `publish_id` all that is sent until `flush` or the end is one publish, which is made at most once under
        this id, however often the program is repeated.
        """
        from partq_spark.client.publisher import Publisher

        return Publisher(
            self._where,
            self._name,
            linger_s=linger_s,
            max_batch_bytes=max_batch_bytes,
            max_pending_bytes=max_pending_bytes,
            publish_id=publish_id,
        )

    def publication(self, *, publish_id: str | None = None) -> Publication:
        """One publish in the making, for messages of a file or of tables: all of it becomes visible at once."""
        from partq_spark.client.publication import Publication

        return Publication(self._where, queue=self._name, publish_id=publish_id)

    def consumer(
        self,
        group: str,
        *,
        flow: str | None = None,
        ownership: str = "none",
        acknowledge: Literal["next", "manual"] = "next",
        starting: str | datetime | Mapping[int, int] = "latest",
        columns: Sequence[str] | None = None,
        max_messages: int = 10_000,
        max_bytes: int = 16 * 1024 * 1024,
        idle_timeout_s: float | None = None,
        max_poll_interval_s: float | None = None,
        session_timeout_s: float = 10.0,
    ) -> Consumer:
        """A flow of a group, in this process: a context manager over which a loop iterates.

        `flow` is its name (None: generated), `ownership` how the group is shared, `starting` where a group begins that
        is made by this. `columns` are those that a batch has as a table (None: all but `headers`), in their order; no
        other is decoded unless somebody iterates. With `acknowledge="next"` asking for the next batch acknowledges the
        last; with `manual` only `batch.acknowledge()` does. A batch has at most so many messages and stored bytes. The
        loop ends after `idle_timeout_s` without messages; the flow leaves its group if nothing is asked for
        `max_poll_interval_s`.

        Raises `Invalid` for what is out of its range.
        """
        from partq_spark.client.consumer import Consumer
        from partq_spark.query.settings import GroupOptions, SourceOptions

        if max_messages < 1 or max_bytes < 1 or session_timeout_s < 5:
            raise Invalid(
                f"max_messages={max_messages}, max_bytes={max_bytes}, session_timeout_s={session_timeout_s} is not "
                "allowed: give at least 1, 1 and 5"
            )
        options = SourceOptions(
            target=self._where.target(self._name),
            group=GroupOptions(
                name=checked_name("group", group),
                ownership=ownership_url(ownership),
                flow=None if flow is None else checked_name("flow", flow),
                session_timeout_s=session_timeout_s,
                max_poll_interval_s=max_poll_interval_s,
                manual_acks=True,
            ),
            start=place(starting),
            max_messages=max_messages,
            max_bytes=max_bytes,
            max_delivered_unacked=None if acknowledge == "next" else 10_000,
            include_headers=True,
        )
        return Consumer(options, by_next=acknowledge == "next", columns=columns, idle_timeout_s=idle_timeout_s)

    def read(
        self,
        *,
        starting: str | datetime | Mapping[int, int] = "earliest",
        ending: str | datetime | Mapping[int, int] = "latest",
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """The messages between two places, without a group: a stream of Arrow batches, read on demand, with the columns
        of the Spark source but `headers`, or these; no other is decoded. Anything that takes `__arrow_c_stream__` reads
        it, once.
        """
        from partq_spark.client import batches

        return batches.read(self._opened(), place(starting), place(ending), columns)

    def browse(self, *, partition: int | None = None, start: int = 0, limit: int | None = None) -> Iterator[Message]:
        """Look at messages without taking them, oldest first: at most `limit`, from the offset `start` of the
        partition, or of each.
        """
        from partq_spark.client import messages

        return messages.browse(self._opened(), partition, start, limit)

    # --- groups -------------------------------------------------------------------------------------------------------

    def groups(self, *, ownership: str | None = None) -> tuple[GroupSummary, ...]:
        """The consumer groups, by name; with an ownership also the flows that are bound."""
        from partq_spark.client import groups

        return groups.summaries(self._opened(), ownership)

    def create_group(
        self, group: str, *, starting: str | datetime | Mapping[int, int] = "latest", ownership: str | None = None
    ) -> None:
        """Make a group before its first flow comes, which makes it otherwise. `starting`: `latest`, `earliest`, a time
        (`datetime`, RFC 3339), or an offset for each partition. One that exists is left as it is.
        """
        from partq_spark.client import groups

        groups.create(self._opened(), checked_name("group", group), place(starting), ownership)

    def alter_group(
        self, group: str, *, ownership: str, former: str | None = None, force: bool = False
    ) -> GroupAlteration:
        """Change how a group is shared; checkpoints stay. `former` is where it has been sharing so far, `force` does it
        also where nobody can know whether a flow lives. Raises `Invalid` while one lives.
        """
        from partq_spark.client import groups

        return groups.alter(self._opened(), checked_name("group", group), ownership, former=former, force=force)

    def remove_group(
        self, group: str, *, ownership: str | None = None, force: bool = False, dry_run: bool = False
    ) -> GroupRemoval:
        """Remove a group for good: how far it was is forgotten, and nothing is held back for it any more. Raises
        `Invalid` while a flow lives, and `Conflict` if somebody has made it again meanwhile. A removal that was cut off
        is finished by the next.
        """
        from partq_spark.client import groups

        name = checked_name("group", group)
        return groups.remove(self._opened(), name, ownership=ownership, force=force, dry_run=dry_run)

    def status(self, group: str, *, ownership: str | None = None) -> GroupView:
        """Which flow has which partition, and why one does not flow."""
        with self.watching(group, ownership=ownership) as look:
            return look()

    def watching(self, group: str, *, ownership: str | None = None) -> AbstractContextManager[Callable[[], GroupView]]:
        """`status` for those who look again and again: a function that looks, for as long as the `with` block lasts."""
        from partq_spark.client import describing

        return describing.watching(self._opened(), checked_name("group", group), ownership)

    def checkpoints(self, group: str) -> GroupCheckpoints:
        """How far a group is: the checkpoint of every partition."""
        from partq_spark.client import groups

        return groups.checkpoints(self._opened(), checked_name("group", group))

    def rewind(
        self,
        group: str,
        *,
        to: int | str | None = None,
        to_timestamp: datetime | str | None = None,
        by: int | None = None,
        partitions: Collection[int] = (),
        dry_run: bool = False,
        ownership: str | None = None,
    ) -> Rewind:
        """Take a group back, so that messages are delivered again, marked: `to` an offset or `earliest`, to the first
        message at or after a time, or `by` so many messages. All partitions that have a checkpoint, or these.

        All is checked before anything is changed. Raises `Invalid` for a place that a partition is not past or that is
        not kept, and `RewindUnfinished` (an `Unavailable`), which says how to go on.
        """
        from partq_spark.client import groups

        goal = groups.goal_of(to, to_timestamp, by)
        name = checked_name("group", group)
        return groups.rewind(self._opened(), name, goal, partitions, ownership=ownership, dry_run=dry_run)

    def _opened(self) -> QueueLog:
        """A handle of its own for each call; the store is shared within the process."""
        return open_queue(self._where.target(self._name))
