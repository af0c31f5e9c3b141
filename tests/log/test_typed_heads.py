"""A typed queue's head: it names the columns, software of before refuses it by name, and altering it loses no value
(TYP-05, TYP-06, TYP-08).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import JsonDocument
from partq_spark.log import codec, housekeeping
from partq_spark.log.admin import alter_queue, create_group, create_queue, delete_queue, list_queues, remove_remains
from partq_spark.log.compaction import compact
from partq_spark.log.model import (
    FORMAT,
    Head,
)
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Column, Columns, FormerType
from partq_spark.log.schema.versions import schema_of, with_added
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.log.subscriptions import Namespace, subscribe
from tests.log import typed
from tests.log.queues import GRACE_US, World, document_of, read_flat, rounds, send, values
from tests.log.test_codec import COLUMNS, HEAD, HEADS, KINDS, TYPED, sealed

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


ID = Column(name="id", type="INT")


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
    last = Columns(columns=(ID,), version=10_000)
    with pytest.raises(Invalid, match="were altered 9999 times, and no more is possible: create another queue"):
        with_added(last, "b INT")
