"""Where the messages of one batch go, how tasks stage them for their queues, and which are refused. Real queues, in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log import destinations, fanout
from partq_spark.log.destinations import FanPlan
from partq_spark.log.fanout import Fan, QueueOutcome, StagedFor, Unattracted
from partq_spark.log.model import QueueConfig
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.versions import schema_from
from partq_spark.log.segment_columns import HEADERS
from partq_spark.log.subscriptions import Namespace, subscribe
from partq_spark.log.topics import matches
from tests.log import typed
from tests.log.queues import World, batch_of, read, read_flat, send
from tests.support.properties import examples

pytestmark = pytest.mark.conformance("DIS-07")


IDENTITY = PublishIdentity(writer="query", batch=3, owner="query")


class Message(NamedTuple):
    topic: str | None
    value: bytes
    key: str | None = "key"


def make(world: World, **subscriptions: Sequence[str]) -> None:
    """Queues by name, each with its subscriptions and a partition count of its own."""
    for number, (name, theirs) in enumerate(subscriptions.items()):
        queue = world.create(number + 1, name)
        subscribe(queue, *theirs)


def plan(world: World, named: str | None = None) -> FanPlan:
    """By topic, with the queue that gets messages without one."""
    queues = Namespace(world.store, "default").queues()
    return destinations.plan_topics("default", queues, world.handle(named) if named else None)


def stage(
    world: World, decided: FanPlan, *tasks: Sequence[Message], batch_rows: int = 1000, **sizes: Any
) -> tuple[list[list[StagedFor]], Unattracted]:
    """Every task's messages, in batches of so many rows; what nobody attracts of all of them."""
    staged, missed = [], []
    for number, messages in enumerate(tasks):
        with Fan(world.store, decided, seed=f"test/{number}", **sizes) as fan:
            for start in range(0, len(messages), batch_rows):
                rows = messages[start : start + batch_rows]
                topics = pa.array([message.topic for message in rows], pa.string())
                fan.add(batch_of([(message.key, message.value) for message in rows]), topics)
            made, nowhere = fan.finish()
        staged.append(made)
        missed.append(nowhere)
    return staged, fanout.unattracted(missed)


def publish(
    world: World,
    staged: Sequence[Sequence[StagedFor]],
    identity: PublishIdentity | None = IDENTITY,
    open_queue: Callable[[str], QueueLog] | None = None,
) -> list[QueueOutcome]:
    return fanout.publish_all(open_queue or world.handle, staged, identity, seed="test")


def contents(world: World) -> dict[str, list[bytes]]:
    """What every queue holds, partition after partition."""
    return {queue.name: read_flat(queue) for queue in Namespace(world.store, "default").queues()}


def objects(world: World) -> list[str]:
    return [item.name for item in world.store.list("default/")]


# --- what goes where --------------------------------------------------------------------------------------------------


SUBSCRIPTIONS = st.sampled_from(["a", "b", "a/*", "*/b", "a/>", ">", "*", "a/b*"])


TOPICS = st.sampled_from(["a", "b", "c", "a/b", "a/bc", "a/b/c", "c/b", None])


@examples(60)
@given(
    st.lists(st.lists(SUBSCRIPTIONS, max_size=3), min_size=1, max_size=4),
    st.lists(st.lists(st.tuples(TOPICS, st.sampled_from(["k", "l", "", None])), max_size=12), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_every_queue_gets_what_it_attracts_once_with_the_order_of_every_key(
    subscriptions: list[list[str]], tasks: list[list[tuple[str | None, str | None]]], batch_rows: int
) -> None:
    world = World()
    make(world, rest=[], **{f"q{number}": theirs for number, theirs in enumerate(subscriptions)})
    batch = [
        [Message(topic, b"%d/%03d" % (task, row), key) for row, (topic, key) in enumerate(rows)]
        for task, rows in enumerate(tasks)
    ]
    staged, missed = stage(world, plan(world, "rest"), *batch, batch_rows=batch_rows)
    publish(world, staged)
    every = [message for rows in batch for message in rows]
    wanted = {f"q{number}": theirs for number, theirs in enumerate(subscriptions)}
    for name, theirs in wanted.items():
        mine = [m for m in every if m.topic is not None and any(matches(each, m.topic) for each in theirs)]
        check(world.handle(name), mine)
    check(world.handle("rest"), [message for message in every if message.topic is None])
    attracted = {each for theirs in wanted.values() for each in theirs}
    nowhere = [m for m in every if m.topic is not None and not any(matches(each, m.topic) for each in attracted)]
    assert missed == Unattracted(len(nowhere), tuple(sorted({m.topic for m in nowhere if m.topic is not None})[:6]))


def check(queue: QueueLog, messages: Sequence[Message]) -> None:
    """The queue holds these messages, once each; those of a key in one partition and in order."""
    found = read(queue)
    assert sorted(value for mine in found.values() for value in mine) == sorted(m.value for m in messages)
    for key in {message.key for message in messages if message.key is not None}:
        theirs = [message.value for message in messages if message.key == key]
        assert [value for mine in found.values() for value in mine if value in theirs] == theirs
        assert sum(bool(set(theirs) & set(mine)) for mine in found.values()) == 1


def test_a_named_queue_must_exist(world: World) -> None:
    make(world, eu=[">"])
    nowhere = world.handle("nowhere")
    ways: list[Callable[[], FanPlan]] = [
        lambda: destinations.plan_queue(nowhere),
        lambda: destinations.plan_topics("default", [], nowhere),
        lambda: destinations.plan_topic("default", [], "a", nowhere),
    ]
    for decide in ways:
        with pytest.raises(Invalid, match=r"'nowhere' .* does not exist"):
            decide()


def test_what_nobody_attracts_is_counted_with_some_of_its_topics(world: World) -> None:
    make(world, eu=["eu"])
    tasks = [[Message(f"{task}/{n}", b"x") for n in range(4)] + [Message("eu", b"x")] for task in range(2)]
    staged, missed = stage(world, plan(world), *tasks)
    assert missed == Unattracted(8, ("0/0", "0/1", "0/2", "0/3", "1/0", "1/1"))
    assert fanout.said(missed, "default") == (
        "8 messages with topics that no queue of namespace 'default' attracts ('0/0', '0/1', '0/2', '0/3', '1/0', …)"
    )
    assert [len(each) for each in staged] == [1, 1]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Message(None, b"x"), "row 4 has no topic (null), and no queue was named"),
        (Message("a/*", b"x"), "row 4 cannot be published: topic 'a/*' is not allowed: level 2 ('*') holds '*'"),
        (Message("a//b", b"x"), "row 4 cannot be published: topic 'a//b' is not allowed: level 2 is empty"),
        (Message("", b"x"), "row 4 cannot be published: topic '' is not allowed"),
        (Message("eu", b"x", "k" * 256), "the key of row 4 has 256 bytes"),
        (Message("nobody/attracts/it", b"x", "k" * 256), "the key of row 4 has 256 bytes"),
        (Message("eu", b"x" * 101), "the message of row 4 has 104 bytes (key, value and headers), queue 'small'"),
    ],
)
def test_a_message_that_cannot_be_published_is_named_by_its_row_and_nothing_is_left(
    world: World, bad: Message, said: str
) -> None:
    """Whether or not others of its batch went to that queue, and whatever others take."""
    make(world, archive=["us"])
    subscribe(world.create(1, "small", QueueConfig(max_message_bytes=100)), "eu")
    before = objects(world)
    messages = [Message("us", b"0"), Message("eu", b"1"), Message("us", b"2"), Message("us", b"3"), bad]
    for batch_rows in (2, 5):
        with pytest.raises(Invalid) as caught:
            stage(world, plan(world), messages, batch_rows=batch_rows)
        assert said in str(caught.value)
        assert objects(world) == before


# --- queues that have changed meanwhile -------------------------------------------------------------------------------


def test_the_memory_of_a_task_is_shared_by_its_queues(world: World) -> None:
    """Each of four has a quarter of what one has, so it writes earlier; but never tiny pieces."""
    make(world, **{f"q{number}": [">"] for number in range(4)})
    batch = [Message("a", b"x" * 1000) for _ in range(100)]

    def pieces(**sizes: Any) -> list[int]:
        staged, _ = stage(world, plan(world), batch, batch_rows=10, run_bytes=100_000, **sizes)
        return [len(each.segment.slices) for each in staged[0] if each.stage.partitions == 1]

    assert pieces() == [1]
    assert pieces(least_run_bytes=1) == [4]


# --- rows of typed queues ---------------------------------------------------------------------------------------------


def by_id(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: int(row["id"]))


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
    return (
        destinations.plan_topics("default", queues, queue)
        if topic is None
        else destinations.plan_topic("default", queues, topic, queue)
    )


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
    return fanout.publish_all(world.handle, tasks, IDENTITY, seed="s")


def table(ddl: str, *values: tuple[Any, ...]) -> pa.RecordBatch:
    schema = schema_from(ddl)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*values, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def test_keys_and_values_go_to_no_typed_queue_and_rows_to_no_untyped_one(world: World) -> None:
    queue, plain = typed.create(world), world.create(name="plain")
    with (
        pytest.raises(Invalid, match=r"queue 'orders' \(id INT .*\) cannot take messages that are keys and values"),
        Fan(world.store, destinations.plan_queue(queue), seed="s") as fan,
    ):
        fan.add(batch_of([("a", b"1")]))
    message = r"queue 'plain' \(untyped: key and value\) cannot take messages that are rows \(id\)"
    with pytest.raises(Invalid, match=message):
        fan_out(world, destinations.plan_queue(plain), table("id INT", (1,)))
    with pytest.raises(Invalid, match=message):
        destinations.plan_queue(plain).check(schema_from("id INT"))
    destinations.plan_queue(plain).check(None)
    send(plain, [("a", b"1")])


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
