"""What a publish is refused for, how its time grows, and heads that grew old in a handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from partq_spark.base.errors import Invalid, ObjectMissing, Unavailable
from partq_spark.log import admin
from partq_spark.log.housekeeping import trim
from partq_spark.log.model import Head, Layout, WriterPage
from partq_spark.log.publish import Outdated, PublishIdentity, Unsettled, publish
from partq_spark.log.staged import stage_of
from partq_spark.objects.api import ObjectStore
from tests.log.queues import (
    HOUR_US,
    World,
    floor,
    head_of,
    once,
    read_flat,
    send,
    staged,
    through,
    values,
)
from tests.support.way import Hooked

HEAD = "_head.json"
IDENTITIES = [None, PublishIdentity(writer="query-1", batch=5)]

GONE = WriterPage(
    name="page-000000000001-0123456789abcdef.json", xxh3="0" * 16, level=0, writers=1, last_time_us=1, lines=1, bytes=1
)
"""A page of writer records that is not there."""


def changed(world: World, change: Callable[[Head], Head]) -> None:
    """As another process would change the head."""
    world.handle().change(change)


class LateSwap(Hooked):
    """The first swap is on its way until the second one is sent; then `landed` is called."""

    def __init__(self, store: ObjectStore, landed: Callable[[], object]) -> None:
        super().__init__(store)
        self._landed = landed
        self._sent: list[bytes | Mapping[str, str]] = []

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        self._sent.append(content)
        if len(self._sent) == 1:
            raise Unavailable("no answer")
        if len(self._sent) == 2:
            self.store.swap(name, self._sent[0], expected=expected)
            self._landed()
        return super().swap(name, content, expected=expected)


def test_a_swap_that_lands_late_and_is_trimmed_at_once_is_not_taken_for_lost(world: World) -> None:
    """Of several tries for one head any may land; times differ. Which one did nobody can tell from what is left."""
    queue = world.create(1)
    send(queue, values(0))

    def trim_all() -> None:
        other = world.handle()
        trim(other, other.refresh().next)

    publisher = through(LateSwap(world.store, trim_all), queue)
    stage = stage_of(publisher.refresh())
    made = staged(publisher, stage, values(1))
    with pytest.raises(Unsettled, match="cannot be told"):
        publish(publisher, stage, made)
    assert head_of(world.store).next == (2,), "it is there once"


# --- time -------------------------------------------------------------------------------------------------------------


def test_timestamps_grow_although_the_clock_goes_back(world: World) -> None:
    queue = world.create(1)
    start_us = world.clock.now_us
    moved = [0, 0, 5_000_000, -3 * HOUR_US, -HOUR_US, 10_000_000]
    found = []
    for shift in moved:
        world.clock.now_us = start_us + shift
        found.append(send(queue, values(1)).time_us - start_us)
    assert found == [1, 2, 5_000_000, 5_000_001, 5_000_002, 10_000_000]


def test_timestamps_grow_over_publishers_whose_clocks_differ(world: World) -> None:
    world.create(1)
    times = []

    def behind(by_us: int) -> int:
        return world.clock.now_us - by_us

    for number in range(10):
        world.clock.now_us += 1000
        late = world.handle()
        late.effects = replace(late.effects, time_us=partial(behind, number % 3 * 600_000_000))
        times.append(send(late, values(number)).time_us)
    assert times == sorted(set(times))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_was_staged_below_the_floor_is_refused(world: World, identity: PublishIdentity | None) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    raised = stage.sequence + 1
    changed(
        world,
        lambda head: replace(head, floor=floor(raised), sequence=head.sequence + 1),
    )
    with pytest.raises(Outdated, match=f"staged at sequence {stage.sequence}, collection has passed {raised}"):
        publish(queue, stage, segments, identity)
    assert read_flat(queue) == []
    send(queue, values(2), identity)  # staged anew
    assert read_flat(queue) == [b"2"]


def test_at_the_floor_is_not_below_it(world: World) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    changed(world, lambda head: replace(head, floor=floor(stage.sequence), sequence=9))
    publish(queue, stage, segments)
    assert read_flat(queue) == [b"1"]


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("during", [False, True])
def test_what_was_placed_for_an_older_layout_is_refused(
    world: World, identity: PublishIdentity | None, during: bool
) -> None:
    world.create(2)
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))

    def resize() -> None:
        def decide(head: Head) -> Head:
            layout = Layout(generation=1, partitions=3, since_sequence=head.sequence + 1, begin=(0, 0, 0))
            zeros = (0, 0, 0)
            return replace(
                head, layouts=(*head.layouts, layout), next=zeros, earliest=zeros, sequence=head.sequence + 1
            )

        changed(world, decide)

    if during:
        hooked.before = once("swap", HEAD, resize)
    else:
        resize()
    with pytest.raises(Outdated, match="placed for 2 partitions, it has 3 now"):
        publish(queue, stage, segments, identity)
    assert head_of(world.store).entries == ()
    send(queue, values(2), identity)
    assert read_flat(queue) == [b"2"]


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("known", [False, True])
def test_a_queue_that_was_created_again_is_another_queue(
    world: World, identity: PublishIdentity | None, known: bool
) -> None:
    queue = world.create(2)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    admin.delete_queue(world.handle())
    world.create(2)
    with pytest.raises(Invalid, match=r"was deleted and created again.*new checkpoint location"):
        publish(queue if known else world.handle(), stage, segments, identity)
    assert read_flat(world.handle()) == []


def test_a_queue_that_was_deleted_takes_nothing(world: World) -> None:
    queue = world.create(2)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    admin.delete_queue(world.handle())
    with pytest.raises(Invalid, match="has been deleted"):
        publish(queue, stage, segments)
    assert list(world.store.list("default/orders/_head")) == []


# --- a head that grew old ---------------------------------------------------------------------------------------------


def test_a_page_that_only_an_old_head_names_sends_the_publish_to_the_present_head(world: World) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    calls: list[str] = []

    hooked = Hooked(world.store)
    queue = through(hooked, queue)
    calm = queue.head
    # What this handle knows names a page that is gone; the present head does not.
    assert queue.etag is not None
    queue.remember(replace(calm, writer_pages=(GONE,)), "old")
    hooked.before = lambda kind, name: calls.append(kind)
    publish(queue, stage, segments, PublishIdentity(writer="query", batch=1))
    assert calls == ["read", "load", "swap"]
    assert world.clock.pauses == 0
    assert read_flat(world.handle()) == [b"1"]


def test_a_lost_page_is_not_looked_for_as_long_as_the_head_goes_on_changing(world: World) -> None:
    queue = world.create(1)
    changed(world, lambda head: replace(head, writer_pages=(GONE,), sequence=head.sequence + 1))
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    hooked = Hooked(world.store)
    queue = through(hooked, queue)

    def busy(kind: str, name: str) -> None:
        if kind == "read":
            assert len(hooked.calls) < 1000, "it is looked for without end"
            send(world.handle(), values(2))

    hooked.before = busy
    with pytest.raises(ObjectMissing, match=GONE.name):
        publish(queue, stage, segments, PublishIdentity(writer="query", batch=1))
    assert len([kind for kind, _ in hooked.calls if kind == "load"]) < 20


def test_a_page_that_the_present_head_names_must_be_there(world: World) -> None:
    queue = world.create(1)
    changed(world, lambda head: replace(head, writer_pages=(GONE,), sequence=head.sequence + 1))
    with pytest.raises(ObjectMissing, match=GONE.name):
        send(queue, values(1), PublishIdentity(writer="query", batch=1))
    assert send(queue, values(1)).rows == 1  # without an identity it is not needed
