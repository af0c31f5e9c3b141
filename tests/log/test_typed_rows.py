"""Rows of typed queues from staging to reading: which bytes lie where, and what readers of other versions see (TYP-01,
TYP-02, TYP-05, TYP-06, TYP-07).
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log import tree
from partq_spark.log.admin import alter_queue, create_queue
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import plan_topics
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.publish import Outdated, check_stage, check_version, publish
from partq_spark.log.publish_times import oldest_us
from partq_spark.log.reading import RangeReader
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of
from partq_spark.log.segment import read_slice
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.staged import stage_of
from partq_spark.log.subscriptions import subscribe
from partq_spark.objects import open_store
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


# --- versions ---------------------------------------------------------------------------------------------------------


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


def test_what_was_staged_for_columns_that_the_head_does_not_know_is_refused(world: World) -> None:
    queue = typed.create(world)
    older = queue.refresh()
    alter_queue(queue, add_columns="b INT")
    stage = stage_of(queue.refresh())
    with pytest.raises(Outdated, match=r"staged for version 2 of its columns, its head knows 1 .*: publish them again"):
        check_stage(stage, older)
    with pytest.raises(Outdated, match="head knows 0"):
        check_version(stage, Head.created("d", "orders", "i", 1, config=older.config, now_us=1))
    check_version(stage_of(older), queue.head)
    check_version(untyped_stage(), older)


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


# --- columns on request -----------------------------------------------------------------------------------------------


def test_only_the_columns_that_the_reader_takes_are_decoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = typed.create(world, "a INT, b STRING, c INT", partitions=1, key="a")
    stage = stage_of(queue.refresh())
    heads = [[{"key": "h", "value": b"1"}]]
    publish(queue, stage, typed.staged(queue, stage, [{"a": 1, "b": "x", "c": 2}], headers=heads))
    alter_queue(queue, add_columns="d INT")
    stage = stage_of(queue.refresh())
    publish(queue, stage, typed.staged(queue, stage, [{"a": 3, "b": "y", "c": 4, "d": 5}], headers=heads))
    decoded: list[list[str]] = []

    def noted(*given: Any, **more: Any) -> pa.RecordBatch:
        batch = read_slice(*given, **more)
        decoded.append(batch.schema.names)
        return batch

    monkeypatch.setattr("partq_spark.log.reading.read_slice", noted)
    head = queue.refresh()

    def seen(ddl: str | None, only: tuple[str, ...] | None) -> tuple[list[list[str]], list[dict[str, Any]], list[bool]]:
        decoded.clear()
        payload = pa.schema([]) if ddl is None else schema_from(ddl)
        view = tree.view(head, everything(head))
        found = list(RangeReader(queue, head.queue_id, view, payload=payload, only=only).pieces())
        assert [piece.batch.num_rows for piece in found] == [1, 1]
        return (
            [*decoded],
            [row for piece in found for row in typed.rows_of(piece)],
            [bool(each.headers) for each in found],
        )

    assert seen("c INT, a INT", ()) == ([["a", "c"]] * 2, [{"c": 2, "a": 1}, {"c": 4, "a": 3}], [False, False])
    assert seen("d INT", ()) == ([[], ["d"]], [{"d": None}, {"d": 5}], [False, False])
    assert seen("a INT", ("_headers", "_timestamp")) == ([["a", "_headers"]] * 2, [{"a": 1}, {"a": 3}], [True, True])
    assert seen(None, ("_headers",))[0] == [["_headers"], ["_headers"]]
    assert seen(None, ())[0] == [[], []]
    assert seen("b STRING", None)[0] == [["b", "_headers"]] * 2


# --- what it costs ----------------------------------------------------------------------------------------------------


STAGES = """
import pickle, sys
from pathlib import Path
from partq_spark.log.connect import shared_store
from partq_spark.log.fanout import Fan
plan, batch, topics = pickle.loads(Path({plan!r}).read_bytes())
with Fan(shared_store({store!r}, 60.0), plan, seed="q/7/0", given=batch.schema) as fan:
    fan.add(batch, topics)
    (staged,), unattracted = fan.finish()
assert (staged.segment.rows, unattracted.messages) == (3_999, 1)
print(*sys.modules)
"""


def test_tasks_that_publish_import_no_pandas(tmp_path: Path) -> None:
    """It costs every worker of Spark's 0.2 s and 30 MB. With and without keys, and a batch of which each message's
    bytes are counted.
    """
    store = open_store(f"file:{tmp_path}", retry_timeout_s=60.0)
    columns = columns_of(schema_from("id INT, at TIMESTAMP, total DECIMAL(5,2), deep MAP<STRING, ARRAY<INT>>"), "id")
    queue = create_queue(store, "default", "orders", 8, QueueConfig(max_message_bytes=200), columns=columns)
    subscribe(queue, "orders/>")
    row = {"id": 7, "at": datetime.now(UTC), "total": Decimal("1.50"), "deep": [("k", [1, 2])]}
    batch = pa.RecordBatch.from_pylist([row, {**row, "id": None}] * 2_000, schema=schema_of(columns))
    topics = pa.array([*["orders/new"] * 3_999, "else"])
    plan = tmp_path / "plan"
    plan.write_bytes(pickle.dumps((plan_topics("default", [queue]), batch, topics)))
    code = STAGES.format(plan=str(plan), store=store.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "partq_spark.log.schema.conform" in done.stdout
    assert "pandas" not in done.stdout.split()
