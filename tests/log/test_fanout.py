"""Where the messages of one batch go, how tasks stage them for their queues, and what becomes of it when one of them
refuses it, when it is cut off or repeated, or meets queues that have changed meanwhile. Real queues, in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log import destinations, fanout, writers
from partq_spark.log.admin import Namespace, alter_queue, delete_queue, subscribe, unsubscribe
from partq_spark.log.destinations import FanPlan, Outdated, StagedSegment, matches
from partq_spark.log.fanout import Fan, QueueOutcome, Unattracted
from partq_spark.log.publish import Full
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.settings import QueueConfig
from partq_spark.log.writers import PublishIdentity
from tests.log.queues import World, batch_of, head_of, lost, raise_floor, read, read_flat
from tests.support.properties import examples
from tests.support.way import Hooked

pytestmark = pytest.mark.conformance("DIS-07")


Opener = Callable[[str], QueueLog]
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
    return destinations.plan_topics(queues, world.handle(named) if named else None)


def stage(
    world: World, decided: FanPlan, *tasks: Sequence[Message], batch_rows: int = 1000, **sizes: Any
) -> tuple[list[list[StagedSegment]], Unattracted]:
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
    staged: Sequence[Sequence[StagedSegment]],
    identity: PublishIdentity | None = IDENTITY,
    open_queue: Opener | None = None,
) -> list[QueueOutcome]:
    return fanout.publish_all(open_queue or world.handle, staged, identity, seed="test")


def contents(world: World) -> dict[str, list[bytes]]:
    """What every queue holds, partition after partition."""
    return {queue.name: read_flat(queue) for queue in Namespace(world.store, "default").queues()}


# --- what goes where --------------------------------------------------------------------------------------------------


SUBSCRIPTIONS = st.sampled_from(["a", "b", "a/*", "*/b", "a/>", ">", "*", "a/b*"])
TOPICS = st.sampled_from(["a", "b", "c", "a/b", "a/bc", "a/b/c", "c/b", None])


@examples(60)
@given(
    st.lists(st.lists(SUBSCRIPTIONS, max_size=3), min_size=2, max_size=5),
    st.lists(st.lists(st.tuples(TOPICS, st.sampled_from(["k", "l", "", None])), max_size=12), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_every_queue_gets_what_it_attracts_once_with_the_order_of_every_key(
    subscriptions: list[list[str]], tasks: list[list[tuple[str | None, str | None]]], batch_rows: int
) -> None:
    """The named one also what has no topic."""
    world = World()
    wanted = {f"q{number}": theirs for number, theirs in enumerate(subscriptions)}
    make(world, **wanted)
    batch = [
        [Message(topic, b"%d/%03d" % (task, row), key) for row, (topic, key) in enumerate(rows)]
        for task, rows in enumerate(tasks)
    ]
    staged, missed = stage(world, plan(world, "q0"), *batch, batch_rows=batch_rows)
    publish(world, staged)
    every = [message for rows in batch for message in rows]
    nowhere = [message for message in every if message.topic is not None]
    for name, theirs in wanted.items():
        mine = [m for m in every if (name == "q0" if m.topic is None else any(matches(t, m.topic) for t in theirs))]
        nowhere = [message for message in nowhere if message not in mine]
        found = read(world.handle(name))
        assert sorted(value for part in found.values() for value in part) == sorted(m.value for m in mine)
        for key in {message.key for message in mine if message.key is not None}:
            of_key = [message.value for message in mine if message.key == key]
            assert [value for part in found.values() for value in part if value in of_key] == of_key
            assert sum(bool({*of_key} & {*part}) for part in found.values()) == 1
    assert missed == Unattracted(len(nowhere), tuple(sorted({m.topic for m in nowhere if m.topic is not None})[:6]))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (Message(None, b"x"), "row 4 has no topic (null), and no queue was named"),
        (Message("a/*", b"x"), "row 4 cannot be published: topic 'a/*' is not allowed: level 2 ('*') holds '*'"),
        (Message("eu", b"x", "k" * 256), "the key of row 4 has 256 bytes"),
        (Message("nobody/attracts/it", b"x", "k" * 256), "the key of row 4 has 256 bytes"),
        (Message("eu", b"x" * 101), "the message of row 4 has 104 bytes (key, value and headers), queue 'small'"),
    ],
)
def test_a_message_that_cannot_be_published_is_named_and_nothing_is_left(world: World, bad: Message, said: str) -> None:
    """Whether or not others of its batch went to that queue, and whatever others take."""
    make(world, archive=["us"])
    subscribe(world.create(1, "small", QueueConfig(max_message_bytes=100)), "eu")
    before = [item.name for item in world.store.list("default/")]
    messages = [Message("us", b"0"), Message("eu", b"1"), Message("us", b"2"), Message("us", b"3"), bad]
    for batch_rows in (2, 5):
        with pytest.raises(Invalid) as caught:
            stage(world, plan(world), messages, batch_rows=batch_rows)
        assert said in str(caught.value)
        assert [item.name for item in world.store.list("default/")] == before


def test_the_memory_of_a_task_is_shared_by_its_queues(world: World) -> None:
    """Each of four has a quarter of what one has, so it writes earlier; but never tiny pieces."""
    make(world, **{f"q{number}": [">"] for number in range(4)})
    batch = [Message("a", b"x" * 1000) for _ in range(100)]

    def pieces(**sizes: Any) -> list[int]:
        staged, _ = stage(world, plan(world), batch, batch_rows=10, run_bytes=100_000, **sizes)
        return [len(each.slices) for each in staged[0] if each.stage.partitions == 1]

    assert pieces() == [1]
    assert pieces(least_run_bytes=1) == [4]


# --- published to two queues ------------------------------------------------------------------------------------------

BATCH = [Message("a/1", b"1"), Message("a/2", b"2"), Message("b", b"3")]
ALL = {"first": [b"1", b"2"], "second": [b"1", b"2", b"3"]}
HALF = {**ALL, "second": []}


@pytest.fixture
def two(world: World) -> World:
    make(world, first=["a/*"], second=[">"])
    return world


def repeat(two: World, identity: PublishIdentity | None = IDENTITY) -> list[bool]:
    """As Spark does: planned and staged anew. Which of the queues had it already."""
    return [done.duplicate for _, done in publish(two, stage(two, plan(two), BATCH)[0], identity) if done]


def fills(two: World) -> None:
    publish(two, stage(two, plan(two), [Message("b", b"0")])[0], None)
    alter_queue(two.handle("second"), quota_bytes=1)


@pytest.mark.parametrize("identity", [None, IDENTITY])
@pytest.mark.parametrize("queue", ["first", "second"])
@pytest.mark.parametrize(("when", "kind"), [("before", "load"), ("before", "swap"), ("after", "swap")])
def test_a_store_that_is_away_for_a_moment_is_waited_for_and_nothing_is_there_twice(
    two: World, identity: PublishIdentity | None, queue: str, when: Literal["before", "after"], kind: str
) -> None:
    hooked = two.hooked(when, kind, lost, f"{queue}/_head.json")
    done = publish(two, stage(two, plan(two), BATCH)[0], identity, lambda name: two.handle(name, hooked))
    assert all(each.published is not None and not each.published.duplicate for each in done)
    assert contents(two) == ALL


def crash(two: World) -> NoReturn:
    raise KeyboardInterrupt


def meeting(two: World, kind: str, event: Callable[[World], object]) -> Opener:
    """Handles on a way on which this happens whenever there is such a call for the second queue's head."""
    hooked = Hooked(two.store)
    hooked.before = lambda called, name: event(two) if (called, name[-17:]) == (kind, "second/_head.json") else None
    return lambda name: two.handle(name, hooked)


ENDS: dict[str, tuple[Callable[[World], object], type[BaseException], str]] = {
    "full": (fills, Full, r"queue 'second' .* is full"),
    "collected": (lambda two: raise_floor(two.handle("second"), 9), Outdated, "queue 'second' were staged at"),
    "deleted": (lambda two: delete_queue(two.handle("second")), Invalid, "queue 'second'"),
    "away": (lambda two: lost(), Unavailable, "no answer"),
    "crashed": (crash, KeyboardInterrupt, "^$"),
}


@pytest.mark.conformance("DIS-09")
@pytest.mark.parametrize("identity", [None, IDENTITY])
@pytest.mark.parametrize(("event", "error", "why"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("between", [False, True])
def test_what_one_queue_refuses_is_refused_before_any_other_has_it_or_the_error_says_which_have_it(
    two: World,
    identity: PublishIdentity | None,
    event: Callable[[World], object],
    error: type[BaseException],
    why: str,
    between: bool,
) -> None:
    """The second is named, so that its deletion is an error too. What repeating does is as the error says."""
    staged, _ = stage(two, plan(two, "second"), BATCH)
    with pytest.raises(error, match=why) as stopped:
        publish(two, staged, identity, meeting(two, "swap" if between else "load", event))
    there = contents(two)
    assert there["first"] == (ALL["first"] if between else [])
    told = between and event is not crash
    where = f"'first' (sequence {head_of(two.store, 'first').sequence}) before, not to 'second'"
    safe = ["repeat it under the same identity"]
    unsafe = ["it has no identity", "would double it", "txnAppId and txnVersion", "--publish-id"]
    for part in (where, *(safe if identity else unsafe)):
        assert (part in str(stopped.value)) == told
    assert ("double" in str(stopped.value)) == (told and identity is None)
    if "second" in there:
        alter_queue(two.handle("second"), quota_bytes=None)
        assert repeat(two, identity) == [between and identity is not None, False]
        assert contents(two)["first"] == (2 * ALL["first"] if between and identity is None else ALL["first"])
        assert contents(two)["second"][-3:] == ALL["second"]
        alter_queue(two.handle("second"), quota_bytes=1)
        if identity is not None:
            assert repeat(two, identity) == [True, True], "a repetition adds nothing, also to a full queue"


@pytest.fixture
def half(two: World) -> World:
    """The first queue has the batch, the process ended before the second got it."""
    with pytest.raises(KeyboardInterrupt):
        publish(two, stage(two, plan(two), BATCH)[0], IDENTITY, meeting(two, "swap", crash))
    assert contents(two) == HALF
    return two


def test_a_queue_that_subscribes_before_the_repetition_gets_it_and_one_that_left_keeps_what_it_has(half: World) -> None:
    subscribe(half.create(1, "third"), "b")
    subscribe(half.handle("first"), "a/2")
    unsubscribe(half.handle("first"), "a/*")
    unsubscribe(half.handle("second"), ">")
    assert repeat(half) == [True, False]
    assert contents(half) == {**HALF, "third": [b"3"]}


@pytest.mark.conformance("DIS-10")
def test_a_queue_that_has_the_batch_and_subscribed_to_more_stops_it_before_any_queue_gets_it(half: World) -> None:
    """What it would get now it did not have then: it is neither dropped nor published without a word."""
    subscribe(half.handle("first"), "b")
    with pytest.raises(BatchRefused, match=r"queue 'first'.*batch 3 of writer 'query'.*value=b'3'"):
        repeat(half)
    assert contents(half) == HALF
    assert writers.resolve(half.handle("first"), "query", 3, published=True, by="ops@host")
    repeat(half)
    assert contents(half) == ALL


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_queue_deleted_meanwhile_attracts_nothing(two: World, caplog: pytest.LogCaptureFixture, again: bool) -> None:
    staged, _ = stage(two, plan(two), BATCH)
    delete_queue(two.handle("first"))
    if again:
        subscribe(two.create(1, "first"), "a/*")
    with caplog.at_level(logging.WARNING):
        outcomes = publish(two, staged)
    assert [(each.queue.name, each.published is None) for each in outcomes] == [("first", True), ("second", False)]
    assert "queue 'first'" in caplog.text
    assert "was deleted after it had attracted 2 messages" in caplog.text
    assert contents(two) == {**({"first": []} if again else {}), "second": ALL["second"]}


def test_another_refusal_of_an_attracting_queue_is_not_taken_for_its_deletion(two: World) -> None:
    repeat(two, replace(IDENTITY, batch=1, owner="another query"))
    with pytest.raises(Invalid, match="belongs to query another query"):
        repeat(two)
