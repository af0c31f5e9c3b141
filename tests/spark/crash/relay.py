"""A Spark driver whose streaming queries go on for ever: files to a queue, and that queue to two others.

Run as a script: the argument names a JSON file (see `Plan`). How the queries are is written to `states.json` in its
working directory all the time; a query named in a file `restart` there is started again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TypedDict

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

HOUR_S = 3600.0


class Plan(TypedDict):
    """What to do: the store, and `retryTimeout` by query, which are `publish`, `relay` and `impatient`."""

    store: str
    input: str
    checkpoints: str
    retry: dict[str, str]


class State(TypedDict):
    """How a query is. `error` is empty while it runs, `run` changes when it is started again."""

    run: str
    active: bool
    error: str
    ended_at_s: float | None


def start(spark: SparkSession, plan: Plan, name: str) -> StreamingQuery:
    options = {"store": plan["store"], "retryTimeout": plan["retry"][name]}
    if name == "publish":
        source = spark.readStream.schema("key STRING, value BINARY").option("maxFilesPerTrigger", 1)
        rows = source.parquet(plan["input"])
    else:
        rows = spark.readStream.format("partq").options(**options, startingOffsets="earliest").load("flow")
    sink = rows.writeStream.format("partq").options(**options)
    queue = {"publish": "flow", "relay": "relayed", "impatient": "dropped"}[name]
    return sink.option("checkpointLocation", f"{plan['checkpoints']}/{name}").queryName(name).start(queue)


def state(query: StreamingQuery, before: State | None) -> State:
    error = query.exception()
    ended_at_s = (before and before["ended_at_s"]) or (None if query.isActive else time.time())
    return State(run=query.runId, active=query.isActive, error=str(error or ""), ended_at_s=ended_at_s)


def main(plan: Plan) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{plan['checkpoints']}/warehouse")
        .getOrCreate()
    )
    queries = {name: start(spark, plan, name) for name in plan["retry"]}
    states: dict[str, State] = {}
    deadline_s = time.monotonic() + HOUR_S  # the test kills this process long before
    while time.monotonic() < deadline_s:
        restart = Path("restart")
        if restart.exists():
            name = restart.read_text()
            queries[name] = start(spark, plan, name)
            del states[name]
            restart.unlink()
        states = {name: state(query, states.get(name)) for name, query in queries.items()}
        draft = Path("states.draft")
        draft.write_text(json.dumps(states))
        draft.rename("states.json")
        time.sleep(0.1)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
