"""A batch for several queues of which one refuses: before anything is published if that can be seen, else the error
says who has the batch and how to go on. Real queues, in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log.admin import alter_queue, delete_queue
from partq_spark.log.model import Head
from partq_spark.log.publish import Full, Outdated, PublishIdentity
from partq_spark.log.queue import QueueLog
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


def test_a_repetition_of_what_a_full_queue_has_is_no_refusal(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    publish(world, staged)
    alter_queue(world.handle("second"), quota_bytes=1)
    outcomes = publish(world, stage(world, plan(world), BATCH)[0])
    assert [each.published and each.published.duplicate for each in outcomes] == [True, True]


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


def test_a_store_that_is_away_for_a_moment_while_the_heads_are_looked_at_is_waited_for(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    hooked = Hooked(world.store)
    hooked.before = once("load", "second/_head.json", unavailable)
    publish(world, staged, None, through(world, hooked))
    assert contents(world) == {"first": [b"1"], "second": [b"1", b"2"]}


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


def test_a_queue_that_becomes_full_meanwhile_keeps_its_kind_of_error(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    hooked = Hooked(world.store)

    def full() -> None:
        publish(world, stage(world, plan(world), [Message("b", b"0")])[0], None)
        alter_queue(world.handle("second"), quota_bytes=1)

    hooked.after = once("swap", "first/_head.json", full)
    with pytest.raises(Full, match=r"'second' .* is full: .*had been published to 'first' \(sequence \d+\) before"):
        publish(world, staged, None, through(world, hooked))


def test_where_the_first_queue_fails_nothing_is_said_of_others(world: World) -> None:
    staged, _ = stage(world, plan(world), BATCH)
    hooked = Hooked(world.store)

    def hook(kind: str, name: str) -> None:
        if kind == "swap":
            unavailable()

    hooked.before = hook
    with pytest.raises(Unavailable) as stopped:
        publish(world, staged, None, through(world, hooked))
    assert str(stopped.value) == "the store is away (test)"
    assert contents(world) == NOTHING
