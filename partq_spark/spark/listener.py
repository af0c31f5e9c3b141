"""What a driver does with its queries' progress: tells a query's reader that a micro-batch is complete, about 0.1 s
after it is, instead of at the next trigger; keeps the numbers, if somebody wants metrics, and makes the spans of what
was processed and acknowledged, if somebody traces (`tracing`).

Optional: `partq_spark.register(spark)` installs it. It runs in the driver's Python, reads the address of the reader's
local socket in the query's own progress, and says there which end was reached, nothing else. It never raises: without
it everything works, only later. Nothing is looked up for the metrics: lag is what it was at a query's last micro-batch,
and whatever Spark, or another source, leaves out or writes otherwise is passed over.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from partq_spark.base.metrics import Histogram, Metric, Sample, counter, gauge
from partq_spark.query import notify, offsets
from partq_spark.spark.tracing import completed, reported

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger("partq.flow")


class PartqListener(StreamingQueryListener):
    """For all queries of a session; those of other sources have nothing to be told."""

    def __init__(self) -> None:
        self.metrics: QueryMetrics | None = None
        self.registries: list[CollectorRegistry] = []  # that tell of them
        self._in_jvm: Any = None

    @property
    def _jlistener(self) -> Any:
        """Of PySpark, which asks for it when the listener is added and when it is taken away."""
        if self._in_jvm is None:
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - PySpark has no other name for it
            self._in_jvm = jvm.PythonStreamingQueryListenerWrapper(_FromText(self))
        return self._in_jvm

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with _harmless("a query's start was not noted"):
            if self.metrics is not None:
                self.metrics.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        since_ns = time.time_ns()
        with _harmless("a complete batch was not told to its reader"):
            for source in event.progress.sources:
                address = reported(source).get("notify")
                if isinstance(address, str) and source.endOffset:
                    notify.send(address, {"do": "complete", "end": offsets.digest(json.loads(source.endOffset))})
        with _harmless("a query's progress was not noted"):
            if self.metrics is not None:
                self.metrics.progressed(event.progress)
        with _harmless("a query's batch was not traced"):
            completed(event.progress, acknowledging_since_ns=since_ns)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with _harmless("a query's end was not noted"):
            if self.metrics is not None:
                self.metrics.ended(str(event.id), failed=event.exception is not None)


class _FromText(JStreamingQueryListener):
    """What the JVM calls. It hands each progress over as one text: read field by field, as PySpark does, it takes a
    fifth of a second of a processor for every micro-batch (spark-traps.md 30).
    """

    def onQueryProgress(self, jevent: Any) -> None:
        with _harmless("a query's progress was not read"):
            self.pylistener.onQueryProgress(QueryProgressEvent(progress_of(jevent.progress().json())))

    def onQueryIdle(self, jevent: Any) -> None:
        pass


def progress_of(text: str) -> StreamingQueryProgress:
    """Spark's JSON of a progress as PySpark's value. Offsets are texts of JSON, an empty one that there is none; a rate
    that is no number is not in Spark's.
    """
    told = json.loads(text)
    for source in told["sources"]:
        for name in ("startOffset", "endOffset", "latestOffset"):
            found = source.get(name)
            source[name] = found if isinstance(found, str) else json.dumps(found) if found is not None else ""
        source |= {name: source.get(name, math.nan) for name in ("inputRowsPerSecond", "processedRowsPerSecond")}
    return StreamingQueryProgress.fromJson({"name": None} | told)


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a listener must not harm the query
        _log.info("%s: %r", what, error)


# --- what is kept ----------------------------------------------------------------------------------------------------

MOST_QUERIES: Final = 100
"""Beyond that those are forgotten first that have ended, the longest ago before the others."""

MOST_PARTITIONS: Final = 2000
"""Of all queries together; a source's partitions have series of their own, or none of them has."""

PHASES: Final = ("latestOffset", "queryPlanning", "getBatch", "walCommit", "addBatch", "commitOffsets")
"""Of a micro-batch, as Spark names them."""


_QUERY: Final = ("query",)
_SOURCE: Final = ("query", "queue", "group")
RUNNING: Final = gauge("partq_query_running", "1 while the streaming query runs, 0 after it has ended.", _QUERY)
FAILURES: Final = counter("partq_query_failures_total", "How often the query ended with an error.", _QUERY)
BATCHES: Final = counter("partq_query_batches_total", "Micro-batches that were completed.", _QUERY)
ROWS: Final = counter("partq_query_input_rows_total", "Rows that the query's sources gave.", _QUERY)
DURATION: Final = Metric(
    name="partq_query_batch_duration_seconds",
    kind="histogram",
    help="How long micro-batches took, from planning to Spark's commit.",
    labels=_QUERY,
    bounds=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
PHASE: Final = counter(
    "partq_query_phase_seconds_total", "Time spent in each phase of micro-batches.", ("query", "phase")
)
PROGRESS_AT: Final = gauge(
    "partq_query_last_progress_timestamp_seconds", "When the last micro-batch was completed, Unix time.", _QUERY
)
SOURCE_LAG: Final = gauge(
    "partq_query_source_lag_messages", "Messages that the query had still to get, at its last micro-batch.", _SOURCE
)
SOURCE_PARTITIONS: Final = gauge(
    "partq_query_source_partitions", "Partitions that the query had at its last micro-batch.", _SOURCE
)
PARTITION_LAG: Final = gauge(
    "partq_query_partition_lag_messages",
    "Messages of a partition that the query had still to get, at its last micro-batch.",
    (*_SOURCE, "partition"),
)
LEFT_OUT: Final = gauge(
    "partq_query_metrics_left_out", "Partitions without series of their own: there are too many.", ()
)

METRICS: Final = (
    RUNNING, FAILURES, BATCHES, ROWS, DURATION, PHASE, PROGRESS_AT,
    SOURCE_LAG, SOURCE_PARTITIONS, PARTITION_LAG, LEFT_OUT,
)  # fmt: skip


class QueryInput(NamedTuple):
    """Which queue a query reads, and for which group; empty: for none."""

    queue: str
    group: str


def lags_of(progress: StreamingQueryProgress) -> dict[QueryInput, dict[str, int]]:
    """What one progress of Spark's says of the lags of partq's sources: by source and partition."""
    lags: dict[QueryInput, dict[str, int]] = {}
    for each in progress.sources:
        told = reported(each)
        if "queue" not in told or not isinstance(partitions := told.get("partitions"), dict):
            continue  # another source's
        source = QueryInput(str(told["queue"]), str(told.get("group") or ""))
        found = lags.setdefault(source, {})
        for partition, of_it in partitions.items():
            # A query may read a queue twice.
            found[partition] = max(int(of_it["lag"]), found.get(partition, 0))
    return lags


@dataclass(kw_only=True, slots=True)
class _Query:
    """What is kept of one query."""

    running: bool = True
    failures: int = 0
    batches: int = 0
    last_batch: tuple[str, int] | None = None  # of which checkpoint; with a new one batch 0 comes again
    rows: int = 0
    phases_s: dict[str, float] = field(default_factory=dict)
    durations: Histogram = field(default_factory=lambda: Histogram(DURATION))
    at_s: float | None = None
    lags: Mapping[QueryInput, Mapping[str, int]] = field(default_factory=dict)


class QueryMetrics:
    """Of the queries of one session, by their names; of one without a name by its id. Any thread may call."""

    def __init__(self, time_s: Callable[[], float] = time.time) -> None:
        self._time_s = time_s
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}  # by id: what ends has no name
        self._queries: dict[str, _Query] = {}

    def started(self, identity: str, name: str | None) -> None:
        """A query began, or began again."""
        with self._lock:
            self._query(identity, name).running = True

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """A micro-batch was completed."""
        lags, took_ms = lags_of(progress), progress.durationMs
        with self._lock:
            query = self._query(str(progress.id), progress.name)
            query.at_s = self._time_s()
            query.lags = lags
            batch = (str(progress.id), progress.batchId)
            if batch == query.last_batch:
                return  # a trigger without a batch
            query.last_batch = batch
            query.batches += 1
            query.rows += progress.numInputRows
            query.durations.observe(took_ms.get("triggerExecution", 0) / 1000)
            for phase in PHASES:
                if phase in took_ms:
                    query.phases_s[phase] = query.phases_s.get(phase, 0.0) + took_ms[phase] / 1000

    def ended(self, identity: str, *, failed: bool) -> None:
        """A query was stopped, has done its work, or failed."""
        with self._lock:
            query = self._query(identity, None)
            self._names.pop(identity, None)  # one that always begins with a new checkpoint has many
            query.running = False
            query.failures += failed
            query.lags = {}

    def samples(self) -> Iterator[Sample]:
        """As they are now."""
        with self._lock:
            found = [*_samples(self._queries)]
        yield from found

    def _query(self, identity: str, name: str | None) -> _Query:
        label = self._names.setdefault(identity, name or identity)
        query = self._queries.pop(label, None) or _Query()
        self._queries[label] = query  # last in order
        if len(self._queries) > MOST_QUERIES:
            self._forget_one()
        return query

    def _forget_one(self) -> None:
        gone = next((label for label, each in self._queries.items() if not each.running), next(iter(self._queries)))
        del self._queries[gone]
        self._names = {identity: label for identity, label in self._names.items() if label != gone}


def _samples(queries: Mapping[str, _Query]) -> Iterator[Sample]:
    left, without = MOST_PARTITIONS, 0
    for label, query in sorted(queries.items()):
        own = (label,)
        yield Sample(RUNNING, own, int(query.running))
        yield Sample(FAILURES, own, query.failures)
        yield Sample(BATCHES, own, query.batches)
        yield Sample(ROWS, own, query.rows)
        yield Sample(DURATION, own, query.durations.distribution())
        for phase, took_s in query.phases_s.items():
            yield Sample(PHASE, (label, phase), took_s)
        if query.at_s is not None:
            yield Sample(PROGRESS_AT, own, query.at_s)
        for source, lags in query.lags.items():
            labels = (label, *source)
            yield Sample(SOURCE_LAG, labels, sum(lags.values()))
            yield Sample(SOURCE_PARTITIONS, labels, len(lags))
            if len(lags) > left:
                without += len(lags)
                continue
            left -= len(lags)
            for partition, lag in lags.items():
                yield Sample(PARTITION_LAG, (*labels, partition), lag)
    yield Sample(LEFT_OUT, (), without)
