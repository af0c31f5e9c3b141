"""Rows of typed queues through Spark's edge, without a JVM: the data source's classes called as Spark calls them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import NullType, StructField, StructType

from partq_spark.base.errors import Invalid
from partq_spark.log.admin import alter_queue, create_queue, delete_queue
from partq_spark.log.model import Head
from partq_spark.log.partitioner import partition_of
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.types import KEY_TYPES, widens
from partq_spark.log.schema.versions import columns_of, schema_from
from partq_spark.log.subscriptions import subscribe
from partq_spark.objects import open_store
from partq_spark.query.typed_columns import METADATA_TYPES
from tests.log.schema import shapes
from tests.support.data_source import Calls, as_spark_sends
from tests.support.properties import examples

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]
HEADERS = "array<struct<key: string, value: binary>>"
Row = dict[str, Any]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")


def create(
    calls: Calls, schema: str | pa.Schema, key: str | None = None, name: str = "orders", partitions: int = 1
) -> QueueLog:
    columns = columns_of(schema_from(schema), key)
    return create_queue(open_store(calls.url), "default", name, partitions, columns=columns)


def spark(ddl: str, *more: StructField) -> StructType:
    """Columns as Spark says them; `more` may have types that no queue keeps, and partq's own names."""
    payload = from_arrow_schema(schema_from(ddl)) if ddl else StructType()
    return StructType([*payload.fields, *more])


def metadata(*names: str) -> StructField:
    found = from_arrow_schema(pa.schema([(name, METADATA_TYPES[name]) for name in names]))
    return StructField("_metadata", found)


def rows_of(table: pa.Table) -> list[Row]:
    """Without what partq knows of them."""
    return table.drop_columns(["_metadata"]).to_pylist()  # type: ignore[no-any-return]


WRITERS: list[Callable[..., None]] = [Calls.append, Calls.publish]


# --- what goes in comes out -------------------------------------------------------------------------------------------


@st.composite
def publications(draw: st.DrawFn) -> tuple[pa.Schema, str | None, list[tuple[list[str], pa.RecordBatch]]]:
    """A queue's columns, its key, and batches, each with the columns that it has in its order."""
    schema = draw(shapes.schemas()).append(pa.field("row", pa.int32(), False))  # no column in `shapes` is called so
    keys = [field.name for field in schema if field.type in KEY_TYPES and field.type not in (pa.binary(), pa.string())]
    batches = []
    for number in range(draw(st.integers(1, 3))):
        there = [field.name for field in schema if not field.nullable or draw(st.booleans())]
        given = pa.schema([_narrower(draw, schema.field(name)) for name in draw(st.permutations(there))])
        batch = draw(shapes.batches(given))
        place = given.get_field_index("row")
        batch = batch.set_column(
            place,
            given.field(place),
            pa.array(range(number * 100, number * 100 + batch.num_rows), given.field(place).type),
        )
        batches.append((given.names, batch))
    return schema, draw(st.sampled_from([None, *keys])), batches


def _narrower(draw: st.DrawFn, field: pa.Field) -> pa.Field:
    """A column that could be widened to this one, or VOID."""
    kinds = [kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.float32()) if widens(kind, field.type)]
    if field.name == "row":
        kinds = [pa.int16()]
    elif field.nullable:
        kinds.append(pa.null())
    return field.with_type(draw(st.sampled_from([field.type, field.type, *kinds])))


@pytest.mark.conformance("TYP-02")
@pytest.mark.slow
@examples(60)
@given(publications(), st.data())
def test_rows_of_any_columns_come_back_equal(
    made: tuple[pa.Schema, str | None, list[tuple[list[str], pa.RecordBatch]]], data: st.DataObject
) -> None:
    schema, key, batches = made
    expected: dict[int, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(url=f"file://{folder}/store")
        create(calls, schema, key, partitions=data.draw(st.integers(1, 3)))
        for number, (names, batch) in enumerate(batches):
            rows = batch.to_pylist()
            given = from_arrow_schema(batch.schema)
            sent = as_spark_sends(
                [[row[name] for name in names] for row in rows],
                given,
                zone=data.draw(st.sampled_from(ZONES)),
                large=data.draw(st.booleans()),
            )
            if data.draw(st.booleans()):
                calls.append("orders", given, [sent])
            else:
                calls.publish("orders", given, [sent.slice(0, 1), sent.slice(1)], batch_id=number)
            expected |= {row["row"]: {name: row.get(name) for name in schema.names} for row in rows}
        loaded = calls.load("orders")
        assert loaded.fieldNames() == [*schema.names, "_metadata"]
        assert [field.nullable for field in loaded.fields] == [*(field.nullable for field in schema), True]
        fields = [*loaded.fields[:-1], metadata(*data.draw(st.permutations(list(METADATA_TYPES))))]
        some = data.draw(st.permutations(fields))[: data.draw(st.integers(1, len(fields)))]
        named = StructType([*some, *(field for field in fields if field.name == "row" and field not in some)])
        for asked in (None, named):
            for found in (calls.read("orders", asked), calls.stream("orders", asked).batch()):
                assert found.column_names == (loaded if asked is None else asked).fieldNames()
                rows = found.to_pylist()
                assert {row["row"] for row in rows} == {*expected}
                for row in rows:
                    row.pop("_metadata", None)
                    wanted = expected[row["row"]]
                    assert shapes.same(row, {name: wanted[name] for name in row})


@pytest.mark.conformance("TYP-02")
@pytest.mark.parametrize("word", ["ARRAY", "MAP", "STRUCT"])
def test_what_is_nested_32_deep_comes_back_equal(calls: Calls, word: str) -> None:
    text, value = shapes.nested(word, "TIMESTAMP", datetime(1, 1, 1, tzinfo=UTC), 32)
    given = spark(f"deep {text}")
    create(calls, f"deep {text}")
    rows = as_spark_sends([[value], [None]], given, zone="Asia/Kathmandu", large=True)
    calls.append("orders", given, [rows])
    for found in (calls.read("orders"), calls.stream("orders").batch()):
        assert found.column("deep").to_pylist() == [value, None]


def test_a_stream_and_a_batch_say_where_each_row_lies(calls: Calls) -> None:
    queue = create(calls, "id INT, name STRING", "id", partitions=4)
    rows = [[number, f"n{number}"] for number in range(40)]
    calls.append("orders", spark("id INT, name STRING"), [as_spark_sends(rows, spark("id INT, name STRING"))])
    before = queue.refresh().time_us
    for found in (calls.read("orders"), calls.stream("orders").batch()):
        for row in found.to_pylist():
            own = row["_metadata"]
            assert own["partition"] == partition_of(str(row["id"]).encode(), 4)
            assert (own["queue"], own["redelivered"]) == ("orders", False)
            assert own["timestamp"] == datetime.fromtimestamp(before / 1e6, UTC)
        offsets = [(row["_metadata"]["partition"], row["_metadata"]["offset"]) for row in found.to_pylist()]
        assert sorted(offsets) == [(p, at) for p, end in enumerate(queue.refresh().next) for at in range(end)]


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
    assert whole["_metadata"].dataType == spark("", metadata(*METADATA_TYPES))["_metadata"].dataType
    found = calls.read("orders", whole, includeHeaders="true")
    assert [row["_metadata"]["headers"] for row in found.to_pylist()] == pairs
    write(calls, "copy", whole, found.to_batches())
    assert rows_of(calls.read("copy")) == [{"tags": ["a"] * n, "id": n} for n in range(3)]
    assert calls.read("copy", spark("", metadata("headers"))).to_pylist() == [{"_metadata": {"headers": None}}] * 3


def headers_type() -> types.DataType:
    found = from_arrow_schema(pa.schema([("headers", METADATA_TYPES["headers"])]))
    return found.fields[0].dataType


# --- columns that change ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-05")
def test_a_query_keeps_the_columns_and_types_that_its_load_saw(calls: Calls) -> None:
    """What is added meanwhile it does not see, what is widened it gets as it was, until a value does not fit."""
    queue = create(calls, "id INT NOT NULL, price DECIMAL(5,2)")
    before = spark("id INT NOT NULL, price DECIMAL(5,2)")
    calls.append("orders", before, [as_spark_sends([[1, Decimal("1.50")]], before)])
    running, batch = calls.stream("orders"), calls.load("orders")
    assert rows_of(running.batch()) == [{"id": 1, "price": Decimal("1.50")}]
    alter_queue(queue, add_columns="coupon STRING", widen="id BIGINT, price DECIMAL(10,4)")
    calls.append("orders", before, [as_spark_sends([[2, None]], before)])
    after = spark("coupon STRING, id BIGINT, price DECIMAL(10,4)")
    calls.append("orders", after, [as_spark_sends([["x", 3, Decimal("2.5000")]], after)])
    assert rows_of(running.batch()) == [{"id": 2, "price": None}, {"id": 3, "price": Decimal("2.50")}]
    running.restart()
    assert rows_of(running.batch()) == []
    assert [row["id"] for row in rows_of(calls.read("orders", batch))] == [1, 2, 3]
    anew = calls.stream("orders")
    assert anew.schema.fieldNames() == ["id", "price", "coupon", "_metadata"]
    assert [(row["id"], row["coupon"]) for row in rows_of(anew.batch())] == [(1, None), (2, None), (3, "x")]
    calls.append("orders", after, [as_spark_sends([[None, 2**31, None], [None, 5, None]], after)])
    says = (
        r"queue 'orders' .*, partition 0, offset 3, column 'id': 2147483648 does not fit INT, the type that this query "
        "loaded; the column is BIGINT by now: load again"
    )
    with pytest.raises(Invalid, match=says):
        running.batch()
    with pytest.raises(Invalid, match=says):
        calls.read("orders", batch)
    assert [row["id"] for row in rows_of(anew.batch())] == [2**31, 5]
    running.restart(spark("id BIGINT NOT NULL"))
    assert running.batch().column("id").to_pylist() == [2**31, 5]


def test_a_pinned_column_may_have_each_type_that_it_has_had(calls: Calls) -> None:
    queue = create(calls, "n TINYINT")
    for kind in ("SMALLINT", "INT", "BIGINT"):
        alter_queue(queue, widen=f"n {kind}")
    given = spark("n BIGINT")
    calls.append("orders", given, [as_spark_sends([[-128], [None], [127]], given)])
    for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        for found in (calls.read("orders", spark(f"n {kind}")), calls.stream("orders", spark(f"N {kind}")).batch()):
            assert found.column(0).to_pylist() == [-128, None, 127]


@pytest.mark.parametrize("again", ["id BIGINT", None])
def test_a_queue_that_was_made_again_is_not_taken_for_the_one_that_was_loaded(calls: Calls, again: str | None) -> None:
    """Null for columns that the new one does not have would be a loss without a word."""
    queue = create(calls, "id INT, name STRING")
    loaded, stream = calls.load("orders"), calls.stream("orders")
    assert stream.reader.getDefaultReadLimit() == ReadAllAvailable()
    with stream.reader._asked():
        delete_queue(queue)
    value: Any
    if again is None:
        create_queue(open_store(calls.url), "default", "orders", 1)
        given, value = spark("value BINARY"), b"v"
        says = "column 'id' .int. is no column of a partq source"
    else:
        create(calls, again)
        given, value = spark(again), 2**40
        says = "queue 'orders' is typed: column '(name' is none of the queue's|id' is asked for as INT, it is BIGINT)"
    calls.append("orders", given, [as_spark_sends([[value]], given)])
    with pytest.raises(Invalid, match=says):
        stream.batch()
    with pytest.raises(Invalid, match=says):
        calls.read("orders", loaded)


# --- what a reader may not ask for ------------------------------------------------------------------------------------

REFUSED_SOURCES: dict[str, tuple[StructType, str]] = {
    "unknown": (spark("price INT"), "column 'price' is none of the queue's: name some of id, name, tags, deep and"),
    "untyped columns": (spark("value BINARY"), "queue 'orders' is typed: column 'value' is none of the queue's"),
    "other type": (spark("id STRING"), "column 'id' is asked for as STRING, it is INT"),
    "wider": (spark("id BIGINT"), "column 'id' is asked for as BIGINT, it is INT"),
    "NOT NULL": (spark("name STRING NOT NULL"), "column 'name' is asked for as NOT NULL, it may be null"),
    "NOT NULL inside": (
        spark("deep STRUCT<a: INT NOT NULL>"),
        "column 'deep' is asked for as STRUCT<a: INT NOT NULL>, it is STRUCT<a: INT>",
    ),
    "elements": (
        spark("", StructField("tags", types.ArrayType(types.StringType(), False))),
        "column 'tags' is asked for as ARRAY<STRING> whose elements or values are never null (containsNull",
    ),
    "collation": (
        spark("", StructField("name", types.StringType("UNICODE"))),
        "column 'name' is asked for as string collate UNICODE, it is STRING",
    ),
    "variant": (spark("", StructField("id", types.VariantType())), "column 'id' is asked for as variant, it is INT"),
    "interval": (
        spark("", StructField("id", types.YearMonthIntervalType())),
        "column 'id' is asked for as interval year to month, it is INT",
    ),
    "unknown variant": (spark("", StructField("x", types.VariantType())), "asked for as variant, which no queue has"),
    "twice": (spark("id INT", *spark("ID INT").fields), "column 'id' is asked for twice: name it once"),
    "nothing": (StructType(), "no column is named: name some of id, name, tags, deep and _metadata"),
    "metadata": (spark("", StructField("_metadata", types.StringType())), "'_metadata' is asked for as STRING: it is"),
}


@pytest.mark.parametrize("case", REFUSED_SOURCES)
def test_a_reader_is_refused_columns_that_the_queue_does_not_have_so(calls: Calls, case: str) -> None:
    """Before anything is done in its name: no group is made."""
    asked, says = REFUSED_SOURCES[case]
    queue = create(calls, "id INT, name STRING, tags ARRAY<STRING>, deep STRUCT<a: INT>")
    with pytest.raises(Invalid) as caught:
        calls.read("orders", asked)
    assert says in str(caught.value)
    for options in ({}, {"group": "billing"}):
        stream = calls.stream("orders", asked, **options)
        with pytest.raises(Invalid) as caught:
            stream.batch()
        assert says in str(caught.value)
        stream.reader.stop()
    assert queue.refresh().groups == {}


def test_an_untyped_queue_refuses_a_typed_ones_columns_as_it_always_did(calls: Calls) -> None:
    create_queue(open_store(calls.url), "default", "orders", 1)
    says = r"column 'id' .int. is no column of a partq source, which has key string"
    with pytest.raises(Invalid, match=says):
        calls.read("orders", spark("id INT"))
    with pytest.raises(Invalid, match=says):
        calls.stream("orders", spark("id INT")).batch()


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


# --- what a sink refuses ----------------------------------------------------------------------------------------------

DDL = "id INT NOT NULL, name STRING, tags ARRAY<STRING>, m MAP<STRING, INT>, at TIMESTAMP, deep STRUCT<a: INT NOT NULL>"


def field(name: str, kind: types.DataType) -> StructField:
    return StructField(name, kind)


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
        "column 'name' has type interval year to month, the queue's is STRING: cast it",
    ),
    "collation": (
        spark("id INT", field("name", types.StringType("UTF8_LCASE"))),
        "column 'name' has type string collate UTF8_LCASE, the queue's is STRING: cast it",
    ),
    "void inside": (
        spark("id INT", field("tags", types.ArrayType(NullType()))),
        "column 'tags' has type array<void>, the queue's is ARRAY<STRING>: cast it",
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

    def fail(_: int) -> pa.RecordBatch:
        raise AssertionError("a task ran")

    with pytest.raises(Invalid) as caught:
        write(calls, "orders", given, map(fail, [0]))
    assert says in str(caught.value)
    assert nothing_published(queue, before)


YEAR_10000_US = 253_402_300_800_000_000
MONTH_US = 30 * 24 * 3600 * 1_000_000
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
        queue = create(calls, ddl, name=name) if ddl else create_queue(open_store(calls.url), "default", name, 1)
        subscribe(queue, pattern)


def ids(calls: Calls, queue: str) -> list[int]:
    return calls.read(queue).column("id").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("write", WRITERS)
def test_rows_go_by_their_topics(calls: Calls, write: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
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
    for options, expected in (({"topic": "c/eu"}, [4]), ({"topic": "c/us"}, [])):
        given = spark("id INT, name STRING", field("_topic", types.StringType()))
        more = {"batch_id": 1 + len(expected)} if write == Calls.publish else {}
        if options == {"topic": "c/us"}:
            with pytest.raises(Invalid, match="which do not have the same columns: let their subscriptions differ"):
                write(calls, "rest", given, [as_spark_sends([[4, "n", "ignored"]], given)], **options, **more)
        else:
            write(calls, "rest", given, [as_spark_sends([[4, "n", "ignored"]], given)], **options, **more)
        assert ids(calls, "eu") == [0, 3, 4]


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


def test_who_calls_the_topics_of_rows_as_those_of_messages_is_told(calls: Calls) -> None:
    attracting(calls, eu=("id INT", "a"))
    create_queue(open_store(calls.url), "default", "rest", 1)
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


# --- what it costs ----------------------------------------------------------------------------------------------------

READ = """
import sys
from partq_spark.spark.source import PartqDataSource
source = PartqDataSource({"path": "orders", "store": sys.argv[1], "includeheaders": "true"})
reader = source.reader(source.schema())
assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 4
print("pandas" in sys.modules)
"""


def test_reading_rows_imports_no_pandas(calls: Calls) -> None:
    """It takes 0.2 s and 30 MB in each worker, and PyArrow imports it behind one's back."""
    create(calls, "id INT NOT NULL, at TIMESTAMP, total DECIMAL(5,2), name STRING", "id")
    given = spark("id INT, at TIMESTAMP, total DECIMAL(5,2), name STRING")
    rows = [[number, datetime.now(UTC), Decimal("1.50"), "name"] for number in range(4)]
    calls.append("orders", given, [as_spark_sends(rows, given)])
    done = subprocess.run(
        [sys.executable, "-c", READ, calls.url], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False"]
