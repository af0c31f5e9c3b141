"""Typed queues in real Spark: rows of random columns by batch and stream are what Parquet makes of them, the key's
partition is what Spark SQL says, and what a user sees of refusals, tables and sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

import partq
from partq_spark.client.acknowledge import Acknowledger, KeySequences
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.types import KEY_TYPES
from tests.log.schema import shapes
from tests.support.properties import examples
from tests.support.spark import Lab, ended, failure

pytestmark = pytest.mark.spark

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]


def session(lab: Lab, zone: str, *, large: bool = False) -> Lab:
    """The same Spark with settings of its own."""
    spark = lab.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", str(large).lower())
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # others can read these
    return replace(lab, spark=spark)


# --- what goes in comes out -------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Random columns and values; `row` tells the rows from each other."""
    schema = draw(shapes.schemas(most=6))
    batch = draw(shapes.batches(schema, most_rows=6))
    table = pa.Table.from_batches([batch], schema)
    return table.append_column(pa.field("row", pa.int32(), False), pa.array(range(table.num_rows), pa.int32()))


def plain(value: pa.Scalar) -> Any:
    """A value as Python's, points in time as numbers: Python has no zones in the year 1."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {field.name: plain(value[place]) for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return [(plain(pair[0]), plain(pair[1])) for pair in value.values]
    if pa.types.is_list(kind):
        return [plain(each) for each in value.values]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.value
    return value.as_py()


def in_parquet(folder: Path) -> list[dict[str, Any]]:
    """What Spark has written, in the order of `row`; read without Spark."""
    table = pq.read_table(folder).sort_by("row")
    return [{name: plain(table.column(name)[row]) for name in table.column_names} for row in range(table.num_rows)]


_numbers = iter(range(10**6))


@dataclass(frozen=True, kw_only=True)
class Journey:
    """A table that goes by batch into one queue, from there by a stream into another, and by a stream out of it."""

    table: pa.Table
    name: str
    writer: Lab
    reader: Lab

    def by_batch(self) -> None:
        """Into the first queue, and out of it by batch."""
        for queue in (self.name, f"{self.name}-copy"):
            self.writer.create_typed(queue, self.table.schema, "row", partitions=2)
        rows = self.writer.spark.createDataFrame(self.table, from_arrow_schema(self.table.schema))
        rows.write.parquet(str(self._folder("expected")))
        self.writer.append(rows, self.name)
        stored = self.reader.read(self.name)
        assert stored.columns == [*self.table.column_names, "_metadata"]
        assert stored.schema["row"].nullable is False
        stored.drop("_metadata").write.parquet(str(self._folder("stored")))

    def on(self) -> StreamingQuery:
        """A stream into the second queue."""
        rows = self.writer.stream(self.name, startingOffsets="earliest")
        return self.writer.publisher(rows, f"{self.name}-copy", f"{self.name}-publisher")

    def out(self) -> StreamingQuery:
        """A stream out of the second queue."""
        rows = self.reader.stream(f"{self.name}-copy", startingOffsets="earliest").drop("_metadata")
        copied = rows.writeStream.format("parquet").trigger(availableNow=True)
        return copied.option("checkpointLocation", str(self._folder("reader"))).start(str(self._folder("copied")))

    def arrived(self) -> None:
        expected = in_parquet(self._folder("expected"))
        for found in (
            in_parquet(self._folder("stored")),
            in_parquet(self._folder("copied")) if expected else [],
        ):
            assert len(found) == len(expected)
            assert all(map(shapes.same, found, expected))

    def _folder(self, what: str) -> Path:
        return self.writer.folder / f"{self.name}-{what}"


@pytest.mark.conformance("TYP-02")
@pytest.mark.timeout(400)
@settings(examples(12, suppress_health_check=list(HealthCheck)), phases=[Phase.generate])  # to shrink takes hours here
@given(
    st.lists(st.tuples(tables(), st.sampled_from(ZONES), st.sampled_from(ZONES), st.booleans()), min_size=2, max_size=2)
)
def test_rows_of_any_columns_come_back_as_from_parquet(lab: Lab, drawn: list[tuple[pa.Table, str, str, bool]]) -> None:
    """Two tables at once: their streams wait together for what Spark starts."""
    journeys = [
        Journey(
            table=table,
            name=f"orders-{next(_numbers)}",
            writer=session(lab, writing_in, large=large),
            reader=session(lab, reading_in, large=large),
        )
        for table, writing_in, reading_in, large in drawn
    ]
    for each in journeys:
        each.by_batch()
    for stage in (Journey.on, Journey.out):
        for query in [stage(each) for each in journeys]:
            ended(query)
    for each in journeys:
        each.arrived()


@pytest.mark.conformance("TYP-02")
@pytest.mark.parametrize("word", ["ARRAY", "MAP", "STRUCT"])
def test_what_is_nested_32_deep_comes_back_equal(lab: Lab, word: str) -> None:
    text, value = shapes.nested(word, "TIMESTAMP", datetime(1999, 12, 31, tzinfo=UTC), 32)
    schema = parse_ddl(f"deep {text}, row INT")
    table = pa.table([pa.array([value, None], schema.field(0).type), pa.array([0, 1], pa.int32())], schema=schema)
    rows = lab.spark.createDataFrame(table, from_arrow_schema(schema))
    lab.create_typed("orders", schema)
    lab.append(rows.coalesce(1), "orders")
    read = lab.read("orders").drop("_metadata")
    assert read.schema == rows.schema
    expected = rows.orderBy("row").collect()
    assert read.orderBy("row").collect() == expected
    delivered = lab.consumer().run(lab.stream("orders", startingOffsets="earliest").drop("_metadata"))
    assert sorted(delivered, key=lambda row: int(row.row)) == expected


def test_columns_on_request_and_metadata_in_a_query(lab: Lab) -> None:
    lab.create_typed("orders", "id INT NOT NULL, name STRING, tags ARRAY<STRING>", "id", partitions=3)
    rows = lab.spark.range(100).selectExpr("CAST(id AS INT) id", "concat('n', id) name", "array('a') tags")
    lab.append(
        rows.withColumn("_headers", f.expr("array(struct('n' AS key, CAST(name AS BINARY) AS value))")), "orders"
    )
    asked = "_metadata STRUCT<offset: BIGINT, headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>, NAME STRING"
    read = lab.spark.read.format("partq").option("store", lab.url).schema(asked).load("orders")
    assert read.columns == ["_metadata", "NAME"]
    assert {bytes(row._metadata.headers[0].value).decode() for row in read.collect()} == {f"n{n}" for n in range(100)}
    stream = lab.spark.readStream.format("partq").options(store=lab.url, startingOffsets="earliest").schema(asked)
    assert sorted(map(repr, lab.consumer().run(stream.load("orders")))) == sorted(map(repr, read.collect()))
    default = lab.read("orders")
    own = default.selectExpr("_metadata.partition", "_metadata.offset", "_metadata.queue", "_metadata.redelivered")
    assert own.distinct().count() == 100
    assert default.select(default._metadata.timestamp).distinct().count() == 1
    joined = (
        default.alias("a")
        .join(lab.read("orders").alias("b"), "id")
        .selectExpr("a._metadata.offset - b._metadata.offset")
    )
    assert {row[0] for row in joined.collect()} == {0}


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_the_partition_is_what_spark_sql_says(lab: Lab, kind: pa.DataType) -> None:
    """In the words of a user: `pmod(xxhash64(CAST(key AS STRING)), partitions)`."""
    made = {
        pa.string(): "CASE WHEN id % 50 = 0 THEN '' WHEN id % 2 = 0 THEN concat('键', id) ELSE repeat(id, 12) END",
        pa.bool_(): "id % 2 = 0",
        pa.date32(): "date_add(DATE'0001-01-01', CAST(id * 912 AS INT))",
        pa.binary(): "CAST(concat('ü', id) AS BINARY)",
    }
    most = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
    words = {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT", pa.int64(): "BIGINT"}
    text = made.get(kind) or f"CAST(shiftright(xxhash64(id), {63 - most[kind]}) AS {words[kind]})"
    rows = lab.spark.range(4000).selectExpr("CAST(id AS INT) row", f"IF(id % 100 = 99, NULL, {text}) k")
    schema = pa.schema([("k", kind), ("row", pa.int32())])
    lab.create_typed("orders", schema, "k", partitions=7)
    lab.append(rows.repartition(3), "orders")
    found = session(lab, "Asia/Kathmandu").read("orders").withColumnRenamed("_metadata", "m")
    right = f.expr("m.partition = pmod(xxhash64(CAST(k AS STRING)), 7)")
    assert found.where("k IS NOT NULL").count() == 3960
    assert found.where("k IS NOT NULL").where(~right).count() == 0
    assert found.where("k IS NULL").select("m.partition").distinct().count() > 3


# --- what a user is told ----------------------------------------------------------------------------------------------


def stream_of(lab: Lab, rows: DataFrame) -> DataFrame:
    """The rows as a stream."""
    folder = lab.folder / f"rows-{next(_numbers)}"
    rows.write.parquet(str(folder))
    return lab.spark.readStream.schema(rows.schema).parquet(str(folder))


@pytest.mark.conformance("TYP-04")
def test_what_does_not_fit_is_refused_with_column_or_row_and_nothing_is_published(lab: Lab) -> None:
    lab.create_typed("orders", "id INT NOT NULL, name STRING")
    before = lab.head("orders")
    rows = lab.spark.range(3).coalesce(1)
    as_int = "CAST(id AS INT) id"
    cases = [
        (rows.selectExpr("id"), "column 'id' has type BIGINT, the queue's is INT: cast it"),
        (rows.selectExpr(as_int, "id price"), "column 'price' (BIGINT) is none of the queue's (id, name)"),
        (rows.selectExpr("'a' name"), "column 'id' (INT NOT NULL) is missing: the queue needs it in every row"),
        (rows.selectExpr(as_int, "CAST(id AS INT) ID"), "are both the queue's column 'id'"),
        (rows.selectExpr(as_int, "parse_json('1') name"), "column 'name' has type variant, the queue's is STRING"),
        (rows.selectExpr("CAST(IF(id = 2, NULL, id) AS INT) id"), "row 2, column 'id': null, where the queue's"),
        (rows.selectExpr(as_int, "CAST(X'FF' AS STRING) name"), "row 0, column 'name': a STRING that is not UTF-8"),
    ]
    for given_rows, says in cases:
        with pytest.raises(PySparkException) as caught:
            lab.append(given_rows, "orders")
        assert says in str(caught.value)
    for number, (given_rows, says) in enumerate((cases[0], cases[5])):
        assert says in failure(lab.publisher(stream_of(lab, given_rows), "orders", f"publisher-{number}"))
    assert lab.head("orders") == before


@pytest.fixture
def with_time(lab: Lab) -> Iterator[Lab]:
    """TIME is off by default in Spark itself."""
    lab.spark.conf.set("spark.sql.timeType.enabled", "true")
    yield lab
    lab.spark.conf.unset("spark.sql.timeType.enabled")


@pytest.mark.conformance("TYP-04")
def test_types_that_no_queue_keeps_are_refused_before_any_task_runs(with_time: Lab) -> None:
    lab = with_time
    lab.create_typed("orders", "id INT, x STRING")
    before = lab.head("orders")
    rows = lab.spark.range(3).where("raise_error('a task ran') IS NULL")
    point = "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')"
    kinds = {
        "time(6)": f.expr("TIME'12:00:00'"),
        "interval day": f.expr("INTERVAL '1' DAY"),
        "interval month": f.expr("INTERVAL '1' MONTH"),
        "geometry(0)": f.expr(point),
        "vector": array_to_vector(f.array(f.lit(1.0))),
    }
    for number, (shown, value) in enumerate(kinds.items()):
        given_rows = rows.select(rows.id.cast("int"), value.alias("x"))
        says = f"column 'x' has type {shown}, the queue's is STRING: cast or convert it"
        with pytest.raises(PySparkException) as caught:
            lab.append(given_rows, "orders")
        assert says in str(caught.value)
        stream = lab.spark.readStream.format("rate").load().select(f.lit(1).alias("id"), value.alias("x"))
        assert says in failure(lab.publisher(stream, "orders", f"publisher-{number}"))
    assert lab.head("orders") == before


def test_a_reader_that_asks_for_what_is_not_there_is_told_so(lab: Lab) -> None:
    lab.create_typed("orders", "id INT NOT NULL, name STRING")
    says = "queue 'orders' is typed: column 'value' is none of the queue's: name some of id, name and _metadata"
    with pytest.raises(PySparkException, match=says):
        lab.spark.read.format("partq").option("store", lab.url).schema("value STRING").load("orders").collect()
    asked = lab.spark.readStream.format("partq").option("store", lab.url).schema("value STRING").load("orders")
    assert says in failure(lab.consumer().start(asked, available_now=True))


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sql(lab: Lab) -> Iterator[SparkSession]:
    yield lab.spark
    lab.spark.sql("DROP TABLE IF EXISTS orders_table")
    lab.spark.sql("DROP VIEW IF EXISTS orders_view")


def test_a_temporary_view_is_a_queue_and_a_table_says_that(lab: Lab, sql: SparkSession) -> None:
    """Spark gives its catalog's tables no options when they are read or written."""
    lab.create_typed("orders", "id INT NOT NULL, name STRING", "id")
    where = f"USING partq OPTIONS (store '{lab.url}', queue 'orders')"
    lab.append(lab.spark.createDataFrame([(1, "a"), (2, None)], "id int, name string"), "orders")
    sql.sql(f"CREATE TEMPORARY VIEW orders_view {where}")
    assert [tuple(row) for row in sql.sql("SELECT id, name FROM orders_view ORDER BY id").collect()] == [
        (1, "a"),
        (2, None),
    ]
    says = "use CREATE TEMPORARY VIEW name USING partq OPTIONS"
    with pytest.raises(PySparkException, match="CREATE TABLE ... USING partq makes no table that works: .*" + says):
        sql.sql(f"CREATE TABLE orders_table {where}")
    sql.sql(f"CREATE TABLE orders_table (id INT, name STRING) {where}")  # Spark asks nobody
    with pytest.raises(PySparkException, match="no queue was named: .*if this is a table: .*" + says):
        sql.table("orders_table").collect()
    with pytest.raises(PySparkException, match="no queue was named, and no topic: .*if this is a table: .*" + says):
        sql.sql("INSERT INTO orders_table VALUES (3, 'c')")
    sql.sql("DROP TABLE orders_table")
    with pytest.raises(PySparkException, match="no queue was named, and no topic: .*if this is a table: .*" + says):
        sql.sql(f"CREATE TABLE orders_table {where} AS SELECT 3 id, 'c' name")
    assert sql.table("orders_view").count() == 2


# --- sequences --------------------------------------------------------------------------------------------------------


def test_sequences_of_rows_are_acknowledged_by_hand(lab: Lab) -> None:
    """What a key sequence needs of a row are three values, wherever they come from."""
    lab.create_typed("orders", "customer INT, step STRING", "customer")
    queue = partq.open_queue("orders", store=lab.url)
    sequences = KeySequences(Acknowledger(queue="orders", group="billing", flow="one", store=lab.url))
    schema = "customer int, step string"
    lab.append(lab.spark.createDataFrame([(1, "begin"), (2, "begin"), (1, "end")], schema).coalesce(1), "orders")

    def run() -> list[tuple[int, str, bool]]:
        delivered: list[tuple[int, str, bool]] = []

        def handle(rows: DataFrame, _batch_id: int) -> None:
            sequences.begin()
            for row in rows.collect():
                delivered.append((row.customer, row.step, row._metadata.redelivered))
                sequences.seen(row._metadata.partition, row._metadata.offset, row.customer)
                if row.step == "end":
                    sequences.complete(row._metadata.partition, row.customer)
            sequences.acknowledge()

        options = {"group": "billing", "flow": "one", "ackMode": "manual", "checkpointInterval": "0s"}
        writer = lab.stream("orders", startingOffsets="earliest", **options).writeStream.foreachBatch(handle)
        ended(writer.option("checkpointLocation", str(lab.folder / "one")).trigger(availableNow=True).start())
        return delivered

    assert run() == [(1, "begin", False), (2, "begin", False), (1, "end", False)]
    assert queue.checkpoints("billing").lag == 2, "all but what lies before the open sequence of customer 2"
    lab.append(lab.spark.createDataFrame([(2, "end")], schema), "orders")
    assert run() == [(2, "begin", True), (1, "end", True), (2, "end", False)]
    assert queue.checkpoints("billing").lag == 0
