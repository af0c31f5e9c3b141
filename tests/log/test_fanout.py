"""Where the messages of one batch go, how tasks stage them, and what becomes of it when it is cut off, repeated, or
meets queues that have changed meanwhile. Real queues, in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
from partq_spark.log.model import QueueConfig
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.subscriptions import Namespace, subscribe, unsubscribe
from partq_spark.log.topics import matches
from partq_spark.objects import open_store
from tests.log.queues import World, batch_of, once, read, read_flat, values
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


def test_each_message_goes_to_every_queue_that_attracts_it_in_that_queues_own_partitions(world: World) -> None:
    make(world, archive=[">"], eu=["orders/*/eu"], other=["bills/>"], silent=[])
    messages = [
        Message("orders/new/eu", b"1"),
        Message("orders/new/us", b"2"),
        Message("bills/7", b"3"),
        Message("orders/old/eu", b"4"),
    ]
    staged, missed = stage(world, plan(world), messages)
    assert [each.stage.queue for each in staged[0]] == ["archive", "eu", "other"]
    assert missed == Unattracted()
    outcomes = publish(world, staged)
    assert [(outcome.queue.name, outcome.published and outcome.published.rows) for outcome in outcomes] == [
        ("archive", 4),
        ("eu", 2),
        ("other", 1),
    ]
    assert contents(world) == {"archive": [b"1", b"2", b"3", b"4"], "eu": [b"1", b"4"], "other": [b"3"], "silent": []}


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


def test_messages_without_a_topic_go_to_the_named_queue_which_gets_else_what_it_attracts_itself(world: World) -> None:
    make(world, eu=["*/eu"], rest=["rest/>"])
    messages = [Message(None, b"1"), Message("a/eu", b"2"), Message("rest/x", b"3"), Message(None, b"4")]
    staged, missed = stage(world, plan(world, "rest"), messages)
    publish(world, staged)
    assert contents(world) == {"eu": [b"2"], "rest": [b"1", b"3", b"4"]}
    assert missed.messages == 0


def test_all_messages_may_have_one_topic(world: World) -> None:
    make(world, archive=[">"], eu=["*/eu"], us=["*/us"])
    queues = list(Namespace(world.store, "default").queues())
    decided = destinations.plan_topic("default", queues, "orders/eu")
    assert [(each.stage.queue, each.subscriptions) for each in decided.destinations] == [("archive", ()), ("eu", ())]
    with Fan(world.store, decided, seed="test") as fan:
        fan.add(batch_of(values(1, 2)), pa.array(["orders/us", None]))  # the column does not count
        staged, missed = fan.finish()
    publish(world, [staged])
    assert contents(world) == {"archive": [b"1", b"2"], "eu": [b"1", b"2"], "us": []}
    assert missed.messages == 0


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


# --- cut off, repeated ------------------------------------------------------------------------------------------------

BATCH = [Message("a/1", b"1"), Message("a/2", b"2"), Message("b", b"3")]


def cut_off_between_two_queues(world: World, identity: PublishIdentity | None) -> None:
    """The first queue has the batch when the second one's store is gone for good."""
    make(world, first=["a/*"], second=[">"])
    staged, _ = stage(world, plan(world), BATCH)

    def gone() -> None:
        raise KeyboardInterrupt

    hooked = Hooked(world.store)
    hooked.before = once("swap", "second/_head.json", gone)
    with pytest.raises(KeyboardInterrupt):
        publish(world, staged, identity, lambda name: world.handle(name, hooked))
    assert contents(world) == {"first": [b"1", b"2"], "second": []}


def repeat(world: World, identity: PublishIdentity | None) -> list[QueueOutcome]:
    """As Spark does: planned and staged anew."""
    staged, _ = stage(world, plan(world), BATCH)
    return publish(world, staged, identity)


@pytest.mark.conformance("DIS-09")
def test_a_batch_that_was_cut_off_between_two_queues_is_completed_by_its_repetition(world: World) -> None:
    cut_off_between_two_queues(world, IDENTITY)
    wanted = {"first": [b"1", b"2"], "second": [b"1", b"2", b"3"]}
    assert [done.duplicate for _, done in repeat(world, IDENTITY) if done] == [True, False]
    assert contents(world) == wanted
    assert [done.duplicate for _, done in repeat(world, IDENTITY) if done] == [True, True]
    assert contents(world) == wanted


def test_without_an_identity_in_every_queue_the_repetition_would_be_seen(world: World) -> None:
    """Negative control of the test above."""
    cut_off_between_two_queues(world, None)
    repeat(world, None)
    assert contents(world) == {"first": [b"1", b"2", b"1", b"2"], "second": [b"1", b"2", b"3"]}


def test_a_queue_that_subscribes_before_the_repetition_gets_it_and_one_that_left_keeps_what_it_has(
    world: World,
) -> None:
    cut_off_between_two_queues(world, IDENTITY)
    subscribe(world.create(1, "third"), "b")
    unsubscribe(world.handle("first"), "a/*")
    subscribe(world.handle("first"), "a/2")
    unsubscribe(world.handle("second"), ">")
    repeat(world, IDENTITY)
    assert contents(world) == {"first": [b"1", b"2"], "second": [], "third": [b"3"]}


@pytest.mark.conformance("DIS-10")
def test_a_queue_that_has_the_batch_and_subscribed_to_more_stops_it_before_any_queue_gets_something(
    world: World,
) -> None:
    """What it would get now it did not have then: it is neither dropped nor published without a word."""
    cut_off_between_two_queues(world, IDENTITY)
    subscribe(world.handle("first"), "b")
    with pytest.raises(BatchRefused, match=r"queue 'first'.*batch 3 of writer 'query'.*value=b'3'"):
        repeat(world, IDENTITY)
    assert contents(world) == {"first": [b"1", b"2"], "second": []}
    assert writers.resolve(world.handle("first"), "query", 3, published=True, by="ops@host")
    repeat(world, IDENTITY)
    assert contents(world) == {"first": [b"1", b"2"], "second": [b"1", b"2", b"3"]}


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_of_one_queue_adds_nothing_twice(world: World, landed: bool) -> None:
    make(world, first=["a/*"], second=[">"])
    staged, _ = stage(world, plan(world), BATCH)

    def unavailable() -> None:
        raise Unavailable("the answer was lost (test)")

    hooked = Hooked(world.store)
    if landed:
        hooked.after = once("swap", "first/_head.json", unavailable)
    else:
        hooked.before = once("swap", "first/_head.json", unavailable)
    publish(world, staged, IDENTITY, lambda name: world.handle(name, hooked))
    assert contents(world) == {"first": [b"1", b"2"], "second": [b"1", b"2", b"3"]}


# --- queues that have changed meanwhile -------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_queue_that_was_deleted_meanwhile_attracts_nothing_any_more(
    world: World, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    make(world, first=["a/*"], second=[">"])
    staged, _ = stage(world, plan(world), BATCH)
    delete_queue(world.handle("first"))
    if again:
        subscribe(world.create(1, "first"), "a/*")
    with caplog.at_level(logging.WARNING):
        outcomes = publish(world, staged)
    assert [(each.queue.name, each.published is None) for each in outcomes] == [("first", True), ("second", False)]
    assert "queue 'first'" in caplog.text
    assert "was deleted after it had attracted 2 messages" in caplog.text
    assert contents(world) == {**({"first": []} if again else {}), "second": [b"1", b"2", b"3"]}


def test_a_named_queue_that_was_deleted_meanwhile_is_an_error(world: World) -> None:
    make(world, first=["a/*"], rest=["b"])
    staged, _ = stage(world, plan(world, "rest"), [*BATCH, Message(None, b"4")])
    delete_queue(world.handle("rest"))
    with pytest.raises(Invalid, match=r"queue 'rest' .* (has been deleted|does not exist)"):
        publish(world, staged)


def test_another_refusal_of_an_attracting_queue_is_not_taken_for_its_deletion(world: World) -> None:
    make(world, first=["a/*"], second=[">"])
    staged, _ = stage(world, plan(world), BATCH)
    publish(world, staged, PublishIdentity(writer="query", batch=1, owner="another query"))
    with pytest.raises(Invalid, match="belongs to query another query"):
        publish(world, staged)


def test_a_queue_that_has_another_partition_count_meanwhile_gets_its_messages_placed_for_it(world: World) -> None:
    make(world, first=[">"], second=[">"])
    batch = [Message("a", b"%02d" % number, f"k{number % 7}") for number in range(70)]
    staged, _ = stage(world, plan(world), batch[:35], batch[35:])
    alter_queue(world.handle("second"), partitions=5)
    publish(world, staged)
    for name in ("first", "second"):
        check(world.handle(name), batch)
    assert len(read(world.handle("second"))) > 2


def test_the_memory_of_a_task_is_shared_by_its_queues(world: World) -> None:
    """Each of four has a quarter of what one has, so it writes earlier; but never tiny pieces."""
    make(world, **{f"q{number}": [">"] for number in range(4)})
    batch = [Message("a", b"x" * 1000) for _ in range(100)]

    def pieces(**sizes: Any) -> list[int]:
        staged, _ = stage(world, plan(world), batch, batch_rows=10, run_bytes=100_000, **sizes)
        return [len(each.segment.slices) for each in staged[0] if each.stage.partitions == 1]

    assert pieces() == [1]
    assert pieces(least_run_bytes=1) == [4]


@pytest.mark.azurite
def test_on_azure_too(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the heads of a namespace are read side by side."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    store = open_store(azurite.fresh_url(), retry_timeout_s=10)
    try:
        for number in range(20):
            subscribe(create_queue(store, "default", f"q{number:02}", 2), *([">"] if number % 2 else ["a/*"]))
        namespace = Namespace(store, "default")
        assert [queue.name for queue in namespace.queues()] == [f"q{number:02}" for number in range(20)]
        unsubscribe(QueueLog(store, "default", "q00"), "a/*")
        decided = destinations.plan_topics("default", namespace.queues())
        assert len(decided.destinations) == 19
        with Fan(store, decided, seed="test") as fan:
            fan.add(batch_of(values(1, 2)), pa.array(["a/1", "b"]))
            staged, _ = fan.finish()
        for duplicate in (False, True):
            outcomes = fanout.publish_all(
                lambda name: QueueLog(store, "default", name), [staged], IDENTITY, seed="test"
            )
            assert {done.duplicate for _, done in outcomes if done} == {duplicate}
        assert read_flat(QueueLog(store, "default", "q00")) == []
        for number in range(1, 20):
            assert read_flat(QueueLog(store, "default", f"q{number:02}")) == [b"1", b"2"][: 1 + number % 2]
    finally:
        store.close()
