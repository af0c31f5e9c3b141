"""How long calls of the stores take, and how many fail: wrappers that pass everything on. Nobody decides by it.

A call to the object store counts with the tries that it took; a listing with the time until its first answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from partq_spark.base.errors import PartqError
from partq_spark.base.metrics import Counts, Histogram, Metric
from partq_spark.group.documents.api import DocumentOperation, Documents
from partq_spark.group.model import GroupKey
from partq_spark.objects.api import Clocked, Document, ObjectInfo, ObjectStore, ObjectWriter, Unchanged

T = TypeVar("T")

_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STORE_CALLS: Final = Metric(
    name="partq_store_call_duration_seconds",
    kind="histogram",
    help="How long calls of the object store took.",
    labels=("operation",),
    bounds=_BOUNDS,
)
STORE_ERRORS: Final = Metric(
    name="partq_store_call_errors_total",
    kind="counter",
    help="Calls of the object store that raised; a Conflict is no trouble, somebody else was first.",
    labels=("operation", "error"),
)
OWNERSHIP_CALLS: Final = Metric(
    name="partq_ownership_call_duration_seconds",
    kind="histogram",
    help="How long calls of the ownership store (Redis, or objects) took.",
    labels=("operation",),
    bounds=_BOUNDS,
)
OWNERSHIP_ERRORS: Final = Metric(
    name="partq_ownership_call_errors_total",
    kind="counter",
    help="Calls of the ownership store (Redis, or objects) that raised.",
    labels=("operation", "error"),
)


class Calls:
    """Of one store, by operation."""

    def __init__(self, durations: Metric, errors: Metric) -> None:
        self.durations_metric = durations
        self.errors_metric = errors
        self.durations: dict[str, Histogram] = {}
        self.errors = Counts()

    def timed(self, operation: str, call: Callable[[], T]) -> T:
        """The answer of `call`, which is counted."""
        begun_s = time.perf_counter()
        try:
            return call()
        except PartqError as error:
            self.errors.add(operation, type(error).__name__)
            raise
        finally:
            histogram = self.durations.get(operation) or self.durations.setdefault(
                operation, Histogram(self.durations_metric)
            )
            histogram.observe(time.perf_counter() - begun_s)


class MeasuredStore:
    """An object store whose calls are counted."""

    def __init__(self, store: ObjectStore, calls: Calls) -> None:
        self._store = store
        self._calls = calls

    def __repr__(self) -> str:
        return f"MeasuredStore({self._store!r})"

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def look_interval_s(self) -> float:
        return self._store.look_interval_s

    def time_us(self) -> int | None:
        return self._store.time_us() if isinstance(self._store, Clocked) else None

    def create(self, name: str, data: bytes | memoryview) -> None:
        self._calls.timed("create", lambda: self._store.create(name, data))

    def writer(self, name: str) -> ObjectWriter:
        return self._calls.timed("writer", lambda: self._store.writer(name))

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        return self._calls.timed("read", lambda: self._store.read(name, start=start, length=length))

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        return self._calls.timed("load", lambda: self._store.load(name, known=known))

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        return self._calls.timed("swap", lambda: self._store.swap(name, content, expected=expected))

    def remove(self, name: str, *, expected: str) -> None:
        self._calls.timed("remove", lambda: self._store.remove(name, expected=expected))

    def delete(self, name: str) -> bool:
        return self._calls.timed("delete", lambda: self._store.delete(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._calls.timed("list", lambda: _begun(self._store.list(prefix)))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._calls.timed("list_folders", lambda: _begun(self._store.list_folders(prefix)))

    def sweep_temporary(self, older_than_s: float) -> int:
        return self._calls.timed("sweep_temporary", lambda: self._store.sweep_temporary(older_than_s))

    def close(self) -> None:
        self._store.close()


def _begun(items: Iterator[T]) -> Iterator[T]:
    """The same items; the first one is here."""
    return chain([first], items) if (first := next(items, None)) is not None else iter(())


class MeasuredDocuments(Documents):
    """Documents whose calls are counted; waiting for news is none."""

    def __init__(self, documents: Documents, calls: Calls) -> None:
        self._documents = documents
        self._calls = calls

    def __repr__(self) -> str:
        return f"MeasuredDocuments({self._documents!r})"

    @property
    def url(self) -> str:
        return self._documents.url

    @property
    def look_interval_s(self) -> float:
        return self._documents.look_interval_s

    def incarnation(self) -> str:
        return self._calls.timed("incarnation", self._documents.incarnation)

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        return self._calls.timed("ask", lambda: self._documents.carry_out(group, operations))

    def drop(self, group: GroupKey) -> None:
        self._calls.timed("drop", lambda: self._documents.drop(group))

    def where(self, group: GroupKey, name: str) -> str:
        return self._documents.where(group, name)

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        return self._documents.wait(timeout_s)

    def close(self) -> None:
        self._documents.close()
