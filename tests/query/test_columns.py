"""From pieces of the log to Arrow batches, of untyped and typed queues: every row once and in order, columns on request
against reading all of them. What is refused to users is in `tests/spark/test_refused_columns` and `tests/client`; here
are the forms that they do not try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log import tree
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import stage_of
from partq_spark.log.names import LogSizes
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.versions import columns_of, schema_of, with_added, with_widened
from partq_spark.log.segment import HEADERS, segment_schema
from partq_spark.log.staging import Stager
from partq_spark.query.columns import (
    METADATA_TYPES,
    MOST_BYTES,
    MOST_ROWS,
    WantedColumns,
    batches,
    default_columns,
    named_columns,
    wanted_columns,
)
from partq_spark.query.settings import MESSAGES, default_ddl
from partq_spark.spark.columns import check_sink_columns
from tests.log import typed
from tests.log.queues import World
from tests.log.schema import shapes
from tests.support.properties import examples

NUMBER = columns_of(parse_ddl("n BIGINT"))
COLUMNS = columns_of(parse_ddl("id INT NOT NULL, Name STRING, tags ARRAY<STRUCT<a: INT, b: STRING NOT NULL>>"), "id")


def metadata(*names: str) -> pa.Field:
    return pa.field("_metadata", pa.struct([(name, METADATA_TYPES[name.lower()]) for name in names]))


# --- which columns ----------------------------------------------------------------------------------------------------


def test_a_reader_that_names_none_gets_all_and_headers_on_request() -> None:
    plain = "key STRING, value BINARY, queue STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    assert default_ddl(False) == f"{plain}, redelivered BOOLEAN"
    assert default_ddl(True) == f"{plain}, redelivered BOOLEAN, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    for with_headers in (False, True):
        assert default_columns(None, with_headers).schema == parse_ddl(default_ddl(with_headers))
    assert default_columns(None, True).stored == ("key", "value", "_timestamp", "_headers")
    computed = named_columns(None, ["partition", "offset", "queue", "redelivered"])
    assert computed.stored == (), "what is made needs nothing"
    some = default_columns(COLUMNS, include_headers=False)
    assert some.schema == schema_of(COLUMNS).append(
        metadata("queue", "partition", "offset", "timestamp", "redelivered")
    )
    assert (some.payload, some.stored) == (schema_of(COLUMNS), ("_timestamp",))
    assert some.sources == (0, 1, 2, ("queue", "partition", "offset", "timestamp", "redelivered"))
    whole = default_columns(COLUMNS, include_headers=True)
    assert (whole.schema.field("_metadata"), whole.stored) == (metadata(*METADATA_TYPES), ("_timestamp", "_headers"))
    assert wanted_columns(COLUMNS, whole.schema) == whole


def test_a_column_may_be_asked_for_as_any_type_that_it_has_had_and_a_name_alone_means_todays() -> None:
    widened = with_widened(COLUMNS, "id BIGINT")
    for kind in (pa.int32(), pa.int64()):
        payload = wanted_columns(widened, pa.schema([pa.field("id", kind)])).payload
        assert payload is not None
        assert payload.types == [kind]
    with pytest.raises(Invalid, match=r"column 'id' is asked for as SMALLINT, it is BIGINT or INT: ask for that"):
        wanted_columns(widened, pa.schema([pa.field("id", pa.int16())]))
    assert named_columns(widened, ["id"]).schema == pa.schema([pa.field("id", pa.int64(), False)])
    loose = pa.list_(pa.field("element", pa.struct([("a", pa.int32()), ("b", pa.string())])))
    found = wanted_columns(COLUMNS, pa.schema([("tags", loose)]))
    assert found.payload is not None
    assert found.payload.types == [loose], "what may not be null is asked for as what may"
    added = with_added(COLUMNS, "coupon STRING")
    assert default_columns(added, include_headers=False).schema.names[-2:] == ["coupon", "_metadata"]


VALUE = ("value", "binary")


def of_typed(asked: Sequence[Any]) -> WantedColumns:
    return wanted_columns(COLUMNS, pa.schema(asked))


def of_untyped(asked: Sequence[Any]) -> WantedColumns:
    return wanted_columns(None, pa.schema(asked))


REFUSED: list[tuple[Callable[[Any], object], list[Any], str]] = [
    (of_untyped, [], "no column is named: name some of key, value, queue, partition, "),
    (of_untyped, [("price", pa.float64())], "column 'price' is none of the queue's: name some of key, value"),
    (of_untyped, [("price", pa.float64())], "from_json(value, ...)"),
    (of_untyped, [("value", pa.int32())], "column 'value' is asked for as INT, it is BINARY or STRING: ask for that"),
    (partial(named_columns, None), [], "no column is named: name some of key,"),
    (partial(named_columns, None), ["price"], "column 'price' is none of the queue's: name some of key,"),
    (partial(named_columns, None), ["key", "KEY"], "column 'key' is asked for twice"),
    (check_sink_columns, [VALUE, ("headers", "array<struct<key:string,value:string>>")], "'headers' has type"),
    (check_sink_columns, [("Value", "string")], "'Value' (string) is no column of a partq sink"),
    (check_sink_columns, [VALUE, VALUE], "'value' is there 2 times"),
    (of_typed, [("id", pa.duration("us"))], "column 'id' is asked for as duration[us], it is INT"),
    (of_typed, [metadata("offset"), metadata("offset")], "column '_metadata' is asked for twice"),
    (of_typed, [("_metadata", pa.struct([("key", pa.string())]))], "'_metadata' has no field 'key': it is STRUCT<"),
    (of_typed, [metadata("offset", "Offset")], "in column '_metadata', column 'offset' is asked for twice"),
    (of_typed, [("_metadata", pa.struct([("offset", pa.int32())]))], "in column '_metadata', column 'offset' is asked"),
    (of_typed, [metadata("offset").with_nullable(False)], "'_metadata' is asked for as NOT NULL: leave NOT NULL out"),
]


@pytest.mark.parametrize(("ask", "columns", "says"), REFUSED)
def test_columns_not_there_are_refused_by_name(ask: Callable[[Any], object], columns: list[Any], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        ask(columns)
    assert says in str(caught.value)


# --- pieces become batches --------------------------------------------------------------------------------------------


def piece(partition: int, offset: int, rows: int, *, headers: bool = False, is_typed: bool = False) -> Piece:
    """Messages whose value is their own offset."""
    at = range(offset, offset + rows)
    keys = [None if each % 3 == 0 else f"k{each}" for each in at]
    content = [pa.array(at, pa.int64())] if is_typed else [pa.array(keys, pa.string()), pa.array(map(bytes_of, at))]
    if headers:
        content.append(pa.array([[{"key": "at", "value": bytes_of(each)}] for each in at], HEADERS))
    schema = schema_of(NUMBER) if is_typed else segment_schema(headers=headers)
    batch = pa.RecordBatch.from_arrays(content, schema=schema)
    return Piece(partition, offset, 1_000_000 + partition, batch)


def bytes_of(number: int) -> bytes:
    return b"%d" % number


def made(pieces: Sequence[Piece], wanted: WantedColumns | None = None, below: dict[int, int] | None = None) -> pa.Table:
    """One chunk for each batch."""
    wanted = wanted or default_columns(None, False)
    found = list(batches(pieces, queue="orders", wanted=wanted, redelivered_below=below or {}))
    for batch in found:
        batch.validate(full=True)
        assert batch.num_rows <= MOST_ROWS
    return pa.Table.from_batches(found, wanted.schema)


ROWS = st.sampled_from([0, 1, 5, 5_000, MOST_ROWS + 9])


@pytest.mark.slow
@pytest.mark.conformance("HAN-03")
@examples(25)
@given(
    st.lists(st.tuples(st.integers(0, 3), ROWS, st.booleans()), max_size=6),
    st.booleans(),
    st.dictionaries(st.integers(0, 3), st.integers(0, 20) | st.integers(0, 20_000)),
)
def test_every_row_comes_once_and_in_order_with_all_that_the_log_knows_of_it(
    plan: list[tuple[int, int, bool]], is_typed: bool, below: dict[int, int]
) -> None:
    """What may have been delivered before is marked to the message, wherever a piece begins or is cut."""
    ends = dict.fromkeys(range(4), 0)
    pieces, places = [], []
    headers: dict[tuple[int, int], object] = {}
    for partition, rows, stored in plan:
        begin, end = ends[partition], ends[partition] + rows
        pieces.append(piece(partition, begin, rows, headers=stored and not is_typed, is_typed=is_typed))
        places += [(partition, at) for at in range(begin, end)]
        if stored and not is_typed:
            headers |= {(partition, at): [{"key": "at", "value": bytes_of(at)}] for at in range(begin, end)}
        ends[partition] = end
    own: dict[str, list[Any]]
    if is_typed:
        table = made(pieces, default_columns(NUMBER, include_headers=True), below)
        assert table.column("n").to_pylist() == [at for _, at in places]
        own = pa.Table.from_struct_array(table.column("_metadata")).to_pydict()
    else:
        own = made(pieces, default_columns(None, True), below).to_pydict()
        assert own["value"] == [bytes_of(at) for _, at in places]
        assert own["key"] == [None if at % 3 == 0 else f"k{at}" for _, at in places]
    assert list(zip(own["partition"], own["offset"], strict=True)) == places
    assert own["redelivered"] == [at < below.get(partition, 0) for partition, at in places]
    assert own["headers"] == [headers.get(place) for place in places]
    assert {*own["queue"]} <= {"orders"}
    assert [each.microsecond for each in own["timestamp"]] == [partition for partition, _ in places]


def test_small_pieces_are_joined_and_large_ones_cut_without_a_copy() -> None:
    small = made([piece(0, at, 10) for at in range(0, 20_000, 10)])
    assert [len(chunk) for chunk in small.column(0).chunks] == [8190, 8190, 3620]
    large = piece(0, 0, 100_000)
    found = made([large, piece(0, 100_000, 0)])
    assert [len(chunk) for chunk in found.column(0).chunks] == [*[MOST_ROWS] * 3, 100_000 - 3 * MOST_ROWS]
    text = made([large], of_untyped([("value", pa.string())]))
    assert text.column("value").to_pylist() == [str(at) for at in range(100_000)]
    stored = large.batch.column(1).buffers()[2].address
    for table in (found, text):
        assert {chunk.buffers()[2].address for chunk in table.column("value").chunks} == {stored}


@examples(40)
@given(st.lists(st.sampled_from([10, 1_000, 400_000, 3_000_000, MOST_BYTES + 1]), min_size=1, max_size=12))
def test_no_batch_is_larger_than_the_limit_unless_one_message_is(sizes: list[int]) -> None:
    """Also where a few large messages lie among many small ones: their average says nothing."""
    content = [pa.nulls(len(sizes), pa.string()), pa.array([b"." * size for size in sizes], pa.binary())]
    given_piece = Piece(0, 0, 0, pa.RecordBatch.from_arrays(content, schema=segment_schema()))
    found = made([given_piece, given_piece._replace(offset=len(sizes))])
    assert all(chunk.nbytes <= MOST_BYTES or len(chunk) == 1 for chunk in found.column("value").chunks)
    assert found.column("offset").to_pylist() == list(range(2 * len(sizes)))


@pytest.mark.parametrize("bad", [0, MOST_ROWS - 1, MOST_ROWS, 49_999])
def test_a_value_that_is_asked_for_as_text_and_is_not_utf8_is_named(bad: int) -> None:
    """Queue, partition and offset, wherever the piece was cut, and what to ask for instead."""
    contents = [b"gr\xc3\xb6\xc3\x9fe"] * 50_000
    contents[bad] = b"\xc3"
    batch = pa.RecordBatch.from_arrays([pa.nulls(50_000, pa.string()), pa.array(contents)], schema=segment_schema())
    given_piece, text = Piece(3, 100, 0, batch), of_untyped([("offset", pa.int64()), ("value", pa.string())])
    says = rf"offset {100 + bad} of partition 3 of queue 'orders' is not UTF-8 \(b'\\xc3'\).*ask for value BINARY"
    with pytest.raises(Invalid, match=says):
        made([given_piece], text)
    assert made([given_piece]).num_rows == 50_000
    # What lies beside the range that is read is nobody's matter.
    before = given_piece._replace(batch=batch.slice(0, bad))
    after = given_piece._replace(offset=101 + bad, batch=batch.slice(bad + 1))
    assert made([before, after], text).num_rows == 49_999


# --- columns on request, of whole logs --------------------------------------------------------------------------------

pytestmark = pytest.mark.slow

Plan = list[tuple[pa.RecordBatch, bool]]
"""Publishes: rows, and whether with headers."""
BEGIN_S = 1_790_000_001


def filled(plan: Plan, columns: Columns | None, compression: str = "lz4", *, compacted: bool) -> QueueLog:
    """Two partitions; with `compacted` the older half lies in few slices with a time for each message."""
    world = World()
    world.sizes = LogSizes(inline_entries=3, fan_out=3)  # so the head keeps few: the others may be compacted
    if columns is None:
        world.create(2)
    else:
        typed.create(world, schema_of(columns), columns.key, partitions=2)
    queue = world.handle()
    for number, (batch, headers) in enumerate(plan):
        world.clock.now_us = (BEGIN_S + number) * 1_000_000
        stage = stage_of(queue.refresh())
        pairs = [[{"key": "n", "value": bytes_of(row)}] * (row % 3) or None for row in range(batch.num_rows)]
        if columns is not None:
            rows = typed.batch_of(batch.to_pylist(), stage, headers=pairs if headers else None)
        elif headers:
            stored = [*batch.columns, pa.array(pairs, HEADERS)]
            rows = pa.RecordBatch.from_arrays(stored, schema=segment_schema(headers=True))
        else:
            rows = batch
        with Stager(queue.store, stage, seed=str(number), headers=headers, compression=compression) as stager:
            stager.add(rows)
            segment = stager.finish()
        if segment is not None:
            publish(queue, [segment])
    if compacted:
        while compact(queue, min_age_s=0.0) is not None:
            pass
    return world.handle()


def read(queue: QueueLog, wanted: WantedColumns, ranges: tree.Wanted, below: dict[int, int] | None = None) -> pa.Table:
    head = queue.refresh()
    reader = RangeReader(queue, head.queue_id, tree.view(head, ranges), payload=wanted.payload, only=wanted.stored)
    return made(list(reader.pieces()), wanted, below)


def untyped_rows(count: int) -> pa.RecordBatch:
    keys = pa.array([None if row % 4 == 1 else f"k{row % 5}" for row in range(count)], pa.string())
    contents = pa.array([f"größe {row}" for row in range(count)]).cast(pa.binary())
    return pa.RecordBatch.from_arrays([keys, contents], schema=segment_schema())


@pytest.mark.parametrize("headers", [False, True])
def test_a_message_keeps_its_time_and_its_headers_in_every_form_of_slice(headers: bool) -> None:
    numbers = pa.RecordBatch.from_arrays([pa.array(range(20), pa.int64())], schema=schema_of(NUMBER))
    queue = filled([(numbers, headers)] * 10, NUMBER, compacted=True)
    head = queue.refresh()
    ranges = dict(enumerate((0, end) for end in head.next))
    forms = {(entry.headers, entry.times) for entry in tree.walk(tree.view(head, ranges), queue.load_chunk)}
    assert forms == {(headers, False), (headers, True)}, "also those that were compacted"
    rows = read(queue, default_columns(NUMBER, include_headers=True), ranges).to_pylist()
    assert {(row["_metadata"]["timestamp"].timestamp() - BEGIN_S, row["n"]) for row in rows} == {
        (publish, number) for publish in range(10) for number in range(20)
    }
    for row in rows:
        pairs = [{"key": "n", "value": bytes_of(row["n"])}] * (row["n"] % 3) or None
        assert row["_metadata"]["headers"] == (pairs if headers else None)


@st.composite
def publishes(draw: st.DrawFn) -> tuple[Columns | None, Plan]:
    if draw(st.booleans()):
        rows = st.builds(untyped_rows, st.integers(1, 40) | st.just(9_000))
        return None, draw(st.lists(st.tuples(rows, st.booleans()), min_size=1, max_size=14))
    schema = draw(shapes.schemas())
    return columns_of(schema), draw(st.lists(st.tuples(shapes.batches(schema), st.booleans()), min_size=1, max_size=12))


def asked(draw: Callable[..., Any], columns: Columns | None) -> WantedColumns:
    """Some columns in any order, a value as bytes or as text."""
    fields = MESSAGES.names if columns is None else METADATA_TYPES
    names = draw(st.permutations(list(fields)))[: draw(st.integers(1, len(fields)))]
    if columns is None:
        kinds = {**METADATA_TYPES, "key": pa.string(), "value": draw(st.sampled_from([pa.string(), pa.binary()]))}
        return of_untyped([(name, kinds[name]) for name in names])
    own = draw(st.permutations([*schema_of(columns), metadata(*names)]))
    return wanted_columns(columns, pa.schema(own[: draw(st.integers(1, len(own)))]))


@pytest.mark.conformance("TYP-01")
@examples(120)
@given(
    publishes(),
    st.sampled_from(["none", "lz4", "zstd"]),
    st.booleans(),
    st.data(),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.dictionaries(st.integers(0, 1), st.integers(0, 20) | st.integers(0, 200)),
)
def test_any_columns_in_any_order_are_as_in_the_whole(
    of: tuple[Columns | None, Plan],
    compression: str,
    compacted: bool,
    data: st.DataObject,
    cut: tuple[float, float],
    below: dict[int, int],
) -> None:
    columns, plan = of
    queue = filled(plan, columns, compression, compacted=compacted)
    low, high = sorted(cut)
    ranges = {partition: (int(low * end), int(high * end)) for partition, end in enumerate(queue.refresh().next)}
    everything = default_columns(columns, include_headers=True)
    whole = read(queue, everything, ranges, below)
    assert whole.num_rows == sum(to - start for start, to in ranges.values())
    for _ in range(3):
        wanted = asked(data.draw, columns)
        found = read(queue, wanted, ranges, below)
        for field in wanted.schema:
            expected = whole.column(field.name)
            if columns is None:
                assert found.column(field.name).equals(expected.cast(field.type)), field
                continue
            rows = expected.to_pylist()
            if field.name == "_metadata":
                rows = [{inner.name: own[inner.name] for inner in field.type} for own in rows]
            assert all(map(shapes.same, found.column(field.name).to_pylist(), rows)), field
