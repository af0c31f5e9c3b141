"""Typed queues: heads that name the columns, which software of before refuses by name; and random columns and values on
their whole way: published as other forms of Arrow's, altered, placed again, compacted and read (TYP-02, TYP-05, TYP-06,
TYP-08).
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import JsonDocument
from partq_spark.log import codec, housekeeping, tree
from partq_spark.log.admin import alter_queue, create_group, create_queue, delete_queue, list_queues, remove_remains
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import plan_queue, plan_topic
from partq_spark.log.fanout import Fan, StagedFor, publish_all
from partq_spark.log.model import FORMAT, Head
from partq_spark.log.partitioner import partition_of
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.schema.columns import Column, Columns, FormerType, name_text
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.keys import texts_of
from partq_spark.log.schema.types import KEY_TYPES
from partq_spark.log.schema.versions import columns_of, schema_of, with_added
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.log.subscriptions import Namespace, subscribe
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.local import LocalStore
from partq_spark.objects.memory import MemoryStore
from tests.log import typed
from tests.log.queues import GRACE_US, World, document_of, everything, read_flat, rounds, send, values
from tests.log.schema.shapes import batches, same, schemas, types
from tests.log.test_codec import COLUMNS, HEAD, HEADS, KINDS, TYPED, sealed
from tests.support.properties import examples

# --- columns, and formats ---------------------------------------------------------------------------------------------


def test_a_head_keeps_the_columns_and_what_each_entry_was_written_with() -> None:
    raw = KINDS["typed head"].raw
    assert raw["format"] == 2
    assert raw["columns"] == {
        "columns": [
            {"name": "id", "type": "BIGINT", "nullable": False, "former": [["INT", 1]]},
            {"name": "a name", "type": "STRING"},
            {"name": "tags", "type": "ARRAY<STRING>", "since": 3},
        ],
        "key": "id",
        "version": 3,
    }
    assert raw["entries"][0]["schema_version"] == 2
    assert COLUMNS.ddl == "id BIGINT NOT NULL, `a name` STRING, tags ARRAY<STRING>"


@pytest.mark.conformance("TYP-08")
def test_software_that_knows_no_columns_refuses_the_queue_by_name_and_reads_others() -> None:
    former = JsonDocument("head", Head, format_number=FORMAT, repair="", upgrade="install", other_format=Invalid)
    with pytest.raises(Invalid, match=r"default/orders/_head\.json has format 2, this partq reads format 1: install"):
        former.open(codec.encode_head(TYPED), "default/orders/_head.json")
    assert former.open(codec.encode_head(HEAD), "here") == HEAD
    body = HEADS.raw
    assert (body["format"], body["columns"]) == (1, None)
    assert "schema_version" not in body["entries"][0]
    del body["columns"]  # as it was written before there were typed queues
    assert codec.decode_head(sealed("head", json.dumps(body).encode()), "here") == HEAD


def test_types_that_no_queue_has_are_refused_when_they_are_used() -> None:
    ids = Column(name="id", type="INT")
    for kind in ("FOO", "ARRAY<", ""):
        with pytest.raises(Corrupt, match="the head has columns that no queue can have"):
            schema_of(Columns(columns=(Column(name="id", type=kind),)))
    with pytest.raises(Corrupt, match="differ in case alone"):
        schema_of(Columns(columns=(ids, structs.replace(ids, name="ID"))))
    with pytest.raises(ValueError, match="do not rise up to 1"):
        Columns(columns=(structs.replace(ids, former=(FormerType("INT", 1),)),))


# --- the document -----------------------------------------------------------------------------------------------------


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
        patched.setattr(codec, "_HEAD", former)
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
        found = list_queues(world.store, "default")
        assert ({*found.readable}, {*found.problems}) == ({"orders"}, {"rows"})
        with pytest.raises(Invalid, match=r"format 2.* What queue 'rows' attracts cannot be known"):
            list(Namespace(world.store, "default").queues())

    assert typed.read_flat(rows) == [{"id": number, "name": None, "total": None} for number in range(20)]
    assert sum(each.deleted for each in rounds(world, 3, rows)) > 0, "which was due"
    assert read_flat(plain) == [b"%d" % number for number in range(5, 21)]


# --- topics -----------------------------------------------------------------------------------------------------------


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
    plan = plan_topic("default", Namespace(world.store, "default").queues(), "eu/de", None)
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


# --- altering ---------------------------------------------------------------------------------------------------------


def test_columns_come_and_widen_in_one_swap_with_everything_else(world: World) -> None:
    queue = typed.create(world)
    before = queue.head.sequence
    head = alter_queue(queue, add_columns="coupon STRING", widen="id BIGINT", partitions=6, quota_bytes=10)
    assert head.sequence == before + 1
    assert (head.partitions, head.config.quota_bytes) == (6, 10)
    assert head.columns is not None
    assert head.columns.ddl == "id BIGINT NOT NULL, name STRING, total DECIMAL(5,2), coupon STRING"
    assert (head.columns.version, head.columns.key) == (3, "id")
    assert queue.refresh() == head
    assert alter_queue(queue, quota_bytes=10) == head, "nothing to change, nothing written"


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


# --- any columns, any values ------------------------------------------------------------------------------------------


NUMBER = pa.field("row number", pa.int32(), nullable=False)  # no drawn name is as long


SIZES = LogSizes(inline_entries=2, fan_out=2, slice_gain=2)


WIDER = {
    "TINYINT": "SMALLINT",
    "SMALLINT": "BIGINT",
    "INT": "BIGINT",
    "FLOAT": "DOUBLE",
}


@contextmanager
def store_of(kind: str) -> Iterator[ObjectStore]:
    """A store that is gone afterwards."""
    if kind == "memory":
        yield MemoryStore(clock=lambda: 0.0, rng=random.Random(1))
        return
    with tempfile.TemporaryDirectory() as folder:
        yield LocalStore(folder)


def stage(queue: QueueLog, batch: pa.RecordBatch, task: int) -> list[StagedFor]:
    """As a task of a sink does it."""
    with Fan(queue.store, plan_queue(queue), seed=f"q/1/{task}", given=batch.schema) as fan:
        fan.add(batch)
        staged, _ = fan.finish()
    return staged


def read(queue: QueueLog) -> dict[int, dict[str, Any]]:
    """By its number, each row with all columns of today; fails if one is there twice."""
    head = queue.refresh()
    assert head.columns is not None
    found: dict[int, dict[str, Any]] = {}
    for piece in RangeReader(queue, head.queue_id, tree.view(head, everything(head))).pieces():
        piece.batch.validate(full=True)
        rows = piece.batch.select(list(head.columns.names)).to_pylist()
        keys = [None] * len(rows) if head.columns.key is None else texts_of(piece.batch.column(head.columns.key))
        for row, key in zip(rows, keys, strict=True):
            assert row[NUMBER.name] not in found
            found[row[NUMBER.name]] = row
            if key is not None and key.is_valid and head.layout.generation == len(head.layouts) - 1 == 0:
                assert partition_of(key.as_py().encode(), head.partitions) == piece.partition
    return found


def widening(columns: Columns) -> str | None:
    """The DDL of the first column that can get wider, but the row's number."""
    for column in columns.columns:
        if column.type in WIDER and column.name != NUMBER.name:
            return f"{name_text(column.name)} {WIDER[column.type]}"
    return None


def check(queue: QueueLog, expected: Mapping[int, Mapping[str, Any]]) -> None:
    """All rows are there, with null in columns that they were published without."""
    columns = queue.refresh().columns
    assert columns is not None
    wanted = {number: {name: row.get(name) for name in columns.names} for number, row in expected.items()}
    assert same(read(queue), wanted)


@pytest.mark.conformance("TYP-02")
@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=pytest.mark.slow)])
@examples(40, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
@given(data=st.data())
def test_rows_come_back_as_they_were_given(kind: str, data: st.DataObject) -> None:
    schema = data.draw(schemas()).append(NUMBER)
    keys = [field.name for field in schema if field.type in KEY_TYPES and not pa.types.is_binary(field.type)]
    key = data.draw(st.sampled_from([None, *keys]))
    with store_of(kind) as store:
        create_queue(store, "default", "orders", 3, columns=columns_of(schema, key))
        queue = QueueLog(store, "default", "orders", sizes=SIZES)
        expected: dict[int, dict[str, Any]] = {}
        for publish in range(data.draw(st.integers(2, 8))):
            tasks = []
            for task in range(data.draw(st.integers(1, 2))):
                batch = numbered(data, queue, len(expected))
                tasks.append(stage(queue, batch, task))
                expected.update({row[NUMBER.name]: row for row in batch.to_pylist()})
                alter(data, queue.another(), publish)
            if any(tasks):
                publish_all(lambda _: queue, tasks, None, seed="q/1")
        check(queue, expected)
        while compact(queue, min_age_s=0.0) is not None:
            pass
        check(queue, expected)


def numbered(data: st.DataObject, queue: QueueLog, first: int) -> pa.RecordBatch:
    """Rows for the queue's columns of today, numbered on from `first`."""
    columns = queue.refresh().columns
    assert columns is not None
    schema = schema_of(columns)
    place = schema.get_field_index(NUMBER.name)
    batch = data.draw(batches(schema))
    key = schema.get_field_index(columns.key or "")
    if key >= 0 and schema.field(key).type == pa.string():  # a key has 255 bytes at most
        batch = batch.set_column(key, schema.field(key), pc.utf8_slice_codeunits(batch.column(key), 0, 60))
    return batch.set_column(place, NUMBER, pa.array(range(first, first + batch.num_rows), pa.int32()))


def alter(data: st.DataObject, queue: QueueLog, number: int) -> None:
    """By somebody else, while what was staged is not published yet."""
    what = data.draw(st.sampled_from(["nothing", "nothing", "add", "widen", "resize"]))
    columns = queue.refresh().columns
    assert columns is not None
    if what == "add" and columns.column(f"added {number}") is None:
        alter_queue(queue, add_columns=f"`added {number}` {type_text(data.draw(types()))}")
    elif what == "widen" and (ddl := widening(columns)) is not None:
        alter_queue(queue, widen=ddl)
    elif what == "resize":
        alter_queue(queue, partitions=data.draw(st.integers(1, 5)))
