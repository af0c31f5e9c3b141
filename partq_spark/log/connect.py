"""How a process opens a queue: one store per URL and process, opened when it is first needed. No pyspark.

Readers and writers travel into Spark's tasks with a URL alone; credentials come from each process's own environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from partq_spark.log.queue import QueueLog
from partq_spark.log.subscriptions import Namespace
from partq_spark.objects import open_store
from partq_spark.objects.api import ObjectStore


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueAddress:
    """Which queue, and how patiently: what every role needs. Free of secrets, so it may travel to tasks."""

    store: str  # canonical URL
    namespace: str
    queue: str
    retry_timeout_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NamespaceAddress:
    """A namespace in a store, and how long to wait for it: a `QueueAddress` for publishing to several of its queues."""

    store: str  # canonical URL
    namespace: str
    retry_timeout_s: float

    def target(self, queue: str) -> QueueAddress:
        """One of its queues."""
        return QueueAddress(
            store=self.store, namespace=self.namespace, queue=queue, retry_timeout_s=self.retry_timeout_s
        )


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
