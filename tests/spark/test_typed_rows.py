"""Rows of typed queues through Spark's edge, without a JVM: the data source's classes called as Spark calls them. Any
columns go in and come out, a reader keeps what it loaded, rows go by topics.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, DataType, DoubleType, MapType, NullType, StringType, StructType

from partq import Invalid
from tests.log.schema import shapes
from tests.spark.columns import WRITERS, create, field, headers_type, metadata, rows_of, sent, spark
from tests.support.data_source import Calls, as_spark_sends
from tests.support.properties import examples

ZONES = ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"]
KEYS = {pa.bool_(), pa.date32(), pa.int8(), pa.int16(), pa.int32(), pa.int64()}
WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
NARROWER = {kind: WHOLE[:place] for place, kind in enumerate(WHOLE)} | {pa.float64(): [pa.float32()]}
# --- what goes in comes out -------------------------------------------------------------------------------------------


@st.composite
def publications(draw: st.DrawFn) -> tuple[pa.Schema, str | None, list[tuple[list[str], pa.RecordBatch]]]:
    """A queue's columns, its key, and batches, each with the columns that it has in its order."""
    schema = draw(shapes.schemas()).append(pa.field("row", pa.int32(), False))  # no column in `shapes` is called so
    batches = []
    for number in range(draw(st.integers(1, 3))):
        there = [field.name for field in schema if not field.nullable or draw(st.booleans())]
        given = pa.schema([_narrower(draw, schema.field(name)) for name in draw(st.permutations(there))])
        batch = draw(shapes.batches(given))
        place = given.get_field_index("row")
        numbers = pa.array(range(number * 100, number * 100 + batch.num_rows), given.field(place).type)
        batches.append((given.names, batch.set_column(place, given.field(place), numbers)))
    keys = [field.name for field in schema if field.type in KEYS]
    return schema, draw(st.sampled_from([None, *keys])), batches


def _narrower(draw: st.DrawFn, field: pa.Field) -> pa.Field:
    """A column that could be widened to this one, or VOID."""
    if field.name == "row":
        return field.with_type(draw(st.sampled_from([field.type, pa.int16()])))
    kinds = [*NARROWER.get(field.type, ()), *([pa.null()] if field.nullable else [])]
    return field.with_type(draw(st.sampled_from([field.type, field.type, *kinds])))


@pytest.mark.conformance("TYP-02")
@pytest.mark.slow
@examples(60)
@given(publications(), st.data())
def test_rows_of_any_columns_come_back_equal(
    made: tuple[pa.Schema, str | None, list[tuple[list[str], pa.RecordBatch]]], data: st.DataObject
) -> None:
    schema, key, batches = made
    expected: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(url=f"file://{folder}/store")
        create(calls, schema, key=key, partitions=data.draw(st.integers(1, 3)))
        for number, (names, batch) in enumerate(batches):
            rows = batch.to_pylist()
            given = from_arrow_schema(batch.schema)
            how: Any = {"zone": data.draw(st.sampled_from(ZONES)), "large": data.draw(st.booleans())}
            sent = as_spark_sends([[row[name] for name in names] for row in rows], given, **how)
            if data.draw(st.booleans()):
                calls.append("orders", given, [sent])
            else:
                calls.publish("orders", given, [sent.slice(0, 1), sent.slice(1)], batch_id=number)
            expected |= {row["row"]: {name: row.get(name) for name in schema.names} for row in rows}
        loaded = calls.load("orders")
        assert loaded.fieldNames() == [*schema.names, "_metadata"]
        assert [field.nullable for field in loaded.fields] == [*(field.nullable for field in schema), True]
        own = metadata().dataType.fieldNames()  # type: ignore[attr-defined]
        fields = [*loaded.fields[:-1], metadata(*data.draw(st.permutations(own)))]
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


def test_columns_come_by_name_in_any_letters_and_may_be_void_inside_of_others(calls: Calls) -> None:
    create(calls, "id INT NOT NULL, Tags ARRAY<INT>, deep STRUCT<a: DOUBLE, b: DOUBLE>, m MAP<STRING, STRUCT<a: INT>>")
    void: dict[str, DataType] = {"deep": StructType([field("a", DoubleType()), field("b", NullType())])}
    void |= {"m": MapType(StringType(), NullType()), "Tags": ArrayType(NullType())}
    parts: list[tuple[StructType, list[Any]]] = [
        (spark("ID SMALLINT, TAGS ARRAY<INT>"), [7, [1, None]]),
        (spark("id INT", *(field(name, kind) for name, kind in void.items())), [9, {"a": 1.0}, {"x": None}, []]),
    ]
    for schema, row in parts:
        calls.append("orders", schema, sent(schema, row))
    assert rows_of(calls.read("orders")) == [
        {"id": 7, "Tags": [1, None], "deep": None, "m": None},
        {"id": 9, "Tags": [], "deep": {"a": 1.0, "b": None}, "m": [("x", None)]},
    ]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("large", [False, True])
def test_headers_are_taken_and_metadata_is_ignored(calls: Calls, write: Callable[..., None], large: bool) -> None:
    create(calls, "id INT, tags ARRAY<STRING>")
    create(calls, "tags ARRAY<STRING>, id INT", name="copy")
    schema = spark("tags ARRAY<STRING>", field("_headers", headers_type()), *spark("id INT").fields)
    pairs = [[{"key": "trace", "value": b"\x01"}, {"key": "null", "value": None}], [], None]
    rows = [[["a"] * n, each, n] for n, each in enumerate(pairs)]
    write(calls, "orders", schema, [as_spark_sends(rows, schema, large=large)])
    whole = calls.load("orders", includeHeaders="true")
    found = calls.read("orders", whole, includeHeaders="true")
    assert [row["_metadata"]["headers"] for row in found.to_pylist()] == pairs
    write(calls, "copy", whole, found.to_batches())
    assert rows_of(calls.read("copy")) == [{"tags": ["a"] * n, "id": n} for n in range(3)]
    assert calls.read("copy", spark("", metadata("headers"))).to_pylist() == [{"_metadata": {"headers": None}}] * 3


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


@pytest.mark.parametrize("again", ["id BIGINT", None])
def test_a_queue_that_was_made_again_is_not_taken_for_the_one_that_was_loaded(calls: Calls, again: str | None) -> None:
    """Null for columns that the new one does not have would be a loss without a word."""
    queue = create(calls, "id INT, name STRING")
    loaded, stream = calls.load("orders"), calls.stream("orders")
    assert stream.reader.getDefaultReadLimit() == ReadAllAvailable()
    with stream.reader._asked():
        queue.delete()
    create(calls, again)
    given = spark(again or "value BINARY")
    calls.append("orders", given, sent(given, [2**40 if again else b"v"]))
    says = (
        "column 'id' is none of the queue's",
        "column '(name' is none of the queue's|id' is asked for as INT, it is BIGINT)",
    )
    for attempt in (stream.batch, lambda: calls.read("orders", loaded)):
        with pytest.raises(Invalid, match=says[again is not None]):
            attempt()


# --- topics -----------------------------------------------------------------------------------------------------------


def attracting(calls: Calls, **queues: tuple[str | None, str]) -> None:
    """Queues by name: columns (None: untyped) and subscription."""
    for name, (ddl, pattern) in queues.items():
        create(calls, ddl, name=name).subscribe(*filter(None, [pattern]))


def ids(calls: Calls, queue: str) -> list[int]:
    return calls.read(queue).column("id").to_pylist()  # type: ignore[no-any-return]


TOPIC = field("_topic", StringType())


@pytest.mark.parametrize("write", WRITERS)
def test_rows_go_by_topics_or_the_option_and_a_column_topic_is_own(calls: Calls, write: Callable[..., None]) -> None:
    attracting(calls, eu=("id INT, topic STRING", "*/eu"), every=("topic STRING, id INT", "*/*"), us=("id INT", "*/us"))
    attracting(calls, rest=("id INT, topic STRING", ""), old=(None, "old"), untyped=(None, ""))
    given = spark("topic STRING, id INT", TOPIC)
    topics = ["a/eu", "a/asia", None, "b/eu"]
    write(calls, "rest", given, sent(given, *([f"no/{number}", number, topic] for number, topic in enumerate(topics))))
    assert [ids(calls, name) for name in ("eu", "every", "us", "rest")] == [[0, 3], [0, 1, 3], [], [2]]
    assert [row["topic"] for row in rows_of(calls.read("every"))] == ["no/0", "no/1", "no/3"]
    calls.append("rest", given, sent(given, ["no/4", 4, "ignored"]), topic="c/eu")
    assert [ids(calls, name) for name in ("eu", "every")] == [[0, 3, 4], [0, 1, 3, 4]]
    given = spark("id INT, topic STRING")
    with pytest.raises(Invalid, match="failOnUnattractedTopic is for messages with topics, and these have none"):
        calls.append("rest", given, sent(given, [5, "a/eu"]), failOnUnattractedTopic="true")
    calls.append("rest", given, sent(given, [5, "a/eu"]))
    assert ids(calls, "rest") == [2, 5]

    given = spark("value STRING, topic STRING")
    calls.append("untyped", given, sent(given, ["a", "old"], ["b", None]))
    for name, value in (("old", b"a"), ("untyped", b"b")):
        assert calls.read(name, spark("value BINARY")).to_pylist() == [{"value": value}]


def test_a_batch_for_queues_of_different_columns_is_refused(calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
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
    del source.options["path"]
    writer = source.writer(given, False)
    writer.commit([writer.write(iter(sent(given, [1, "x"], [2, "y"])))])
    assert [record.message.partition(" with")[0] for record in caplog.records] == ["2 messages"], "that nobody attracts"
