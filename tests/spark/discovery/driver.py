"""A small Spark driver that publishes and reads, as a user's own: a process that imports nothing of the tests.

Its only argument is a file with its arguments as JSON: `store`, `output`, `register`, `add_py_file`. The last line that
it prints is JSON: what it found, or the error that it met.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ARGUMENTS = json.loads(Path(sys.argv[1]).read_text())
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def use(spark: SparkSession) -> dict[str, Any]:
    """Publish in a batch, read in a stream and in a batch."""
    store = {"store": ARGUMENTS["store"]}
    text = "cast(value as string) value"
    rows = spark.range(10).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.format("partq").options(**store).option("queue", "orders").mode("append").save()
    stream = spark.readStream.format("partq").options(**store, startingOffsets="earliest").load("orders")
    writer = stream.selectExpr(text).writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
    query = writer.option("checkpointLocation", ARGUMENTS["output"]).start()
    if not query.awaitTermination(120):
        raise TimeoutError("the stream did not end in 120 s")
    read = spark.read.format("partq").options(**store).load("orders").selectExpr(text)
    return {
        name: sorted(row.value for row in found.collect())
        for name, found in (("streamed", spark.table("streamed")), ("read", read))
    }


def register(spark: SparkSession) -> dict[str, Any]:
    import partq_spark

    partq_spark.register(spark)
    return {"imported from": partq_spark.__file__}


def main() -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {"classic": type(spark).__module__ == "pyspark.sql.session"}
    if ARGUMENTS.get("add_py_file"):
        spark.sparkContext.addPyFile(ARGUMENTS["add_py_file"])
    steps: list[Callable[[SparkSession], dict[str, Any]]] = [register, use] if ARGUMENTS.get("register") else [use]
    for step in steps:
        try:
            found |= step(spark)
        except Exception as error:  # noqa: BLE001 -- what it is, the test has to see
            found[step.__name__] = f"{type(error).__name__}: {error}"
    print("\n" + json.dumps(found), flush=True)  # noqa: T201 -- how it tells the test
    spark.stop()


if __name__ == "__main__":
    main()
