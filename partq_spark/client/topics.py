"""Which topics a queue attracts, and which queues attract a topic. Matching is done in `log.topics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partq_spark.base.retry import RETRY_TIMEOUT_S
from partq_spark.client.addresses import address
from partq_spark.client.arguments import checked
from partq_spark.client.describing import DamagedQueue
from partq_spark.log import subscriptions as log_subscriptions
from partq_spark.log.connect import shared_store
from partq_spark.log.queue import QueueLog
from partq_spark.log.topics import checked_topic, matches


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionChange:
    """What subscribing or unsubscribing `changed`, and the queue's `subscriptions` since."""

    queue: str
    changed: tuple[str, ...]
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSubscriptions:
    """What one queue attracts."""

    queue: str
    subscriptions: tuple[str, ...]


def subscribe(queue: QueueLog, wanted: Sequence[str]) -> SubscriptionChange:
    """Raises as `log.subscriptions.subscribe`."""
    changed = log_subscriptions.subscribe(queue, *wanted)
    return SubscriptionChange(queue=queue.name, changed=changed, subscriptions=queue.head.subscriptions)


def unsubscribe(queue: QueueLog, unwanted: Sequence[str]) -> SubscriptionChange:
    """Raises as `log.subscriptions.unsubscribe`."""
    changed = log_subscriptions.unsubscribe(queue, *unwanted)
    return SubscriptionChange(queue=queue.name, changed=changed, subscriptions=queue.head.subscriptions)


def attracting(found: Sequence[str], topic: str | None) -> tuple[str, ...]:
    """Of the subscriptions those that attract the topic; None: all. Raises `Invalid` for what is no topic."""
    if topic is None:
        return tuple(found)
    return tuple(each for each in found if matches(each, checked_topic(topic)))


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
    every = log_subscriptions.Namespace(opened, where.namespace, retry_timeout_s=retry_timeout_s)
    found = {queue.name: attracting(queue.head.subscriptions, topic) for queue in every.queues()}
    known: list[QueueSubscriptions | DamagedQueue] = [
        DamagedQueue(namespace=where.namespace, queue=name, error=str(error)) for name, error in every.damaged.items()
    ]
    known += [QueueSubscriptions(queue=name, subscriptions=theirs) for name, theirs in found.items() if theirs]
    return tuple(sorted(known, key=lambda each: each.queue))
