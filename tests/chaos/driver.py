"""A Spark driver with one streaming query of a group: from a queue to Spark's own file sink, until SIGTERM.

Run as a script: the argument names a JSON file (see `Plan`). A query that fails is started again in the same JVM, on
the same Spark checkpoint; what happened to it is written to `events`, one JSON line each. Nothing is judged here.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partq_spark import register

_LOOK_S: Final = 0.05
_PAUSE_S: Final = 0.3  # before a query that failed is started again
_KEPT: Final = 1_000_000  # batches; the judge reads all offsets and what every batch of the sink has


class Plan(TypedDict):
    """What to do."""

    queue: str
    options: dict[str, str]  # of the source
    trigger: str
    listener: bool  # whether partq's listener tells the source of complete batches
    checkpoint: str
    sink: str
    warehouse: str
    events: str


def session(plan: Plan) -> SparkSession:
    """Two cores, little memory, and nothing forgotten."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "640m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", plan["warehouse"])
        .config("spark.sql.streaming.minBatchesToRetain", _KEPT)
        .config("spark.sql.streaming.fileSink.log.compactInterval", _KEPT)
        .getOrCreate()
    )


def start(spark: SparkSession, plan: Plan) -> StreamingQuery:
    """The query, on its Spark checkpoint."""
    rows = spark.readStream.format("partq").options(**plan["options"]).load(plan["queue"])
    kept = rows.selectExpr(
        "partition", "offset", "key", "CAST(CAST(value AS STRING) AS BIGINT) AS number", "redelivered"
    )
    sink = kept.writeStream.format("parquet").option("checkpointLocation", plan["checkpoint"])
    return sink.trigger(processingTime=plan["trigger"]).start(plan["sink"])


def main(plan: Plan) -> None:
    """Until SIGTERM; the query is stopped in good order then."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    events = Path(plan["events"])

    def tell(what: str, error: object = "") -> None:
        line: dict[str, Any] = {"at_s": time.monotonic(), "what": what, "error": str(error)}
        with events.open("a") as file:
            file.write(json.dumps(line) + "\n")

    spark = session(plan)
    if plan["listener"]:
        register(spark)
    query: StreamingQuery | None = None
    while not stop:
        if query is None or not query.isActive:
            if query is not None:
                tell("failed", query.exception())
                time.sleep(_PAUSE_S)
            try:
                query = start(spark, plan)
            except PySparkException as error:  # the queue is looked up when it is loaded
                tell("not started", error)
                time.sleep(_PAUSE_S)
                continue
            tell("started")
        time.sleep(_LOOK_S)
    if query is not None:
        query.stop()
    tell("stopped")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
