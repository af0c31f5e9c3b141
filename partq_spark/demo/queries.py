"""The demo's Spark driver: one streaming query publishes the flights, another reads them back at the same time.

A process of its own (`python -m partq_spark.demo.queries`), which prints one JSON object per line about what it has
done so far; the code of the two queries is what a user would write.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

LOOK_S = 0.25


def publish_flights(spark: SparkSession, flights: Path, queue: Mapping[str, str], checkpoint: Path) -> StreamingQuery:
    """Publish every flight as JSON, keyed by the aircraft's tail number, one file per micro-batch."""
    schema = spark.read.parquet(str(flights)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(flights))
    return (
        stream.selectExpr("tailnum AS key", "to_json(struct(*)) AS value")
        .writeStream.format("partq")
        .options(**queue)
        .option("checkpointLocation", str(checkpoint))
        .queryName("publish")
        .trigger(availableNow=True)
        .start()
    )


def read_flights(spark: SparkSession, queue: Mapping[str, str], output: Path, checkpoint: Path) -> StreamingQuery:
    """Read the queue from its beginning and write what was delivered to Parquet files."""
    return (
        spark.readStream.format("partq")
        .options(**queue)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "partition", "offset", "redelivered", "from_json(CAST(value AS STRING), 'id INT').id AS id")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .queryName("read")
        .start(str(output))
    )


class Progress:
    """Counts a query's rows as its micro-batches complete."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._batch = -1
        self.rows = 0

    def look(self) -> int:
        """Rows of all micro-batches that have completed. Raises the query's own error if it has failed."""
        for progress in self._query.recentProgress:
            if progress.batchId > self._batch:
                self._batch = progress.batchId
                self.rows += progress.numInputRows
        failure = self._query.exception()
        if failure is not None:
            raise failure
        return self.rows


def tell(event: str, **facts: object) -> None:
    """One line for the process that started this one."""
    print(json.dumps({"event": event, **facts}), flush=True)  # noqa: T201 -- stdout is this process's interface


def run(flights: Path, work: Path, queue: Mapping[str, str], expected: int, timeout_s: float) -> None:
    """Both queries until everything published has been read. Raises `TimeoutError` after `timeout_s`."""
    begun_s = time.monotonic()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("partq demo")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
        .getOrCreate()
    )
    tell("started", spark=spark.version, seconds=time.monotonic() - begun_s)
    begun_s = time.monotonic()
    publisher = publish_flights(spark, flights, queue, work / "publish-checkpoint")
    reader = read_flights(spark, queue, work / "delivered", work / "read-checkpoint")
    published, read = Progress(publisher), Progress(reader)
    published_s: float | None = None
    while True:
        alive = publisher.isActive
        facts = {"published": published.look(), "read": read.look(), "seconds": time.monotonic() - begun_s}
        if published_s is None and not alive:
            published_s = time.monotonic() - begun_s
        tell("progress", **facts)
        if published_s is not None and read.rows >= expected:
            break
        if time.monotonic() - begun_s > timeout_s:
            raise TimeoutError(f"{published.rows} flights were published and {read.rows} read after {timeout_s:.0f} s")
        time.sleep(LOOK_S)
    read_s = time.monotonic() - begun_s
    reader.processAllAvailable()  # whatever came twice would still come now
    reader.stop()
    tell("done", published=published.look(), read=read.look(), published_s=published_s, read_s=read_s)
    spark.stop()


def main() -> None:
    """Command line: `--flights DIR --work DIR --store URL --namespace NAME --expected N --timeout S`."""
    parser = argparse.ArgumentParser(description="the demo's queries; started by `partq demo`")
    parser.add_argument("--flights", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--expected", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    arguments = parser.parse_args()
    try:
        queue = {"store": arguments.store, "namespace": arguments.namespace, "queue": "flights"}
        run(arguments.flights, arguments.work, queue, arguments.expected, arguments.timeout)
    except Exception as error:  # noqa: BLE001 -- the other process has to learn of whatever it is
        tell("failed", error=str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
