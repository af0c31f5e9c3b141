"""Where a program begins: `Queue`, everything that it does with one queue, each method at the queue as it is then; and
creating, opening and listing queues, and which of them attract a topic.

What a method does stands in it. Of `Queue`'s those are here that move messages, for they need Arrow, which is imported
when one of them is called; the others are in the classes of which it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.base.errors import Invalid
from partq_spark.client.altering import Altering, require_columns, require_same
from partq_spark.client.arguments import address, check_number, checked, columns_from, ownership_url, place, settings_of
from partq_spark.client.describing import DamagedQueue, Describing, QueueSummary, summary_of
from partq_spark.client.groups import Grouping
from partq_spark.client.maintaining import Maintaining, QueueSubscriptions, attracting
from partq_spark.log import admin
from partq_spark.log.admin import Namespace
from partq_spark.log.names import checked_name
from partq_spark.log.queue import QueueLog, shared_store
from partq_spark.log.settings import QueueConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from partq_spark.client.consumer import Consumer
    from partq_spark.client.messages import Found, Message
    from partq_spark.client.publication import Publication
    from partq_spark.client.publisher import Publisher

_DEFAULTS: Final = QueueConfig()


@checked
class Queue(Describing, Altering, Maintaining, Grouping):
    """One queue, by name. `create_queue` and `open_queue` make one and look whether it is there; this does not look.
    Methods that speak of a group take `ownership`, where its flows keep who has what: `redis://host:port/db`,
    `rediss://…`, `store` or `none`. None: as `$PARTQ_OWNERSHIP` says, if that fits the group.

    Every method raises `Invalid` if there is no such queue, and `Unavailable` if a store does not answer for
    `retry_timeout_s`.
    """

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
        fail_on_data_loss: bool = True,
    ) -> Consumer:
        """A flow of a group, in this process: a context manager over which a loop iterates.

        `flow` is its name (None: generated), `ownership` how the group is shared, `starting` where a group begins that
        is made by this. `columns` are those that a batch has as a table (None: all but `headers`), in their order; no
        other is decoded unless somebody iterates. With `acknowledge="next"` asking for the next batch acknowledges the
        last; with `manual` only `batch.acknowledge()` does. A batch has at most so many messages and stored bytes. The
        loop ends after `idle_timeout_s` without messages; the flow leaves its group if nothing is asked for
        `max_poll_interval_s`. Without `fail_on_data_loss` messages that are gone are skipped, with a warning.

        Raises `Invalid` for what is out of its range.
        """
        from partq_spark.client.consumer import Consumer
        from partq_spark.query.settings import GroupOptions, SourceOptions

        check_number("max_messages", max_messages, "messages", least=1, most=2**63 - 1)
        check_number("max_bytes", max_bytes, "bytes", least=1, most=2**63 - 1)
        check_number("session_timeout_s", session_timeout_s, "seconds", least=5, most=3600)
        if max_poll_interval_s is not None:
            check_number("max_poll_interval_s", max_poll_interval_s, "seconds", least=1, most=7 * 24 * 3600)
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
            fail_on_data_loss=fail_on_data_loss,
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


# --- queues -----------------------------------------------------------------------------------------------------------


@checked
def create_queue(
    name: str,
    *,
    partitions: int,
    schema: Any = None,
    key: str | None = None,
    exist_ok: bool = False,
    store: str | None = None,
    namespace: str = "default",
    retry_timeout_s: float = RETRY_TIMEOUT_S,
    rebalance_delay_s: float = _DEFAULTS.rebalance_delay_s,
    max_handoff_time_s: float = _DEFAULTS.max_handoff_time_s,
    access_type: Literal["non-exclusive", "exclusive"] = "non-exclusive",
    max_message_bytes: int = _DEFAULTS.max_message_bytes,
    retention_s: float | None = None,
    quota_bytes: int | None = None,
) -> Queue:
    """Create a queue of 1 to 1000 partitions. How long messages stay once they are acknowledged is said by
    `retention_s` (seconds; None: until they are trimmed), how many stored bytes there may be by `quota_bytes`.

    `schema` makes it a typed queue, whose messages are rows with these columns: a DDL (`"id BIGINT NOT NULL, name
    STRING"`), a `StructType` or a `pyarrow.Schema`. `key` is the column whose text decides the partition; without it
    messages have none, and go to random partitions. Neither can be changed later, but columns can be added and widened.

    Raises `Invalid` for a name, count, setting or schema that cannot be, and if the queue exists; with `exist_ok` only
    if it has another partition count, other settings or columns, or another key than these.
    """
    config = QueueConfig(**settings_of(locals()))
    queue = Queue(name, store=store, namespace=namespace, retry_timeout_s=retry_timeout_s)
    columns = columns_from(schema, key)
    opened = queue._opened()  # noqa: SLF001 - its own package's
    where = (opened.store, queue.namespace, queue.name)
    try:
        admin.create_queue(*where, partitions, config, columns=columns, retry_timeout_s=retry_timeout_s)
    except Invalid:
        found = opened.look() if exist_ok else None
        if found is None:
            raise
        require_same(opened, found, partitions, config)
        try:
            require_columns(opened, found.columns, columns)
        except Invalid as error:
            raise Invalid(f"{queue} exists already with other columns: {error}") from None
    return queue


@checked
def open_queue(
    name: str, *, store: str | None = None, namespace: str = "default", retry_timeout_s: float = RETRY_TIMEOUT_S
) -> Queue:
    """A queue that is there. Raises `Invalid` if it is not, saying how to create it."""
    queue = Queue(name, store=store, namespace=namespace, retry_timeout_s=retry_timeout_s)
    queue._opened().refresh()  # noqa: SLF001 - its own package's
    return queue


@checked
def list_queues(
    *, store: str | None = None, namespace: str = "default", retry_timeout_s: float = RETRY_TIMEOUT_S
) -> tuple[QueueSummary | DamagedQueue, ...]:
    """The queues of a namespace, by name; one that cannot be read is listed as damaged and hides no other."""
    queues, damaged = _all(store, namespace, retry_timeout_s, to_publish=False)
    return tuple(sorted([*(summary_of(each.head) for each in queues), *damaged], key=lambda each: each.queue))


@checked
def list_subscriptions(
    *,
    topic: str | None = None,
    store: str | None = None,
    namespace: str = "default",
    retry_timeout_s: float = RETRY_TIMEOUT_S,
) -> tuple[QueueSubscriptions | DamagedQueue, ...]:
    """Of all queues of a namespace that have some: what they attract; with `topic` only what attracts this topic, so
    where a message with it goes. One that is damaged attracts nothing, and is listed as such.
    """
    queues, damaged = _all(store, namespace, retry_timeout_s, to_publish=True)
    found = [
        QueueSubscriptions(queue=each.name, subscriptions=attracting(each.head.subscriptions, topic)) for each in queues
    ]
    some = [each for each in found if each.subscriptions]
    return tuple(sorted([*some, *damaged], key=lambda each: each.queue))


def _all(
    store: str | None, namespace: str, retry_timeout_s: float, *, to_publish: bool
) -> tuple[list[QueueLog], list[DamagedQueue]]:
    """The queues of a namespace, and those that cannot be read."""
    where = address(store, namespace, retry_timeout_s)
    opened = shared_store(where.store, where.retry_timeout_s)
    every = Namespace(opened, where.namespace, retry_timeout_s=where.retry_timeout_s)
    queues = list(every.queues(to_publish=to_publish))
    damaged = every.problems.items()
    return queues, [DamagedQueue(namespace=where.namespace, queue=name, error=str(why)) for name, why in damaged]


@checked
def search_messages(
    queue: Queue,
    *,
    key: str | None = None,
    partition: int | None = None,
    before: datetime | str | Mapping[int, int] | None = None,
    limit: int = 20,
) -> Found:
    """Look at messages without taking them, newest first: at most `limit`, with this key, published before a time or
    below these offsets by partition (`Found.before` of the last search). A search for a key ends after some 20,000
    messages; the next one goes on. Raises as the methods of a queue.
    """
    from partq_spark.client import messages

    return messages.search(queue._opened(), key, partition, before, limit)  # noqa: SLF001 - its own package's
