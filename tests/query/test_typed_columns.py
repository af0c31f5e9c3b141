"""The columns that a source has and a sink takes, by name; those of a typed queue's reader: which may be asked for,
and that any of them, in any order, of any log, are as in the whole.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log import tree
from partq_spark.log.compaction import compact
from partq_spark.log.model import Head
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.log.schema.versions import columns_of, schema_of, with_added, with_widened
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.query.columns import MOST_ROWS, batch_schema, batches
from partq_spark.query.schema import (
    HEADERS_TYPE,
    check_sink_columns,
    default_columns,
    named_columns,
    wanted_columns,
)
from partq_spark.query.typed_columns import (
    METADATA_TYPES,
    TypedColumns,
    default_typed_columns,
    named_typed_columns,
    wanted_typed_columns,
)
from tests.log import typed
from tests.log.queues import World
from tests.log.schema import shapes
from tests.support.properties import examples

PLAIN = [
    ("key", "string"),
    ("value", "binary"),
    ("queue", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("redelivered", "boolean"),
]
VALUE = ("value", "binary")


def test_the_source_has_the_columns_of_the_interface() -> None:
    assert default_columns(False).ddl == (
        "key string, value binary, queue string, partition int, offset bigint, timestamp timestamp, redelivered boolean"
    )
    assert default_columns(True).ddl == f"{default_columns(False).ddl}, headers {HEADERS_TYPE}"
    assert default_columns(True).stored == ("key", "value", "timestamp", "headers")
    assert default_columns(False).stored == ("key", "value", "timestamp")


# --- columns on request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [False, True])
def test_the_sources_own_columns_may_be_repeated(headers: bool) -> None:
    columns = [*PLAIN, ("headers", HEADERS_TYPE)] if headers else PLAIN
    assert wanted_columns(columns) == default_columns(headers)


@pytest.mark.parametrize("name", ["value", "Value", "VALUE"])
@pytest.mark.parametrize("kind", ["binary", "string"])
def test_some_may_be_named_in_any_order_and_any_letters(name: str, kind: str) -> None:
    """A reader's columns are called as it called them."""
    wanted = wanted_columns([("offset", "bigint"), ("headers", HEADERS_TYPE), (name, kind)])
    assert [(column.name, column.source, column.type) for column in wanted.columns] == [
        ("offset", "offset", "bigint"),
        ("headers", "headers", HEADERS_TYPE),
        (name, "value", kind),
    ]
    assert wanted.stored == ("headers", "value")


def test_what_is_made_needs_nothing_that_is_stored() -> None:
    assert named_columns(["partition", "offset", "queue", "redelivered"]).stored == ()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([], ".schema() names no column: name some of key string, value binary or string"),
        ([VALUE, ("price", "double")], "column 'price' (double) is no column of a partq source"),
        ([("price", "double")], "name some of these in .schema(), or leave it out"),
        ([("price", "double")], "from_json(value, ...)"),
        ([("offset", "int")], "column 'offset' has type int in .schema(), a partq source has it as bigint"),
        ([("value", "int")], "column 'value' has type int in .schema(), a partq source has it as binary or string"),
        ([("key", "binary")], "column 'key' has type binary"),
        ([("key", "string collate UNICODE")], "column 'key' has type string collate UNICODE"),
        ([("headers", "map<string,binary>")], "column 'headers' has type map<string,binary>"),
        ([VALUE, ("value", "string")], "column 'value' is named twice in .schema() (as 'value' before): name it once"),
        ([("Key", "string"), ("KEY", "string")], "column 'KEY' is named twice in .schema() (as 'Key' before)"),
        ([("key", "string not null")], "column 'key' is NOT NULL in .schema() (string not null)"),
        ([("offset", "bigint not null")], "make it bigint, without NOT NULL"),
        ([("value", "string not null")], "make it binary or string, without NOT NULL"),
        ([("headers", HEADERS_TYPE.replace("key:string", "key:string not null"))], "column 'headers' is NOT NULL"),
        ([("offset", "int not null")], "column 'offset' has type int not null in .schema()"),
    ],
)
def test_columns_that_the_source_does_not_have_are_refused_by_name(columns: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        wanted_columns(columns)
    assert says in str(caught.value)


@pytest.mark.parametrize("names", [["price"], ["key", "key"], ["key", "KEY"], [], "key"])
def test_names_that_are_no_columns_are_refused_together(names: Sequence[str]) -> None:
    with pytest.raises(Invalid, match=r"columns=\[.*is not allowed: give some of key, value, .*headers, once each"):
        named_columns(names)


# --- sinks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        [VALUE],
        [("value", "string")],
        [("key", "string"), VALUE],
        [("key", "binary"), VALUE],
        [VALUE, ("headers", HEADERS_TYPE), ("key", "string")],
        [VALUE, ("topic", "string")],
        [*PLAIN, ("headers", HEADERS_TYPE)],  # a plain copy from queue to queue
    ],
)
def test_what_a_sink_takes(columns: list[tuple[str, str]]) -> None:
    check_sink_columns(columns)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ([], "'value' is missing"),
        ([("key", "string")], "'value' is missing (found: key)"),
        ([("value", "int")], "'value' has type int"),
        ([VALUE, ("key", "bigint")], "'key' has type bigint"),
        ([VALUE, ("headers", "map<string,binary>")], "'headers' has type map<string,binary>"),
        ([VALUE, ("headers", "array<struct<key:string,value:string>>")], "'headers' has type"),
        ([VALUE, ("payload", "string")], "'payload' (string) is no column of a partq sink"),
        ([("Value", "string")], "'Value' (string) is no column of a partq sink"),
        ([VALUE, ("topic", "binary")], "'topic' has type binary, a partq sink takes string"),
        ([VALUE, VALUE], "'value' is there 2 times"),
    ],
)
def test_what_a_sink_refuses_by_name(columns: list[tuple[str, str]], named: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_sink_columns(columns)
    assert named in str(caught.value)


# --- of a typed queue -------------------------------------------------------------------------------------------------


COLUMNS = columns_of(parse_ddl("id INT NOT NULL, Name STRING, tags ARRAY<STRUCT<a: INT, b: STRING NOT NULL>>"), "id")


def metadata(*names: str) -> pa.Field:
    return pa.field("_metadata", pa.struct([(name, METADATA_TYPES[name.lower()]) for name in names]))


# --- which --------------------------------------------------------------------------------------------------------


def test_a_reader_that_names_none_gets_the_payload_and_then_metadata() -> None:
    found = default_typed_columns(COLUMNS, include_headers=False)
    assert found.schema.names == ["id", "Name", "tags", "_metadata"]
    assert [field.nullable for field in found.schema] == [False, True, True, True]
    assert found.schema.field("_metadata") == metadata("queue", "partition", "offset", "timestamp", "redelivered")
    assert found.payload == schema_of(COLUMNS)
    assert (found.metadata_at, found.stored) == (3, ("_timestamp",))
    whole = default_typed_columns(COLUMNS, include_headers=True)
    assert whole.schema.field("_metadata") == metadata(*METADATA_TYPES)
    assert whole.stored == ("_timestamp", "_headers")
    assert wanted_typed_columns(COLUMNS, whole.schema) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole  # noqa: S301 - it travels to tasks


def test_some_of_a_typed_queue_may_be_named_in_any_order_and_any_letters() -> None:
    """A reader's columns are called as it called them."""
    asked = pa.schema([pa.field("NAME", pa.string()), metadata("Offset", "headers"), pa.field("ID", pa.int32())])
    found = wanted_typed_columns(COLUMNS, asked)
    assert found.schema == asked
    assert found.payload.names == ["Name", "id"]
    assert (found.metadata, found.metadata_at, found.stored) == (("offset", "headers"), 1, ("_headers",))
    alone = wanted_typed_columns(COLUMNS, pa.schema([metadata("partition").with_name("_METADATA")]))
    assert (alone.payload.names, alone.metadata_at, alone.stored) == ([], 0, ())
    without = wanted_typed_columns(COLUMNS, pa.schema([pa.field("id", pa.int32(), False)]))
    assert (without.metadata_at, without.stored) == (None, ())


def test_a_column_may_be_asked_for_as_any_type_that_it_has_had() -> None:
    widened = with_widened(COLUMNS, "id BIGINT")
    for kind in (pa.int32(), pa.int64()):
        assert wanted_typed_columns(widened, pa.schema([pa.field("id", kind)])).payload.types == [kind]
    with pytest.raises(Invalid, match=r"column 'id' is asked for as SMALLINT, it is BIGINT .before that INT."):
        wanted_typed_columns(widened, pa.schema([pa.field("id", pa.int16())]))
    added = with_added(COLUMNS, "coupon STRING")
    assert default_typed_columns(added, include_headers=False).schema.names[-2:] == ["coupon", "_metadata"]


STRUCT = pa.struct([("a", pa.int32()), pa.field("b", pa.string(), False)])
LOOSE = pa.struct([("a", pa.int32()), ("b", pa.string())])


def test_what_may_not_be_null_may_be_asked_for_as_what_may() -> None:
    found = wanted_typed_columns(COLUMNS, pa.schema([("tags", pa.list_(pa.field("element", LOOSE)))]))
    assert found.payload.field("tags").type == pa.list_(pa.field("element", LOOSE))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "no column is named: name some of id, Name, tags and _metadata"),
        ([("price", pa.float64())], "column 'price' is none of the queue's: name some of id, Name, tags and _metadata"),
        ([("value", pa.binary())], "column 'value' is none of the queue's"),
        ([("id", pa.int64())], "column 'id' is asked for as BIGINT, it is INT: ask for that and cast it in the query"),
        ([("Name", pa.binary())], "column 'Name' is asked for as BINARY, it is STRING"),
        ([("id", pa.int32()), ("ID", pa.int32())], "column 'id' is asked for twice: name it once"),
        ([pa.field("Name", pa.string(), False)], "column 'Name' is asked for as NOT NULL, it may be null"),
        ([("tags", pa.list_(pa.field("element", STRUCT, False)))], "elements or values are never null (containsNull"),
        ([("id", pa.duration("us"))], "column 'id' is asked for as duration[us], it is INT"),
        ([metadata("offset"), metadata("offset")], "column '_metadata' is asked for twice"),
        ([("_metadata", pa.string())], "column '_metadata' is asked for as STRING: it is STRUCT<queue: STRING, "),
        ([("_metadata", pa.struct([("key", pa.string())]))], "column '_metadata' has no field 'key': it is STRUCT<"),
        ([metadata("offset", "Offset")], "field 'Offset' of column '_metadata' is asked for twice"),
        ([("_metadata", pa.struct([("offset", pa.int32())]))], "its field 'offset' is BIGINT, without NOT NULL"),
        ([("_metadata", pa.struct([pa.field("offset", pa.int64(), False)]))], "its field 'offset' is BIGINT"),
        ([metadata("offset").with_nullable(False)], "column '_metadata' is asked for as NOT NULL: leave NOT NULL out"),
        ([("_meta", pa.int32())], "column '_meta' is none of the queue's"),
    ],
)
def test_columns_that_the_queue_does_not_have_are_refused_by_name(asked: Sequence[Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        wanted_typed_columns(COLUMNS, pa.schema(asked))
    assert says in str(caught.value)


def test_names_alone_mean_todays_types() -> None:
    found = named_typed_columns(with_widened(COLUMNS, "id BIGINT"), ["name", "_metadata", "id"])
    assert found.schema.names == ["name", "_metadata", "id"]
    assert found.schema.field("id") == pa.field("id", pa.int64(), False)
    assert found.payload.names == ["Name", "id"]
    assert found.metadata == ("queue", "partition", "offset", "timestamp", "redelivered")
    for names in ([], ["price"], ["id", "id"], "id"):
        with pytest.raises(Invalid, match=r"none of the queue's|no column is named|asked for twice|give a list"):
            named_typed_columns(COLUMNS, names)


def test_a_thousand_names_are_not_all_said() -> None:
    many = columns_of(parse_ddl(", ".join(f"column{number} INT" for number in range(1000))))
    with pytest.raises(Invalid) as caught:
        named_typed_columns(many, ["price"])
    assert "(1000 columns)" in str(caught.value)
    assert len(str(caught.value)) < 500


# --- batches ------------------------------------------------------------------------------------------------------


def test_large_pieces_are_cut_and_small_ones_joined_and_a_constant_column_is_made_once() -> None:
    payload = pa.schema([pa.field("id", pa.int32())])
    wanted = TypedColumns(
        schema=pa.schema([metadata("queue", "partition", "offset", "timestamp", "redelivered", "headers"), *payload]),
        payload=payload,
        metadata=tuple(METADATA_TYPES),
    )

    def piece(partition: int, offset: int, rows: int) -> Piece:
        batch = pa.RecordBatch.from_arrays([pa.array(range(offset, offset + rows), pa.int32())], schema=payload)
        return Piece(partition, offset, 1_000_000 + partition, batch, typed=True)

    pieces = [piece(0, 0, 3), piece(1, 5, 4), piece(0, 3, MOST_ROWS + 35)]
    made = list(batches(pieces, queue="orders", wanted=wanted, redelivered_below={0: 7, 1: 6}))
    assert [batch.num_rows for batch in made] == [7, MOST_ROWS, 35]
    assert all(batch.schema == wanted.schema for batch in made)
    for row in pa.Table.from_batches(made).to_pylist():
        own = row["_metadata"]
        assert own["offset"] == row["id"]
        assert own["timestamp"].microsecond == own["partition"]
        assert own["redelivered"] == (own["offset"] < {0: 7, 1: 6}[own["partition"]])
        assert (own["queue"], own["headers"]) == ("orders", None)


def filled(plan: Sequence[tuple[pa.RecordBatch, bool]], columns: Columns, *, compacted: bool) -> QueueLog:
    """A queue with these publishes; with `compacted` the older half lies in few slices with a time for each message."""
    world = World()
    world.sizes = LogSizes(inline_entries=3, fan_out=3)  # so the head keeps few: the others may be compacted
    queue = typed.create(world, schema_of(columns), columns.key, partitions=2)
    queue = world.handle()
    for number, (batch, headers) in enumerate(plan):
        world.clock.now_us += 1_000_000
        stage = stage_of(queue.refresh())
        pairs = [[{"key": "n", "value": b"%d" % row}] * (row % 3) or None for row in range(batch.num_rows)]
        made = typed.staged(queue, stage, batch.to_pylist(), seed=str(number), headers=pairs if headers else None)
        publish(queue, stage, made, None)
    if compacted:
        while compact(queue, min_age_s=0.0) is not None:
            pass
    return world.handle()


def read(queue: QueueLog, head: Head, wanted: TypedColumns, ranges: tree.Wanted, below: dict[int, int]) -> pa.Table:
    log = tree.view(head, ranges)
    reader = RangeReader(queue, head.queue_id, log, payload=wanted.payload, only=wanted.stored)
    made = list(batches(reader.pieces(), queue="orders", wanted=wanted, redelivered_below=below))
    for batch in made:
        batch.validate(full=True)
    return pa.Table.from_batches(made, batch_schema(wanted))


@st.composite
def publishes(draw: st.DrawFn) -> tuple[Columns, list[tuple[pa.RecordBatch, bool]]]:
    schema = draw(shapes.schemas())
    batch = st.tuples(shapes.batches(schema), st.booleans())
    return columns_of(schema), draw(st.lists(batch, min_size=1, max_size=12))


@pytest.mark.slow
@pytest.mark.conformance("TYP-01")
@examples(60)
@given(
    publishes(),
    st.booleans(),
    st.data(),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.dictionaries(st.integers(0, 1), st.integers(0, 20)),
)
def test_any_columns_in_any_order_are_as_in_the_whole(
    made: tuple[Columns, list[tuple[pa.RecordBatch, bool]]],
    compacted: bool,
    data: st.DataObject,
    cut: tuple[float, float],
    below: dict[int, int],
) -> None:
    columns, plan = made
    queue = filled(plan, columns, compacted=compacted)
    head = queue.refresh()
    low, high = sorted(cut)
    ranges = {partition: (int(low * end), int(high * end)) for partition, end in enumerate(head.next)}
    everything = default_typed_columns(columns, include_headers=True)
    whole = read(queue, head, everything, ranges, below)
    assert whole.num_rows == sum(to - start for start, to in ranges.values())
    for _ in range(3):
        names = data.draw(st.permutations(list(METADATA_TYPES)))[: data.draw(st.integers(1, len(METADATA_TYPES)))]
        fields = data.draw(st.permutations([*everything.payload, metadata(*names)]))
        wanted = wanted_typed_columns(columns, pa.schema(fields[: data.draw(st.integers(1, len(fields)))]))
        found = read(queue, head, wanted, ranges, below)
        assert found.schema == wanted.schema
        for field in wanted.schema:
            expected = whole.column(field.name).to_pylist()
            if field.name == "_metadata":
                expected = [{name: own[name] for name in names} for own in expected]
            assert all(map(shapes.same, found.column(field.name).to_pylist(), expected)), field


def test_metadata_says_where_and_when_each_message_lies() -> None:
    columns = columns_of(parse_ddl("n INT"))
    rows = pa.RecordBatch.from_arrays([pa.array(range(20), pa.int32())], schema=schema_of(columns))
    queue = filled([(rows, True)] * 10, columns, compacted=True)
    head = queue.refresh()
    entries = list(tree.walk(tree.view(head, {0: (0, head.next[0]), 1: (0, head.next[1])}), queue.load_chunk))
    assert any(entry.times for entry in entries)
    everything = default_typed_columns(columns, include_headers=True)
    table = read(queue, head, everything, {0: (0, head.next[0]), 1: (0, head.next[1])}, {})
    own = table.column("_metadata").to_pylist()
    assert {partition: [each["offset"] for each in own if each["partition"] == partition] for partition in (0, 1)} == {
        partition: list(range(head.next[partition])) for partition in (0, 1)
    }
    times = [each["timestamp"] for each in own]
    assert len({*times}) == 10
    assert table.schema.field("_metadata").type.field("timestamp").type == TIMESTAMP
    assert table.schema.field("_metadata").type.field("headers").type == HEADERS
    for row in table.to_pylist():
        pairs = [{"key": "n", "value": b"%d" % row["n"]}] * (row["n"] % 3) or None
        assert row["_metadata"]["headers"] == pairs
