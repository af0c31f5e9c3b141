"""The queues of a namespace as their heads show them, and the groups in them. A head is read, used and not kept.

Safe for use by several threads, each on another queue.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator import housekeeping
from coordinator.facts import GroupFacts, facts_of
from coordinator.housekeeping import QueueFacts
from partq_spark.base.errors import Invalid
from partq_spark.group.model import GroupKey
from partq_spark.log import names
from partq_spark.log.codec import decode_head
from partq_spark.log.groups import kind_of
from partq_spark.objects.api import Document, ObjectStore, Unchanged


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    etag: str
    queue: QueueFacts
    groups: Mapping[GroupKey, GroupFacts] = field(default_factory=dict)


class Heads:
    """What was last seen of each queue."""

    def __init__(self, store: ObjectStore, namespace: str, *, ownership: str | None = None) -> None:
        """`ownership`: where groups keep who has what; those that are shared in another way are not seen."""
        self._store = store
        self.namespace = namespace
        self._kind = kind_of(ownership) if ownership is not None else None
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}

    def groups(self) -> dict[GroupKey, GroupFacts]:
        """All groups of all queues, as last seen."""
        with self._lock:
            seen = list(self._seen.values())
        return {key: facts for each in seen for key, facts in each.groups.items()}

    def facts(self) -> dict[str, QueueFacts]:
        """What housekeeping has to know of all queues, as last seen."""
        with self._lock:
            return {queue: each.queue for queue, each in self._seen.items()}

    def queues(self) -> list[str]:
        """The queues to look at: those that are there by their folders, and those that were. Raises as the store."""
        present = [name for name in self._store.list_folders(f"{self.namespace}/") if _is_queue(name)]
        with self._lock:
            return [*present, *(self._seen.keys() - set(present))]

    def look(self, queue: str) -> None:
        """Look at one head, by a conditional read. Raises `Unavailable`, `Corrupt`: then the former look stands."""
        name = names.head_name(self.namespace, queue)
        with self._lock:
            before = self._seen.get(queue)
        document = self._store.load(name, known=before.etag if before is not None else None)
        if isinstance(document, Unchanged):
            return
        if document is None:
            with self._lock:
                self._seen.pop(queue, None)
            return
        head = decode_head(document.body, name)
        groups = {
            GroupKey(self.namespace, queue, group): facts_of(head, made)
            for group, made in head.groups.items()
            if self._kind is None or made.ownership in (None, self._kind)
        }
        with self._lock:
            self._seen[queue] = _Seen(etag=document.etag, queue=housekeeping.facts_of(head), groups=groups)

    def now(self, key: GroupKey) -> GroupFacts:
        """One group, looked at now. Raises as `look`, and `Invalid` if the group is gone."""
        self.look(key.queue)
        with self._lock:
            seen = self._seen.get(key.queue)
        if seen is None or key not in seen.groups:
            raise Invalid(f"group {key} was deleted, or is shared in another way now: its flows end")
        return seen.groups[key]

    def ends(self, queue: str, queue_id: str) -> tuple[int, ...]:
        """The log's end of every partition number ever used, read now. Raises `Invalid` if the queue is gone."""
        name = names.head_name(self.namespace, queue)
        document = self._store.load(name)
        head = decode_head(document.body, name) if isinstance(document, Document) else None
        if head is None or head.queue_id != queue_id:
            raise Invalid(f"queue {queue!r} (namespace {self.namespace!r}) was deleted: its groups end")
        return head.next


def _is_queue(name: str) -> bool:
    try:
        return names.checked_name("queue", name) == name
    except Invalid:
        return False
