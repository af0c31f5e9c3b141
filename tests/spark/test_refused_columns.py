"""Columns and rows that a source or a sink refuses, by name and before anything is done in its name: by batch and by
stream, typed and untyped. Without a JVM: the data source's classes called as Spark calls them; `test_refusals` shows at
which moment a user sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

import partq
from partq import Invalid
from tests.spark.columns import WRITERS, create, field, headers_type, metadata, sent, spark
from tests.support.data_source import Calls

DDL = "id INT NOT NULL, name STRING, tags ARRAY<STRING>, m MAP<STRING, INT>, at TIMESTAMP, deep STRUCT<a: INT NOT NULL>"
DDL += ", wide STRUCT<a: INT>"
VARIANT, MONTHS = types.VariantType(), types.YearMonthIntervalType()


def head(queue: partq.Queue) -> bytes:
    """The same means that nothing was published."""
    return (Path(queue.store.removeprefix("file://")) / "default" / queue.name / "_head.json").read_bytes()


def no_task_runs(_: int) -> pa.RecordBatch:
    raise AssertionError("a task ran")


def refused(says: str, act: Callable[..., object], *given: Any, **options: str) -> None:
    with pytest.raises(Invalid) as caught:
        act(*given, **options)
    assert says in str(caught.value)


def plan(calls: Calls, asked: StructType, **options: str) -> None:
    """The first trigger of a stream."""
    stream = calls.stream("orders", asked, **options)
    try:
        stream.batch()
    finally:
        stream.reader.stop()


def named(**columns: DataType) -> StructType:
    return StructType([field(name, kind) for name, kind in columns.items()])


# --- columns of a sink ------------------------------------------------------------------------------------------------

SINKS: list[tuple[str, StructType]] = [
    ("column 'id' (INT NOT NULL) is missing: the queue needs it in every row", spark("name STRING")),
    ("column 'id' has type null, the queue's is INT: cast it", named(id=NullType())),
    ("column 'price' (INT) is none of the queue's (id, name, tags, m, at, deep, wide)", spark("id INT, price INT")),
    ("column 'id' has type BIGINT, the queue's is INT: cast it", spark("id BIGINT")),
    ("column 'name' has type BINARY, the queue's is STRING: cast it", spark("id INT, name BINARY")),
    ("column 'deep' has type STRUCT<b: INT>, the queue's is STRUCT<a: INT", spark("id INT, deep STRUCT<b: INT>")),
    ("'name' and 'NAME' are both the queue's column 'name'", spark("name STRING, id INT", *spark("NAME STRING"))),
    ("'id' and 'id' are both the queue's column 'id': give one", spark("id INT", *spark("id INT"))),
    ("'name' has type variant, the queue's is STRING", spark("id INT", *named(name=VARIANT))),
    ("has type string collate UTF8_LCASE, the queue's", spark("id INT", *named(name=StringType("UTF8_LCASE")))),
    (
        "has type map<void,int>, the queue's is MAP",
        spark("id INT", field("m", MapType(NullType(), types.IntegerType()))),
    ),
    ("column 'x' (variant) is none of the queue's (id, name, ", spark("id INT", *named(x=VARIANT))),
    ("the rows have no column for queue 'orders': give some of id, ", spark("", metadata("offset"))),
    ("column '_meta' (STRING) is none of", spark("id INT", *named(_meta=StringType()))),
    ("'_headers' has type string, a partq sink takes array", spark("id INT", *named(_headers=StringType()))),
    ("'_headers' is there 2 times", spark("id INT", *[field("_headers", headers_type())] * 2)),
    ("column '_topic' has type binary, a partq sink takes string", spark("id INT", *named(_topic=types.BinaryType()))),
    ("column 'key' (STRING) is none of the queue's", spark("key STRING, value BINARY")),
]
UNTYPED_SINKS: list[tuple[str, StructType]] = [
    ("column 'value' is missing (found: key)", spark("key STRING")),
    ("column 'amount' (int) is no column of a partq sink", spark("key STRING, value STRING, amount INT")),
    ("column 'value' has type int", spark("value INT")),
    ("column 'key' has type int", spark("key INT, value STRING")),
    ("column 'headers' has type map<string,string>", spark("value STRING, headers MAP<STRING, STRING>")),
    ("column 'topic' has type int", spark("value STRING, topic INT")),
]


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize(("ddl", "says", "given"), [(DDL, *c) for c in SINKS] + [(None, *c) for c in UNTYPED_SINKS])
@pytest.mark.parametrize("write", WRITERS)
def test_columns_that_do_not_fit_are_refused_by_name_before_any_task_runs(
    calls: Calls, write: Callable[..., None], ddl: str | None, says: str, given: StructType
) -> None:
    queue = create(calls, ddl)
    before = head(queue)
    refused(says, write, calls, "orders", given, map(no_task_runs, [0]))
    assert head(queue) == before


TEXT, TOPICS = spark("key STRING, value STRING"), spark("key STRING, value STRING, topic STRING")
ROWS: list[tuple[str, StructType, list[Any]]] = [
    ("row 1 has no value: every message needs one", TEXT, ["k", None]),
    ("the message of row 1 has 501 bytes", TEXT, ["k", "x" * 500]),
    ("the key of row 1 has 258 bytes", TEXT, ["分" * 86, "v"]),
    ("the key of row 1 has 256 bytes", TEXT, ["x" * 256, "v"]),
    ("the key of row 1 is not valid UTF-8 (b'\\xffA')", spark("key BINARY, value STRING"), [b"\xffA", "v"]),
    ("row 1 cannot be published: topic 'a/*'", TOPICS, ["k", "v", "a/*"]),
    ("1 message with topics that no queue of namespace 'default' attracts ('a/c')", TOPICS, ["k", "v", "a/c"]),
]


@pytest.mark.conformance("DIS-04", "DIS-07")
@pytest.mark.parametrize(("says", "given", "bad"), ROWS)
@pytest.mark.parametrize("write", WRITERS)
def test_a_bad_row_is_named_and_nothing_of_its_batch_is_published(
    calls: Calls, write: Callable[..., None], says: str, given: StructType, bad: list[Any]
) -> None:
    """Of keys bytes are counted, not characters: the longest are taken."""
    queue = create(calls, None, max_message_bytes=500)
    queue.subscribe("a/b")
    before = head(queue)
    good: list[Any] = [b"x" * 255 if isinstance(bad[0], bytes) else "分" * 85, "v", "a/b"][: len(bad)]
    strict = {"failOnUnattractedTopic": "true"} if given is TOPICS else {}
    refused(says, write, calls, "orders", given, sent(given, good, bad), **strict)
    assert head(queue) == before
    write(calls, "orders", given, sent(given, good), **strict)
    assert queue.describe().messages == 1


# --- columns of a source ----------------------------------------------------------------------------------------------

SOURCES: list[tuple[str, StructType]] = [
    ("column 'price' is none of the queue's: name some of id, name, tags, m, at, deep, wide and", spark("price INT")),
    ("queue 'orders' is typed: column 'value' is none of the queue's", spark("value BINARY")),
    ("column 'id' is asked for as STRING, it is INT", spark("id STRING")),
    ("column 'id' is asked for as BIGINT, it is INT", spark("id BIGINT")),
    ("column 'name' is asked for as NOT NULL, it may be null", spark("name STRING NOT NULL")),
    ("'wide' is asked for as STRUCT<a: INT NOT NULL>, it is STRUCT<a: INT>", spark("wide STRUCT<a: INT NOT NULL>")),
    ("as ARRAY<STRING> whose elements or values are never null (contains", named(tags=ArrayType(StringType(), False))),
    ("column 'name' is asked for as string collate UNICODE, it is STRING", named(name=StringType("UNICODE"))),
    ("column 'id' is asked for as variant, it is INT", named(id=VARIANT)),
    ("asked for as variant, which no queue has", named(x=VARIANT)),
    ("column 'id' is asked for twice: name it once", spark("id INT", *spark("ID INT"))),
    ("no column is named: name some of id, name, tags, m, at, deep, wide and _metadata", StructType()),
    ("'_metadata' is asked for as STRING: it is", named(_metadata=StringType())),
]
HEADERS = ArrayType(StructType([StructField("key", StringType(), False), field("value", types.BinaryType())]))
NO_NULLS = ArrayType(StructType([field("key", StringType()), field("value", types.BinaryType())]), containsNull=False)
UNTYPED_SOURCES: list[tuple[str, StructType]] = [
    ("queue 'orders' is untyped: column 'price' is none of the queue's: name some of key", spark("price DOUBLE")),
    ("column 'offset' is asked for as INT, it is BIGINT: ask for that and cast it in the query", spark("offset INT")),
    ("column 'key' is asked for twice: name it once", spark("key STRING", *spark("KEY STRING"))),
    ("column 'key' is asked for as NOT NULL, it may be null: leave NOT NULL out", spark("key STRING NOT NULL")),
    ("column 'key' is asked for as string collate UNICODE, it is STRING", named(key=StringType("UNICODE"))),
    ("'headers' is asked for as ARRAY<STRUCT<key: STRING NOT NULL, value: BINARY>>, it is", named(headers=HEADERS)),
    ("'headers' is asked for as ARRAY<STRUCT<key: STRING, value: BINARY>> whose", named(headers=NO_NULLS)),
]


@pytest.mark.parametrize(("ddl", "says", "asked"), [(DDL, *c) for c in SOURCES] + [(None, *c) for c in UNTYPED_SOURCES])
def test_a_reader_is_refused_columns_of_no_queue(calls: Calls, ddl: str | None, says: str, asked: StructType) -> None:
    """Before anything is done in its name: no group is made."""
    queue = create(calls, ddl)
    refused(says, calls.read, "orders", asked)
    refused(says, plan, calls, asked)
    refused(says, plan, calls, asked, group="billing")
    assert not queue.describe().groups


# --- types that look alike --------------------------------------------------------------------------------------------


PLACE = "STRUCT<srid: INT NOT NULL, wkb: BINARY NOT NULL>"
VECTOR = "STRUCT<type: TINYINT NOT NULL, size: INT, indices: ARRAY<INT>, values: ARRAY<DOUBLE>>"
LOOK_ALIKES: list[tuple[DataType, str, str]] = [
    (types.TimeType(), "BIGINT", "time(6)"),
    (types.GeometryType(4326), PLACE, "geometry(4326)"),
    (types.GeographyType(4326), PLACE, "geography(4326)"),
    (VectorUDT(), VECTOR, "vector"),  # as all types of users are
    (types.DayTimeIntervalType(), "BIGINT", "interval day to second"),
    (MONTHS, "INT", "interval year to month"),
    (types.CalendarIntervalType(), "STRUCT<months: INT, days: INT, us: BIGINT>", "interval"),
    (types.CharType(3), "STRING", "char(3)"),
    (types.VarcharType(3), "STRING", "varchar(3)"),
]
"""Types that no queue keeps, each with the column whose values Spark would give in the same form, or nearly."""


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize(("kind", "ddl", "shown"), LOOK_ALIKES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_type_that_no_queue_keeps_is_refused_by_its_name(calls: Calls, kind: DataType, ddl: str, shown: str) -> None:
    """By itself, within others, and as a column that the queue does not have; no task runs, and no reader reads."""
    queue = create(calls, f"x {ddl}, many ARRAY<{ddl}>, m MAP<STRING, {ddl}>, deep STRUCT<a: {ddl}>")
    before = head(queue)
    nested: dict[str, tuple[DataType, str, str]] = {
        "x": (kind, shown, ddl),
        "many": (ArrayType(kind), f"array<{shown}>", f"ARRAY<{ddl}>"),
        "m": (MapType(StringType(), kind), f"map<string,{shown}>", f"MAP<STRING, {ddl}>"),
        "deep": (named(a=kind), f"struct<a:{shown}>", f"STRUCT<a: {ddl}>"),
    }
    for write in WRITERS:
        for name, (asked, text, theirs) in nested.items():
            says = f"column '{name}' has type {text}, the queue's is {theirs}: cast or convert it"
            refused(says, write, calls, "orders", named(**{name: asked}), map(no_task_runs, [0]))
            says = f"column '{name}' is asked for as {text}, it is {theirs}: ask for what the"
            refused(says, calls.read, "orders", named(**{name: asked}))
        says = f"column 'y' ({shown}) is none of the queue's (x, many, m, deep): leave it out"
        refused(says, write, calls, "orders", named(y=kind), map(no_task_runs, [0]))
    assert head(queue) == before
