"""What a sink takes for typed queues and what it refuses, by batch and by stream, without a JVM: the data source's
classes called as Spark calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DoubleType, MapType, NullType, StringType, StructField, StructType

from partq_spark.base.errors import Invalid
from partq_spark.log.admin import delete_queue
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.subscriptions import subscribe
from tests.spark.typed_rows import WRITERS, PointType, create, field, headers_type, metadata, rows_of, spark
from tests.support.data_source import Calls, as_spark_sends


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")


# --- what a sink takes ------------------------------------------------------------------------------------------------

WIDER = [
    ("TINYINT", "SMALLINT", [-128, 127, None]),
    ("TINYINT", "INT", [-128, 127]),
    ("SMALLINT", "BIGINT", [-(2**15), 2**15 - 1]),
    ("INT", "BIGINT", [-(2**31), 2**31 - 1]),
    ("FLOAT", "DOUBLE", [0.5, float("inf"), None]),
    ("DECIMAL(5,2)", "DECIMAL(10,4)", [Decimal("-999.99"), None]),
]


@pytest.mark.conformance("TYP-02")
@pytest.mark.parametrize(("narrow", "wide", "values"), WIDER)
@pytest.mark.parametrize("write", WRITERS)
def test_every_type_that_could_be_widened_is_taken(
    calls: Calls, write: Callable[..., None], narrow: str, wide: str, values: list[Any]
) -> None:
    create(calls, f"n {wide}")
    given = spark(f"n {narrow}")
    write(calls, "orders", given, [as_spark_sends([[value] for value in values], given)])
    assert calls.read("orders").column("n").to_pylist() == values


@pytest.mark.parametrize("write", WRITERS)
def test_columns_come_by_name_in_any_order_and_any_letters_and_may_be_missing_or_void(
    calls: Calls, write: Callable[..., None]
) -> None:
    create(calls, "id INT NOT NULL, name STRING, Tags ARRAY<INT>, deep STRUCT<a: INT>, m MAP<STRING, INT>, d DATE")
    given = spark(
        "TAGS ARRAY<INT>, ID SMALLINT", *(StructField(name, NullType()) for name in ("name", "deep", "m", "d"))
    )
    write(calls, "orders", given, [as_spark_sends([[[1, None], 7, None, None, None, None]], given)])
    given = spark("id INT")
    write(calls, "orders", given, [as_spark_sends([[8]], given)], **({"batch_id": 1} if write == Calls.publish else {}))
    nothing = {"name": None, "deep": None, "m": None, "d": None}
    assert rows_of(calls.read("orders")) == [
        {"id": 7, "Tags": [1, None], **nothing},
        {"id": 8, "Tags": None, **nothing},
    ]


@pytest.mark.parametrize("write", WRITERS)
def test_void_inside_a_column_is_taken_as_a_column_of_it_is(calls: Calls, write: Callable[..., None]) -> None:
    create(calls, "deep STRUCT<lat: DOUBLE, lon: DOUBLE>, tags ARRAY<INT>, m MAP<STRING, STRUCT<a: INT>>")
    lon = StructType([StructField("lat", DoubleType()), StructField("lon", NullType())])
    given = StructType(
        [
            StructField("deep", lon),
            StructField("tags", ArrayType(NullType())),
            StructField("m", MapType(StringType(), NullType())),
        ]
    )
    write(calls, "orders", given, [as_spark_sends([[{"lat": 1.0, "lon": None}, [], {"x": None}]], given)])
    assert rows_of(calls.read("orders")) == [{"deep": {"lat": 1.0, "lon": None}, "tags": [], "m": [("x", None)]}]


# --- what a sink refuses ----------------------------------------------------------------------------------------------

DDL = "id INT NOT NULL, name STRING, tags ARRAY<STRING>, m MAP<STRING, INT>, at TIMESTAMP, deep STRUCT<a: INT NOT NULL>"


def no_task_runs(_: int) -> pa.RecordBatch:
    raise AssertionError("a task ran")


ID = spark("id INT").fields
REFUSED_COLUMNS: dict[str, tuple[StructType, str]] = {
    "missing": (spark("name STRING"), "column 'id' (INT NOT NULL) is missing: the queue needs it in every row"),
    "void for NOT NULL": (spark("", field("id", NullType())), "column 'id' has type null, the queue's is INT: cast it"),
    "unknown": (
        spark("id INT, price INT"),
        "column 'price' (INT) is none of the queue's (id, name, tags, m, at, deep)",
    ),
    "wider": (spark("id BIGINT"), "column 'id' has type BIGINT, the queue's is INT: cast it"),
    "other type": (spark("id INT, name BINARY"), "column 'name' has type BINARY, the queue's is STRING: cast it"),
    "number as text": (spark("id STRING"), "column 'id' has type STRING, the queue's is INT: cast it"),
    "nested": (
        spark("id INT, deep STRUCT<b: INT>"),
        "column 'deep' has type STRUCT<b: INT>, the queue's is STRUCT<a: INT NOT NULL>: cast it",
    ),
    "case alone": (
        spark("id INT, name STRING", *spark("NAME STRING").fields),
        "columns 'name' and 'NAME' are both the queue's column 'name': give one",
    ),
    "twice": (spark("id INT", *ID), "columns 'id' and 'id' are both the queue's column 'id': give one"),
    "variant": (spark("id INT", field("name", types.VariantType())), "'name' has type variant, the queue's is STRING"),
    "interval": (
        spark("id INT", field("name", types.YearMonthIntervalType())),
        "column 'name' has type interval year to month, the queue's is STRING: cast or convert it",
    ),
    "collation": (
        spark("id INT", field("name", types.StringType("UTF8_LCASE"))),
        "column 'name' has type string collate UTF8_LCASE, the queue's is STRING: cast or convert it",
    ),
    "void keys": (
        spark("id INT", field("m", types.MapType(NullType(), types.IntegerType()))),
        "column 'm' has type map<void,int>, the queue's is MAP<STRING, INT>: cast or convert it",
    ),
    "unknown variant": (
        spark("id INT", field("x", types.VariantType())),
        "column 'x' (variant) is none of the queue's (id, name, tags, m, at, deep): leave it out",
    ),
    "only metadata": (spark("", metadata("offset")), "the rows have no column for queue 'orders': give some of id, "),
    "another of partq's": (spark("id INT", field("_meta", types.StringType())), "column '_meta' (STRING) is none of"),
    "headers": (
        spark("id INT", field("_headers", types.StringType())),
        "column '_headers' has type string, a partq sink takes array<struct<key:string,value:binary>>: cast it",
    ),
    "headers twice": (
        spark("id INT", field("_headers", headers_type()), field("_headers", headers_type())),
        "column '_headers' is there twice: select it once",
    ),
    "topic": (
        spark("id INT", field("_topic", types.BinaryType())),
        "column '_topic' has type binary, a partq sink takes string: cast it",
    ),
    "keys and values": (spark("key STRING, value BINARY"), "column 'key' (STRING) is none of the queue's"),
}


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize("case", REFUSED_COLUMNS)
@pytest.mark.parametrize("write", WRITERS)
def test_columns_that_do_not_fit_are_refused_by_name_before_any_task_runs(
    calls: Calls, write: Callable[..., None], case: str
) -> None:
    given, says = REFUSED_COLUMNS[case]
    queue = create(calls, DDL)
    before = queue.refresh()

    with pytest.raises(Invalid) as caught:
        write(calls, "orders", given, map(no_task_runs, [0]))
    assert says in str(caught.value)
    assert nothing_published(queue, before)


LOOK_ALIKES = {
    "time": (types.TimeType(), "BIGINT", "time(6)"),
    "geometry": (types.GeometryType(4326), "STRUCT<srid: INT NOT NULL, wkb: BINARY NOT NULL>", "geometry(4326)"),
    "geography": (types.GeographyType(4326), "STRUCT<srid: INT NOT NULL, wkb: BINARY NOT NULL>", "geography(4326)"),
    "of users": (PointType(), "ARRAY<DOUBLE>", "udt"),
    "vector": (
        VectorUDT(),
        "STRUCT<type: TINYINT NOT NULL, size: INT, indices: ARRAY<INT>, values: ARRAY<DOUBLE>>",
        "vector",
    ),
    "day to second": (types.DayTimeIntervalType(), "BIGINT", "interval day to second"),
    "year to month": (types.YearMonthIntervalType(), "INT", "interval year to month"),
    "calendar": (types.CalendarIntervalType(), "STRUCT<months: INT, days: INT, us: BIGINT>", "interval"),
    "char": (types.CharType(3), "STRING", "char(3)"),
    "varchar": (types.VarcharType(3), "STRING", "varchar(3)"),
}
"""Types that no queue keeps, each with the column whose values Spark would give in the same form, or nearly."""


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize("case", LOOK_ALIKES)
@pytest.mark.parametrize("write", WRITERS)
def test_a_type_that_no_queue_keeps_is_refused_though_its_values_look_alike(
    calls: Calls, write: Callable[..., None], case: str
) -> None:
    """By itself, within others, and as a column that the queue does not have; no task runs, and no reader reads."""
    kind, ddl, shown = LOOK_ALIKES[case]
    queue = create(calls, f"x {ddl}, many ARRAY<{ddl}>, m MAP<STRING, {ddl}>, deep STRUCT<a: {ddl}>")
    before = queue.refresh()
    nested: dict[str, tuple[types.DataType, str]] = {
        "x": (kind, shown),
        "many": (types.ArrayType(kind), f"array<{shown}>"),
        "m": (types.MapType(types.StringType(), kind), f"map<string,{shown}>"),
        "deep": (StructType([field("a", kind)]), f"struct<a:{shown}>"),
    }
    for name, (asked, text) in nested.items():
        column = before.columns.column(name) if before.columns is not None else None
        assert column is not None
        with pytest.raises(Invalid) as caught:
            write(calls, "orders", StructType([field(name, asked)]), map(no_task_runs, [0]))
        assert f"column '{name}' has type {text}, the queue's is {column.type}: cast or convert it" in str(caught.value)
        with pytest.raises(Invalid) as caught:
            calls.read("orders", StructType([field(name, asked)]))
        assert f"column '{name}' is asked for as {text}, it is {column.type}: ask for what the" in str(caught.value)
    with pytest.raises(Invalid) as caught:
        write(calls, "orders", StructType([field("y", kind)]), map(no_task_runs, [0]))
    assert f"column 'y' ({shown}) is none of the queue's (x, many, m, deep): leave it out" in str(caught.value)
    assert nothing_published(queue, before)


YEAR_10000_US = 253_402_300_800_000_000
NOT_TEXT = pa.array([b"ok", b"\xff"]).view(pa.string())


def timestamps(*us: int) -> pa.Array:
    return pa.array(us, pa.int64()).view(pa.timestamp("us", "Asia/Kathmandu"))


def one_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], fields=[pa.field("a", pa.int32())])


REFUSED_VALUES: dict[str, tuple[str, list[pa.Array], str]] = {
    "null": (
        "id INT",
        [pa.array([1, None], pa.int32())],
        "row 11, column 'id': null, where the queue's",
    ),
    "null inside": (
        "id INT, deep STRUCT<a: INT>",
        [pa.array([1, 2], pa.int32()), one_struct(pa.array([1, None], pa.int32()))],
        "row 11, column 'deep.a': null, where the queue's schema says NOT NULL",
    ),
    "not UTF-8": (
        "id INT, name STRING",
        [pa.array([1, 2], pa.int32()), NOT_TEXT],
        "row 11, column 'name': a STRING that is not UTF-8",
    ),
    "not UTF-8 inside": (
        "id INT, tags ARRAY<STRING>",
        [pa.array([1, 2], pa.int32()), pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), NOT_TEXT)],
        "row 11, column 'tags.element': a STRING that is not UTF-8",
    ),
    "year 10000": (
        "id INT, at TIMESTAMP",
        [pa.array([1, 2], pa.int32()), timestamps(0, YEAR_10000_US)],
        "row 11, column 'at': a TIMESTAMP outside of the years 1 to 9999",
    ),
    "before year 1": (
        "id INT, at TIMESTAMP",
        [pa.array([1, 2], pa.int32()), timestamps(0, -62_135_596_800_000_001)],
        "row 11, column 'at': a TIMESTAMP outside of the years 1 to 9999",
    ),
    "a map's key twice": (
        "id INT, m MAP<STRING, INT>",
        [pa.array([1, 2], pa.int32()), pa.array([[], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32()))],
        "row 11, column 'm.key': the key 'a' twice in one map",
    ),
}


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize("case", REFUSED_VALUES)
@pytest.mark.parametrize("write", WRITERS)
def test_values_that_nobody_could_read_are_refused_with_row_and_column(
    calls: Calls, write: Callable[..., None], case: str
) -> None:
    """Rows are counted in their task."""
    ddl, columns, says = REFUSED_VALUES[case]
    queue = create(calls, DDL)
    before = queue.refresh()
    given = spark(ddl)
    first = as_spark_sends([[number, *[None] * (len(given) - 1)] for number in range(10)], given)
    bad = pa.RecordBatch.from_arrays(columns, names=given.fieldNames())
    with pytest.raises(Invalid) as caught:
        write(calls, "orders", given, [first, bad])
    assert says in str(caught.value)
    assert nothing_published(queue, before)


def nothing_published(queue: QueueLog, before: Head) -> bool:
    return queue.refresh() == before


# --- topics -----------------------------------------------------------------------------------------------------------


def attracting(calls: Calls, **queues: tuple[str | None, str]) -> None:
    """Queues by name: columns (None: untyped) and subscription."""
    for name, (ddl, pattern) in queues.items():
        subscribe(create(calls, ddl, name=name), pattern)


def ids(calls: Calls, queue: str) -> list[int]:
    return calls.read(queue).column("id").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("write", WRITERS)
def test_rows_go_by_their_topics(calls: Calls, write: Callable[..., None]) -> None:
    attracting(calls, eu=("id INT, name STRING", "*/eu"), every=("name STRING, id INT", ">"), us=("id INT", "*/us"))
    create(calls, "id INT, name STRING", name="rest")
    given = spark("name STRING, id INT", field("_topic", types.StringType()))
    topics = ["a/eu", "a/asia", None, "b/eu"]
    rows = [[f"n{number}", number, topic] for number, topic in enumerate(topics)]
    write(calls, "rest", given, [as_spark_sends(rows, given)])
    assert {name: ids(calls, name) for name in ("eu", "every", "us", "rest")} == {
        "eu": [0, 3],
        "every": [0, 1, 3],
        "us": [],
        "rest": [2],
    }


def test_the_option_topic_wins_over_the_column(calls: Calls) -> None:
    attracting(calls, eu=("id INT", "*/eu"), every=("id INT", ">"), us=("id INT, name STRING", "*/us"))
    given = spark("id INT", field("_topic", types.StringType()))
    rows = as_spark_sends([[4, "ignored"]], given)
    calls.append("every", given, [rows], topic="c/eu")
    assert ids(calls, "eu") == ids(calls, "every") == [4]
    with pytest.raises(Invalid, match="which do not have the same columns: let their subscriptions differ"):
        calls.append("every", given, [rows], topic="c/us")


def test_a_batch_whose_topics_attract_queues_of_different_columns_is_refused_whole(calls: Calls) -> None:
    attracting(calls, eu=("id INT", "*/eu"), wide=("id INT, name STRING", "a/*"), old=(None, "old"))
    given = spark("id INT", field("_topic", types.StringType()))
    rows = as_spark_sends([[1, "a/us"], [2, "b/eu"]], given)
    with pytest.raises(Invalid, match=r"one batch would go to queue .* and to .*, which do not have the same col"):
        calls.append("eu", given, [rows])
    for topic, says in (
        ("a/eu", "do not have the same columns"),
        ("old", r"queue 'old' .untyped: key and value. cannot"),
    ):
        with pytest.raises(Invalid, match=says):
            calls.append("eu", given, [as_spark_sends([[1, topic]], given)])
    assert ids(calls, "eu") == ids(calls, "wide") == []


def test_a_column_topic_of_a_typed_queues_own_is_no_topic(calls: Calls) -> None:
    attracting(calls, elsewhere=("id INT", "a"))
    create(calls, "id INT, topic STRING", name="orders")
    given = spark("id INT, topic STRING")
    rows = as_spark_sends([[1, "a"]], given)
    calls.append("orders", given, [rows])
    assert rows_of(calls.read("orders")) == [{"id": 1, "topic": "a"}]
    assert ids(calls, "elsewhere") == []
    with pytest.raises(Invalid, match="failOnUnattractedTopic is for messages with topics, and these have none"):
        calls.append("orders", given, [rows], failOnUnattractedTopic="true")


def test_a_column_topic_stays_the_rows_own_beside_the_topics_of_the_batch(calls: Calls) -> None:
    """Those that the option gives, and those of `_topic`."""
    attracting(calls, eu=("id INT, topic STRING", "eu"))
    create(calls, "id INT, topic STRING", name="rest")
    given = spark("id INT, topic STRING")
    calls.append("rest", given, [as_spark_sends([[1, "none"]], given)], topic="eu")
    given = spark("id INT, topic STRING", field("_topic", types.StringType()))
    calls.append("rest", given, [as_spark_sends([[2, "none", "eu"], [3, "eu", None]], given)])
    assert rows_of(calls.read("eu")) == [{"id": 1, "topic": "none"}, {"id": 2, "topic": "none"}]
    assert rows_of(calls.read("rest")) == [{"id": 3, "topic": "eu"}]


def test_a_column_topic_of_keys_and_values_is_their_topic_even_if_typed_queues_attract_too(calls: Calls) -> None:
    taking = create(calls, "id INT", name="rows")
    subscribe(taking, "rows")
    attracting(calls, every=(None, "eu"))
    create(calls, None, name="rest")
    given = spark("value STRING, topic STRING")
    calls.append("rest", given, [as_spark_sends([["a", "eu"], ["b", None]], given)])
    for name, value in (("every", b"a"), ("rest", b"b")):
        assert calls.read(name, spark("value BINARY")).to_pylist() == [{"value": value}]
    given = spark("value STRING", field("_topic", types.StringType()))
    delete_queue(taking)
    with pytest.raises(Invalid, match=r"'_topic' .string. is no column of a partq sink"):
        calls.append("rest", given, [as_spark_sends([["a", "eu"]], given)])


def test_who_calls_the_topics_of_rows_as_those_of_messages_is_told(calls: Calls) -> None:
    attracting(calls, eu=("id INT", "a"))
    create(calls, None, name="rest")
    given = spark("id INT, topic STRING")
    with pytest.raises(Invalid, match=r"'id' .int. is no column of a partq sink: .*are in a column _topic"):
        calls.append("rest", given, [as_spark_sends([[1, "a"]], given)])


def test_rows_that_nobody_attracts_are_counted(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    create(calls, "id INT")
    given = spark("id INT", field("name", types.VariantType()), field("_topic", types.StringType()))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int32()), pa.nulls(2), pa.array(["a", "b"])], names=given.fieldNames()
    )
    for options in ({"topic": "x"}, {}):
        source = calls.source("orders", **options)
        del source.options["path"]
        writer = source.writer(given, False)
        writer.commit([writer.write(iter([batch]))])
    assert [record.message.partition(" with")[0] for record in caplog.records] == ["2 messages"] * 2
