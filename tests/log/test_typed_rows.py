"""Rows of typed queues from staging to reading: which bytes lie where, which key decides, and what readers of other
versions see (TYP-02, TYP-03, TYP-05, TYP-07).
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log import tree
from partq_spark.log.admin import alter_queue, create_queue, delete_queue
from partq_spark.log.compaction import compact
from partq_spark.log.model import Head
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import Outdated, PublishIdentity, check_version, publish
from partq_spark.log.publish_times import oldest_us
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.schema.bring import chosen_columns
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of, with_widened
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.staged import stage_of
from tests.log import typed
from tests.log.queues import World, everything
from tests.log.test_segment import stage as untyped_stage

SECOND_US = 1_000_000


# --- which bytes lie where --------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-07")
def test_any_arrow_tool_opens_a_segment_whose_columns_are_the_queues(world: World) -> None:
    """TYP-07. The key is not stored twice."""
    queue = typed.create(world, "id INT NOT NULL, `key` STRING, timestamp TIMESTAMP, headers ARRAY<INT>")
    when = datetime(2026, 1, 2, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"id": number, "key": f"k{number}", "timestamp": when, "headers": [number]} for number in range(20)
    ]
    stage = stage_of(queue.refresh())
    head_of_each = [[{"key": "trace", "value": b"%d" % row["id"]}] for row in rows]
    made = typed.staged(queue, stage, rows, headers=head_of_each)
    publish(queue, stage, made)
    with pa.ipc.open_file(pa.BufferReader(world.store.read(queue.segment_folder + made[0].name))) as file:
        table = file.read_all()
    assert table.schema.names == ["id", "key", "timestamp", "headers", "_headers"]
    assert table.schema.field("_headers").type == HEADERS
    assert sorted(table.select(["id", "key", "timestamp", "headers"]).to_pylist(), key=lambda row: row["id"]) == rows
    assert [piece.headers.to_pylist() for piece in typed.pieces(queue) if piece.headers is not None] == [
        [[{"key": "trace", "value": b"%d" % row["id"]}] for row in typed.rows_of(piece)]
        for piece in typed.pieces(queue)
    ]
    queue.effects.sleep(1000)
    assert all(piece.times is None for piece in typed.pieces(queue)), "a column of this name is the user's"
    for _ in range(20):
        typed.send(queue, rows[:4])
    world.clock.now_us += 1000 * SECOND_US
    assert compact(queue) is not None
    entry = next(tree.walk(tree.view(queue.refresh(), everything(queue.head)), queue.load_chunk))
    with pa.ipc.open_file(pa.BufferReader(world.store.read(queue.segment_folder + entry.segments[0]))) as file:
        assert file.schema.names == ["id", "key", "timestamp", "headers", "_headers", "_timestamp"]


def test_rows_come_back_in_the_order_of_their_key_over_runs(world: World) -> None:
    queue = typed.create(world, "id INT, n INT, name STRING, tags MAP<STRING, INT>", partitions=7)
    rng = random.Random(1)
    rows = [
        {"id": rng.choice([None, *range(20)]), "n": n, "name": f"{n}" * n, "tags": [("a", n)] * (n % 2)}
        for n in range(300)
    ]
    stage = stage_of(queue.refresh())
    with Stager(queue.store, stage, seed="s", run_bytes=3_000) as stager:
        for first in range(0, 300, 37):
            stager.add(typed.batch_of(rows[first : first + 37], stage))
        segment = stager.finish()
    assert segment is not None
    assert len(segment.slices) > 20
    publish(queue, stage, [segment])
    found = typed.read(queue)
    assert sorted((row for mine in found.values() for row in mine), key=lambda row: int(row["n"])) == rows
    for mine in found.values():
        for key in range(20):
            assert [row["n"] for row in mine if row["id"] == key] == sorted(
                row["n"] for row in mine if row["id"] == key
            )


# --- the key ----------------------------------------------------------------------------------------------------------

KEYS: list[tuple[str, Any, bytes]] = [
    ("STRING", "키", "키".encode()),
    ("TINYINT", -128, b"-128"),
    ("SMALLINT", 7, b"7"),
    ("INT", 2**31 - 1, b"2147483647"),
    ("BIGINT", -(2**63), b"-9223372036854775808"),
    ("BOOLEAN", True, b"true"),
    ("DATE", date(1582, 10, 10), b"1582-10-10"),
    ("BINARY", b"ab", b"ab"),
]


@pytest.mark.parametrize(("kind", "value", "text"), KEYS, ids=[kind for kind, _, _ in KEYS])
def test_the_text_of_the_key_column_decides_the_partition(world: World, kind: str, value: Any, text: bytes) -> None:
    """TYP-03; that the texts are Spark's own is shown with Spark."""
    queue = typed.create(world, f"a INT, k {kind}", key="k", partitions=1000)
    typed.send(queue, [{"a": 1, "k": value}])
    assert [*typed.read(queue)] == [partition_of(text, 1000)]


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize("key", ["k", None])
def test_rows_without_a_key_go_anywhere_and_always_to_the_same_place(world: World, key: str | None) -> None:
    queue = typed.create(world, "k STRING, n INT", key=key, partitions=50)
    stage = stage_of(queue.refresh())
    rows = [{"k": "same" if key is None else None, "n": n} for n in range(200)]
    one, other = (typed.staged(queue, stage, rows, seed="w/1/0")[0] for _ in range(2))
    assert [piece[:1] + piece[3:] for piece in one.slices] == [piece[:1] + piece[3:] for piece in other.slices]
    assert len({piece.partition for piece in one.slices}) > 40
    third = typed.staged(queue, stage, rows, seed="w/2/0")[0]
    assert [piece[3:] for piece in third.slices] != [piece[3:] for piece in one.slices]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("STRING", "x" * 256, "the key of row 1 has 256 bytes in UTF-8, at most 255 are allowed"),
        ("BINARY", b"\xff", r"the key of row 1 is not valid UTF-8 \(b'\\xff'\)"),
    ],
)
def test_a_key_that_no_message_can_have_is_refused_with_its_row(
    world: World, kind: str, value: Any, message: str
) -> None:
    queue = typed.create(world, f"k {kind}", key="k")
    with pytest.raises(Invalid, match=message):
        typed.send(queue, [{"k": None}, {"k": value}])
    other = typed.create(world, f"k {kind}, l INT", key="l", name="other")
    typed.send(other, [{"k": value}])
    assert typed.read_flat(other) == [{"k": value, "l": None}]


@pytest.mark.parametrize(
    ("ddl", "small", "large", "size"),
    [
        ("a STRING", {"a": "x" * 100}, {"a": "x" * 101}, 101),
        ("a BINARY, b BIGINT", {"a": b"x" * 92, "b": 1}, {"a": b"x" * 93, "b": 1}, 101),
        ("a ARRAY<INT>, b STRING", {"a": [1] * 20, "b": "x" * 20}, {"a": [1] * 20, "b": "x" * 21}, 101),
        ("a MAP<STRING, STRUCT<b: BIGINT>>", {"a": [("k", {"b": 1})] * 11}, {"a": [("kk", {"b": 1})] * 11}, 110),
        ("a STRUCT<b: STRING, c: DECIMAL(5,2)>", {"a": {"b": "x" * 84}}, {"a": {"b": "x" * 90, "c": Decimal(1)}}, 106),
    ],
)
def test_a_row_is_no_larger_than_a_message_may_be(world: World, ddl: str, small: Any, large: Any, size: int) -> None:
    queue = typed.create(world, ddl, key=None, max_message_bytes=100)
    stage = stage_of(queue.refresh())
    with Stager(queue.store, stage, seed="s") as stager:
        columns = [small, small, small, large]
        batch = pa.RecordBatch.from_pylist(columns, schema=schema_from(ddl))
        stager.add(batch.slice(1, 2))
        message = (
            f"the message of row 4 has {size} bytes .in all its columns., queue 'orders' takes 100: .*--max-message-b"
        )
        with pytest.raises(Invalid, match=message):
            stager.add(batch.slice(1))


# --- versions ---------------------------------------------------------------------------------------------------------


def history(queue: QueueLog) -> None:
    """Three versions of the columns, with rows of each."""
    typed.send(queue, [{"id": 1, "name": "a", "total": Decimal("1.50")}])
    alter_queue(queue, add_columns="coupon STRING")
    typed.send(queue, [{"id": 2, "name": None, "total": None, "coupon": "c"}])
    alter_queue(queue, widen="id BIGINT, total DECIMAL(10,4)")
    typed.send(queue, [{"id": 3, "name": "b", "total": Decimal("999999.1234")}])


def test_a_reader_sees_all_versions_as_the_columns_that_it_loads(world: World) -> None:
    queue = typed.create(world, partitions=1)
    history(queue)
    assert [entry.schema_version for entry in queue.head.entries] == [1, 2, 3]
    assert typed.read_flat(queue) == [
        {"id": 1, "name": "a", "total": Decimal("1.5000"), "coupon": None},
        {"id": 2, "name": None, "total": None, "coupon": "c"},
        {"id": 3, "name": "b", "total": Decimal("999999.1234"), "coupon": None},
    ]
    assert typed.read_flat(queue, "COUPON STRING, id INT") == [
        {"coupon": None, "id": 1},
        {"coupon": "c", "id": 2},
        {"coupon": None, "id": 3},
    ]
    batches = [piece.batch for piece in typed.pieces(queue, "total DECIMAL(10,4), name STRING")]
    assert {batch.schema for batch in batches} == {schema_from("total DECIMAL(10,4), name STRING")}


@pytest.mark.conformance("TYP-05")
def test_a_running_query_keeps_its_columns_until_a_value_does_not_fit(world: World) -> None:
    """TYP-05. The error names column, partition, offset and the cure."""
    queue = typed.create(world, partitions=1)
    old = schema_of(queue.head.columns) if queue.head.columns else None
    history(queue)
    head = queue.refresh()

    def upto(end: int) -> list[dict[str, Any]]:
        view = tree.view(head, {0: (0, end)})
        found = RangeReader(queue, head.queue_id, view, payload=old).pieces()
        return [row for piece in found for row in typed.rows_of(piece)]

    assert upto(2) == [
        {"id": 1, "name": "a", "total": Decimal("1.50")},
        {"id": 2, "name": None, "total": None},
    ]
    with pytest.raises(
        Invalid,
        match=r"queue 'orders' .*, partition 0, offset 2, column 'total': 999999\.1234 does not fit DECIMAL\(5,2\), the"
        r" type that this query loaded; the column is DECIMAL\(10,4\) by now: load again",
    ):
        upto(3)


@pytest.mark.parametrize("where", [0, 1])
def test_a_value_that_nobody_asked_for_ends_no_batch(world: World, where: int) -> None:
    queue = typed.create(world, "id INT, n TINYINT", key=None, partitions=1)
    alter_queue(queue, widen="n INT")
    typed.send(queue, [{"n": 300 if where == 0 else 1}, {"n": 1 if where == 0 else 300}])
    head = queue.refresh()
    wanted = schema_from("n TINYINT")
    view = tree.view(head, {0: (1 - where, 2 - where)})
    found = [
        row
        for piece in RangeReader(queue, head.queue_id, view, payload=wanted).pieces()
        for row in typed.rows_of(piece)
    ]
    assert found == [{"n": 1}]
    with pytest.raises(Invalid, match=f"offset {where}, column 'n': 300 does not fit TINYINT"):
        typed.pieces(queue, "n TINYINT")


FITS: list[tuple[str, str, list[Any], Any]] = [
    ("TINYINT", "BIGINT", [127, -128, None], 128),
    ("INT", "BIGINT", [2**31 - 1], 2**31),
    ("FLOAT", "DOUBLE", [0.5, float("inf"), None, float("nan"), -0.0], 0.1),
    ("DECIMAL(3,1)", "DECIMAL(38,1)", [Decimal("99.9"), None], Decimal("100.0")),
    ("DECIMAL(3,1)", "DECIMAL(10,5)", [Decimal("-99.9"), None], Decimal("0.01")),
]


@pytest.mark.parametrize(("narrow", "wide", "fit", "other"), FITS)
def test_what_fits_the_narrower_type_is_read_and_no_other_value(
    world: World, narrow: str, wide: str, fit: list[Any], other: Any
) -> None:
    queue = typed.create(world, f"n {narrow}", key=None, partitions=1)
    typed.send(queue, [{"n": value} for value in fit])
    alter_queue(queue, widen=f"n {wide}")
    typed.send(queue, [{"n": value} for value in fit])
    assert repr([row["n"] for row in typed.read_flat(queue, f"n {narrow}")]) == repr([*fit, *fit])
    typed.send(queue, [{"n": value} for value in [*fit, other, *fit]])
    with pytest.raises(Invalid, match=f"offset {3 * len(fit)}, column 'n': .* does not fit"):
        typed.read_flat(queue, f"n {narrow}")
    assert len(typed.read_flat(queue)) == 4 * len(fit) + 1


ASKED: list[tuple[str, str]] = [
    ("missing INT", "column 'missing' is none of the queue's: name some of id, total, deep"),
    ("id INT, ID INT", "differ in case alone"),
    ("id STRING", "column 'id' is asked for as STRING, it is BIGINT (before that INT): ask for that"),
    ("total DECIMAL(4,2)", "column 'total' is asked for as DECIMAL(4,2), it is DECIMAL(5,2): ask for that"),
    ("total DECIMAL(5,2) NOT NULL", "column 'total' is asked for as NOT NULL, it may be null"),
    ("deep STRUCT<a: INT NOT NULL, b: INT NOT NULL>", "column 'deep' is asked for as STRUCT"),
    ("deep STRUCT<b: INT, a: INT>", "column 'deep' is asked for as STRUCT"),
]


@pytest.mark.parametrize(("ddl", "message"), ASKED)
def test_columns_that_a_reader_cannot_have_are_refused(ddl: str, message: str) -> None:
    columns = columns_of(schema_from("id INT NOT NULL, total DECIMAL(5,2), deep STRUCT<a: INT NOT NULL, b: INT>"))
    with pytest.raises(Invalid) as refused:
        chosen_columns(with_widened(columns, "id BIGINT"), schema_from(ddl))
    assert message in str(refused.value)


def test_what_may_not_be_null_may_be_asked_for_as_what_may(world: World) -> None:
    ddl = "id INT NOT NULL, deep ARRAY<STRUCT<a: INT NOT NULL, m: MAP<STRING, STRUCT<b: INT NOT NULL>>>>"
    queue = typed.create(world, ddl)
    rows = [{"id": n, "deep": [{"a": n, "m": [("k", {"b": 1})]}, None, {"a": 2, "m": None}]} for n in range(9)]
    rows.append({"id": 9, "deep": None})
    typed.send(queue, rows)
    wanted = "id INT, deep ARRAY<STRUCT<a: INT, m: MAP<STRING, STRUCT<b: INT>>>>"
    found = typed.pieces(queue, wanted)
    assert {piece.batch.schema for piece in found} == {schema_from(wanted)}
    for piece in found:
        piece.batch.validate(full=True)
    assert sorted((row for piece in found for row in typed.rows_of(piece)), key=lambda row: int(row["id"])) == rows
    head = queue.refresh()
    for partition, end in enumerate(head.next):  # also of a part of a slice
        view = tree.view(head, {partition: (end // 2, end)})
        for piece in RangeReader(queue, head.queue_id, view, payload=schema_from(wanted)).pieces():
            assert typed.rows_of(piece) == typed.read(queue)[partition][end // 2 :]


# --- publishers -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-05")
def test_what_was_staged_for_a_former_version_is_published(world: World) -> None:
    """TYP-05."""
    queue = typed.create(world, partitions=1)
    stage = stage_of(queue.refresh())
    made = typed.staged(queue, stage, [{"id": 1}])
    other = world.handle()
    alter_queue(other, add_columns="coupon STRING", widen="id BIGINT")
    typed.send(other, [{"id": 2**40, "coupon": "c"}])
    publish(queue, stage, made, PublishIdentity.of_query("q", 1))
    assert [entry.schema_version for entry in queue.head.entries] == [3, 1]
    assert [(row["id"], row["coupon"]) for row in typed.read_flat(queue)] == [(2**40, "c"), (1, None)]


def test_what_was_staged_for_another_queue_of_this_name_is_refused(world: World) -> None:
    queue = typed.create(world)
    stage = stage_of(queue.refresh())
    made = typed.staged(queue, stage, [{"id": 1}])
    delete_queue(queue)
    typed.create(world, "id STRING")
    with pytest.raises(Invalid, match="was deleted and created again"):
        publish(world.handle(), stage, made)


def test_what_was_staged_for_columns_that_the_head_does_not_know_is_refused(world: World) -> None:
    queue = typed.create(world)
    older = queue.refresh()
    alter_queue(queue, add_columns="b INT")
    stage = stage_of(queue.refresh())
    with pytest.raises(Outdated, match=r"staged for version 2 of its columns, its head knows 1 .*: publish them again"):
        check_version(stage, older)
    with pytest.raises(Outdated, match="head knows 0"):
        check_version(stage, Head.created("d", "orders", "i", 1, config=older.config, now_us=1))
    check_version(stage_of(older), queue.head)
    check_version(untyped_stage(), older)


def test_an_entry_of_another_kind_than_the_queue_is_named(world: World) -> None:
    queue = typed.create(world)
    typed.send(queue, [{"id": 1}])
    head = queue.refresh()
    entry = head.entries[0]
    view = tree.LogView(wanted=everything(head), chunks=(), entries=(entry,))
    with pytest.raises(Corrupt, match="entry 2 of the log is of a typed queue, the head is not"):
        list(RangeReader(queue, head.queue_id, view).pieces())
    later = tree.view(head, everything(head))
    later = tree.LogView(
        wanted=later.wanted, chunks=(), entries=(structs.replace(entry, schema_version=2),), columns=head.columns
    )
    with pytest.raises(Corrupt, match="version 2 of a queue's columns was asked for, its head has 1"):
        list(RangeReader(queue, head.queue_id, later).pieces())


def test_a_queue_that_is_created_twice_keeps_its_first_columns(world: World) -> None:
    typed.create(world)
    columns = columns_of(schema_from("a INT"))
    with pytest.raises(Invalid, match="exists already"):
        create_queue(world.store, "default", "orders", 4, None, world.clock.effects(), columns=columns)
    assert world.handle().refresh().columns == columns_of(schema_from(typed.DDL), "id")


# --- compaction and time ----------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-06")
def test_slices_of_all_versions_become_one_of_the_newest(world: World) -> None:
    """TYP-06."""
    queue = typed.create(world, partitions=1)
    times = []
    for number in range(60):
        world.clock.now_us += SECOND_US
        times.append(world.clock.now_us)
        if number == 20:
            alter_queue(queue, add_columns="coupon STRING")
        if number == 40:
            alter_queue(queue, widen="id BIGINT, total DECIMAL(6,3)")
        typed.send(queue, [{"id": number, "name": f"{number}", "total": Decimal(1), "coupon": "c"}])
    before = typed.read_flat(queue)
    old = typed.read_flat(queue, "id INT, total DECIMAL(5,2)")
    view_before = tree.view(queue.refresh(), everything(queue.head))
    typed.compact_all(world, queue)
    head = queue.refresh()
    entries = list(tree.walk(tree.view(head, everything(head)), queue.load_chunk))
    assert len(entries) == 1
    assert entries[0].schema_version == 3
    assert typed.read_flat(queue) == before
    assert typed.read_flat(queue, "id INT, total DECIMAL(5,2)") == old
    assert [t for piece in typed.pieces(queue) for t in piece.times_us()] == times
    assert [row for piece in typed.pieces(queue, view=view_before) for row in typed.rows_of(piece)] == before
    assert queue.offsets_at(times[30]) == (30,)
    assert oldest_us(queue, head, {0: (45, 60)}) == times[45]


def test_a_reader_whose_plan_knows_fewer_versions_goes_on_after_compaction(world: World) -> None:
    """What was planned is gone; the present head leads to slices of a version that the plan does not know."""
    queue = typed.create(world, partitions=1)
    for number in range(60):
        typed.send(queue, [{"id": number}])
    head = queue.refresh()
    reader = RangeReader(world.handle(), head.queue_id, tree.view(head, everything(head)))
    other = world.handle()
    alter_queue(other, add_columns="coupon STRING", widen="id BIGINT")
    typed.send(other, [{"id": 60}])
    gone = {queue.segment_folder + name for entry in head.entries for name in entry.segments} | {
        item.name for item in world.store.list(queue.segment_folder)
    }
    typed.compact_all(world, queue)
    present = world.handle().refresh()
    kept = {
        queue.segment_folder + name
        for entry in tree.walk(tree.view(present, everything(present)), queue.load_chunk)
        for name in entry.segments
    }
    for name in gone - kept:
        world.store.delete(name)
    rows = [row for piece in reader.pieces() for row in typed.rows_of(piece)]
    assert rows == [{"id": number, "name": None, "total": None} for number in range(60)]
