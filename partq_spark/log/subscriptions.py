"""The subscriptions of a queue: which topics it attracts (DIS-07). They live in the queue's own head, so there is one
truth, and deleting a queue deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.retry import RETRY_TIMEOUT_S
from partq_spark.log import names
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.topics import checked_subscription
from partq_spark.objects.api import ObjectStore

MAX_SUBSCRIPTIONS = 1000  # of one queue: with 250 bytes each a head stays below 300 kB

logger = logging.getLogger(__name__)
_SIDE_BY_SIDE = 8  # heads that are read at a time where each takes a request to a service


def subscribe(queue: QueueLog, *patterns: str) -> tuple[str, ...]:
    """Let the queue attract what matches the patterns, from the next batch of every publisher on; one swap.

    Returns those that it did not have; repeating is harmless. Raises `Invalid` for a malformed pattern (nothing was
    changed), for more than 1,000 in all, and if there is no such queue.
    """
    wanted = {checked_subscription(pattern) for pattern in patterns}
    added: set[str] = set()  # by all attempts: the answer to one that took place may have been lost

    def decide(head: Head) -> Head:
        missing = wanted.difference(head.subscriptions)
        if not missing:
            return head
        every = tuple(sorted({*head.subscriptions, *missing}))
        if len(every) > MAX_SUBSCRIPTIONS:
            raise Invalid(
                f"{queue} has {len(head.subscriptions)} subscriptions, {len(missing)} more make {len(every)}, at most "
                f"{MAX_SUBSCRIPTIONS} are allowed: use wildcards, such as orders/>, or unsubscribe some"
            )
        added.update(missing)
        return replace(head, subscriptions=every, sequence=head.sequence + 1)

    queue.change(decide)
    return tuple(sorted(added))


def unsubscribe(queue: QueueLog, *patterns: str) -> tuple[str, ...]:
    """Take subscriptions back, letter by letter as they were made; one swap.

    Returns those that it had; repeating is harmless. What was published to the queue stays. Raises `Invalid` for a
    malformed pattern, and if there is no such queue.
    """
    unwanted = {checked_subscription(pattern) for pattern in patterns}
    removed: set[str] = set()

    def decide(head: Head) -> Head:
        present = unwanted.intersection(head.subscriptions)
        if not present:
            return head
        removed.update(present)
        kept = tuple(each for each in head.subscriptions if each not in unwanted)
        return replace(head, subscriptions=kept, sequence=head.sequence + 1)

    queue.change(decide)
    return tuple(sorted(removed))


class Namespace:
    """The queues of a namespace, their heads looked at again by conditional reads. Not for use by several threads."""

    def __init__(self, store: ObjectStore, namespace: str, *, retry_timeout_s: float = RETRY_TIMEOUT_S) -> None:
        self._store = store
        self._namespace = names.checked_name("namespace", namespace)
        self._retry_timeout_s = retry_timeout_s
        self._known: dict[str, QueueLog] = {}
        self.damaged: dict[str, Corrupt] = {}
        """Those whose head was damaged at the last look, each with the reason."""

    def queues(self) -> Iterator[QueueLog]:
        """All queues that there are now, by name, each with its head read. A damaged one attracts nothing until it is
        restored, and is told of once: it stops no other (OBS-06). Raises `Unavailable`, and `Invalid` for a head that
        is whole and cannot be read here, so that what it attracts cannot be known.
        """
        known = self._known
        self._known = {
            name: known.get(name) or self._queue(name)
            for name in sorted(self._store.list_folders(f"{self._namespace}/"))
            if names.is_name(name)  # a folder of somebody else's is no queue
        }
        every = list(self._known.values())
        if self._store.url.startswith("azure:") and len(every) > 1:
            with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="partq-heads") as pool:
                heads = list(pool.map(self._look, every))
        else:
            heads = [self._look(queue) for queue in every]
        self.damaged = {name: error for name, error in self.damaged.items() if name in self._known}
        for queue, head in zip(every, heads, strict=True):
            if head is not None:
                yield queue

    def _queue(self, name: str) -> QueueLog:
        return QueueLog(self._store, self._namespace, name, retry_timeout_s=self._retry_timeout_s)

    def _look(self, queue: QueueLog) -> Head | None:
        try:
            head = queue.look()
        except Corrupt as error:
            if queue.name not in self.damaged:
                logger.warning("%s gets nothing that is published by topic until it is restored: %s", queue, error)
            self.damaged[queue.name] = error
            return None
        except Invalid as error:  # a newer partq wrote it
            raise Invalid(
                f"{error}. What queue {queue.name!r} attracts cannot be known, so nothing can be published by topic in "
                f"namespace {self._namespace!r}, not even to others, until the head of {queue.name!r} can be read"
            ) from error
        self.damaged.pop(queue.name, None)
        return head
