"""How long calls of the stores take, and how many fail: a wrapper that passes everything on. Nobody decides by it.

A call to the object store counts with the tries that it took; a listing with the time until its first answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeVar, cast

from coordinator.logs import FieldValue, Listener
from partq_spark.base.errors import PartqError
from partq_spark.base.metrics import Counts, Histogram, Metric

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


class _Measured:
    """Passes everything on to `target`; calls of `operations` are counted, under the names that they have here."""

    def __init__(self, target: object, calls: Calls, operations: Mapping[str, str]) -> None:
        self._target = target
        self._calls = calls
        self._operations = operations

    def __repr__(self) -> str:
        return f"measured({self._target!r})"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        operation = self._operations.get(name)
        if operation is None:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            return self._calls.timed(operation, lambda: _begun(found(*arguments, **named)))

        return call


STORE_OPERATIONS: Final = {
    name: name
    for name in (
        "create",
        "writer",
        "read",
        "load",
        "swap",
        "remove",
        "delete",
        "list",
        "list_folders",
        "sweep_temporary",
    )
}
DOCUMENT_OPERATIONS: Final = {"ask": "ask", "drop": "drop"}


def measured(target: T, calls: Calls, operations: Mapping[str, str]) -> T:
    """The same to its users."""
    return cast("T", _Measured(target, calls, operations))


def _begun(answer: Any) -> Any:
    """The same; of what comes item by item, the first one is here."""
    if not isinstance(answer, Iterator):
        return answer
    return chain([first], answer) if (first := next(answer, None)) is not None else iter(())


# --- what is counted --------------------------------------------------------------------------------------------------

# What a coordinator counts while it works, for metrics: what it tells its log, what housekeeping does, and the calls of
# its stores. Handoffs are counted by group (`handoffs`). Nobody decides by any of it.


HOUSEKEEPING: Final[Mapping[tuple[str, str], str]] = {
    ("messages_trimmed", "messages"): "trimmed_messages",
    ("log_compacted", "messages"): "compacted_messages",
    ("log_compacted", "bytes"): "compacted_bytes",
    ("objects_deleted", "objects"): "deleted_objects",
    ("objects_deleted", "bytes"): "deleted_bytes",
    ("temporary_files_removed", "files"): "removed_temporary_files",
}
"""The log's events that tell of housekeeping, which of their facts are added up, and as what."""

_FACTS: Final = {event: [fact for each, fact in HOUSEKEEPING if each == event] for event, _ in HOUSEKEEPING}


class Tally(Listener):
    """Of one process, for any number of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.events = Counts()
        self.housekeeping = Counts()
        self.store = Calls(STORE_CALLS, STORE_ERRORS)
        self.ownership = Calls(OWNERSHIP_CALLS, OWNERSHIP_ERRORS)

    def hear(self, event: str, facts: Mapping[str, FieldValue]) -> None:
        self.events.add(event)
        for fact in _FACTS.get(event, ()):
            count = facts.get(fact)
            if isinstance(count, int):
                self.housekeeping.add(HOUSEKEEPING[event, fact], count=count)
