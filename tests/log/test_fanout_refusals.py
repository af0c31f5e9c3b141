"""A batch for several queues that is cut off, or that one of them refuses: before anything is published if that can be
seen, else the error says who has the batch and how to go on. Queues that changed meanwhile. Real queues, in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log import writers
from partq_spark.log.admin import alter_queue, delete_queue
from partq_spark.log.fanout import QueueOutcome
from partq_spark.log.model import Head
from partq_spark.log.publish import Full, Outdated, PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.subscriptions import subscribe
from tests.log.queues import World, floor, head_of, once
from tests.log.test_fanout import IDENTITY, Message, contents, make, plan, publish, stage
from tests.support.way import Hooked

pytestmark = pytest.mark.conformance("DIS-07")


BATCH = [Message("a/1", b"1"), Message("b", b"2")]


NOTHING: dict[str, list[bytes]] = {"first": [], "second": []}


@pytest.fixture
def world() -> World:
    made = World()
    make(made, first=["a/*"], second=[">"])
    return made


def through(world: World, hooked: Hooked) -> Callable[[str], QueueLog]:
    return lambda name: world.handle(name, hooked)


def unavailable() -> None:
    raise Unavailable("the store is away (test)")


# --- before anything is published -------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [None, IDENTITY])
def test_a_full_queue_refuses_the_batch_before_any_other_has_it(world: World, identity: PublishIdentity | None) -> None:
    publish(world, stage(world, plan(world), [Message("b", b"0")])[0], None)
    alter_queue(world.handle("second"), quota_bytes=1)
    staged, _ = stage(world, plan(world), BATCH)
    with pytest.raises(Full, match=r"queue 'second' .* is full") as refused:
        publish(world, staged, identity)
    assert "had been published" not in str(refused.value)
    assert contents(world) == {"first": [], "second": [b"0"]}


def test_what_one_queue_was_staged_for_too_long_ago_goes_to_none(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)

    def collected(head: Head) -> Head:
        return replace(head, sequence=head.sequence + 1, floor=floor(head.sequence + 1))

    world.handle("second").change(collected)
    with pytest.raises(Outdated, match="queue 'second' were staged at"):
        publish(world, staged)
    assert contents(world) == NOTHING


def test_a_named_queue_that_was_deleted_is_noticed_before_any_other_has_the_batch(world: World) -> None:
    staged, _ = stage(world, plan(world, "second"), BATCH)
    delete_queue(world.handle("second"))
    with pytest.raises(Invalid, match="queue 'second'"):
        publish(world, staged)
    assert contents(world) == {"first": []}


# --- between two queues -----------------------------------------------------------------------------------------------


def away_for_the_second(world: World) -> Callable[[str], QueueLog]:
    def hook(kind: str, name: str) -> None:
        if kind == "swap" and name.endswith("second/_head.json"):
            unavailable()

    hooked = Hooked(world.store)
    hooked.before = hook
    return through(world, hooked)


def test_without_an_identity_the_error_says_who_has_the_batch_and_that_repeating_doubles_it(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    with pytest.raises(Unavailable, match=r"the store is away") as stopped:
        publish(world, staged, None, away_for_the_second(world))
    sequence = head_of(world.store, "first").sequence
    said = str(stopped.value)
    assert f"had been published to 'first' (sequence {sequence}) before, not to 'second': it has no identity" in said
    for part in ("would double it", "txnAppId and txnVersion", "--publish-id"):
        assert part in said
    assert contents(world) == {"first": [b"1"], "second": []}


@pytest.mark.conformance("DIS-09")
def test_with_an_identity_the_error_says_that_repeating_completes_it_and_so_it_is(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    with pytest.raises(Unavailable, match=r"not to 'second': repeat it under the same identity") as stopped:
        publish(world, staged, IDENTITY, away_for_the_second(world))
    assert "double" not in str(stopped.value)
    publish(world, stage(world, plan(world), BATCH)[0])
    assert contents(world) == {"first": [b"1"], "second": [b"1", b"2"]}


# --- cut off, repeated ------------------------------------------------------------------------------------------------


THREE = [Message("a/1", b"1"), Message("a/2", b"2"), Message("b", b"3")]


def cut_off_between_two_queues(world: World, identity: PublishIdentity | None) -> None:
    """The first queue has the batch when the second one's store is gone for good."""
    staged, _ = stage(world, plan(world), THREE)

    def gone() -> None:
        raise KeyboardInterrupt

    hooked = Hooked(world.store)
    hooked.before = once("swap", "second/_head.json", gone)
    with pytest.raises(KeyboardInterrupt):
        publish(world, staged, identity, lambda name: world.handle(name, hooked))
    assert contents(world) == {"first": [b"1", b"2"], "second": []}


def repeat(world: World, identity: PublishIdentity | None) -> list[QueueOutcome]:
    """As Spark does: planned and staged anew."""
    staged, _ = stage(world, plan(world), THREE)
    return publish(world, staged, identity)


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


# --- queues that have changed meanwhile -------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "and created again"])
def test_a_queue_that_was_deleted_meanwhile_attracts_nothing_any_more(
    world: World, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    staged, _ = stage(world, plan(world), THREE)
    delete_queue(world.handle("first"))
    if again:
        subscribe(world.create(1, "first"), "a/*")
    with caplog.at_level(logging.WARNING):
        outcomes = publish(world, staged)
    assert [(each.queue.name, each.published is None) for each in outcomes] == [("first", True), ("second", False)]
    assert "queue 'first'" in caplog.text
    assert "was deleted after it had attracted 2 messages" in caplog.text
    assert contents(world) == {**({"first": []} if again else {}), "second": [b"1", b"2", b"3"]}


def test_another_refusal_of_an_attracting_queue_is_not_taken_for_its_deletion(world: World) -> None:
    staged, _ = stage(world, plan(world), THREE)
    publish(world, staged, PublishIdentity(writer="query", batch=1, owner="another query"))
    with pytest.raises(Invalid, match="belongs to query another query"):
        publish(world, staged)
