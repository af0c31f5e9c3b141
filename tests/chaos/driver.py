"""A Spark driver with one streaming query of a group, and the application that takes its batches, until SIGTERM.

Run as a script: the argument names a JSON file (see `Plan`). A query that fails is started again in the same JVM, on
the same Spark checkpoint; what happened to it is written to `events`, one JSON line each. Nothing is judged here.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from partq_spark import register
from tests.cast.journal import EVENTS
from tests.chaos.applications import Application, ByHand
from tests.chaos.course import Mode

_LOOK_S: Final = 0.05
_PAUSE_S: Final = 0.3  # before a query that failed is started again
_LONG_PAUSE_S: Final = 12.0  # the longest of an application's own: longer than a flow is missed
_KEPT: Final = 1_000_000  # batches, of which Spark says when they were planned


class Plan(TypedDict):
    """What to do."""

    queue: str
    options: dict[str, str]  # of the source
    trigger: str
    listener: bool  # whether partq's listener tells the source of complete batches
    folder: str  # whose name is the driver's
    mode: str  # of `tests.chaos.course`


def session(plan: Plan) -> SparkSession:
    """Two cores, little memory, and nothing forgotten."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "640m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{plan['folder']}/warehouse")
        .config("spark.sql.streaming.minBatchesToRetain", _KEPT)
        .getOrCreate()
    )


class Started(NamedTuple):
    """A query, and the application behind it."""

    query: StreamingQuery
    application: Application


def start(spark: SparkSession, plan: Plan) -> Started:
    """The query, on its Spark checkpoint."""
    rows = spark.readStream.format("partq").options(**plan["options"]).load(plan["queue"])
    options, folder = plan["options"], Path(plan["folder"])
    writing = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    writing = writing.trigger(processingTime=plan["trigger"])
    if plan["mode"] == Mode.MANUAL:
        application: Application = ByHand(options, plan["queue"], folder)
    else:
        application = Application(options["group"], folder, fails=plan["mode"] != Mode.AUTO)
    return Started(writing.foreachBatch(application).start(), application)


def main(plan: Plan) -> None:
    """Until SIGTERM; the query is stopped in good order then."""
    stop: list[int] = []  # no event: setting one takes a lock, which the interrupted code below may hold
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    events = Path(plan["folder"]) / EVENTS

    def tell(what: str, error: object = "") -> None:
        line: dict[str, Any] = {"at_s": time.monotonic(), "what": what, "error": str(error)}
        with events.open("a") as file:
            file.write(json.dumps(line) + "\n")

    spark = session(plan)
    if plan["listener"]:
        register(spark)
    started: Started | None = None
    while not stop:
        if started is None or not started.query.isActive:
            if started is not None:
                tell("failed", started.query.exception())
                time.sleep(_pause_s(plan["mode"]))
            try:
                started = start(spark, plan)
            except PySparkException as error:  # the queue is looked up when it is loaded
                tell("not started", error)
                time.sleep(_PAUSE_S)
                continue
            tell("started")
        else:
            started.application.settle()
        time.sleep(_LOOK_S)
    if started is not None:
        started.query.stop()
    tell("stopped")
    spark.stop()


def _pause_s(mode: str) -> float:
    """Of the other modes a query is away for so long, sometimes, that its partitions are taken from it."""
    return _PAUSE_S if mode == Mode.AUTO or random.random() < 0.5 else random.uniform(_PAUSE_S, _LONG_PAUSE_S)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
