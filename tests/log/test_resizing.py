"""A queue's partition count changes while publishers, groups and housekeeping are at work on it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log import admin, housekeeping
from partq_spark.log.model import QueueConfig, group_start
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.staged import stage_of
from tests.log.queues import Row, World, head_of, once, publish_staged, read, read_flat, send, staged
from tests.support.properties import examples
from tests.support.way import Hooked

HEAD = "_head.json"
KEYS = [f"key{number}" for number in range(24)]


def rows(number: int) -> list[Row]:
    """One message of every key."""
    return [(key, f"{number}/{key}".encode()) for key in KEYS]


def keys_in_order(queue: QueueLog, publishes: int) -> None:
    """Every message once, each key's in publish order when its partitions are read layout after layout."""
    found = read(queue)
    head = queue.head
    assert sum(map(len, found.values())) == publishes * len(KEYS)
    for key in KEYS:
        mine: list[int] = []
        for index, layout in enumerate(head.layouts):
            partition = partition_of(key.encode(), layout.partitions)
            later = [each.begin[partition] for each in head.layouts[index + 1 :] if partition < each.partitions]
            to = min([*later, head.next[partition]])
            stretch = found.get(partition, [])[layout.begin[partition] : to]
            mine += [int(value.split(b"/")[0]) for value in stretch if value.endswith(b"/" + key.encode())]
        assert mine == list(range(publishes))


# --- altering ---------------------------------------------------------------------------------------------------------


def test_count_and_settings_change_in_one_swap(world: World) -> None:
    queue = world.create(4)
    send(queue, rows(0))
    before = queue.head
    hooked = Hooked(world.store)
    head = admin.alter_queue(world.handle(store=hooked), partitions=6, rebalance_delay_s=1.0, access_type="exclusive")
    assert [name for kind, name in hooked.calls if kind == "swap"] == ["default/orders/_head.json"]
    assert head == head_of(world.store)
    assert head.config == QueueConfig(rebalance_delay_s=1.0, access_type="exclusive")
    assert (head.sequence, head.partitions, head.layout.generation) == (before.sequence + 1, 6, 1)
    assert head.layout.since_sequence == head.sequence
    assert head.layout.begin == head.next == (*before.next, 0, 0)
    assert head.earliest == (0,) * 6


@pytest.mark.conformance("RES-04")
def test_a_number_that_comes_back_goes_on_where_it_was(world: World) -> None:
    queue = world.create(4)
    send(queue, rows(0))
    ended = queue.head.next
    admin.alter_queue(queue, partitions=2)
    assert queue.head.next == ended, "vectors never get shorter"
    send(queue, rows(1))
    assert queue.head.next[2:] == ended[2:], "nothing is published to a removed partition"
    admin.alter_queue(queue, partitions=4)
    assert queue.head.layout.begin[2:] == ended[2:]
    send(queue, rows(2))
    keys_in_order(queue, 3)


def test_the_same_count_writes_nothing(world: World) -> None:
    world.create(4)
    hooked = Hooked(world.store)
    assert admin.alter_queue(world.handle(store=hooked), partitions=4).sequence == 1
    assert "swap" not in {kind for kind, _ in hooked.calls}


@pytest.mark.parametrize("count", [0, -1, 1001, 2.5, "many", True, "1e3"])
def test_counts_out_of_range_are_refused_with_what_is_allowed(world: World, count: Any) -> None:
    queue = world.create(4)
    with pytest.raises(Invalid, match=r"partitions=.* is not allowed: give a whole number from 1 to 1000"):
        admin.alter_queue(queue, partitions=count, rebalance_delay_s=1.0)
    assert head_of(world.store).sequence == 1


def test_two_who_resize_at_once_both_succeed_one_after_the_other(world: World) -> None:
    world.create(4)
    hooked = Hooked(world.store)
    hooked.before = once("swap", HEAD, lambda: admin.alter_queue(world.handle(), partitions=8, max_handoff_time_s=9.0))
    head = admin.alter_queue(world.handle(store=hooked), partitions=3)
    assert (head.partitions, head.layout.generation, head.config.max_handoff_time_s) == (3, 2, 9.0)
    assert len(head.next) == 8


@pytest.mark.parametrize("landed", [True, False])
def test_a_change_whose_answer_is_lost_is_made_once(world: World, landed: bool) -> None:
    queue = world.create(4)
    send(queue, rows(0))
    hooked = Hooked(world.store)

    def lose() -> None:
        raise Unavailable("the answer was lost")

    hook = once("swap", HEAD, lose)
    if landed:
        hooked.after = hook
    else:
        hooked.before = hook
    head = admin.alter_queue(world.handle(store=hooked), partitions=8)
    assert (head.layout.generation, len(head.layouts), head.sequence) == (1, 2, 3)


@pytest.mark.conformance("RES-05")
def test_a_queue_created_again_meanwhile_is_neither_altered_nor_published_to(world: World) -> None:
    queue = world.create(4)
    late = world.handle()
    stage = stage_of(late.refresh())
    segments = staged(late, stage, rows(0))
    admin.delete_queue(world.handle())
    world.create(4)
    admin.alter_queue(world.handle(), partitions=8)
    with pytest.raises(Invalid, match="deleted and created again"):
        admin.alter_queue(queue, partitions=2)
    with pytest.raises(Invalid, match="deleted and created again"):
        publish_staged(late, stage, segments, PublishIdentity(writer="query-1", batch=1), seed="a")
    assert head_of(world.store).partitions == 8
    assert read_flat(world.handle()) == []


@pytest.mark.conformance("RES-05")
def test_a_queue_that_is_created_again_while_messages_are_placed_again_gets_none_of_them(world: World) -> None:
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows(0))
    admin.alter_queue(world.handle(), partitions=8)
    hooked = Hooked(world.store)

    def anew() -> None:
        admin.delete_queue(world.handle())
        world.create(8)

    hooked.before = once("swap", HEAD, anew)
    with pytest.raises(Invalid, match="deleted and created again"):
        publish_staged(world.handle(store=hooked), stage, segments, seed="a")
    assert read_flat(world.handle()) == []


@pytest.mark.conformance("RES-05")
def test_what_is_left_of_a_former_queue_is_not_placed_into_the_one_that_has_its_name(world: World) -> None:
    """The deletion was cut off, so that what was staged is still there."""
    queue = world.create(4)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, rows(0))
    admin.alter_queue(world.handle(), partitions=8)
    hooked = Hooked(world.store)
    made: list[QueueLog] = []

    def anew(kind: str, name: str) -> None:
        if (
            not made
            and [each for each in hooked.calls if each[0] == "load"] == [("load", "default/orders/_head.json")] * 2
        ):
            # Between the refusal and the look for the present layout.
            former = world.handle()
            former.refresh()
            former.swap(None)
            made.append(world.create(8))
            admin.alter_queue(world.handle(), partitions=6)

    late = world.handle(store=hooked)
    hooked.before = anew
    with pytest.raises(Invalid, match="deleted and created again"):
        publish_staged(late, stage, segments, seed="a")
    assert made
    assert read_flat(world.handle()) == []


# --- publishers meanwhile ---------------------------------------------------------------------------------------------

actions = st.lists(
    st.one_of(
        st.tuples(st.just("resize"), st.integers(1, 9)),
        st.tuples(st.just("stage"), st.integers(0, 2)),
        st.tuples(st.just("publish"), st.integers(0, 2)),
        st.tuples(st.just("again"), st.integers(0, 2)),
    ),
    max_size=30,
)


@pytest.mark.conformance("RES-01")
@examples(60)
@given(begin=st.integers(1, 6), history=actions)
def test_publishers_that_sleep_over_changes_lose_nothing_and_keep_the_order_of_keys(
    begin: int, history: list[tuple[str, int]]
) -> None:
    """Three writers, each with real segments in hand, of which the next to publish was staged at any time before."""
    world = World()
    world.create(begin)
    queues = [world.handle() for _ in range(3)]
    batches = [0, 0, 0]
    in_hand: dict[int, tuple[Any, Any]] = {}
    last: dict[int, tuple[Any, Any, PublishIdentity]] = {}
    published: list[bytes] = []
    for action, number in history:
        writer = number % 3
        if action == "resize":
            admin.alter_queue(world.handle(), partitions=number)
        elif action == "stage":
            stage = stage_of(queues[writer].refresh())
            mine = [(key, f"{writer}/{batches[writer]}/{key}".encode()) for key in KEYS]
            in_hand[writer] = stage, staged(queues[writer], stage, mine)
        elif action == "publish" and writer in in_hand:
            identity = PublishIdentity(writer=f"writer-{writer}", batch=batches[writer])
            stage, segments = in_hand.pop(writer)
            assert not publish_staged(queues[writer], stage, segments, identity, seed="a").duplicate
            published += [f"{writer}/{batches[writer]}/{key}".encode() for key in KEYS]
            last[writer] = stage, segments, identity
            batches[writer] += 1
        elif action == "again" and writer in last:
            assert publish_staged(world.handle(), *last[writer], seed="a").duplicate
    queue = world.handle()
    assert sorted(read_flat(queue)) == sorted(published)
    found, head = read(queue), queue.head
    order = {value: place for place, value in enumerate(published)}
    for partition, values in found.items():
        for key in KEYS:
            places = [order[value] for value in values if value.endswith(b"/" + key.encode())]
            assert places == sorted(places), f"{key} in partition {partition}"
    for entry in head.entries:
        layout = next(each for each in head.layouts if each.generation == entry.generation)
        assert all(piece.partition < layout.partitions for piece in entry.slices)
        assert all(piece.offset >= layout.begin[piece.partition] for piece in entry.slices)


def test_a_long_history_with_changes_is_read_and_found_by_time(world: World) -> None:
    """Chunks of the log's tree, written under several counts, have counts of messages of several lengths."""
    queue = world.create(3)
    times = []
    for number in range(300):
        if number % 60 == 0:
            admin.alter_queue(queue, partitions=(3, 7, 2, 11, 5)[number // 60])
        world.clock.now_us += 1_000_000
        times.append(send(queue, rows(number)).time_us)
    assert queue.head.tree
    keys_in_order(queue, 300)
    middle = queue.offsets_at(times[150])
    head = queue.head
    left = read(queue, {p: (offset, head.next[p]) for p, offset in enumerate(middle)})
    assert sum(map(len, left.values())) == 150 * len(KEYS)
    # Trimming the first half takes the layouts with it of which nothing is left.
    trimmed = housekeeping.trim(queue, middle)
    assert trimmed.messages == 150 * len(KEYS)
    assert sum(map(len, read(queue).values())) == trimmed.messages
    admin.alter_queue(queue, partitions=4)
    assert [layout.generation for layout in queue.head.layouts] == [2, 3, 4, 5]


# --- groups meanwhile -------------------------------------------------------------------------------------------------


def test_a_group_made_while_the_count_changes_begins_where_it_was_resolved(world: World) -> None:
    queue = world.create(2)
    send(queue, rows(0))
    hooked = Hooked(world.store)
    late = world.handle(store=hooked)
    start = late.refresh().next
    hooked.before = once("swap", HEAD, lambda: admin.alter_queue(world.handle(), partitions=4))
    made = admin.create_group(late, "billing", start)
    assert made.start == (*start, 0, 0)


def test_partitions_that_come_after_a_group_are_its_own_from_their_beginning_and_kept_for_it(world: World) -> None:
    queue = world.create(2)
    send(queue, rows(0))
    admin.create_group(queue, "billing", queue.head.next)
    admin.alter_queue(queue, partitions=4)
    send(queue, rows(1))
    group = queue.head.groups["billing"]
    assert [group_start(group, p) for p in range(4)] == [*group.start, 0, 0]
    head = housekeeping.trim(queue, queue.head.next)
    assert head.earliest == (*group.start, 0, 0), "what a group needs stays"
