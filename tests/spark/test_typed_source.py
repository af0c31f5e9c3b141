"""Rows of typed queues through Spark's edge, without a JVM: the data source's classes called as Spark calls them. Any
columns go in and come out; a reader keeps what it loaded; what it may not ask for.
"""

from __future__ import annotations

import tempfile
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
from pyspark.sql.types import StructField, StructType

from partq import Invalid
from tests.log.schema import shapes
from tests.spark.typed_rows import KEY_TYPES, METADATA, ZONES, Row, create, metadata, rows_of, sent, spark, widens
from tests.support.data_source import Calls, as_spark_sends
from tests.support.properties import examples


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(url=f"file://{tmp_path}/store")


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
        fields = [*loaded.fields[:-1], metadata(*data.draw(st.permutations(METADATA)))]
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


# --- columns that change ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-05")
def test_a_query_keeps_the_columns_and_types_that_its_load_saw(calls: Calls) -> None:
    """What is added meanwhile it does not see, what is widened it gets as it was, until a value does not fit."""
    queue = create(calls, "id INT NOT NULL, price DECIMAL(5,2)")
    before = spark("id INT NOT NULL, price DECIMAL(5,2)")
    calls.append("orders", before, sent(before, [1, Decimal("1.50")]))
    running, batch = calls.stream("orders"), calls.load("orders")
    assert rows_of(running.batch()) == [{"id": 1, "price": Decimal("1.50")}]
    queue.alter(add_column="coupon STRING", widen="id BIGINT, price DECIMAL(10,4)")
    calls.append("orders", before, sent(before, [2, None]))
    after = spark("coupon STRING, id BIGINT, price DECIMAL(10,4)")
    calls.append("orders", after, sent(after, ["x", 3, Decimal("2.5000")]))
    assert rows_of(running.batch()) == [{"id": 2, "price": None}, {"id": 3, "price": Decimal("2.50")}]
    running.restart()
    assert rows_of(running.batch()) == []
    assert [row["id"] for row in rows_of(calls.read("orders", batch))] == [1, 2, 3]
    anew = calls.stream("orders")
    assert anew.schema.fieldNames() == ["id", "price", "coupon", "_metadata"]
    assert [(row["id"], row["coupon"]) for row in rows_of(anew.batch())] == [(1, None), (2, None), (3, "x")]
    calls.append("orders", after, sent(after, [None, 2**31, None], [None, 5, None]))
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
        queue.alter(widen=f"n {kind}")
    given = spark("n BIGINT")
    calls.append("orders", given, sent(given, [-128], [None], [127]))
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
        queue.delete()
    value: Any
    if again is None:
        create(calls, None)
        given, value = spark("value BINARY"), b"v"
        says = "column 'id' .int. is no column of a partq source"
    else:
        create(calls, again)
        given, value = spark(again), 2**40
        says = "queue 'orders' is typed: column '(name' is none of the queue's|id' is asked for as INT, it is BIGINT)"
    calls.append("orders", given, sent(given, [value]))
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
    assert queue.describe().groups == ()


def test_an_untyped_queue_refuses_a_typed_ones_columns_as_it_always_did(calls: Calls) -> None:
    create(calls, None)
    says = r"column 'id' .int. is no column of a partq source, which has key string"
    with pytest.raises(Invalid, match=says):
        calls.read("orders", spark("id INT"))
    with pytest.raises(Invalid, match=says):
        calls.stream("orders", spark("id INT")).batch()
