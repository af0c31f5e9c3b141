"""The queues of a namespace: finding, creating, changing and deleting them, and which topics they attract (DIS-07).
Each change is one swap; nothing here knows what a change means for groups.

Subscriptions live in the queue's own head, so there is one truth, and deleting a queue deletes them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from partq_spark.base.effects import RETRY_TIMEOUT_S, Effects, in_a_row, new_token, side_by_side
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError
from partq_spark.log import codec, names
from partq_spark.log.destinations import checked_subscription
from partq_spark.log.layouts import resized
from partq_spark.log.model import MAX_PARTITIONS, Head
from partq_spark.log.queue import NamespaceAddress, QueueLog, shared_store
from partq_spark.log.schema.columns import Columns
from partq_spark.log.settings import QueueConfig, check_settings
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.retrying import Register
from partq_spark.objects.urls import is_paid

logger = logging.getLogger(__name__)
_SIDE_BY_SIDE = 8  # heads that are read at a time where each takes a request to a service


def checked_partitions(value: object) -> int:
    """`value` as a partition count. Raises `Invalid` unless it is a whole number from 1 to 1000."""
    text = str(value).strip()
    # Not longer than int() takes: it raises an error of its own beyond some thousand digits.
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_PARTITIONS:
        raise Invalid(f"partitions={value!r} is not allowed: give a whole number from 1 to {MAX_PARTITIONS}")
    return int(text)


def create_queue(
    store: ObjectStore,
    namespace: str,
    name: str,
    partitions: int,
    config: QueueConfig | None = None,
    effects: Effects | None = None,
    *,
    columns: Columns | None = None,
    retry_timeout_s: float = RETRY_TIMEOUT_S,
) -> QueueLog:
    """Create a queue, a typed one with `columns` (`schema.versions.columns_of`). Raises `Invalid` for a bad name, count
    or setting, and when the queue exists already.
    """
    queue = QueueLog(store, namespace, name, effects, retry_timeout_s=retry_timeout_s)
    partitions = checked_partitions(partitions)
    now_us = queue.now_us()
    settings = config or QueueConfig()
    check_settings(asdict(settings))
    head = Head.created(queue.namespace, queue.name, "", partitions, config=settings, now_us=now_us, columns=columns)
    tried: set[str] = set()

    def decide(found: Head | None) -> Head:
        if found is not None and found.queue_id in tried:
            return found  # an answer was lost, the creation was not
        if found is not None:
            raise Invalid(
                f"{queue} exists already with {found.partitions} partitions: choose another name, change it with "
                f"`partq queue alter {queue.name}`, or delete it with `partq queue delete {queue.name} --yes`"
            )
        if not tried:
            store.probe()
        # An id for each attempt: one that lands late, after the queue was deleted, must not bring its id back.
        made = replace(head, queue_id=new_token())
        tried.add(made.queue_id)
        return made

    queue.replace(decide)
    return queue


def alter_queue(
    queue: QueueLog,
    *,
    partitions: int | None = None,
    add_columns: str | None = None,
    widen: str | None = None,
    **settings: Any,
) -> Head:
    """Change the queue's partition count, its columns, some of its settings (named as the fields of `QueueConfig`), or
    several of these in one swap; the others stay as they are then. Returns the new head.

    `add_columns` and `widen` are DDL: the columns that a typed queue gets, and those that get a wider type.

    Everything may run meanwhile: publishers place what they staged again, consumers keep the order of every key
    (RES-01, RES-03), and both go on with the columns that they loaded (TYP-05). Raises `Invalid` if one of the values
    is not allowed, if messages of too many earlier counts are still there, and for columns as `schema.versions` does.
    """
    if partitions is not None:
        partitions = checked_partitions(partitions)
    check_settings(settings)
    tried: list[Columns] = []

    def decide(head: Head) -> Head:
        # On the head's own settings, so that two who alter different ones both succeed.
        config = replace(head.config, **settings)
        wanted = head if partitions is None else resized(head, partitions)
        columns = head.columns
        # An answer may have been lost, and the change not: to make it twice would be refused.
        if (add_columns is not None or widen is not None) and not any(_has_been(columns, each) for each in tried):
            columns = altered_columns(head, add_columns, widen)
            tried.append(columns)
        if wanted is head and config == head.config and columns == head.columns:
            return head
        return replace(wanted, config=config, columns=columns)

    return queue.change(decide)


def altered_columns(head: Head, add_columns: str | None, widen: str | None) -> Columns:
    """The head's columns as `alter_queue` would make them; one version later, or two. Raises `Invalid` as that does."""
    from partq_spark.log.schema import versions  # Arrow, which other changes do not need

    columns = head.columns
    if columns is None:
        raise Invalid(
            f"queue {head.queue!r} is untyped, its messages are key and value: it has no columns to add to or to "
            "widen; create another queue with a schema and publish to that"
        )
    if add_columns is not None:
        columns = versions.with_added(columns, add_columns)
    if widen is not None:
        columns = versions.with_widened(columns, widen)
    return columns


def _has_been(columns: Columns | None, made: Columns) -> bool:
    """Whether the queue has, or had before others went on, the version that an earlier try made."""
    from partq_spark.log.schema.versions import schema_of

    if columns is None or columns.version < made.version:
        return False
    return bool(schema_of(columns, made.version) == schema_of(made))


def delete_queue(queue: QueueLog) -> int:
    """Delete a queue for good and everything stored for it; returns the number of objects removed.

    The head goes first: from then on the queue does not exist, and what a deletion that is cut off after that leaves
    behind is for `remove_remains`. Also one whose head is damaged. Raises `Conflict` if that was restored meanwhile.
    """
    try:
        queue_id = queue.refresh().queue_id
    except Corrupt:
        _delete_damaged_head(queue)
    else:
        queue.replace(lambda found: None if found is not None and found.queue_id == queue_id else found)
    return 1 + remove_remains(queue)


def _delete_damaged_head(queue: QueueLog) -> None:
    """By its bytes, of which nobody can make a head."""

    def decide(body: bytes | None) -> None:
        with suppress(Corrupt):
            if body is not None:
                codec.HEAD.open(body, queue.head_name)
                raise Conflict(f"{queue} was damaged and has been restored meanwhile: look at it, then delete it again")

    register: Register[bytes] = Register(
        queue.store,
        queue.head_name,
        what=f"the head of {queue}",
        decode=lambda document: bytes(document.body),
        encode=bytes,
    )
    try:
        register.change(decide, queue.backoff())
    except Corrupt:  # not even its version can be read, so none can be compared
        queue.store.delete(queue.head_name)


def remove_remains(queue: QueueLog) -> int:
    """Delete the blobs of former queues by this name; returns how many. The blobs of the present queue are not
    touched.

    What cannot be deleted keeps nothing else: all the rest goes, and then the first such problem is raised.
    """
    base = names.queue_folder(queue.namespace, queue.name)
    # Listed before the head is read: a queue created in between has an id that is not in the list.
    folders = [base + kind + part for kind in ("_segments/", "_log/") for part in queue.store.list_folders(base + kind)]
    head = queue.look()
    present = None if head is None else head.queue_id
    removed = 0
    problems: list[Invalid] = []
    for folder in folders:
        if folder.rsplit("/", 1)[-1] == present:
            continue
        try:
            found = [item.name for item in queue.store.list(folder + "/")]
        except Invalid as problem:  # a folder of somebody else's that this user may not enter
            problems.append(problem)
            continue
        for name in found:
            try:
                queue.store.delete(name)
                removed += 1
            except Invalid as problem:
                problems.append(problem)
    if problems:
        raise problems[0]
    return removed


MAX_SUBSCRIPTIONS = 1000  # of one queue: with 250 bytes each a head stays below 300 kB


def subscribe(queue: QueueLog, *patterns: str) -> tuple[str, ...]:
    """Let the queue attract what matches the patterns, from the next batch of every publisher on; one swap.

    Returns those that it did not have; repeating is harmless. Raises `Invalid` for a malformed pattern (nothing was
    changed), for more than 1,000 in all, and if there is no such queue.
    """
    return _resubscribed(queue, patterns, lambda present, named: present | named)


def unsubscribe(queue: QueueLog, *patterns: str) -> tuple[str, ...]:
    """Take subscriptions back, letter by letter as they were made; one swap.

    Returns those that it had; repeating is harmless. What was published to the queue stays. Raises `Invalid` for a
    malformed pattern, and if there is no such queue.
    """
    return _resubscribed(queue, patterns, lambda present, named: present - named)


def _resubscribed(
    queue: QueueLog, patterns: Sequence[str], wanted: Callable[[set[str], set[str]], set[str]]
) -> tuple[str, ...]:
    named = {checked_subscription(pattern) for pattern in patterns}
    changed: set[str] = set()  # by all attempts: the answer to one that took place may have been lost

    def decide(head: Head) -> Head:
        present = set(head.subscriptions)
        every = wanted(present, named)
        if every == present:
            return head
        if len(every) > max(MAX_SUBSCRIPTIONS, len(present)):
            raise Invalid(
                f"{queue} has {len(present)} subscriptions, {len(every - present)} more make {len(every)}, at most "
                f"{MAX_SUBSCRIPTIONS} are allowed: use wildcards, such as orders/>, or unsubscribe some"
            )
        changed.update(every ^ present)
        return replace(head, subscriptions=tuple(sorted(every)))

    queue.change(decide)
    return tuple(sorted(changed))


# --- finding ----------------------------------------------------------------------------------------------------------


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
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="partq-heads") as pool:
            looks = (side_by_side(pool) if is_paid(self._store.url) else in_a_row)(_look, every)
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


_namespaces: dict[tuple[int, NamespaceAddress], Namespace] = {}


def shared_namespace(where: NamespaceAddress) -> Namespace:
    """The process's own memory of a namespace's heads. Raises as `open_store` does."""
    key = (os.getpid(), where)
    namespace = _namespaces.get(key)
    if namespace is None:
        store = shared_store(where.store, where.retry_timeout_s)
        namespace = _namespaces[key] = Namespace(store, where.namespace, retry_timeout_s=where.retry_timeout_s)
    return namespace
