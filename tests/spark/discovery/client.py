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


def started(writer: Any, **trigger: Any) -> Any:
    """Each with a checkpoint of its own."""
    starts.append("start")
    return writer.option("checkpointLocation", f"{FOLDER}/{len(starts)}").trigger(**trigger).start()


def ended(writer: Any) -> None:
    query = started(writer, availableNow=True)
    assert query.awaitTermination(120)
    assert query.exception() is None, query.exception()


def rows_and_refusals(spark: SparkSession) -> dict[str, Any]:
    partq.create_queue("rows", partitions=2, schema=", ".join(COLUMNS), key="id", store=STORE)
    partq.create_queue("copy", partitions=2, schema=", ".join(reversed(COLUMNS)), store=STORE)
    rows = spark.range(10).selectExpr(
        "IF(id = 9, NULL, concat('n', id)) name", "CAST(id AS INT) id", "array(name) tags"
    )
    reader(rows.write).mode("append").save("rows")
    stream = reader(spark.readStream).option("startingOffsets", "earliest")
    ended(reader(stream.load("rows").writeStream).option("queue", "copy"))
    loaded = reader(spark.read).load("copy")
    asked = "name STRING, _metadata STRUCT<offset: BIGINT, partition: INT>"
    ended(stream.schema(asked).load("rows").writeStream.format("memory").queryName("some"))
    lies = "_metadata.partition = pmod(xxhash64(substr(coalesce(name, 'n9'), 2)), 2) lies"
    found: dict[str, Any] = {
        "classic": type(spark).__module__ == "pyspark.sql.session",
        "columns": [[field.name, field.nullable] for field in loaded.schema.fields],
        "batch": [list(row) for row in loaded.orderBy("id").select("id", "name", "tags").collect()],
        "stream": [list(row) for row in spark.table("some").selectExpr("name", lies).orderBy("name").collect()],
    }
    try:
        reader(rows.selectExpr("id", "INTERVAL '1' DAY name").write).mode("append").save("rows")
    except Exception as error:  # noqa: BLE001 -- what it is, the test has to see
        found["refused"] = str(error)
    return found


def supervised(spark: SparkSession) -> dict[str, Any]:
    before = len(starts)

    def start(**options: str) -> Any:
        if len(starts) == before:  # a query that fails, but not with Invalid
            rows = spark.readStream.format("rate").load().selectExpr("raise_error('away')")
            return started(rows.writeStream.format("noop"), processingTime="0 seconds")
        rows = reader(spark.readStream).options(**options).load("orders")
        return started(rows.writeStream.format("noop"), availableNow=True)

    partq.supervise(start)
    found: dict[str, Any] = {"starts": len(starts) - before}
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
