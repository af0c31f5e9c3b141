"""A Spark driver on a cluster: writes and reads a queue, as a batch and as a stream, and has a look at its executors.

Run as a script: the argument names a JSON file (see `main`). It prints its plans and progress, and writes what it found
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

from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.messages import numbered_rows


def look(forbidden: str) -> dict[str, str]:
    """What a process is like. `trap` is what came of opening a file of the driver's; its secret is told by a digest."""
    try:
        trap = Path(forbidden).read_text()
    except OSError as error:
        trap = f"{type(error).__name__}: {error}"
    secret = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    return {
        "folder": str(Path.cwd()),
        "home": os.environ.get("HOME", ""),
        "store": os.environ.get("PARTQ_STORE", ""),
        "credentials": hashlib.sha256(secret.encode()).hexdigest(),
        "trap": trap,
    }


def main(settings: dict[str, str], ownership: str, count: int) -> None:
    """Of so many messages, with these settings of Spark's."""
    builder = SparkSession.builder.appName("partq on a cluster")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    trap = str(Path("of-the-driver.txt").absolute())
    Path(trap).write_text("the driver's")

    def look_around(_: Iterable[int]) -> Iterator[tuple[int, dict[str, str]]]:
        time.sleep(1)  # so that one executor cannot take both tasks
        context = TaskContext.get()
        yield (context.partitionId() if context else -1), look(trap)

    looks = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look_around).collect()

    rows = spark.createDataFrame(numbered_rows(0, count), "key STRING, value BINARY")
    rows.write.format("partq").mode("append").option("txnAppId", "job").option("txnVersion", 1).save("written")

    source = spark.readStream.format("partq").options(startingOffsets="earliest", group="billing", ownership=ownership)
    sink = source.option("maxMessagesPerTrigger", count // 2).load("written").writeStream.format("partq")
    sink = sink.option("checkpointLocation", str(Path("checkpoint").absolute())).trigger(availableNow=True)
    stream = sink.start("copied")
    stream.awaitTermination()
    stream.explain(True)
    batches = [json.loads(progress.json) for progress in stream.recentProgress]
    print(json.dumps(batches, indent=1))  # noqa: T201 - into the log that the test searches

    read = spark.read.format("partq").load("copied")
    read.explain(True)
    report = {
        "driver": look(trap),
        "executors": [seen for _, seen in sorted(looks, key=lambda each: each[0])],
        "batches": [batch["numInputRows"] for batch in batches],
        "found": [[row.key, row.value.decode(), row.partition, row.offset] for row in read.collect()],
    }
    Path("report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
