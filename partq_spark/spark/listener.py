"""Tells a query's reader that a micro-batch is complete, about 0.1 s after it is, instead of at the next trigger.

Optional: `partq_spark.register(spark)` installs it. It runs in the driver's Python, reads the address of the reader's
local socket in the query's own progress, and says there which end was reached, nothing else. It never raises: without
it everything works, only later.
"""

from __future__ import annotations

import json
import logging

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from partq_spark.query import notify, offsets

_log = logging.getLogger("partq.flow")


class PartqListener(StreamingQueryListener):
    """For all queries of a session; those of other sources are left alone."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            for source in event.progress.sources:
                if source.latestOffset and '"notify"' in source.latestOffset and source.endOffset:
                    _tell(source.latestOffset, source.endOffset)
        except Exception as error:  # noqa: BLE001 - a listener must not harm the query
            _log.info("a complete batch was not told to its reader: %r", error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def _tell(reported: str, end: str) -> None:
    address = json.loads(reported).get("notify")
    if isinstance(address, str):
        notify.tell(address, {"do": "complete", "end": offsets.digest(json.loads(end))})
