"""A typed queue's head: it names the columns, software of before refuses it by name, and altering it loses no value
(TYP-05, TYP-06, TYP-08).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.base.json_documents import JsonDocument, checksum
from partq_spark.log import codec, housekeeping
from partq_spark.log.admin import (
    alter_queue,
    create_group,
    create_queue,
    delete_queue,
    list_queues,
    remove_remains,
)
from partq_spark.log.compaction import compact
from partq_spark.log.model import FORMAT, Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Column, Columns, FormerType
from partq_spark.log.schema.versions import check_same, columns_of, schema_from, schema_of, with_added, with_widened
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.log.subscriptions import Namespace, subscribe
from tests.log import typed
from tests.log.queues import BEGIN_US, GRACE_US, World, document_of, empty_head, read_flat, rounds, send, values
from tests.log.test_codec_types import ENTRY, HEAD, check, check_each_is_refused, mutated, use_head
from tests.support.way import Hooked

COLUMNS = with_added(
    with_widened(columns_of(schema_from("id INT NOT NULL, `a name` STRING"), "id"), "id BIGINT"), "tags ARRAY<STRING>"
)
TYPED = replace(HEAD, columns=COLUMNS, entries=(structs.replace(ENTRY, schema_version=2),))


def sealed(body: bytes) -> bytes:
    return b'{"xxh3":"' + checksum(body).encode() + b'","head":' + body + b"}"


# --- the document -----------------------------------------------------------------------------------------------------


def test_a_head_keeps_the_columns_and_what_each_entry_was_written_with() -> None:
    assert codec.decode_head(codec.encode_head(TYPED), "here") == TYPED
    raw = json.loads(codec.encode_head(TYPED))["head"]
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
    body = json.loads(codec.encode_head(HEAD))["head"]
    assert body["format"] == 1
    assert "schema_version" not in body["entries"][0]
    del body["columns"]  # as it was written before there were typed queues
    assert codec.decode_head(sealed(json.dumps(body).encode()), "here") == HEAD


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


@pytest.mark.parametrize(("columns", "number"), [(None, 2), (COLUMNS, 1)])
def test_a_head_whose_format_is_not_that_of_its_fields_is_refused(columns: Columns | None, number: int) -> None:
    head = TYPED if columns is not None else HEAD
    body = codec.encode_head(head)
    changed = json.dumps({**json.loads(body)["head"], "format": number}, separators=(",", ":")).encode()
    with pytest.raises(Corrupt, match=f"not the fields of format {number}: they are those of format {3 - number}"):
        codec.decode_head(sealed(changed), "here")


@pytest.mark.parametrize(("columns", "version"), [(COLUMNS, None), (COLUMNS, 4), (None, 1)])
def test_an_entry_of_columns_that_the_queue_does_not_have_is_refused(
    columns: Columns | None, version: int | None
) -> None:
    head = replace(HEAD, columns=columns, entries=(structs.replace(ENTRY, schema_version=version),))
    with pytest.raises(Corrupt, match=f"entry 2 has version {version or 0} of the queue's columns"):
        codec.decode_head(codec.encode_head(head), "here")


ID = Column(name="id", type="INT")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Columns(columns=(ID, ID)), "two columns have one name"),
        (lambda: Columns(columns=(ID,), key="name"), "the key column 'name' is none of the columns"),
        (lambda: Columns(columns=(structs.replace(ID, since=2),)), "the versions of column 'id' do not rise up to 1"),
        (lambda: Columns(columns=(structs.replace(ID, former=(FormerType("INT", 1),)),)), "do not rise up to 1"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(make: Callable[[], Columns], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_head_says_of_columns_in_another_way_is_refused() -> None:
    body = json.loads(codec.encode_head(TYPED))["head"]
    check((sealed(json.dumps(each).encode()) for each in mutated(body)), use_head, "here")
    check_each_is_refused(body, lambda document: codec.decode_head(sealed(document), "here"))


def test_types_that_no_queue_has_are_refused_when_they_are_used() -> None:
    for kind in ("FOO", "ARRAY<", ""):
        with pytest.raises(Corrupt, match="the head has columns that no queue can have"):
            schema_of(Columns(columns=(Column(name="id", type=kind),)))
    with pytest.raises(Corrupt, match="differ in case alone"):
        schema_of(Columns(columns=(ID, structs.replace(ID, name="ID"))))


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


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize("change", [{"add_columns": "a INT"}, {"widen": "a BIGINT"}])
def test_an_untyped_queue_stays_so(world: World, change: Any) -> None:
    queue = world.create()
    document = document_of(world.store, queue.head_name)
    with pytest.raises(Invalid, match=r"queue 'orders' is untyped, its messages are key and value: .* create another"):
        alter_queue(queue, **change)
    assert document_of(world.store, queue.head_name) == document


PRESENT = columns_of(schema_from("id INT NOT NULL, name STRING, weight FLOAT"), "id")


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize(
    ("wanted", "key", "message"),
    [
        (
            "id INT NOT NULL, weight FLOAT",
            "id",
            "column 'name' of queue 'orders' cannot be dropped or get another name",
        ),
        (
            "id INT NOT NULL, title STRING, weight FLOAT",
            "id",
            "column 'name' of queue 'orders' cannot be dropped or get",
        ),
        (
            "id INT NOT NULL, NAME STRING, weight FLOAT",
            "id",
            "column 'name' of queue 'orders' cannot be dropped or get",
        ),
        ("id BIGINT NOT NULL, name STRING, weight FLOAT", "id", "with `partq queue alter orders --widen 'id BIGINT'`"),
        ("id INT, name STRING, weight FLOAT", "id", "INT NOT NULL, and naming a schema does not make it id INT: "),
        ("id DATE NOT NULL, name STRING, weight FLOAT", "id", "whole numbers may become wider ones, TINYINT"),
        (
            "id INT NOT NULL, name STRING, weight FLOAT, b DATE",
            "id",
            "has no column 'b': add it with `partq queue alter",
        ),
        ("id INT NOT NULL, name STRING, weight FLOAT", "name", "has key column id, not name: it decides in which"),
        ("id INT NOT NULL, name STRING, weight FLOAT", None, "has key column id, not none"),
        (None, None, "queue 'orders' is typed, its messages are rows, and it cannot become untyped"),
    ],
)
def test_another_schema_is_refused_in_words(wanted: str | None, key: str | None, message: str) -> None:
    columns = None if wanted is None else columns_of(schema_from(wanted), key)
    with pytest.raises(Invalid) as refused:
        check_same(PRESENT, columns, "orders")
    assert message in str(refused.value)


def test_the_same_schema_is_no_change() -> None:
    check_same(PRESENT, columns_of(schema_from("weight FLOAT, id INT NOT NULL, name STRING"), "ID"), "orders")
    check_same(
        with_widened(PRESENT, "weight DOUBLE"),
        columns_of(schema_from("id INT NOT NULL, name STRING, weight DOUBLE"), "id"),
        "orders",
    )
    check_same(None, None, "orders")
    with pytest.raises(Invalid, match="untyped, its messages are key and value, and it cannot become typed"):
        check_same(None, PRESENT, "orders")


def test_a_change_whose_answer_was_lost_is_made_once(world: World) -> None:
    queue = typed.create(world)
    hooked = Hooked(world.store)
    lost = iter([True])

    def lose(kind: str, name: str) -> None:
        if kind == "swap" and next(lost, False):
            raise Unavailable("the answer was lost")

    hooked.after = lose
    altering = world.handle(store=hooked)
    head = alter_queue(altering, add_columns="coupon STRING", widen="id BIGINT")
    assert head.columns is not None
    assert head.columns.version == 3
    assert queue.refresh() == head


def test_two_who_add_different_columns_both_do(world: World) -> None:
    queue, other = typed.create(world), world.handle()
    other.refresh()
    alter_queue(queue, add_columns="a INT")
    head = alter_queue(other, add_columns="b INT")
    assert head.columns is not None
    assert head.columns.names == ("id", "name", "total", "a", "b")
    with pytest.raises(Invalid, match="column 'a' cannot be added: there is 'a' of type INT"):
        alter_queue(other, add_columns="a INT")


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


def test_an_untyped_queue_writes_no_word_of_columns(world: World) -> None:
    queue = world.create()
    send(queue, [("a", b"1")])
    document = json.loads(document_of(world.store, queue.head_name))["head"]
    assert document["format"] == 1
    assert document["columns"] is None
    assert Head.created("n", "q", "i", 1, config=empty_head(1).config, now_us=BEGIN_US).columns is None
