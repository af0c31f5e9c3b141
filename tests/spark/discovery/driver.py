"""A small Spark driver that publishes and reads, as a user's own: a process that imports nothing of the tests.

Its only argument is a file with its arguments as JSON: `store`, `output`, `register`, `add_py_file`. The last line that
it prints is JSON: what it found, or the error that it met.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def use(spark: SparkSession, store: str, output: Path) -> dict[str, Any]:
    """Publish in a batch, read in a stream and in a batch."""
    rows = spark.range(10).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format("partq").option("store", store).option("queue", "orders").mode("append").save()
    query = (
        spark.readStream.format("partq")
        .option("store", store)
        .option("startingOffsets", "earliest")
        .load("orders")
        .selectExpr("cast(value as string) value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(output / "rows"))
    )
    if not query.awaitTermination(120):
        raise TimeoutError("the stream did not end in 120 s")
    streamed = sorted(row.value for row in spark.read.parquet(str(output / "rows")).collect())
    read = sorted(
        row.value
        for row in spark.read.format("partq")
        .option("store", store)
        .load("orders")
        .selectExpr("cast(value as string) value")
        .collect()
    )
    return {"streamed": streamed, "read": read}


def attempt(spark: SparkSession, arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"classic": type(spark).__module__ == "pyspark.sql.session"}
    if arguments.get("add_py_file"):
        spark.sparkContext.addPyFile(arguments["add_py_file"])
    if arguments.get("register"):
        import partq_spark

        found["imported from"] = partq_spark.__file__
        try:
            partq_spark.register(spark)
        except Exception as error:  # noqa: BLE001 -- what it is, the test has to see
            found["register"] = f"{type(error).__name__}: {error}"
    try:
        found.update(use(spark, arguments["store"], Path(arguments["output"])))
    except Exception as error:  # noqa: BLE001
        found["use"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    arguments = json.loads(Path(sys.argv[1]).read_text())
    spark = session()
    try:
        result = attempt(spark, arguments)
    except Exception:  # noqa: BLE001
        result = {"driver": traceback.format_exc()}
    print("\n" + json.dumps(result), flush=True)  # noqa: T201 -- how it tells the test
    spark.stop()


if __name__ == "__main__":
    main()
