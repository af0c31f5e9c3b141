"""A typed queue over Spark Connect: the client's process has no Spark of its own, and the columns come to the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import Program, spark_environment

ROOT = Path(__file__).parents[2]

CLIENT = """
import json
import os

from pyspark.sql import SparkSession

import partq

store = "file://" + os.path.abspath("store")
columns = ["id INT NOT NULL", "name STRING", "tags ARRAY<STRING>"]
partq.create_queue("orders", partitions=2, schema=", ".join(columns), key="id", store=store)
partq.create_queue("copy", partitions=2, schema=", ".join(reversed(columns)), store=store)
made = SparkSession.builder.remote("local[2]").config("spark.driver.memory", "1g")
spark = made.config("spark.ui.enabled", "false").getOrCreate()
found = {"classic": type(spark).__module__ == "pyspark.sql.session"}


def reader(made):
    return made.format("partq").option("store", store)


def written(rows, queue):
    rows.write.format("partq").option("store", store).mode("append").save(queue)


def ended(writer, name):
    query = writer.option("checkpointLocation", os.path.abspath(name)).trigger(availableNow=True).start()
    assert query.awaitTermination(120), name
    assert query.exception() is None, query.exception()


rows = spark.range(10).selectExpr("CAST(id AS INT) id", "IF(id = 9, NULL, concat('n', id)) name")
written(rows.selectExpr("name", "id", "array(name) tags"), "orders")
stream = reader(spark.readStream).option("startingOffsets", "earliest").load("orders")
ended(stream.writeStream.format("partq").option("store", store).option("queue", "copy"), "publisher")
loaded = reader(spark.read).load("copy")
found["columns"] = [[field.name, field.nullable] for field in loaded.schema.fields]
found["batch"] = [list(row) for row in loaded.orderBy("id").select("id", "name", "tags").collect()]
asked = "name STRING, _metadata STRUCT<offset: BIGINT, partition: INT>"
some = reader(spark.readStream).option("startingOffsets", "earliest").schema(asked).load("orders")
ended(some.writeStream.format("memory").queryName("some"), "reader")
lies = "_metadata.partition = pmod(xxhash64(substr(coalesce(name, 'n9'), 2)), 2) lies"
found["stream"] = [list(row) for row in spark.table("some").selectExpr("name", lies).orderBy("name").collect()]
for number, refused in enumerate(
    (
        lambda: written(rows.selectExpr("id", "INTERVAL '1' DAY name"), "orders"),
        lambda: reader(spark.read).schema("value STRING").load("orders").collect(),
    )
):
    try:
        refused()
    except Exception as error:
        found[f"refused {number}"] = str(error)
print("\\n" + json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.connect
@pytest.mark.conformance("TYP-02")
def test_rows_go_in_and_come_out_over_spark_connect(tmp_path: Path) -> None:
    """By batch, by a stream from queue to queue, with `.schema()` and without; what does not fit is told."""
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    environment = spark_environment(tmp_path, {"PYTHONPATH": str(ROOT)})
    with Program.script(script, None, name="client", folder=tmp_path, environment=environment) as client:
        assert client.wait_end() == 0, client.tail()
        found = json.loads(next(line for line in client.text().splitlines() if line.startswith("{")))
    names = [*(f"n{number}" for number in range(9)), None]
    assert found["classic"] is False
    assert found["columns"] == [["tags", True], ["name", True], ["id", False], ["_metadata", True]]
    assert found["batch"] == [[number, name, [name]] for number, name in enumerate(names)]
    assert found["stream"] == [[name, True] for name in (None, *names[:9])]
    assert "column 'name' has type interval day, the queue's is STRING: cast or convert it" in found["refused 0"]
    says = "queue 'orders' is typed: column 'value' is none of the queue's: name some of id, name, tags and _metadata"
    assert says in found["refused 1"]
