"""Where a program begins: creating, opening and listing queues, publishing by topic, and which queues attract one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.client import altering, describing
from partq_spark.client.arguments import address, checked, columns_from, settings_of
from partq_spark.client.describing import DamagedQueue, QueueSummary
from partq_spark.client.maintaining import attracting
from partq_spark.client.queue import Queue
from partq_spark.log.admin import Namespace
from partq_spark.log.queue import shared_store
from partq_spark.log.settings import QueueConfig

if TYPE_CHECKING:  # both need Arrow, which most commands do not
    from partq_spark.client.messages import Found
    from partq_spark.client.publication import Publication

_DEFAULTS: Final = QueueConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSubscriptions:
    """What one queue attracts."""

    queue: str
    subscriptions: tuple[str, ...]


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
    altering.create(opened, partitions, config, columns=columns, exist_ok=exist_ok)
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
    where = address(store, namespace, retry_timeout_s)
    every = Namespace(shared_store(where.store, retry_timeout_s), where.namespace)
    known: dict[str, QueueSummary | DamagedQueue] = {
        queue.name: describing.summary_of(queue.head) for queue in every.queues(to_publish=False)
    }
    for name, problem in every.problems.items():
        known[name] = DamagedQueue(namespace=where.namespace, queue=name, error=str(problem))
    return tuple(each for _, each in sorted(known.items()))


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


@checked
def topic_publication(
    topic: str,
    *,
    publish_id: str | None = None,
    fail_unattracted: bool = False,
    store: str | None = None,
    namespace: str = "default",
    retry_timeout_s: float = RETRY_TIMEOUT_S,
) -> Publication:
    """One publish in the making to every queue that attracts `topic`. Raises `Invalid` for what is no topic, and with
    `fail_unattracted` if nobody attracts it.
    """
    from partq_spark.client.publication import Publication

    where = address(store, namespace, retry_timeout_s)
    return Publication(where, topic=topic, publish_id=publish_id, fail_unattracted=fail_unattracted)


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
    where = address(store, namespace, retry_timeout_s)
    opened = shared_store(where.store, retry_timeout_s)
    every = Namespace(opened, where.namespace, retry_timeout_s=retry_timeout_s)
    found = {queue.name: attracting(queue.head.subscriptions, topic) for queue in every.queues()}
    known: list[QueueSubscriptions | DamagedQueue] = [
        DamagedQueue(namespace=where.namespace, queue=name, error=str(error)) for name, error in every.problems.items()
    ]
    known += [QueueSubscriptions(queue=name, subscriptions=theirs) for name, theirs in found.items() if theirs]
    return tuple(sorted(known, key=lambda each: each.queue))
