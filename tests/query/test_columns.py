"""From pieces of the log to the source's Arrow batches: the schema to the letter, every row once and in order, and
columns on request against reading all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.query.columns import MOST_BYTES, MOST_ROWS, batch_schema, batches
from partq_spark.query.schema import HEADERS_TYPE, SOURCE_TYPES, WantedColumns, default_columns, wanted_columns
from tests.log.queues import World
from tests.support.properties import examples


def piece(partition: int, offset: int, rows: int, *, row_bytes: int = 4, headers: bool = False) -> Piece:
    """Messages whose value begins with their own offset."""
    offsets = range(offset, offset + rows)
    content = [
        pa.array([None if at % 3 == 0 else f"k{at}" for at in offsets], pa.string()),
        pa.array([b"%d" % at + b"." * row_bytes for at in offsets], pa.binary()),
    ]
    if headers:
        content.append(pa.array([[{"key": "at", "value": b"%d" % at}] for at in offsets], HEADERS))
    batch = pa.RecordBatch.from_arrays(content, schema=segment_schema(headers))
    return Piece(partition, offset, 1_000_000 + partition, batch)


def made(
    pieces: Sequence[Piece],
    *,
    headers: bool = False,
    wanted: WantedColumns | None = None,
    below: dict[int, int] | None = None,
) -> list[pa.RecordBatch]:
    wanted = wanted or default_columns(headers)
    return list(batches(pieces, queue="orders", wanted=wanted, redelivered_below=below or {}))


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_batches_have_sparks_own_arrow_schema_to_the_letter(headers: bool, stored: bool) -> None:
    """Spark compares field order, types, nullability and names of nested fields, and only of the first batch
    (spark-traps.md 11).
    """
    from pyspark.sql import types
    from pyspark.sql.pandas.types import to_arrow_schema

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    of_spark = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "boolean": types.BooleanType(),
        HEADERS_TYPE: types.ArrayType(header),
    }
    pieces = [piece(0, 0, 3, headers=stored), piece(1, 5, MOST_ROWS + 1, headers=stored)]
    everything = default_columns(headers)
    backwards = [(column.name.upper(), column.type) for column in reversed(everything.columns)]
    for wanted in (everything, wanted_columns(backwards), wanted_columns([("value", "string")])):
        schema = types.StructType([types.StructField(each.name, of_spark[each.type]) for each in wanted.columns])
        assert [field.dataType.simpleString() for field in schema.fields] == [each.type for each in wanted.columns]
        expected = to_arrow_schema(schema, timezone="UTC")
        for batch in made(pieces, wanted=wanted, below={1: 7}):
            assert batch.schema.equals(expected, check_metadata=True)
            batch.validate(full=True)


def test_a_row_has_what_the_log_knows_of_it() -> None:
    (batch,) = made([piece(2, 40, 2, headers=True)], headers=True)
    first, second = batch.to_pylist()
    moment = second.pop("timestamp")
    assert round(moment.timestamp() * 1_000_000) == 1_000_002
    assert second == {
        "key": "k41",
        "value": b"41....",
        "queue": "orders",
        "partition": 2,
        "offset": 41,
        "redelivered": False,
        "headers": [{"key": "at", "value": b"41"}],
    }
    assert first["offset"] == 40


@pytest.mark.conformance("HAN-03")
@pytest.mark.parametrize("below", [*range(38, 60), 1_000])
def test_what_may_have_been_delivered_before_is_marked_to_the_message(below: int) -> None:
    """Below the partition's own mark, wherever a piece begins, and not one message more or less."""
    rows = [
        row
        for batch in made([piece(2, 40, 9), piece(3, 40, 1), piece(2, 49, 1), piece(2, 50, 8)], below={2: below, 4: 99})
        for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows if row["partition"] == 2] == list(range(40, 58))
    assert [row["offset"] for row in rows if row["redelivered"]] == list(range(40, min(below, 58)))


def test_headers_of_a_publish_without_any_are_null() -> None:
    (batch,) = made([piece(0, 0, 2), piece(0, 2, 1, headers=True)], headers=True)
    assert [row["headers"] for row in batch.to_pylist()] == [None, None, [{"key": "at", "value": b"2"}]]


PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12_000) | st.integers(0, 5), st.booleans()), max_size=12)


@pytest.mark.slow
@given(PIECES, st.booleans(), st.dictionaries(st.integers(0, 3), st.integers(0, 20_000)))
def test_every_row_comes_once_and_in_order(
    plan: list[tuple[int, int, bool]], headers: bool, below: dict[int, int]
) -> None:
    ends = dict.fromkeys(range(4), 0)
    pieces, expected = [], []
    for partition, rows, stored in plan:
        pieces.append(piece(partition, ends[partition], rows, row_bytes=0, headers=stored))
        expected += [(partition, at) for at in range(ends[partition], ends[partition] + rows)]
        ends[partition] += rows
    found = made(pieces, headers=headers, below=below)
    table = pa.Table.from_batches(found) if found else pa.table({})
    rows_found = (
        list(zip(*(table.column(name).to_pylist() for name in ("partition", "offset")), strict=True)) if found else []
    )
    assert rows_found == expected
    if found:
        assert table.column("value").to_pylist() == [b"%d" % at for _, at in expected]
        assert table.column("redelivered").to_pylist() == [at < below.get(partition, 0) for partition, at in expected]
    assert all(1 <= batch.num_rows <= MOST_ROWS for batch in found)


# --- text -------------------------------------------------------------------------------------------------------------

TEXT = wanted_columns([("offset", "bigint"), ("value", "string")])


def test_a_value_may_be_asked_for_as_text_and_is_not_copied() -> None:
    given_piece = piece(0, 40, 3)
    (batch,) = made([given_piece], wanted=TEXT)
    assert batch.to_pylist() == [{"offset": at, "value": f"{at}...."} for at in (40, 41, 42)]
    assert batch.column("value").buffers()[2].address == given_piece.batch.column("value").buffers()[2].address


@pytest.mark.parametrize("bad", [0, 1, 6_000, MOST_ROWS - 1, MOST_ROWS, 49_999])
def test_a_value_that_is_not_utf8_is_named(bad: int) -> None:
    """Queue, partition and offset, wherever the piece was cut, and what to ask for instead."""
    contents = [b"gr\xc3\xb6\xc3\x9fe"] * 50_000
    contents[bad] = b"\xc3"
    batch = pa.RecordBatch.from_arrays(
        [pa.nulls(50_000, pa.string()), pa.array(contents)], schema=segment_schema(False)
    )
    given_piece = Piece(3, 100, 0, batch)
    says = rf"offset {100 + bad} of partition 3 of queue 'orders' is not UTF-8 \(b'\\xc3'\).*ask for value BINARY"
    with pytest.raises(Invalid, match=says):
        made([given_piece], wanted=TEXT)
    assert sum(each.num_rows for each in made([given_piece])) == 50_000
    # What lies beside the range that is read is nobody's matter.
    before = given_piece._replace(batch=batch.slice(0, bad))
    after = given_piece._replace(offset=101 + bad, batch=batch.slice(bad + 1))
    assert sum(each.num_rows for each in made([before, after], wanted=TEXT)) == 49_999


# --- limits -----------------------------------------------------------------------------------------------------------


def test_many_small_pieces_become_few_batches() -> None:
    found = made([piece(0, at, 10) for at in range(0, 20_000, 10)])
    assert sum(batch.num_rows for batch in found) == 20_000
    assert len(found) == 3


def test_a_large_piece_is_cut_without_a_copy() -> None:
    large = piece(0, 0, 100_000)
    found = made([large])
    assert [batch.num_rows for batch in found] == [MOST_ROWS, MOST_ROWS, MOST_ROWS, 100_000 - 3 * MOST_ROWS]
    stored = large.batch.column(1).buffers()[2].address
    assert all(batch.column(1).buffers()[2].address == stored for batch in found)


@given(st.lists(st.sampled_from([10, 1_000, 400_000, 3_000_000]), min_size=1, max_size=40))
def test_no_batch_is_larger_than_the_limit_unless_one_message_is(sizes: list[int]) -> None:
    """Also where a few large messages lie among many small ones: their average says nothing."""
    content = [pa.nulls(len(sizes), pa.string()), pa.array([b"." * size for size in sizes], pa.binary())]
    given_piece = Piece(0, 0, 0, pa.RecordBatch.from_arrays(content, schema=segment_schema(False)))
    found = made([given_piece, given_piece._replace(offset=len(sizes))])
    assert all(batch.column("value").nbytes <= MOST_BYTES or batch.num_rows == 1 for batch in found)
    assert [row for batch in found for row in batch.column("offset").to_pylist()] == list(range(2 * len(sizes)))


def test_one_message_beyond_the_limit_travels_alone() -> None:
    found = made([piece(0, 0, 1, row_bytes=MOST_BYTES + 1), piece(0, 1, 1)])
    assert [batch.num_rows for batch in found] == [1, 1]


def test_nothing_is_nothing() -> None:
    assert made([]) == []
    assert made([piece(0, 0, 0)]) == []


# --- columns on request -----------------------------------------------------------------------------------------------


pytestmark = pytest.mark.slow

Wanted = dict[int, tuple[int, int]]
Plan = list[tuple[int, bool]]

PLANS = st.lists(st.tuples(st.integers(1, 40) | st.just(9_000), st.booleans()), min_size=1, max_size=14)
"""Publishes: how many messages, and whether with headers."""


def filled(plan: Plan, compression: str, *, compacted: bool) -> QueueLog:
    """Two partitions; with `compacted` the older half lies in few slices with a time for each message."""
    world = World()
    world.sizes = LogSizes(inline_entries=3, fan_out=3)  # so the head keeps few: the others may be compacted
    queue = world.create(2)
    for number, (rows, headers) in enumerate(plan):
        world.clock.now_us += 1_000_000
        stage = stage_of(queue.refresh())
        columns = [
            pa.array([None if row % 4 == 1 else f"k{row % 5}" for row in range(rows)], pa.string()),
            pa.array([f"größe {number}.{row}" for row in range(rows)]).cast(pa.binary()),
        ]
        if headers:
            pairs = [[{"key": "n", "value": b"%d" % row}] * (row % 3) or None for row in range(rows)]
            columns.append(pa.array(pairs, HEADERS))
        with Stager(queue.store, stage, seed=str(number), headers=headers, compression=compression) as stager:
            stager.add(pa.RecordBatch.from_arrays(columns, schema=segment_schema(headers)))
            segment = stager.finish()
        assert segment is not None
        publish(queue, stage, [segment], None)
    if compacted:
        while compact(queue, min_age_s=0.0) is not None:
            pass
    return world.handle()


def test_these_logs_have_every_form_of_slice() -> None:
    forms = set()
    for headers in (False, True):
        queue = filled([(5, headers)] * 10, "lz4", compacted=True)
        head = queue.refresh()
        log = tree.view(head, {partition: (0, end) for partition, end in enumerate(head.next)})
        forms |= {(entry.headers, entry.times) for entry in tree.walk(log, queue.load_chunk)}
    assert forms == {(False, False), (False, True), (True, False), (True, True)}


def read(queue: QueueLog, head: Head, wanted: Wanted, columns: WantedColumns, below: dict[int, int]) -> pa.Table:
    reader = RangeReader(queue, head.queue_id, tree.view(head, wanted), only=columns.stored)
    made = list(batches(reader.pieces(), queue="orders", wanted=columns, redelivered_below=below))
    for batch in made:
        batch.validate(full=True)
    return pa.Table.from_batches(made, batch_schema(columns))


def named(names: Sequence[str], text: bool) -> WantedColumns:
    types = {name: kinds[-1 if text else 0] for name, kinds in SOURCE_TYPES.items()}
    return wanted_columns([(name, types[name]) for name in names])


@pytest.mark.conformance("TYP-01")
@examples(100)
@given(
    PLANS,
    st.sampled_from(["none", "lz4", "zstd"]),
    st.booleans(),
    st.lists(st.tuples(st.permutations(list(SOURCE_TYPES)), st.integers(1, 8), st.booleans()), min_size=3, max_size=6),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.dictionaries(st.integers(0, 1), st.integers(0, 200)),
)
def test_any_columns_in_any_order_are_as_in_the_whole(
    plan: Plan,
    compression: str,
    compacted: bool,
    requests: list[tuple[list[str], int, bool]],
    cut: tuple[float, float],
    below: dict[int, int],
) -> None:
    queue = filled(plan, compression, compacted=compacted)
    head = queue.refresh()
    low, high = sorted(cut)
    wanted = {partition: (int(low * end), int(high * end)) for partition, end in enumerate(head.next)}
    whole = read(queue, head, wanted, default_columns(True), below)
    assert whole.num_rows == sum(to - start for start, to in wanted.values())
    for order, count, text in requests:
        names = order[:count]
        found = read(queue, head, wanted, named(names, text), below)
        assert found.column_names == names
        for name in names:
            expected = whole.column(name)
            assert found.column(name).equals(expected.cast(found.schema.field(name).type)), name
