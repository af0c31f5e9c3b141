"""A register: one document that is changed by compare-and-swap, and how this process saw it last.

What is known of it is dropped whenever it is in doubt: a condition that did not hold, an answer that did not come. The
next use then reads it. So an unknown outcome is never taken for one's own success, nor for a failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from partq_spark.group.documents.api import DocumentOperation, DocumentPlace, Documents, Found, Load, Swap, Value
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Unchanged

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """One version of a document, and what it says."""

    token: str
    value: T


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """A question for a document: `operation` is to be asked, and its answer given to `saw` with this look."""

    operation: Load
    seen: Seen[T] | None
    changes: int


class DocumentRegister(Generic[T]):
    """Safe for use by several threads: what a thread read is not kept if another one has swapped meanwhile."""

    def __init__(self, documents: Documents, group: GroupKey, name: str, decode: Callable[[Value, object], T]) -> None:
        self.name = name
        self._documents = documents
        self._group = group
        self._decode = decode
        self._lock = threading.Lock()  # never held during a call
        self._seen: Seen[T] | None = None
        self._changes = 0

    @property
    def seen(self) -> Seen[T] | None:
        """The last version that was read or written, unless there is doubt."""
        return self._seen

    def forget(self) -> None:
        """Doubt it."""
        self._keep(None)

    def _keep(self, seen: Seen[T] | None) -> None:
        with self._lock:
            self._changes += 1
            self._seen = seen

    def look(self) -> Look[T]:
        """To be asked together with other operations; costs little where nothing has changed."""
        with self._lock:
            seen = self._seen
            return Look(Load(self.name, known=None if seen is None else seen.token), seen, self._changes)

    def saw(self, look: Look[T], answer: Found | Unchanged | None) -> Seen[T] | None:
        """What the answer to a look says; None: there is no document."""
        found = self._decoded(answer) if isinstance(answer, Found) else None
        if isinstance(answer, Unchanged):
            found = look.seen
        with self._lock:
            if self._changes == look.changes:
                self._seen = found
        return found

    def _decoded(self, found: Found) -> Seen[T]:
        return Seen(found.token, self._decode(found.value, DocumentPlace(self._documents, self._group, self.name)))

    def read(self) -> Seen[T] | None:
        """The document as it is now; None: there is none."""
        look = self.look()
        (answer,) = self._documents.ask(self._group, look.operation)
        return self.saw(look, answer)

    def known(self) -> Seen[T] | None:
        """As it was seen last, read only where there is doubt."""
        return self._seen or self.read()

    def swap(
        self, expected: Seen[T] | None, value: T, encoded: Value, *then: DocumentOperation[Any]
    ) -> tuple[Any, ...] | None:
        """Replace the version `expected` (None: there must be none) and ask `then`, whose answers come. None: the
        condition did not hold, and nothing was done.
        """
        operation = Swap(self.name, encoded, None if expected is None else expected.token)
        try:
            token, *answers = self._documents.ask(self._group, operation, *then)
        except BaseException:
            self.forget()
            raise
        if token is None:
            self.forget()
            return None
        self._keep(Seen(token, value))
        return tuple(answers)
