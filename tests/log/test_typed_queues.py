"""Typed queues: heads that name the columns, which software of before refuses by name; which bytes lie where; what
readers of other versions see (TYP-01, TYP-05 to TYP-08).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import JsonDocument
from partq_spark.log import codec, housekeeping, tree
from partq_spark.log.admin import Namespace, alter_queue, create_queue, delete_queue, remove_remains, subscribe
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import Outdated, check_version, plan_topic, stage_of
from partq_spark.log.fanout import Fan, publish_all
from partq_spark.log.groups import create_group
from partq_spark.log.model import FORMAT, Head
from partq_spark.log.names import LogSizes
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import check_stages, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.schema.columns import Column, Columns
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of, with_added
from partq_spark.log.segment import HEADERS, read_slice
from partq_spark.log.settings import QueueConfig
from partq_spark.objects import open_store
from tests.log import typed
from tests.log.queues import (
    GRACE_US,
    World,
    document_of,
    empty_head,
    everything,
    read_flat,
    rounds,
    send,
    unread,
    values,
)
from tests.log.test_codec import HEAD, HEADS, TYPED, sealed

SECOND_US = 1_000_000


# --- columns, and formats ---------------------------------------------------------------------------------------------


def test_what_was_written_before_there_were_typed_queues_is_read_and_written_as_ever() -> None:
    raw, body = json.loads(codec.HEAD.seal(TYPED))["head"], HEADS.raw
    assert (raw["format"], raw["columns"]["columns"][0]["former"]) == (2, [["INT", 1]])
    assert (body["format"], body["columns"]) == (1, None)
    assert "schema_version" not in body["entries"][0]
    del body["columns"]
    assert codec.HEAD.open(sealed("head", json.dumps(body).encode()), "here") == HEAD


def test_types_that_no_queue_has_are_refused_when_they_are_used() -> None:
    ids = Column(name="id", type="INT")
    for kind in ("FOO", "ARRAY<", ""):
        with pytest.raises(Corrupt, match="the head has columns that no queue can have"):
            schema_of(Columns(columns=(Column(name="id", type=kind),)))
    with pytest.raises(Corrupt, match="differ in case alone"):
        schema_of(Columns(columns=(ids, structs.replace(ids, name="ID"))))


def stored(world: World, queue: str) -> tuple[bytes, dict[str, int]]:
    """The queue's head, and what else there is of it, with its bytes."""
    objects = {each.name: each.size_bytes for each in world.store.list(f"default/{queue}/")}
    return document_of(world.store, world.handle(queue).head_name), objects


REFUSED: dict[str, Callable[[QueueLog], object]] = {
    "look": lambda queue: queue.look(),
    "publish": lambda queue: send(queue, values(1)),
    "trim": lambda queue: housekeeping.trim(queue, [3]),
    "compact": compact,
    "collect": housekeeping.collect,
    "alter": lambda queue: alter_queue(queue, partitions=2),
    "group": lambda queue: create_group(queue, "billing", [0]),
    "subscribe": lambda queue: subscribe(queue, "orders/>"),
    "create": lambda queue: create_queue(queue.store, "default", queue.name, 1),
    "delete": delete_queue,
    "remove remains": remove_remains,
}


@pytest.mark.conformance("TYP-08")
def test_software_that_knows_no_columns_harms_neither_a_typed_queue_nor_an_untyped_one_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does to a typed queue is refused and changes nothing that is stored, be it due for collection; the
    queue beside it is published to, read and kept house for.
    """
    world.sizes = LogSizes(inline_entries=4)  # so that a few entries can be compacted
    plain, rows = world.create(1), typed.create(world, name="rows", partitions=1)
    typed.staged(rows, stage_of(rows.refresh()), [{"id": 99}])  # never published: what collection deletes
    for number in range(20):
        send(plain, values(number))
        typed.send(rows, [{"id": number}])
    before = stored(world, "rows")

    with monkeypatch.context() as patched:
        former = JsonDocument("head", Head, format_number=FORMAT, repair="", upgrade="install it", other_format=Invalid)
        patched.setattr(codec, "HEAD", former)
        send(world.handle(), values(20))
        typed.compact_all(world, plain)
        assert sum(each.deleted for each in rounds(world, 3)) > 0
        assert housekeeping.trim(world.handle(), [5]).earliest == (5,)
        assert read_flat(world.handle()) == [b"%d" % number for number in range(5, 21)]
        world.clock.now_us += GRACE_US
        for name, act in REFUSED.items():
            with pytest.raises(Invalid, match=r"rows/_head\.json has format 2, this partq reads format 1: install it"):
                act(world.handle("rows"))
            assert stored(world, "rows") == before, name
        found = Namespace(world.store, "default")
        assert ([queue.name for queue in found.queues(to_publish=False)], [*found.problems]) == (["orders"], ["rows"])
        with pytest.raises(Invalid, match=r"format 2.* What queue 'rows' attracts cannot be known"):
            list(Namespace(world.store, "default").queues())

    assert typed.read_flat(rows) == [{"id": number, "name": None, "total": None} for number in range(20)]
    assert sum(each.deleted for each in rounds(world, 3, rows)) > 0, "which was due"
    assert read_flat(plain) == [b"%d" % number for number in range(5, 21)]


def test_the_columns_of_a_head_are_bounded(world: World) -> None:
    long = "x" * 259
    queue = typed.create(world, ", ".join(f"{long}{number} STRING" for number in range(900)), key=None)
    with pytest.raises(
        Invalid, match=r"would take \d+ bytes of its head, .* at most 262144 are allowed: create another"
    ):
        alter_queue(queue, add_columns=", ".join(f"b{number} STRING" for number in range(100)))
    assert len(document_of(world.store, queue.head_name)) < 300_000
    last = Columns(columns=(Column(name="id", type="INT"),), version=10_000)
    with pytest.raises(Invalid, match="were altered 9999 times, and no more is possible: create another queue"):
        with_added(last, "b INT")


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
    publish(queue, made)
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


@pytest.mark.conformance("TYP-06")
def test_a_topic_reaches_queues_of_other_orders_of_columns_and_each_places_by_its_own_key(world: World) -> None:
    orders = {"one": ("id INT, name STRING", "id"), "two": ("name STRING, id INT", "name")}
    queues = {key: typed.create(world, ddl, key, 2, name) for name, (ddl, key) in orders.items()}
    for queue in queues.values():
        subscribe(queue, "eu/>")
    # So many that neither the other key nor rows without one could lie alike by chance.
    given_rows = pa.RecordBatch.from_pylist(
        [{"id": number, "name": f"n{number}"} for number in range(20)],
        schema=pa.schema([("id", pa.int32()), ("name", pa.string())]),
    )
    plan = plan_topic(Namespace(world.store, "default").queues(), "eu/de", None)
    with Fan(world.store, plan, seed="s", given=given_rows.schema) as fan:
        fan.add(given_rows)
        staged, _ = fan.finish()
    publish_all(world.handle, [staged], None, seed="s")
    for key, queue in queues.items():
        found = typed.read(queue)
        assert sorted((row for mine in found.values() for row in mine), key=lambda row: row["id"]) == (
            given_rows.to_pylist()
        )
        for partition, mine in found.items():
            assert {partition_of(str(row[key]).encode(), 2) for row in mine} == {partition}
    assert [*typed.read_flat(queues["name"])[0]] == ["name", "id"], "each has them in its own order"


# --- versions ---------------------------------------------------------------------------------------------------------


FITS: list[tuple[str, str, list[Any], Any]] = [
    ("TINYINT", "BIGINT", [127, -128, None], 128),
    ("INT", "BIGINT", [2**31 - 1], 2**31),
    ("FLOAT", "DOUBLE", [0.5, float("inf"), None, float("nan"), -0.0], 0.1),
    ("DECIMAL(3,1)", "DECIMAL(38,1)", [Decimal("99.9"), None], Decimal("100.0")),
    ("DECIMAL(3,1)", "DECIMAL(10,5)", [Decimal("-99.9"), None], Decimal("0.01")),
]


@pytest.mark.parametrize(("narrow", "wide", "fit", "other"), FITS)
def test_what_fits_the_narrower_type_is_read_and_another_value_is_named_where_it_was_asked_for(
    world: World, narrow: str, wide: str, fit: list[Any], other: Any
) -> None:
    queue = typed.create(world, f"n {narrow}", key=None, partitions=1)
    typed.send(queue, [{"n": value} for value in fit])
    alter_queue(queue, widen=f"n {wide}")
    typed.send(queue, [{"n": value} for value in fit])
    assert repr([row["n"] for row in typed.read_flat(queue, f"n {narrow}")]) == repr([*fit, *fit])
    at = 3 * len(fit)
    typed.send(queue, [{"n": value} for value in [*fit, other, *fit]])
    with pytest.raises(Invalid, match=rf"offset {at}, column 'n': .* does not fit {re.escape(narrow)}"):
        typed.read_flat(queue, f"n {narrow}")
    assert len(typed.read_flat(queue)) == 4 * len(fit) + 1
    for start, end in ((0, at), (at + 1, at + 1 + len(fit))):  # in one slice with it, on either side
        view = tree.view(queue.head, {0: (start, end)})
        rows = [row for piece in typed.pieces(queue, f"n {narrow}", view) for row in typed.rows_of(piece)]
        assert repr([row["n"] for row in rows]) == repr((fit * 3)[start:] if start < at else fit)


def test_what_was_staged_for_columns_that_the_head_does_not_know_is_refused(world: World) -> None:
    queue = typed.create(world)
    older = queue.refresh()
    alter_queue(queue, add_columns="b INT")
    stage = stage_of(queue.refresh())
    with pytest.raises(Outdated, match=r"staged for version 2 of its columns, its head knows 1 .*: publish them again"):
        check_stages([unread(queue.head, {})], older)
    with pytest.raises(Outdated, match="head knows 0"):
        check_version(stage, empty_head(1))
    check_version(stage_of(older), queue.head)
    check_version(stage_of(empty_head(1)), older)


def test_a_plan_that_does_not_know_the_newest_columns_reads_what_was_compacted_to_them(world: World) -> None:
    queue = typed.create(world, partitions=1)
    for number in range(20):
        typed.send(queue, [{"id": number}])
    before, head = typed.read_flat(queue), queue.refresh()
    early = RangeReader(world.handle(), head.queue_id, tree.view(head, everything(head)))
    alter_queue(queue, widen="id BIGINT", add_columns="coupon STRING")
    for number in range(20):
        typed.send(queue, [{"id": number}])
    typed.compact_all(world, queue)
    (entry,) = tree.walk(tree.view(queue.refresh(), everything(queue.head)), queue.load_chunk)
    for item in [*world.store.list(queue.segment_folder)]:  # as if they were collected
        if item.name.removeprefix(queue.segment_folder) not in entry.segments:
            world.store.delete(item.name)
    assert [row for piece in early.pieces() for row in typed.rows_of(piece)] == before


def test_only_the_columns_that_the_reader_takes_are_decoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as in the whole, which tests of queries show."""
    queue, found = typed.create(world, "a INT, b STRING, c INT", key="a", partitions=1), list[list[str]]()
    for added in ("d INT", "e INT"):
        stage = stage_of(queue.refresh())
        publish(queue, typed.staged(queue, stage, [{"a": 1}], headers=[None]))
        alter_queue(queue, add_columns=added)

    def noted(*given: Any, **more: Any) -> pa.RecordBatch:
        batch = read_slice(*given, **more)
        found.append(batch.schema.names)
        return batch

    monkeypatch.setattr("partq_spark.log.reading.read_slice", noted)
    view = tree.view(queue.refresh(), everything(queue.head))
    for wanted, only in (("c INT, a INT", ()), ("d INT", ("_headers", "_timestamp")), ("b STRING", None)):
        assert (
            len(list(RangeReader(queue, queue.head.queue_id, view, payload=schema_from(wanted), only=only).pieces()))
            == 2
        )
    assert found == [["a", "c"], ["a", "c"], ["_headers"], ["d", "_headers"], ["b", "_headers"], ["b", "_headers"]]


# --- what it costs ----------------------------------------------------------------------------------------------------


STAGES = """
import sys
from pathlib import Path
import pyarrow as pa
from partq_spark.log.queue import shared_store
from partq_spark.log.destinations import plan_queue
from partq_spark.log.fanout import Fan
from partq_spark.log.queue import QueueLog
batch = pa.ipc.open_stream(Path(sys.argv[2]).read_bytes()).read_next_batch()
queue = QueueLog(shared_store(sys.argv[1], 60.0), "default", "orders")
with Fan(queue.store, plan_queue(queue), seed="q/7/0", given=batch.schema) as fan:
    fan.add(batch)
    (staged,), _ = fan.finish()
print(staged.rows, "partq_spark.log.schema.conform" in sys.modules, "pandas" in sys.modules)
"""


def test_tasks_that_publish_import_no_pandas(tmp_path: Path) -> None:
    """It costs every worker of Spark's 0.2 s and 30 MB. With and without keys, and a batch of which each message's
    bytes are counted.
    """
    store = open_store(f"file:{tmp_path}", retry_timeout_s=60.0)
    columns = columns_of(schema_from("id INT, at TIMESTAMP, total DECIMAL(5,2), deep MAP<STRING, ARRAY<INT>>"), "id")
    create_queue(store, "default", "orders", 8, QueueConfig(max_message_bytes=200), columns=columns)
    row = {"id": 7, "at": datetime.now(UTC), "total": Decimal("1.50"), "deep": [("k", [1, 2])]}
    batch = pa.RecordBatch.from_pylist([row, {**row, "id": None}] * 2_000, schema=schema_of(columns))
    with pa.ipc.new_stream(tmp_path / "rows", batch.schema) as stream:
        stream.write_batch(batch)
    command = [sys.executable, "-c", STAGES, store.url, str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["4000", "True", "False"]
