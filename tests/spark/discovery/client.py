"""A client of Spark Connect, whose process has no Spark of its own: typed rows by batch and stream, refusals, and a
supervised query. Its argument is that of `driver.py`; the last line that it prints is JSON: what it found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import partq

ARGUMENTS = json.loads(Path(sys.argv[1]).read_text())
STORE, FOLDER = ARGUMENTS["store"], ARGUMENTS["output"]
COLUMNS = ["id INT NOT NULL", "name STRING", "tags ARRAY<STRING>"]

starts: list[str] = []


def reader(made: Any) -> Any:
    return made.format("partq").option("store", STORE)


def written(rows: Any, queue: str) -> None:
    rows.write.format("partq").option("store", STORE).mode("append").save(queue)


def started(writer: Any, name: str, **trigger: Any) -> Any:
    return writer.option("checkpointLocation", f"{FOLDER}/{name}").trigger(**trigger).start()


def ended(writer: Any, name: str) -> None:
    query = started(writer, name, availableNow=True)
    assert query.awaitTermination(120), name
    assert query.exception() is None, query.exception()


def rows_and_refusals(spark: SparkSession) -> dict[str, Any]:
    partq.create_queue("rows", partitions=2, schema=", ".join(COLUMNS), key="id", store=STORE)
    partq.create_queue("copy", partitions=2, schema=", ".join(reversed(COLUMNS)), store=STORE)
    found: dict[str, Any] = {"classic": type(spark).__module__ == "pyspark.sql.session", "refused": []}
    rows = spark.range(10).selectExpr("CAST(id AS INT) id", "IF(id = 9, NULL, concat('n', id)) name")
    written(rows.selectExpr("name", "id", "array(name) tags"), "rows")
    stream = reader(spark.readStream).option("startingOffsets", "earliest").load("rows")
    ended(stream.writeStream.format("partq").option("store", STORE).option("queue", "copy"), "publisher")
    loaded = reader(spark.read).load("copy")
    found["columns"] = [[field.name, field.nullable] for field in loaded.schema.fields]
    found["batch"] = [list(row) for row in loaded.orderBy("id").select("id", "name", "tags").collect()]
    asked = "name STRING, _metadata STRUCT<offset: BIGINT, partition: INT>"
    some = reader(spark.readStream).option("startingOffsets", "earliest").schema(asked).load("rows")
    ended(some.writeStream.format("memory").queryName("some"), "reader")
    lies = "_metadata.partition = pmod(xxhash64(substr(coalesce(name, 'n9'), 2)), 2) lies"
    found["stream"] = [list(row) for row in spark.table("some").selectExpr("name", lies).orderBy("name").collect()]
    for refused in (
        lambda: written(rows.selectExpr("id", "INTERVAL '1' DAY name"), "rows"),
        lambda: reader(spark.read).schema("value STRING").load("rows").collect(),
    ):
        try:
            refused()
        except Exception as error:  # noqa: BLE001 -- what it is, the test has to see
            found["refused"].append(str(error))
    return found


def supervised(spark: SparkSession) -> dict[str, Any]:
    def start(**options: str) -> Any:
        starts.append("start")
        name = f"supervised-{len(starts)}"
        if len(starts) == 1:  # a query that fails, but not with Invalid
            rows = spark.readStream.format("rate").load().selectExpr("raise_error('away')")
            return started(rows.writeStream.format("noop"), name, processingTime="0 seconds")
        rows = reader(spark.readStream).options(**options).load("orders")
        trigger = {"processingTime": "0 seconds"} if options else {"availableNow": True}
        return started(rows.writeStream.format("noop"), name, **trigger)

    partq.supervise(start)
    found: dict[str, Any] = {"starts": len(starts)}
    try:
        partq.supervise(lambda: start(endingOffsets="latest"))
    except partq.Invalid as error:
        found["invalid"] = str(error)
    return found


def main() -> None:
    made = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "1g")
    spark = made.config("spark.ui.enabled", "false").getOrCreate()
    found = rows_and_refusals(spark) | supervised(spark)
    print("\n" + json.dumps(found), flush=True)  # noqa: T201 -- how it tells the test
    os._exit(0)


if __name__ == "__main__":
    main()
