"""What a sink takes for typed queues and what it refuses, by batch and by stream, without a JVM: the data source's
classes called as Spark calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DoubleType, MapType, NullType, StringType, StructField, StructType

import partq
from partq import Invalid
from tests.spark.typed_rows import METADATA, PointType, create, field, headers_type, metadata, rows_of, sent, spark
from tests.support.data_source import Calls, as_spark_sends

WRITERS: list[Callable[..., None]] = [Calls.append, Calls.publish]
"""A batch write and a micro-batch."""


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")


# --- what a sink takes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITERS)
def test_columns_come_by_name_in_any_order_and_any_letters_and_may_be_missing_or_void(
    calls: Calls, write: Callable[..., None]
) -> None:
    create(calls, "id INT NOT NULL, name STRING, Tags ARRAY<INT>, deep STRUCT<a: INT>, m MAP<STRING, INT>, d DATE")
    given = spark(
        "TAGS ARRAY<INT>, ID SMALLINT", *(StructField(name, NullType()) for name in ("name", "deep", "m", "d"))
    )
    write(calls, "orders", given, sent(given, [[1, None], 7, None, None, None, None]))
    given = spark("id INT")
    write(calls, "orders", given, sent(given, [8]), **({"batch_id": 1} if write == Calls.publish else {}))
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
    write(calls, "orders", given, sent(given, [{"lat": 1.0, "lon": None}, [], {"x": None}]))
    assert rows_of(calls.read("orders")) == [{"deep": {"lat": 1.0, "lon": None}, "tags": [], "m": [("x", None)]}]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("large", [False, True])
def test_headers_are_taken_and_metadata_is_ignored_so_that_a_plain_copy_works(
    calls: Calls, write: Callable[..., None], large: bool
) -> None:
    create(calls, "id INT, tags ARRAY<STRING>")
    create(calls, "tags ARRAY<STRING>, id INT", name="copy")
    schema = spark("tags ARRAY<STRING>", StructField("_headers", headers_type()), *spark("id INT").fields)
    pairs = [[{"key": "trace", "value": b"\x01"}, {"key": "null", "value": None}], [], None]
    rows = [[["a"] * n, each, n] for n, each in enumerate(pairs)]
    write(calls, "orders", schema, [as_spark_sends(rows, schema, large=large)])
    whole = calls.load("orders", includeHeaders="true")
    assert whole["_metadata"].dataType == spark("", metadata(*METADATA))["_metadata"].dataType
    found = calls.read("orders", whole, includeHeaders="true")
    assert [row["_metadata"]["headers"] for row in found.to_pylist()] == pairs
    write(calls, "copy", whole, found.to_batches())
    assert rows_of(calls.read("copy")) == [{"tags": ["a"] * n, "id": n} for n in range(3)]
    assert calls.read("copy", spark("", metadata("headers"))).to_pylist() == [{"_metadata": {"headers": None}}] * 3


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
    before = head(queue)

    with pytest.raises(Invalid) as caught:
        write(calls, "orders", given, map(no_task_runs, [0]))
    assert says in str(caught.value)
    assert head(queue) == before, "nothing was published"


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
    before = head(queue)
    nested: dict[str, tuple[types.DataType, str, str]] = {
        "x": (kind, shown, ddl),
        "many": (types.ArrayType(kind), f"array<{shown}>", f"ARRAY<{ddl}>"),
        "m": (types.MapType(types.StringType(), kind), f"map<string,{shown}>", f"MAP<STRING, {ddl}>"),
        "deep": (StructType([field("a", kind)]), f"struct<a:{shown}>", f"STRUCT<a: {ddl}>"),
    }
    for name, (asked, text, theirs) in nested.items():
        with pytest.raises(Invalid) as caught:
            write(calls, "orders", StructType([field(name, asked)]), map(no_task_runs, [0]))
        assert f"column '{name}' has type {text}, the queue's is {theirs}: cast or convert it" in str(caught.value)
        with pytest.raises(Invalid) as caught:
            calls.read("orders", StructType([field(name, asked)]))
        assert f"column '{name}' is asked for as {text}, it is {theirs}: ask for what the" in str(caught.value)
    with pytest.raises(Invalid) as caught:
        write(calls, "orders", StructType([field("y", kind)]), map(no_task_runs, [0]))
    assert f"column 'y' ({shown}) is none of the queue's (x, many, m, deep): leave it out" in str(caught.value)
    assert head(queue) == before, "nothing was published"


def head(queue: partq.Queue) -> bytes:
    return (Path(queue.store.removeprefix("file://")) / "default" / queue.name / "_head.json").read_bytes()


# --- topics -----------------------------------------------------------------------------------------------------------


def attracting(calls: Calls, **queues: tuple[str | None, str]) -> None:
    """Queues by name: columns (None: untyped) and subscription."""
    for name, (ddl, pattern) in queues.items():
        create(calls, ddl, name=name).subscribe(*filter(None, [pattern]))


def ids(calls: Calls, queue: str) -> list[int]:
    return calls.read(queue).column("id").to_pylist()  # type: ignore[no-any-return]


TOPIC = field("_topic", types.StringType())


@pytest.mark.parametrize("write", WRITERS)
def test_rows_go_by_their_topics_or_by_the_option(calls: Calls, write: Callable[..., None]) -> None:
    attracting(calls, eu=("id INT, name STRING", "*/eu"), every=("name STRING, id INT", ">"), us=("id INT", "*/us"))
    attracting(calls, rest=("id INT, name STRING", ""))
    given = spark("name STRING, id INT", TOPIC)
    topics = ["a/eu", "a/asia", None, "b/eu"]
    rows = [[f"n{number}", number, topic] for number, topic in enumerate(topics)]
    write(calls, "rest", given, sent(given, *rows))
    assert [ids(calls, name) for name in ("eu", "every", "us", "rest")] == [[0, 3], [0, 1, 3], [], [2]]
    calls.append("rest", given, sent(given, ["n4", 4, "ignored"]), topic="c/eu")
    assert [ids(calls, name) for name in ("eu", "every")] == [[0, 3, 4], [0, 1, 3, 4]]


def test_a_batch_whose_topics_attract_queues_of_different_columns_is_refused_whole(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    attracting(calls, eu=("id INT", "*/eu"), wide=("id INT, name STRING", "a/*"), old=(None, "old"))
    given = spark("id INT", TOPIC)
    for topics, says in (
        (["a/us", "b/eu"], r"one batch would go to queue .* and to .*, which do not have the same columns"),
        (["a/eu"], "do not have the same columns: let their subscriptions differ"),
        (["old"], r"queue 'old' .untyped: key and value. cannot"),
    ):
        with pytest.raises(Invalid, match=says):
            calls.append("eu", given, sent(given, *([number, topic] for number, topic in enumerate(topics))))
    with pytest.raises(Invalid, match="do not have the same columns"):
        calls.append("eu", given, sent(given, [1, "ignored"]), topic="a/eu")
    assert ids(calls, "eu") == ids(calls, "wide") == []
    with pytest.raises(Invalid, match=r"'id' .int. is no column of a partq sink: .*are in a column _topic"):
        calls.append("old", spark("id INT, topic STRING"), sent(spark("id INT, topic STRING"), [1, "a/us"]))
    source = calls.source("eu")
    del source.options["path"]  # rows that nobody attracts are counted
    writer = source.writer(given, False)
    writer.commit([writer.write(iter(sent(given, [1, "x"], [2, "y"])))])
    assert [record.message.partition(" with")[0] for record in caplog.records] == ["2 messages"]


def test_a_column_topic_is_a_typed_queues_own_and_that_of_keys_and_values(calls: Calls) -> None:
    """Also beside the topics of the batch: those that the option gives, and those of `_topic`."""
    attracting(calls, eu=("id INT, topic STRING", "eu"), rest=("id INT, topic STRING", ""), old=(None, "old"))
    given = spark("id INT, topic STRING")
    calls.append("rest", given, sent(given, [1, "eu"]))
    with pytest.raises(Invalid, match="failOnUnattractedTopic is for messages with topics, and these have none"):
        calls.append("rest", given, sent(given, [1, "eu"]), failOnUnattractedTopic="true")
    calls.append("rest", given, sent(given, [2, "none"]), topic="eu")
    given = spark("id INT, topic STRING", TOPIC)
    calls.append("rest", given, sent(given, [3, "none", "eu"], [4, "eu", None]))
    assert rows_of(calls.read("eu")) == [{"id": 2, "topic": "none"}, {"id": 3, "topic": "none"}]
    assert rows_of(calls.read("rest")) == [{"id": 1, "topic": "eu"}, {"id": 4, "topic": "eu"}]

    attracting(calls, untyped=(None, ""))
    given = spark("value STRING, topic STRING")
    calls.append("untyped", given, sent(given, ["a", "old"], ["b", None]))
    for name, value in (("old", b"a"), ("untyped", b"b")):
        assert calls.read(name, spark("value BINARY")).to_pylist() == [{"value": value}]
