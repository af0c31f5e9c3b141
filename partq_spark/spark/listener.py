"""What a driver does with its queries' progress: tells a query's reader that a micro-batch is complete, about 0.1 s
after it is, instead of at the next trigger; keeps the numbers, if somebody wants metrics, and makes the spans of what
was processed and acknowledged, if somebody traces.

Optional: `partq_spark.register(spark)` installs it. It runs in the driver's Python, reads the address of the reader's
local socket in the query's own progress, and says there which end was reached, nothing else. It never raises: without
it everything works, only later.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from partq_spark.query import notify, offsets
from partq_spark.spark.query_metrics import QueryMetrics, progress_of
from partq_spark.spark.tracing import completed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger("partq.flow")


class PartqListener(StreamingQueryListener):
    """For all queries of a session; those of other sources have nothing to be told."""

    def __init__(self) -> None:
        self.metrics: QueryMetrics | None = None
        self.registries: list[CollectorRegistry] = []  # that tell of them

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with _harmless("a query's start was not noted"):
            if self.metrics is not None:
                self.metrics.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        since_ns = time.time_ns()
        with _harmless("a complete batch was not told to its reader"):
            for source in event.progress.sources:
                if source.latestOffset and '"notify"' in source.latestOffset and source.endOffset:
                    _tell(source.latestOffset, source.endOffset)
        with _harmless("a query's progress was not noted"):
            if self.metrics is not None:
                self.metrics.progressed(str(event.progress.id), event.progress.name, progress_of(event.progress))
        with _harmless("a query's batch was not traced"):
            completed(event.progress, acknowledging_since_ns=since_ns)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with _harmless("a query's end was not noted"):
            if self.metrics is not None:
                self.metrics.ended(str(event.id), failed=event.exception is not None)


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a listener must not harm the query
        _log.info("%s: %r", what, error)


def _tell(reported: str, end: str) -> None:
    address = json.loads(reported).get("notify")
    if isinstance(address, str):
        notify.send(address, {"do": "complete", "end": offsets.digest(json.loads(end))})
