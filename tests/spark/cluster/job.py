"""A Spark driver on a cluster: writes and reads a queue, as a batch and as a stream, and has a look at its executors.

Run as a script: the argument names a JSON file (see `Plan`). It prints its plans and progress, and writes what it found
to `report.json` in its working directory. The store is not named: it comes from this process's PARTQ_STORE.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.messages import numbered_rows


class Plan(TypedDict):
    """What to do: the cluster's URL, the queues, the copy's ownership, how many messages, and Spark settings."""

    master: str
    written: str
    copied: str
    ownership: str
    rows: int
    settings: dict[str, str]


class Look(TypedDict):
    """What a process is like. `trap` is what came of opening a file of the driver's; its secret is told by a digest."""

    folder: str
    home: str
    store: str
    credentials: str
    trap: str


def look(forbidden: str) -> Look:
    try:
        trap = Path(forbidden).read_text()
    except OSError as error:
        trap = f"{type(error).__name__}: {error}"
    secret = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    return Look(
        folder=str(Path.cwd()),
        home=os.environ.get("HOME", ""),
        store=os.environ.get("PARTQ_STORE", ""),
        credentials=hashlib.sha256(secret.encode()).hexdigest(),
        trap=trap,
    )


def main(plan: Plan) -> None:
    builder = SparkSession.builder.master(plan["master"]).appName("partq on a cluster")
    for name, value in plan["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    trap = str(Path("of-the-driver.txt").absolute())
    Path(trap).write_text("the driver's")

    def look_around(_: Iterable[int]) -> Iterator[tuple[int, Look]]:
        time.sleep(1)  # so that one executor cannot take both tasks
        context = TaskContext.get()
        yield (context.partitionId() if context else -1), look(trap)

    looks = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look_around).collect()

    rows = spark.createDataFrame(numbered_rows(0, plan["rows"]), "key STRING, value BINARY")
    rows.write.format("partq").mode("append").option("txnAppId", "job").option("txnVersion", 1).save(plan["written"])

    stream = (
        spark.readStream.format("partq")
        .options(startingOffsets="earliest", group="billing", ownership=plan["ownership"])
        .option("maxMessagesPerTrigger", plan["rows"] // 2)
        .load(plan["written"])
        .writeStream.format("partq")
        .option("checkpointLocation", str(Path("checkpoint").absolute()))
        .trigger(availableNow=True)
        .start(plan["copied"])
    )
    stream.awaitTermination()
    stream.explain(True)
    batches = [json.loads(progress.json) for progress in stream.recentProgress]
    print(json.dumps(batches, indent=1))  # noqa: T201 - into the log that the test searches

    read = spark.read.format("partq").load(plan["copied"])
    read.explain(True)
    found = [[row.key, row.value.decode(), row.partition, row.offset] for row in read.collect()]

    report = {
        "driver": look(trap),
        "executors": [seen for _, seen in sorted(looks)],
        "batches": [batch["numInputRows"] for batch in batches],
        "found": found,
    }
    Path("report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
