"""A typed queue's columns change while a publisher and three queries run (TYP-05): one goes on with what it loaded, one
loads anew after each change, one pins its columns and keeps rows in Spark's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tests.support.spark import Lab, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FIRST = "id INT NOT NULL, n TINYINT, price DECIMAL(5,2), name STRING"
CHANGES: list[dict[str, str]] = [
    {"add_column": "c1 STRING"},
    {"widen": "n SMALLINT"},
    {"add_column": "c2 ARRAY<INT>, c3 STRUCT<a: INT, b: STRING>", "widen": "price DECIMAL(10,4)"},
    {"widen": "n BIGINT"},
    {"add_column": "c4 TIMESTAMP"},
]
VALUES = {
    "id": "id",
    "n": "id % 100",
    "price": "id",
    "name": "concat('n', id)",
    "c1": "concat('c', id)",
    "c2": "array(id, NULL)",
    "c3": "named_struct('a', CAST(id AS INT), 'b', 'x')",
    "c4": "timestamp_seconds(id)",
}
OWN = "_metadata STRUCT<queue: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP, redelivered: BOOLEAN>"
"""What docs/typed.md says to add where a query keeps it."""
EACH = 10
"""Rows that each of the two publishers has for each state of the queue."""
OPTIONS = {"startingOffsets": "earliest", "pollInterval": "50ms"}


@dataclass(kw_only=True)
class Running:
    """A query that is started and stopped, and what its micro-batches gave, by their number: one that a stop cut off is
    repeated.
    """

    checkpoint: Path
    start_with: Callable[[], DataFrame]
    batches: dict[int, list[Row]] = field(default_factory=dict)
    query: StreamingQuery | None = None

    def start(self) -> StreamingQuery:
        def take(batch: DataFrame, batch_id: int) -> None:
            self.batches[batch_id] = batch.collect()

        if self.query is not None:
            self.query.stop()
        writer = self.start_with().writeStream.foreachBatch(take).option("checkpointLocation", str(self.checkpoint))
        self.query = writer.start()
        return self.query

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    def wait(self, count: int) -> None:
        """Until it has so many rows; raises what ended it."""

        def there() -> bool:
            assert self.query is not None
            found = self.query.exception()
            if found is not None:
                raise found
            return len(self.rows) >= count

        wait_until(there, f"{count} rows")


def publish(lab: Lab, number: int, first: StructType, source: Path) -> None:
    """Ten rows by the stream, which knows the first columns alone, and ten with all columns of today."""
    low = 2 * number * EACH
    for begin, schema in ((low, first), (low + EACH, lab.read("orders").drop("_metadata").schema)):
        kinds = {name: schema[name].dataType.simpleString() for name in schema.fieldNames()}
        rows = lab.spark.range(begin, begin + EACH)
        rows = rows.selectExpr(*(f"CAST({VALUES[name]} AS {kind}) {name}" for name, kind in kinds.items())).coalesce(1)
        if begin == low:
            rows.write.mode("append").parquet(str(source))
        else:
            lab.append(rows, "orders")


def assert_columns_of_their_time(rows: list[Row]) -> None:
    """Each has the columns that were there when it was published, or more."""
    for row in rows:
        with_all = row.id // EACH % 2 == 1
        for since, name in ((1, "c1"), (3, "c2"), (3, "c3"), (5, "c4")):
            if name in row.asDict():
                assert (row[name] is not None) == (with_all and row.id // (2 * EACH) >= since), (row.id, name)
    assert sum("c4" in row.asDict() for row in rows) >= 2 * EACH


@pytest.mark.nightly
@pytest.mark.conformance("TYP-05")
def test_columns_change_while_a_publisher_and_three_queries_run(lab: Lab) -> None:
    spark, source = lab.spark, lab.folder / "source"
    source.mkdir()
    queue = lab.create("orders", 3, schema=FIRST, key="id")
    first = lab.read("orders").drop("_metadata").schema
    files = spark.readStream.schema(first).parquet(str(source))
    sink = files.writeStream.format("partq").options(store=lab.url, queue="orders")
    publisher = sink.option("checkpointLocation", str(lab.folder / "publisher")).start()
    columns = StructType([first["name"], first["id"], first["n"]])

    def pinned() -> DataFrame:
        reader = spark.readStream.format("partq").options(store=lab.url, **OPTIONS).schema(columns)
        return reader.load("orders").dropDuplicates()  # whole rows are in the state

    def loaded() -> DataFrame:
        return lab.stream("orders", **OPTIONS)

    keeping = Running(checkpoint=lab.folder / "keeping", start_with=loaded)
    anew = Running(checkpoint=lab.folder / "anew", start_with=loaded)
    pinning = Running(checkpoint=lab.folder / "pinning", start_with=pinned)
    queries = (keeping, anew, pinning)
    for each in queries:
        each.start()

    for number, change in enumerate([{}, *CHANGES]):
        if change:
            queue.alter(add_column=change.get("add_column"), widen=change.get("widen"))
            anew.start()
        if number == 3:
            pinning.start()
        publish(lab, number, first, source)
        for each in queries:
            each.wait(2 * EACH * (number + 1))
    assert publisher.exception() is None
    published = 2 * EACH * (1 + len(CHANGES))
    for each in queries:
        assert Counter(row.id for row in each.rows) == Counter(range(published)), "nothing is lost, nothing comes twice"
    for row in keeping.rows:
        assert list(row.asDict()) == ["id", "n", "price", "name", "_metadata"]
        assert (row.n, int(row.price), row.name) == (row.id % 100, row.id, f"n{row.id}")
    for row in pinning.rows:
        assert (row.name, row.id, row.n) == (f"n{row.id}", row.id, row.id % 100)
    assert_columns_of_their_time(anew.rows)
    whole = lab.read("orders")
    assert whole.columns == [*VALUES, "_metadata"]
    assert [whole.schema[name].dataType.simpleString() for name in ("n", "price")] == ["bigint", "decimal(10,4)"]
    assert whole.where("c1 IS NOT NULL").count() == len(CHANGES) * EACH
    assert whole.where("c4 = timestamp_seconds(id)").count() == EACH

    # A value that the first type does not hold ends those that have that type, and nobody else.
    lab.append(spark.sql(f"SELECT {published} id, 1000L n"), "orders")
    anew.wait(published + 1)
    for each in (keeping, pinning):
        assert each.query is not None
        said = failure(each.query)
        assert "column 'n': 1000 does not fit TINYINT, the type that this query loaded; the column is BIGINT" in said


@pytest.mark.conformance("TYP-05")
def test_whole_rows_in_a_querys_state_are_there_again_under_the_columns_that_alter_prints(lab: Lab) -> None:
    queue = lab.create("orders", schema=FIRST, key="id")
    reader = lab.spark.readStream.format("partq").options(store=lab.url, **OPTIONS)
    keeping = Running(checkpoint=lab.folder / "keeping", start_with=lambda: reader.load("orders").dropDuplicates())
    query = keeping.start()
    lab.append(lab.spark.sql("SELECT 1 id, 'a' name"), "orders")
    keeping.wait(1)
    query.stop()
    change = queue.alter(add_column="c STRING").schema
    assert change is not None
    lab.append(lab.spark.sql("SELECT 2 id, 'b' name, 'c' c"), "orders")
    assert "STATE_STORE" in failure(keeping.start()), "Spark refuses the state of other columns (spark-traps.md 37)"
    keeping.start_with = lambda: reader.schema(f"{change.from_}, {OWN}").load("orders").dropDuplicates()
    keeping.start()
    keeping.wait(2)
    assert [(row.id, row.name, row._metadata.offset) for row in keeping.rows] == [(1, "a", 0), (2, "b", 1)]
