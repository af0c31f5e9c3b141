"""A typed queue's columns change while a publisher and three queries run (TYP-05): one goes on with what it loaded, one
loads anew after each change, one pins its columns and keeps rows in Spark's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import partq
from tests.support.spark import Lab, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

FIRST = "id INT NOT NULL, n TINYINT, price DECIMAL(5,2), name STRING"
CHANGES: list[dict[str, str]] = [
    {"add_columns": "c1 STRING"},
    {"widen": "n SMALLINT"},
    {"add_columns": "c2 ARRAY<INT>, c3 DOUBLE"},
    {"widen": "price DECIMAL(7,2)"},
    {"add_columns": "c4 STRUCT<a: INT, b: STRING>"},
    {"widen": "n INT"},
    {"add_columns": "c5 MAP<STRING, INT>", "widen": "price DECIMAL(10,4)"},
    {"add_columns": "c6 TIMESTAMP"},
    {"widen": "n BIGINT"},
    {"add_columns": "c7 DATE"},
]
OWN = "_metadata STRUCT<queue: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP, redelivered: BOOLEAN>"
"""What docs/typed.md says to add where a query keeps it."""

EACH = 10
"""Rows that each of the two publishers has for each state of the queue."""


@dataclass(kw_only=True)
class Running:
    """A query that is started and stopped, and what its micro-batches gave, by their number: one that a stop cut off is
    repeated.
    """

    checkpoint: Path
    start_with: Callable[[], DataFrame]
    batches: dict[int, list[Row]] = field(default_factory=dict)
    query: StreamingQuery | None = None

    def start(self) -> None:
        def take(batch: DataFrame, batch_id: int) -> None:
            self.batches[batch_id] = batch.collect()

        writer = self.start_with().writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        self.query = writer.start()

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def wait(self, count: int) -> None:
        """Until it has so many rows; raises what ended it."""

        def there() -> bool:
            assert self.query is not None
            found = self.query.exception()
            if found is not None:
                raise found
            return len(self.rows) >= count

        wait_until(there, f"{count} rows", 60)


@pytest.mark.conformance("TYP-05")
def test_columns_change_ten_times_while_a_publisher_and_three_queries_run(lab: Lab) -> None:
    spark = lab.spark
    queue = lab.create("orders", 3, FIRST, "id")
    source = lab.folder / "source"
    source.mkdir()
    first = spark.read.format("partq").option("store", lab.url).load("orders").drop("_metadata").schema
    files = spark.readStream.schema(first).parquet(str(source))
    sink = files.writeStream.format("partq").options(store=lab.url, queue="orders")
    publisher = sink.option("checkpointLocation", str(lab.folder / "publisher")).start()

    options = {"startingOffsets": "earliest", "pollInterval": "50ms"}
    pinned_schema = StructType([first["name"], first["id"], first["n"]])

    def pinned() -> DataFrame:
        reader = spark.readStream.format("partq").options(store=lab.url, **options).schema(pinned_schema)
        return reader.load("orders").dropDuplicates()  # whole rows are in the state

    keeping = Running(checkpoint=lab.folder / "keeping", start_with=lambda: lab.stream("orders", **options))
    anew = Running(checkpoint=lab.folder / "anew", start_with=lambda: lab.stream("orders", **options))
    pinning = Running(checkpoint=lab.folder / "pinning", start_with=pinned)
    queries = (keeping, anew, pinning)
    for each in queries:
        each.start()

    published = 0

    def publish(number: int) -> None:
        """Ten rows by the stream, which knows the first columns alone, and ten with all columns of today."""
        nonlocal published
        low = 2 * number * EACH
        old = spark.range(low, low + EACH).selectExpr(
            "CAST(id AS INT) id",
            "CAST(id % 100 AS TINYINT) n",
            "CAST(id AS DECIMAL(5,2)) price",
            "concat('n', id) name",
        )
        old.coalesce(1).write.mode("append").parquet(str(source))
        today = spark.read.format("partq").option("store", lab.url).load("orders").drop("_metadata").schema
        values = {
            "id": "CAST(id AS INT)",
            "n": "CAST(id % 100 AS INT)",
            "price": "id",
            "name": "concat('n', id)",
            "c1": "concat('c', id)",
            "c2": "array(CAST(id AS INT), NULL)",
            "c3": "double('NaN')",
            "c4": "named_struct('a', CAST(id AS INT), 'b', 'x')",
            "c5": "map('k', CAST(id AS INT))",
            "c6": "timestamp_seconds(id)",
            "c7": "date_add(DATE'0001-01-01', CAST(id AS INT))",
        }
        new = spark.range(low + EACH, low + 2 * EACH).selectExpr(
            *(f"CAST({values[name]} AS {today[name].dataType.simpleString()}) {name}" for name in today.fieldNames())
        )
        lab.append(new.coalesce(1), "orders")
        published += 2 * EACH

    publish(0)
    for each in queries:
        each.wait(published)
    for number, change in enumerate(CHANGES, start=1):
        queue.alter(add_column=change.get("add_columns"), widen=change.get("widen"))
        anew.restart()
        if number % 3 == 0:
            pinning.restart()
        publish(number)
        for each in queries:
            each.wait(published)
    assert publisher.exception() is None

    expected = Counter(range(published))
    for each in queries:
        assert Counter(row.id for row in each.rows) == expected, "nothing is lost, nothing comes twice"
    for row in keeping.rows:
        assert list(row.asDict()) == ["id", "n", "price", "name", "_metadata"]
        assert (row.n, int(row.price), row.name) == (row.id % 100, row.id, f"n{row.id}")
    for row in pinning.rows:
        assert (row.name, row.id, row.n) == (f"n{row.id}", row.id, row.id % 100)
    assert_columns_of_their_time(anew.rows)
    whole = lab.read("orders")
    assert whole.columns == ["id", "n", "price", "name", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "_metadata"]
    assert [whole.schema[name].dataType.simpleString() for name in ("n", "price")] == ["bigint", "decimal(10,4)"]
    assert whole.where("c1 IS NOT NULL").count() == len(CHANGES) * EACH
    assert whole.where("c7 = date_add(DATE'0001-01-01', id)").count() == EACH

    # A value that the first type does not hold ends those that have that type, and nobody else.
    lab.append(spark.sql(f"SELECT {published} id, 1000L n"), "orders")
    anew.wait(published + 1)
    for each in (keeping, pinning):
        assert each.query is not None
        said = failure(each.query)
        assert "column 'n': 1000 does not fit TINYINT, the type that this query loaded; the column is BIGINT" in said
    publisher.stop()
    anew.stop()


@pytest.mark.conformance("TYP-05")
def test_whole_rows_with_metadata_in_a_querys_state_are_there_again_under_the_columns_that_alter_prints(
    lab: Lab,
) -> None:
    queue = partq.create_queue("orders", partitions=1, schema=FIRST, key="id", store=lab.url)
    reader = lab.spark.readStream.format("partq").options(
        store=lab.url, startingOffsets="earliest", pollInterval="50ms"
    )
    keeping = Running(checkpoint=lab.folder / "keeping", start_with=lambda: reader.load("orders").dropDuplicates())
    keeping.start()
    lab.append(lab.spark.sql("SELECT 1 id, 'a' name"), "orders")
    keeping.wait(1)
    keeping.stop()

    change = queue.alter(add_column="c STRING").schema
    assert change is not None
    lab.append(lab.spark.sql("SELECT 2 id, 'b' name, 'c' c"), "orders")
    keeping.start()
    assert keeping.query is not None
    assert "STATE_STORE" in failure(keeping.query), "Spark refuses the state of other columns"
    keeping.start_with = lambda: reader.schema(f"{change.from_}, {OWN}").load("orders").dropDuplicates()
    keeping.start()
    keeping.wait(2)
    keeping.stop()
    assert [(row.id, row.name, row._metadata.offset) for row in keeping.rows] == [(1, "a", 0), (2, "b", 1)]


def assert_columns_of_their_time(rows: list[Row]) -> None:
    """Of the query that loads anew: each row has the columns that were there when it was published, or more."""
    seen: dict[str, int] = {}
    for row in rows:
        for name in row.asDict():
            seen[name] = seen.get(name, 0) + 1
            value: Any = row[name]
            wrote_new = row.id // EACH % 2 == 1
            since = next((n for n, change in enumerate(CHANGES, 1) if f"{name} " in change.get("add_columns", "")), 0)
            if since:
                assert (value is not None) == (wrote_new and row.id // (2 * EACH) >= since), (row.id, name)
    assert seen["id"] == len(rows)
    assert seen["c7"] < seen["c1"] < len(rows)
