"""How a process opens a queue, and all queues of a namespace: one store per URL and process, opened when it is first
needed. No pyspark.

Readers and writers travel into Spark's tasks with a URL alone; credentials come from each process's own environment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.base.errors import Corrupt, Invalid, PartqError
from partq_spark.log import names
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.urls import is_paid

logger = logging.getLogger(__name__)
_SIDE_BY_SIDE = 8  # heads that are read at a time where each takes a request to a service


@dataclass(frozen=True, kw_only=True, slots=True)
class NamespaceAddress:
    """A namespace in a store, and how long to wait for it. Free of secrets, so it may travel to tasks."""

    store: str  # canonical URL
    namespace: str
    retry_timeout_s: float

    def target(self, queue: str) -> QueueAddress:
        """One of its queues."""
        return QueueAddress(
            store=self.store, namespace=self.namespace, queue=queue, retry_timeout_s=self.retry_timeout_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAddress(NamespaceAddress):
    """Which queue, and how patiently: what every role needs."""

    queue: str


class Namespace:
    """The queues of a namespace, their heads looked at again by conditional reads. Not for use by several threads."""

    def __init__(self, store: ObjectStore, namespace: str, *, retry_timeout_s: float = RETRY_TIMEOUT_S) -> None:
        self._store = store
        self._namespace = names.checked_name("namespace", namespace)
        self._retry_timeout_s = retry_timeout_s
        self._known: dict[str, QueueLog] = {}
        self.problems: dict[str, PartqError] = {}
        """Those whose head could not be read at the last look, each with the reason: they are queues all the same."""

    def queues(self, *, to_publish: bool = True) -> Iterator[QueueLog]:
        """All queues that there are now, by name, each with its head read; one that cannot be read hides no other.

        `to_publish` by topic: a damaged one attracts nothing until it is restored, and is told of once (OBS-06). Raises
        `Unavailable`, `Invalid` if the namespace itself cannot be listed, and, to publish, for a head that is whole and
        cannot be read here, so that what it attracts cannot be known.
        """
        known = self._known
        self._known = {
            name: known.get(name) or QueueLog(self._store, self._namespace, name, retry_timeout_s=self._retry_timeout_s)
            for name in sorted(self._store.list_folders(f"{self._namespace}/"))
            if names.is_name(name)  # a folder of somebody else's is no queue
        }
        every = list(self._known.values())
        if is_paid(self._store.url) and len(every) > 1:
            with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="partq-heads") as pool:
                looks = list(pool.map(_look, every))
        else:
            looks = list(map(_look, every))
        told, self.problems = self.problems, {}
        for queue, found in zip(every, looks, strict=True):
            if isinstance(found, PartqError):
                self.problems[queue.name] = found
                if to_publish:
                    self._say(queue, found, is_known=queue.name in told)
            elif found is not None:
                yield queue

    def _say(self, queue: QueueLog, problem: PartqError, *, is_known: bool) -> None:
        if isinstance(problem, Invalid):
            raise Invalid(
                f"{problem}. What queue {queue.name!r} attracts cannot be known, so nothing can be published by topic "
                f"in namespace {self._namespace!r}, not even to others, until the head of {queue.name!r} can be read"
            ) from problem
        if not is_known:
            logger.warning("%s gets nothing that is published by topic until it is restored: %s", queue, problem)


def _look(queue: QueueLog) -> Head | PartqError | None:
    """Its head, or why it cannot be read; None: there is no such queue any more."""
    try:
        return queue.look()
    except (Corrupt, Invalid) as problem:  # Invalid: a newer partq wrote it, or this user may not read it
        return problem


_open: dict[tuple[int, str, float], ObjectStore] = {}
_namespaces: dict[tuple[int, NamespaceAddress], Namespace] = {}


def shared_store(url: str, retry_timeout_s: float) -> ObjectStore:
    """The process's own store for `url`; a forked process opens its own. Raises as `open_store` does."""
    key = (os.getpid(), url, retry_timeout_s)
    store = _open.get(key)
    if store is None:
        store = _open[key] = open_store(url, retry_timeout_s=retry_timeout_s)
    return store


def open_queue(target: QueueAddress) -> QueueLog:
    """The queue at `target`, unread. Raises `Invalid` for a URL or credentials that cannot work."""
    store = shared_store(target.store, target.retry_timeout_s)
    return QueueLog(store, target.namespace, target.queue, retry_timeout_s=target.retry_timeout_s)


def shared_namespace(where: NamespaceAddress) -> Namespace:
    """The process's own memory of a namespace's heads. Raises as `open_store` does."""
    key = (os.getpid(), where)
    namespace = _namespaces.get(key)
    if namespace is None:
        store = shared_store(where.store, where.retry_timeout_s)
        namespace = _namespaces[key] = Namespace(store, where.namespace, retry_timeout_s=where.retry_timeout_s)
    return namespace
