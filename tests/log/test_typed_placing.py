"""Rows of typed queues that are placed again for another partition count, or go to several queues by a topic."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log.admin import alter_queue
from partq_spark.log.destinations import FanPlan, plan_queue, plan_topic, plan_topics
from partq_spark.log.fanout import Fan, QueueOutcome, StagedFor, publish_all
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import PublishIdentity, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.schema.versions import schema_from
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.staged import Staged, stage_of
from partq_spark.log.subscriptions import Namespace, subscribe
from tests.log import typed
from tests.log.queues import World, batch_of, send

IDENTITY = PublishIdentity.of_query("query", 1)


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"{number}", "total": Decimal(number)} for number in range(first, end)]


def by_id(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["id"]))


# --- another partition count, other columns ---------------------------------------------------------------------------


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize("headers", [False, True])
def test_rows_are_placed_again_with_the_present_columns(world: World, headers: bool) -> None:
    queue = typed.create(world, partitions=3)
    stage = stage_of(queue.refresh())
    some = [[{"key": "h", "value": b"%d" % number}] for number in range(50)] if headers else None
    made = typed.staged(queue, stage, rows(0, 50), headers=some)
    other = world.handle()
    alter_queue(
        other, partitions=5, add_columns="coupon STRING", widen="id BIGINT, total DECIMAL(9,3)", max_message_bytes=1
    )
    publish_tasks(queue, [Staged(stage, made[0])], IDENTITY, seed="q/1")
    entry = queue.head.entries[-1]
    assert (entry.schema_version, entry.generation, entry.headers) == (3, 1, headers)
    found = typed.read(queue)
    assert by_id([row for mine in found.values() for row in mine]) == [{**row, "coupon": None} for row in rows(0, 50)]
    for partition, mine in found.items():
        assert {partition_of(b"%d" % row["id"], 5) for row in mine} == {partition}
    if headers:
        seen = {
            row["id"]: each
            for piece in typed.pieces(queue)
            if piece.headers is not None
            for row, each in zip(typed.rows_of(piece), piece.headers.to_pylist(), strict=True)
        }
        assert seen == {number: [{"key": "h", "value": b"%d" % number}] for number in range(50)}


def test_tasks_that_saw_different_columns_are_published_together(world: World) -> None:
    queue = typed.create(world, partitions=3)
    first = stage_of(queue.refresh())
    one = typed.staged(queue, first, rows(0, 20), seed="q/1/0")
    alter_queue(queue, add_columns="coupon STRING")
    second = stage_of(queue.refresh())
    two = typed.staged(queue, second, [{**row, "coupon": "c"} for row in rows(20, 40)], seed="q/1/1")
    done = publish_tasks(queue, [Staged(first, one[0]), Staged(second, two[0])], IDENTITY, seed="q/1")
    assert done.rows == 40
    assert len(queue.head.entries) == 1
    assert queue.head.entries[0].schema_version == 2
    coupons = [row["coupon"] for row in by_id(typed.read_flat(queue))]
    assert coupons == [None] * 20 + ["c"] * 20
    again = publish_tasks(queue, [Staged(first, one[0]), Staged(second, two[0])], IDENTITY, seed="q/1")
    assert again.duplicate


@pytest.mark.conformance("TYP-05")
def test_tasks_of_one_former_version_are_published_as_they_are(world: World) -> None:
    queue = typed.create(world, partitions=3)
    stage = stage_of(queue.refresh())
    tasks = [Staged(stage, typed.staged(queue, stage, rows(n, n + 5), seed=f"{n}")[0]) for n in (0, 5)]
    alter_queue(world.handle(), widen="id BIGINT")
    publish_tasks(queue, tasks, IDENTITY, seed="q/1")
    entry = queue.head.entries[-1]
    assert entry.schema_version == 1
    assert entry.segments == tuple(task.segment.name for task in tasks), "nothing was written anew"


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_queue(
    world: World, name: str, *topics: str, schema: str | None = typed.DDL, key: str | None = "id"
) -> QueueLog:
    queue = world.create(2, name) if schema is None else typed.create(world, schema, key, 2, name)
    if topics:
        subscribe(queue, *topics)
    return queue


def plan_of(world: World, topic: str | None = None, named: str | None = None) -> FanPlan:
    queues = Namespace(world.store, "default").queues()
    queue = world.handle(named) if named else None
    return plan_topics("default", queues, queue) if topic is None else plan_topic("default", queues, topic, queue)


def fan_out(
    world: World,
    plan: FanPlan,
    given: pa.RecordBatch,
    topics: Sequence[str | None] | None = None,
    *,
    headers: Sequence[Any] | None = None,
) -> list[StagedFor]:
    """One task."""
    schema = given.schema
    if headers is not None:
        given = given.append_column("_headers", pa.array(headers, HEADERS))
    with Fan(world.store, plan, seed="s", headers=headers is not None, given=schema) as fan:
        fan.add(given, None if topics is None else pa.array(topics, pa.string()))
        staged, _ = fan.finish()
    return staged


def published(world: World, tasks: Sequence[Sequence[StagedFor]]) -> list[QueueOutcome]:
    return publish_all(world.handle, tasks, IDENTITY, seed="s")


def table(ddl: str, *values: tuple[Any, ...]) -> pa.RecordBatch:
    schema = schema_from(ddl)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*values, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def test_rows_in_any_order_of_columns_become_the_queues(world: World) -> None:
    queue = typed.create(world, "id BIGINT NOT NULL, name STRING, tags ARRAY<STRING>", partitions=1)
    given = table("NAME STRING, id INT", ("a", 1), (None, 2))
    heads = [[{"key": "h", "value": b"1"}], None]
    published(world, [fan_out(world, plan_queue(queue), given, headers=heads)])
    assert typed.read_flat(queue) == [{"id": 1, "name": "a", "tags": None}, {"id": 2, "name": None, "tags": None}]
    assert [piece.headers.to_pylist() for piece in typed.pieces(queue) if piece.headers is not None] == [heads]


REFUSED: list[tuple[str, list[tuple[Any, ...]], str]] = [
    ("name STRING", [("a",)], "queue 'orders' cannot take these rows: column 'id' (INT NOT NULL) is missing"),
    ("id INT, b INT", [(1, 1)], "queue 'orders' cannot take these rows: column 'b' (INT) is none of the queue's"),
    ("id BIGINT", [(1,)], "cannot take these rows: column 'id' has type BIGINT, the queue's is INT"),
    ("id INT", [(1,), (None,)], "row 1, column 'id': null, where the queue's schema says NOT NULL"),
    ("key STRING, value BINARY", [("a", b"b")], "queue 'orders' cannot take these rows: column 'key' (STRING) is none"),
]


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize(("ddl", "values", "message"), REFUSED)
def test_rows_that_do_not_fit_are_refused_before_anything_is_staged(
    world: World, ddl: str, values: list[tuple[Any, ...]], message: str
) -> None:
    queue = typed.create(world)
    with pytest.raises(Invalid) as refused:
        fan_out(world, plan_queue(queue), table(ddl, *values))
    assert message in str(refused.value)
    assert not list(world.store.list("default/orders/_segments/"))


def test_keys_and_values_go_to_no_typed_queue_and_rows_to_no_untyped_one(world: World) -> None:
    queue, plain = typed.create(world), world.create(name="plain")
    with (
        pytest.raises(Invalid, match=r"queue 'orders' \(id INT .*\) cannot take messages that are keys and values"),
        Fan(world.store, plan_queue(queue), seed="s") as fan,
    ):
        fan.add(batch_of([("a", b"1")]))
    message = r"queue 'plain' \(untyped: key and value\) cannot take messages that are rows \(id\)"
    with pytest.raises(Invalid, match=message):
        fan_out(world, plan_queue(plain), table("id INT", (1,)))
    with pytest.raises(Invalid, match=message):
        plan_queue(plain).check(schema_from("id INT"))
    plan_queue(plain).check(None)
    send(plain, [("a", b"1")])


@pytest.mark.conformance("TYP-06")
def test_a_topic_reaches_queues_whose_columns_stand_in_another_order(world: World) -> None:
    """Each has them in its own order, and its own key."""
    one = topic_queue(world, "one", "eu/>", schema="id INT, name STRING", key="id")
    two = topic_queue(world, "two", "eu/*", schema="name STRING, id INT", key="name")
    plan = plan_of(world, "eu/de")
    given = table("id INT, name STRING", (1, "a"), (2, "b"))
    plan.check(given.schema)
    published(world, [fan_out(world, plan, given)])
    assert by_id(typed.read_flat(one)) == by_id(typed.read_flat(two)) == given.to_pylist()
    assert [*typed.read_flat(two)[0]] == ["name", "id"]
    for partition, mine in typed.read(two).items():
        assert {partition_of(row["name"].encode(), 2) for row in mine} == {partition}


@pytest.mark.parametrize("other", ["id INT, name STRING, b INT", "id BIGINT, name STRING", None])
def test_a_topic_that_attracts_queues_of_different_columns_is_refused_with_both(
    world: World, other: str | None
) -> None:
    topic_queue(world, "one", "eu/>", schema="id INT, name STRING")
    topic_queue(world, "two", "eu/*", schema=other, key=None)
    given = table("id INT, name STRING", (1, "a"))
    plan = plan_of(world, "eu/de")
    both = r"one batch would go to queue 'one' \(id INT, name STRING\) and to queue 'two' \(.*\), which do not have"
    with pytest.raises(Invalid, match=both):
        plan.check(given.schema)
    with pytest.raises(Invalid, match=both):
        fan_out(world, plan, given)


def test_each_row_goes_where_its_topic_says_and_only_queues_that_get_some_must_be_alike(world: World) -> None:
    named = topic_queue(world, "named", schema="id INT, name STRING")
    eu = topic_queue(world, "eu", "eu/>", schema="name STRING, id INT", key="name")
    us = topic_queue(world, "us", "us/>", schema="id INT, name STRING, zip STRING", key=None)
    given = table("id INT, name STRING", *((n, f"{n}") for n in range(6)))
    plan = plan_of(world, named="named")
    plan.check(given.schema)
    published(world, [fan_out(world, plan, given, ["eu/a", None, "no", "eu/b", None, "eu/a"])])
    assert [row["id"] for row in by_id(typed.read_flat(named))] == [1, 4]
    assert [row["id"] for row in by_id(typed.read_flat(eu))] == [0, 3, 5]
    both = r"one batch would go to queue 'eu' .* and to queue 'us'"
    with pytest.raises(Invalid, match=both):
        fan_out(world, plan, given, ["eu/a", "us/a", "no", "no", "no", "no"])
    # Each task sees its own part of the batch: then it is refused before anything of it is published.
    tasks = [fan_out(world, plan, given, [topic] * 6) for topic in ("eu/a", "us/a")]
    before = eu.refresh().sequence
    with pytest.raises(Invalid, match=both):
        published(world, tasks)
    assert eu.refresh().sequence == before
    published(world, tasks[1:])
    assert [row["zip"] for row in typed.read_flat(us)] == [None] * 6


def test_a_batch_that_no_queue_takes_is_refused_before_it_is_staged(world: World) -> None:
    topic_queue(world, "eu", "eu/>", schema="id INT")
    topic_queue(world, "plain", "us/>", schema=None)
    plan = plan_of(world)
    plan.check(schema_from("id TINYINT"))
    plan.check(None)
    with pytest.raises(Invalid, match=r"queue 'eu' cannot take these rows: column 'b' .INT. is none of the queue's"):
        plan.check(schema_from("id INT, b INT"))


def test_a_bad_row_is_named_by_its_number_wherever_it_goes(world: World) -> None:
    topic_queue(world, "eu", "eu/>", schema="id STRING, n INT NOT NULL")
    plan = plan_of(world)
    given = table("id STRING, n INT", ("a", 1), ("x" * 256, 1), ("b", None))
    with pytest.raises(Invalid, match="row 2, column 'n': null"):
        fan_out(world, plan, given, ["eu/a", "no", "eu/a"])
    with pytest.raises(Invalid, match="the key of row 1 has 256 bytes"):
        fan_out(world, plan, given.slice(0, 2), ["no", "eu/a"])


def test_publishing_alone_needs_tasks_that_staged_alike(world: World) -> None:
    queue = typed.create(world)
    stage = stage_of(queue.refresh())
    made = typed.staged(queue, stage, rows(0, 3)) + typed.staged(queue, stage, rows(3, 6), headers=[None] * 3)
    with pytest.raises(Invalid, match=r"some of the messages .* with headers and some without"):
        publish(queue, stage, made)
