"""A Spark driver with streaming queries of groups, for tests that kill it or what belongs to it.

Run as a script: the argument names a JSON file (see `Plan`).

A query that fails is started again in the same JVM on the same Spark checkpoint, unless it is to run once. One begins
at a time: all at once, on a busy machine, none of them has its worker within the time that Spark allows. What every
batch had is written to `<name>.rows`, what ended a query to `<name>.errors`, one JSON line each, but for one that Spark
gave no worker in time before its first batch. Nothing is judged.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_LIFE_S: Final = 600.0  # the test kills this process long before
_LOOK_S: Final = 0.05
_NO_WORKER: Final = "Python worker failed to connect back"
"""Spark waits 10 s for a worker, which may be too short on a busy machine."""
_BEGINNING: Final = "Initializing"
"""The state of a query until its sources' workers are there, as its status says it."""


class Query(TypedDict):
    """One query. `once`: it is not started again, once it has begun."""

    queue: str
    options: dict[str, str]
    once: bool


class Plan(TypedDict):
    """Everything is written below `folder`."""

    folder: str
    queries: dict[str, Query]


def tell(path: Path, what: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(what) + "\n")


def sink(path: Path) -> Callable[[DataFrame, int], None]:
    def take(batch: DataFrame, batch_id: int) -> None:
        rows = [[row.partition, row.offset, row.redelivered] for row in batch.collect()]
        tell(path, {"batch": batch_id, "rows": rows})

    return take


def start(spark: SparkSession, folder: Path, name: str, query: Query) -> StreamingQuery:
    rows = spark.readStream.format("partq").options(**query["options"]).load(query["queue"])
    writer = rows.writeStream.foreachBatch(sink(folder / f"{name}.rows")).queryName(name)
    return writer.option("checkpointLocation", str(folder / f"{name}.checkpoint")).start()


def beginning(query: StreamingQuery) -> bool:
    """Whether its sources' workers are not there yet."""
    return query.isActive and query.status["message"].startswith(_BEGINNING)


def session(folder: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "640m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )


def main(plan: Plan) -> None:
    folder = Path(plan["folder"])
    spark = session(folder)
    running: dict[str, StreamingQuery] = {}
    due = dict(plan["queries"])
    explained: set[str] = set()
    deadline_s = time.monotonic() + _LIFE_S
    while time.monotonic() < deadline_s:
        for name, query in list(due.items()):
            found = running.get(name)
            if found is not None and found.isActive:
                if name not in explained and found.lastProgress is not None:
                    explained.add(name)
                    found.explain(extended=True)  # to the log: what plans and progress show of the options
                    sys.stdout.write(f"{found.lastProgress.json}\n")
                    sys.stdout.flush()
                continue
            if found is not None:
                del running[name]
                error = str(found.exception())
                if _NO_WORKER not in error or found.lastProgress is not None:
                    tell(folder / f"{name}.errors", error)
                    if query["once"]:
                        del due[name]
                        continue
            if any(beginning(other) for other in running.values()):
                continue
            due[name] = due.pop(name)  # the last in line the next time
            try:
                running[name] = start(spark, folder, name, query)
            except PySparkException as error:
                tell(folder / f"{name}.errors", str(error))
        time.sleep(_LOOK_S)


def read_lines(path: Path) -> list[Any]:
    """What is there so far; the last line of a driver that was killed may not be whole."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
