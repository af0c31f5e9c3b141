"""Where the messages of one batch go, how tasks stage them for their queues, and what becomes of it when one of them
refuses it, when it is cut off or repeated, or meets queues that have changed meanwhile. Real queues, in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log import destinations, fanout, writers
from partq_spark.log.admin import alter_queue, create_queue, delete_queue
from partq_spark.log.destinations import FanPlan
from partq_spark.log.fanout import Fan, QueueOutcome, StagedFor, Unattracted
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.publish import Full, Outdated, PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.subscriptions import Namespace, subscribe
from partq_spark.log.topics import matches
from partq_spark.objects import open_store
from tests.log.queues import World, batch_of, floor, head_of, once, read, read_flat
from tests.support.properties import examples
from tests.support.servers import Azurite
from tests.support.way import Hooked

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


# --- refused by one queue of several ----------------------------------------------------------------------------------


BATCH = [Message("a/1", b"1"), Message("b", b"2")]


NOTHING: dict[str, list[bytes]] = {"first": [], "second": []}


@pytest.fixture
def two_queues() -> World:
    made = World()
    make(made, first=["a/*"], second=[">"])
    return made


def through(two_queues: World, hooked: Hooked) -> Callable[[str], QueueLog]:
    return lambda name: two_queues.handle(name, hooked)


def unavailable() -> None:
    raise Unavailable("the store is away (test)")


# --- before anything is published -------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [None, IDENTITY])
def test_a_full_queue_refuses_the_batch_before_any_other_has_it(
    two_queues: World, identity: PublishIdentity | None
) -> None:
    publish(two_queues, stage(two_queues, plan(two_queues), [Message("b", b"0")])[0], None)
    alter_queue(two_queues.handle("second"), quota_bytes=1)
    staged, _ = stage(two_queues, plan(two_queues), BATCH)
    with pytest.raises(Full, match=r"queue 'second' .* is full") as refused:
        publish(two_queues, staged, identity)
    assert "had been published" not in str(refused.value)
    assert contents(two_queues) == {"first": [], "second": [b"0"]}


def test_what_one_queue_was_staged_for_too_long_ago_goes_to_none(two_queues: World) -> None:
    staged, _ = stage(two_queues, plan(two_queues), BATCH)

    def collected(head: Head) -> Head:
        return replace(head, sequence=head.sequence + 1, floor=floor(head.sequence + 1))

    two_queues.handle("second").change(collected)
    with pytest.raises(Outdated, match="queue 'second' were staged at"):
        publish(two_queues, staged)
    assert contents(two_queues) == NOTHING


def test_a_named_queue_that_was_deleted_is_noticed_before_any_other_has_the_batch(two_queues: World) -> None:
    staged, _ = stage(two_queues, plan(two_queues, "second"), BATCH)
    delete_queue(two_queues.handle("second"))
    with pytest.raises(Invalid, match="queue 'second'"):
        publish(two_queues, staged)
    assert contents(two_queues) == {"first": []}


# --- between two queues -----------------------------------------------------------------------------------------------


def away_for_the_second(two_queues: World) -> Callable[[str], QueueLog]:
    def hook(kind: str, name: str) -> None:
        if kind == "swap" and name.endswith("second/_head.json"):
            unavailable()

    hooked = Hooked(two_queues.store)
    hooked.before = hook
    return through(two_queues, hooked)


def test_without_an_identity_the_error_says_who_has_the_batch_and_that_repeating_doubles_it(two_queues: World) -> None:
    staged, _ = stage(two_queues, plan(two_queues), BATCH)
    with pytest.raises(Unavailable, match=r"the store is away") as stopped:
        publish(two_queues, staged, None, away_for_the_second(two_queues))
    sequence = head_of(two_queues.store, "first").sequence
    said = str(stopped.value)
    assert f"had been published to 'first' (sequence {sequence}) before, not to 'second': it has no identity" in said
    for part in ("would double it", "txnAppId and txnVersion", "--publish-id"):
        assert part in said
    assert contents(two_queues) == {"first": [b"1"], "second": []}


@pytest.mark.conformance("DIS-09")
def test_with_an_identity_the_error_says_that_repeating_completes_it_and_so_it_is(two_queues: World) -> None:
    staged, _ = stage(two_queues, plan(two_queues), BATCH)
    with pytest.raises(Unavailable, match=r"not to 'second': repeat it under the same identity") as stopped:
        publish(two_queues, staged, IDENTITY, away_for_the_second(two_queues))
    assert "double" not in str(stopped.value)
    publish(two_queues, stage(two_queues, plan(two_queues), BATCH)[0])
    assert contents(two_queues) == {"first": [b"1"], "second": [b"1", b"2"]}


# --- cut off, repeated ------------------------------------------------------------------------------------------------


THREE = [Message("a/1", b"1"), Message("a/2", b"2"), Message("b", b"3")]


def cut_off_between_two_queues(two_queues: World, identity: PublishIdentity | None) -> None:
    """The first queue has the batch when the second one's store is gone for good."""
    staged, _ = stage(two_queues, plan(two_queues), THREE)

    def gone() -> None:
        raise KeyboardInterrupt

    hooked = Hooked(two_queues.store)
    hooked.before = once("swap", "second/_head.json", gone)
    with pytest.raises(KeyboardInterrupt):
        publish(two_queues, staged, identity, lambda name: two_queues.handle(name, hooked))
    assert contents(two_queues) == {"first": [b"1", b"2"], "second": []}


def repeat(two_queues: World, identity: PublishIdentity | None) -> list[QueueOutcome]:
    """As Spark does: planned and staged anew."""
    staged, _ = stage(two_queues, plan(two_queues), THREE)
    return publish(two_queues, staged, identity)


@pytest.mark.conformance("DIS-10")
def test_a_queue_that_has_the_batch_and_subscribed_to_more_stops_it_before_any_queue_gets_something(
    two_queues: World,
) -> None:
    """What it would get now it did not have then: it is neither dropped nor published without a word."""
    cut_off_between_two_queues(two_queues, IDENTITY)
    subscribe(two_queues.handle("first"), "b")
    with pytest.raises(BatchRefused, match=r"queue 'first'.*batch 3 of writer 'query'.*value=b'3'"):
        repeat(two_queues, IDENTITY)
    assert contents(two_queues) == {"first": [b"1", b"2"], "second": []}
    assert writers.resolve(two_queues.handle("first"), "query", 3, published=True, by="ops@host")
    repeat(two_queues, IDENTITY)
    assert contents(two_queues) == {"first": [b"1", b"2"], "second": [b"1", b"2", b"3"]}


# --- queues that have changed meanwhile -------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_queue_that_was_deleted_meanwhile_attracts_nothing_any_more(
    two_queues: World, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    staged, _ = stage(two_queues, plan(two_queues), THREE)
    delete_queue(two_queues.handle("first"))
    if again:
        subscribe(two_queues.create(1, "first"), "a/*")
    with caplog.at_level(logging.WARNING):
        outcomes = publish(two_queues, staged)
    assert [(each.queue.name, each.published is None) for each in outcomes] == [("first", True), ("second", False)]
    assert "queue 'first'" in caplog.text
    assert "was deleted after it had attracted 2 messages" in caplog.text
    assert contents(two_queues) == {**({"first": []} if again else {}), "second": [b"1", b"2", b"3"]}


def test_another_refusal_of_an_attracting_queue_is_not_taken_for_its_deletion(two_queues: World) -> None:
    staged, _ = stage(two_queues, plan(two_queues), THREE)
    publish(two_queues, staged, PublishIdentity(writer="query", batch=1, owner="another query"))
    with pytest.raises(Invalid, match="belongs to query another query"):
        publish(two_queues, staged)


@pytest.mark.azurite
def test_on_azure_too_every_queue_gets_it_once_or_none_does(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the heads of a namespace are read side by side."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    store = open_store(azurite.fresh_url(), retry_timeout_s=10)

    def publish_twice(batch: int) -> None:
        with Fan(store, destinations.plan_topics("default", Namespace(store, "default").queues()), seed="test") as fan:
            fan.add(batch_of([(row.key, row.value) for row in BATCH]), pa.array([row.topic for row in BATCH]))
            staged, _ = fan.finish()
        for duplicate in (False, True):
            identity, opened = replace(IDENTITY, batch=batch), partial(QueueLog, store, "default")
            done = fanout.publish_all(opened, [staged], identity, seed="test")
            assert {each.duplicate for _, each in done if each} == {duplicate}

    def found() -> list[list[bytes]]:
        return [read_flat(queue) for queue in Namespace(store, "default").queues()]

    try:
        for name, topic in (("all", ">"), ("some", "a/*")):
            subscribe(create_queue(store, "default", name, 2), topic)
        publish_twice(3)
        assert found() == [[b"1", b"2"], [b"1"]]
        alter_queue(QueueLog(store, "default", "some"), quota_bytes=1)
        with pytest.raises(Full, match=r"queue 'some' .* is full"):
            publish_twice(4)
        assert found() == [[b"1", b"2"], [b"1"]]
    finally:
        store.close()
