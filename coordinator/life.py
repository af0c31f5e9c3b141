"""Which life of the ownership store all groups of this process work in. Nothing else.

The store tells a user once that it was restarted; here that one user is many groups. Each remembers in which life it
adopted its state, and compares.
"""

from __future__ import annotations

import threading

from partq_spark.group.documents.identity import known_id
from partq_spark.group.ownership import Ownership
from partq_spark.objects.api import ObjectStore


class StoreLife:
    """The store's incarnation as this process last asked for it. Safe for use by several threads."""

    def __init__(self, store: Ownership) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._store_id: str | None = None
        self.value: str | None = None
        """None while it is being asked for: whoever reads the store at that time cannot tell which life answers."""

    def ask(self) -> str:
        """The present incarnation, from the server if it is not known. Raises `Unavailable`."""
        value = self.value
        if value is not None:
            return value
        with self._lock:
            if self.value is None:
                self.value = self._store.incarnation()
            return self.value

    def look_at(self, objects: ObjectStore) -> None:
        """Whether the object store is still the one that it was: it may have been removed and made anew, and with Redis
        its id tells where everything is. Only reads. Raises `Corrupt`, `Unavailable`.
        """
        found = known_id(objects)
        known, self._store_id = self._store_id, found
        value = self.value
        if known not in (None, found) and value is not None:
            self.lost(value)

    def lost(self, known: str) -> None:
        """The store said that it is not `known` any more: ask again, unless somebody has done so already."""
        with self._lock:
            if self.value == known:
                self.value = None
