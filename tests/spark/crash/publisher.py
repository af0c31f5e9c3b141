"""A Spark driver that publishes files to queues, a streaming query for each folder of files, until all is published.

Run as a script: the argument names a JSON file (see `main`). The test kills it, and starts it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(store: str, folder: str, queries: dict[str, int]) -> None:
    """`queries`: how many files of `input/<name>` a micro-batch takes, which go to the queue of that name."""
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may be tried four times
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    started = []
    for name, files in queries.items():
        rows = spark.readStream.schema("key STRING, value BINARY").option("maxFilesPerTrigger", files)
        sink = rows.parquet(f"{folder}/input/{name}").writeStream.format("partq").option("store", store)
        started.append(sink.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start(name))
    for query in started:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
