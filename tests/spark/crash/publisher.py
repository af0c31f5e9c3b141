"""A Spark driver that publishes files to queues, a streaming query for each folder of files, until all is published.

Run as a script: the argument names a JSON file (see `main`). The tests kill it, and start it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(store: str, folder: str, queries: dict[str, int], by_topic: str) -> None:
    """`queries`: how many files of `input/<name>` a micro-batch takes, which go to the queue of that name; those of
    the query `by_topic` go where their topics say.
    """
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
        columns = "key STRING, value BINARY" + (", topic STRING" if name == by_topic else "")
        rows = spark.readStream.schema(columns).option("maxFilesPerTrigger", files).parquet(f"{folder}/input/{name}")
        sink = rows.writeStream.format("partq").option("store", store).trigger(availableNow=True)
        sink = sink.option("checkpointLocation", f"{folder}/checkpoints/{name}")
        started.append(sink.start() if name == by_topic else sink.start(name))
    for query in started:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(Path(sys.argv[1]).read_text()))
