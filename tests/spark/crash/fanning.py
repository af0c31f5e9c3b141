"""A Spark driver that publishes files to every queue that attracts their messages' topics, until all is published.

Run as a script: the argument names a JSON file with store, input and checkpoint. The tests kill it, and start it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(store: str, files: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", f"{checkpoint}/warehouse")
        .getOrCreate()
    )
    query = (
        spark.readStream.schema("key STRING, value BINARY, topic STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(files)
        .writeStream.format("partq")
        .option("store", store)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    main(plan["store"], plan["input"], plan["checkpoint"])
