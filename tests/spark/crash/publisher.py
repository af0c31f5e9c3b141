"""A Spark driver that publishes files to queues, one streaming query per queue, until everything is published.

Run as a script: the argument names a JSON file (see `main`). The tests kill it, and start it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(plan: dict[str, str], queues: dict[str, int]) -> None:
    """`plan`: store, input and checkpoints; `queues`: how many files a micro-batch takes, by queue."""
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may be tried four times
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{plan['checkpoints']}/warehouse")
        .getOrCreate()
    )
    queries = [
        spark.readStream.schema("key STRING, value BINARY")
        .option("maxFilesPerTrigger", files)
        .parquet(f"{plan['input']}/{queue}")
        .writeStream.format("partq")
        .option("store", plan["store"])
        .option("checkpointLocation", f"{plan['checkpoints']}/{queue}")
        .trigger(availableNow=True)
        .start(queue)
        for queue, files in queues.items()
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    arguments = json.loads(Path(sys.argv[1]).read_text())
    main(arguments["plan"], arguments["queues"])
