"""Typed queues in real Spark: rows of every type by batch and stream are what Parquet makes of them, the partition of a
key is what Spark SQL says, a DDL means what Spark's own parser says; what a user sees of refusals and tables, and of
columns that change while queries run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from py4j import java_gateway, protocol
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

import partq
from partq_spark.log.schema.ddl import ddl_of, parse_ddl, parse_struct_json
from tests.log.schema.texts import a_ddl
from tests.support.spark import Lab, ended, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


def session(lab: Lab, zone: str, *, large: bool = False) -> Lab:
    """The same Spark with settings of its own."""
    spark = lab.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", str(large).lower())
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # the other is not of every year
    return replace(lab, spark=spark)


# --- what goes in comes out -------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[str, str]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127"),
    "SMALLINT": ("-32768", "32767"),
    "INT": ("-2147483648", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "FLOAT": ("'NaN'", "'-Infinity'"),
    "DOUBLE": ("'-0.0'", "'4.9E-324'"),
    "DECIMAL(38,18)": ("'-99999999999999999999.999999999999999999'", "'0.000000000000000001'"),
    "STRING": ("''", "'größe 分 🚚'"),
    "BINARY": ("X''", "X'00FF80'"),
    "DATE": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "TIMESTAMP": ("TIMESTAMP'0001-01-02 00:00:00Z'", "TIMESTAMP'9999-12-30 23:59:59.999999Z'"),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'2026-03-08 02:30:00.000001'"),
    "ARRAY<STRING>": ("array()", "array('a', NULL, '')"),
    "MAP<STRING, BIGINT>": ("map()", "map('k', 1, 'n', NULL)"),
    "STRUCT<a: INT, b: ARRAY<TIMESTAMP>>": ("named_struct('a', 1, 'b', NULL)", "named_struct('a', NULL, 'b', array())"),
}
"""Every type that a queue keeps, each with two values at its ends."""


def deep(word: str, depth: int = 31) -> tuple[str, str]:
    """A type of arrays, maps or structs around a point in time, 32 deep, and a value of it."""
    kind, value = "TIMESTAMP", "TIMESTAMP'1999-12-31 23:59:59.999999Z'"
    for _ in range(depth):
        kind = {"ARRAY": f"ARRAY<{kind}>", "MAP": f"MAP<STRING, {kind}>", "STRUCT": f"STRUCT<a: {kind}>"}[word]
        value = {"ARRAY": f"array({value})", "MAP": f"map('k', {value})", "STRUCT": f"named_struct('a', {value})"}[word]
    return kind, value


@pytest.mark.conformance("TYP-02")
def test_rows_of_every_type_come_back_as_from_parquet(lab: Lab) -> None:
    """By batch into one queue, by a stream on to another, and out of it by batch, stream and without Spark; written and
    read in sessions of other time zones and with Spark's large types.
    """
    given = {f"c{n}": (kind, *values) for n, (kind, values) in enumerate(TYPES.items())}
    given |= {word.lower(): (*deep(word), "NULL") for word in ("ARRAY", "MAP", "STRUCT")}
    ddl = "row INT NOT NULL, " + ", ".join(f"{name} {kind}" for name, (kind, *_) in given.items())
    for name in ("orders", "copy"):
        lab.create(name, 2, schema=ddl, key="row")
    writer, reader = session(lab, "America/New_York", large=True), session(lab, "Asia/Kathmandu")
    rows = writer.spark.range(3).selectExpr(
        "CAST(id AS INT) row",
        *(
            f"CAST(CASE id WHEN 0 THEN CAST({a} AS {kind}) WHEN 1 THEN CAST({b} AS {kind}) END AS {kind}) {name}"
            for name, (kind, a, b) in given.items()
        ),
    )
    rows.write.parquet(str(lab.folder / "expected"))
    writer.append(rows, "orders")
    ended(writer.publisher(writer.stream("orders", startingOffsets="earliest"), "copy", "copy"))

    def told(read: Any) -> list[object]:
        """The types, and the values as texts, which tell NaN and -0.0 from others; bytes are told as they are."""
        columns = [f"hex({each.name})" if each.dataType == BinaryType() else each.name for each in read.schema]
        rows = read.orderBy("row").selectExpr("CAST(struct(" + ", ".join(columns) + ") AS STRING) text").collect()
        return [(each.name, each.dataType) for each in read.schema] + [row.text for row in rows]

    expected = told(reader.spark.read.parquet(str(lab.folder / "expected")))
    read = reader.read("copy")
    assert read.columns == ["row", *given, "_metadata"]
    assert read.schema["row"].nullable is False
    assert told(read.drop("_metadata")) == expected
    out = reader.stream("copy", startingOffsets="earliest").drop("_metadata").writeStream.format("memory")
    ended(out.queryName("out").option("checkpointLocation", str(lab.folder / "out")).trigger(availableNow=True).start())
    assert told(reader.spark.table("out")) == expected
    arrow = pa.table(partq.open_queue("copy", store=lab.url).read()).drop_columns(["_metadata"])
    arrow = pa.Table.from_arrays(arrow.columns, schema=parse_ddl(ddl))
    types = len(arrow.schema)  # PySpark takes TIMESTAMP_NTZ of Arrow for TIMESTAMP
    assert told(reader.spark.createDataFrame(arrow))[types:] == expected[types:]


WHOLE = {
    kind: f"IF(id < 2, {1 << bits} * id - id - {1 << bits} * (1 - id), shiftright(xxhash64(id), {63 - bits}))"
    for kind, bits in (("TINYINT", 7), ("SMALLINT", 15), ("INT", 31))
} | {"BIGINT": "CASE id WHEN 0 THEN -9223372036854775808 WHEN 1 THEN 9223372036854775807 ELSE xxhash64(id) END"}
KEYS = {
    "STRING": "CASE WHEN id % 50 = 0 THEN '' WHEN id % 2 = 0 THEN concat('键', id) ELSE repeat(id, 12) END",
    "BOOLEAN": "id % 2 = 0",
    "DATE": "date_add(DATE'0001-01-01', CAST(id * 912 AS INT))",
    "BINARY": "CAST(concat('ü', id) AS BINARY)",
    **{kind: f"CAST({ends} AS {kind})" for kind, ends in WHOLE.items()},
}
"""Every type that a key may have, with values for some thousand numbers; of whole numbers also both ends."""


@pytest.mark.conformance("TYP-03")
def test_the_partition_is_what_spark_sql_says(lab: Lab) -> None:
    """In the words of a user: `pmod(xxhash64(CAST(key AS STRING)), partitions)`; null goes to a random partition."""
    reader = session(lab, "Asia/Kathmandu")
    for kind, key in KEYS.items():
        name = f"by-{kind.lower()}"
        lab.create(name, 7, schema=f"k {kind}, row INT", key="k")
        rows = lab.spark.range(4000).selectExpr("CAST(id AS INT) row", f"IF(id % 100 = 99, NULL, {key}) k")
        lab.append(rows.repartition(3), name)
        wrong = "count_if(k IS NOT NULL AND _metadata.partition != pmod(xxhash64(CAST(k AS STRING)), 7))"
        spread = "count(DISTINCT IF(k IS NULL, _metadata.partition, NULL)) > 3"
        (told,) = reader.read(name).selectExpr("count(*)", wrong, "count_if(k IS NULL)", spread).collect()
        assert tuple(told) == (4000, 0, 40, True), kind


def test_every_ddl_means_what_spark_makes_of_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it is refused: what Spark refuses, and types that a queue does not keep."""
    jvm = lab.spark.sparkContext._jvm
    assert jvm is not None
    parse = jvm.org.apache.spark.sql.types.StructType.fromDDL  # to find a class is a question for each of its packages
    # Nor do its refusals become PySpark's exceptions, which ask ten times for their words.
    monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)

    def theirs(text: str) -> str | None:
        try:
            return str(parse(text).json())
        except protocol.Py4JJavaError:
            return None

    def ours(parse: Any, text: str) -> pa.Schema | None:
        try:
            return parse(text)
        except partq.Invalid:
            return None

    rng, kept, refused = random.Random(2026), 0, 0
    for _ in range(2_000):
        text = a_ddl(rng)
        said, found = theirs(text), ours(parse_ddl, text)
        assert found == (None if said is None else ours(parse_struct_json, said)), text
        if found is not None:
            kept += 1
            again = theirs(ddl_of(found))
            assert again is not None
            assert parse_struct_json(again) == found, "what is written is read as the same"
        refused += found is None
    assert kept > 500
    assert refused > 200


# --- what a user is told ----------------------------------------------------------------------------------------------


def test_a_temporary_view_is_a_queue_and_a_table_says_that(lab: Lab) -> None:
    """Spark gives its catalog's tables no options when they are read or written (spark-traps.md 42)."""
    sql = lab.spark.sql
    lab.create("orders", schema="id INT NOT NULL, name STRING", key="id")
    where = f"USING partq OPTIONS (store '{lab.url}', queue 'orders')"
    sql(f"CREATE TEMPORARY VIEW orders_view {where}")
    lab.append(sql("SELECT 1 id, 'a' name"), "orders")
    assert [tuple(row) for row in sql("SELECT id, name FROM orders_view").collect()] == [(1, "a")]
    made, nobody = (
        "CREATE TABLE ... USING partq makes no table that works: ",
        "no queue was named.*if this is a table: ",
    )
    for text, says in (
        (f"CREATE TABLE orders_table {where}", made),
        (f"CREATE TABLE orders_table (id INT, name STRING) {where}", None),  # Spark asks nobody
        ("SELECT * FROM orders_table", nobody),
        ("INSERT INTO orders_table VALUES (3, 'c')", nobody),
        ("DROP TABLE orders_table", None),
        (f"CREATE TABLE orders_table {where} AS SELECT 3 id, 'c' name", nobody),
    ):
        if says is None:
            sql(text)
        else:
            with pytest.raises(PySparkException, match=says + ".*use CREATE TEMPORARY VIEW name USING partq OPTIONS"):
                sql(text).collect()
    assert sql("SELECT * FROM orders_view").count() == 1
    sql("DROP VIEW orders_view")


# --- columns that change ----------------------------------------------------------------------------------------------

OWN = "_metadata STRUCT<queue: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP, redelivered: BOOLEAN>"
"""What docs/typed.md says to add where a query keeps it."""


@pytest.mark.conformance("TYP-05")
def test_columns_change_while_a_query_runs_and_whole_rows_in_anothers_state_are_there_again(lab: Lab) -> None:
    """One keeps what it loaded, until a value does not fit; one names what `alter` prints (spark-traps.md 37)."""
    queue = lab.create("orders", schema="id INT NOT NULL, n TINYINT, name STRING", key="id")
    reader = lab.spark.readStream.format("partq").options(store=lab.url, startingOffsets="earliest")
    running, with_state = lab.consumer("running"), lab.consumer("with state")
    query = running.start(reader.load("orders"))
    lab.append(lab.spark.sql("SELECT 1 id, 5 n, 'a' name").withColumn("n", f.col("n").cast("tinyint")), "orders")
    with_state.run(reader.load("orders").dropDuplicates())
    change = queue.alter(add_column="c STRING", widen="n INT").schema
    assert change is not None
    lab.append(lab.spark.sql("SELECT 2 id, 6 n, 'b' name, 'c' c"), "orders")
    wait_until(lambda: len(running.rows) == 2, "both rows")
    for row in running.rows:
        assert list(row.asDict()) == ["id", "n", "name", "_metadata"]
    assert "STATE_STORE" in failure(with_state.start(reader.load("orders").dropDuplicates()))
    with_state.run(reader.schema(f"{change.from_}, {OWN}").load("orders").dropDuplicates())
    for rows in (running.rows, with_state.rows):
        assert [(row.id, row.n, row.name, row._metadata.partition) for row in rows] == [(1, 5, "a", 0), (2, 6, "b", 0)]
    assert [row.c for row in lab.read("orders").orderBy("id").collect()] == [None, "c"]
    lab.append(lab.spark.sql("SELECT 3 id, 1000 n"), "orders")
    said = "column 'n': 1000 does not fit TINYINT, the type that this query loaded; the column is INT"
    assert said in failure(query)
