"""A machine whose clock is wrong: what a queue goes by then, and how it heals where it went by the wrong one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.group.retention import retain
from partq_spark.log import clocks, housekeeping, tree
from partq_spark.log import queue as queue_module
from partq_spark.log.destinations import stage_of
from partq_spark.log.model import Origin
from partq_spark.log.names import LogSizes
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.settings import QueueConfig
from tests.log.queues import (
    GRACE_US,
    HOUR_US,
    World,
    all_steps,
    everything,
    head_of,
    messages,
    objects,
    read_flat,
    send,
    staged,
    values,
)
from tests.support.properties import examples
from tests.support.way import Hooked

DAY_US = 24 * HOUR_US
YEAR_US = 365 * DAY_US
SMALL = LogSizes(inline_entries=4, fan_out=3, head_writers=4)


@pytest.fixture(autouse=True)
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.sizes = SMALL
    monkeypatch.setattr(queue_module, "_told_wrong", set(), raising=False)


def wrong(queue: QueueLog, by_us: int = YEAR_US) -> QueueLog:
    """The same handle, on a machine whose clock is off by so much."""
    right = queue.effects.time_us
    queue.effects = replace(queue.effects, time_us=lambda: right() + by_us)
    return queue


def blind(world: World) -> QueueLog:
    """A handle on the store in a way that does not tell the store's clock, as if it had the wrong one too."""
    way = Hooked(world.store)
    way.time_us = lambda: None  # type: ignore[method-assign]
    return world.handle(store=way)


@pytest.mark.parametrize("by_us", [YEAR_US, -YEAR_US, HOUR_US, -HOUR_US, 9 * 60_000_000])
def test_the_stores_clock_counts_if_ones_own_errs(world: World, caplog: pytest.LogCaptureFixture, by_us: int) -> None:
    world.create(1)
    is_wrong = abs(by_us) >= HOUR_US
    for number in range(3):
        world.clock.now_us += 1_000_000
        done = send(wrong(world.handle(), by_us), values(number))
        assert done.time_us == world.clock.now_us + (0 if is_wrong else by_us)
    assert caplog.text.count("this machine's clock is") == is_wrong
    said = f"clock is {by_us // 1_000_000:+d} s off that of store memory:: set it right"
    assert (said in caplog.text) == is_wrong


# --- the store's clock was as wrong as the machine's, and is right again ----------------------------------------------


@pytest.mark.parametrize("publishes", [1, 3, 20])
def test_behind_false_times_times_are_true_and_retention_goes_on(world: World, publishes: int) -> None:
    queue = world.create(1, config=QueueConfig(retention_s=2 * DAY_US // 1_000_000))
    for number in range(6):
        world.clock.now_us += 60_000_000
        send(queue, values(number))
    ahead = wrong(blind(world))
    for number in range(publishes):
        send(ahead, values(100 + number))
    assert head_of(world.store).time_us > world.clock.now_us + YEAR_US - HOUR_US
    world.clock.now_us += DAY_US
    for number in (7, 8):
        world.clock.now_us += 1
        assert send(queue, values(number)).time_us == world.clock.now_us
    late = [message.value for message in messages(queue) if message.time_us > world.clock.now_us]
    assert late == [b"%d" % (100 + number) for number in range(publishes)], "they keep the time they came with"
    world.clock.now_us += DAY_US + HOUR_US
    retain(queue)
    assert read_flat(queue) == [*late, b"7", b"8"], "as young as what followed them"
    world.clock.now_us += DAY_US
    retain(queue)
    assert read_flat(queue) == []


WRONG: dict[str, tuple[Callable[[World], QueueLog], Collection[int]]] = {
    "nobody's": (World.handle, ()),
    "a machine's, ahead": (lambda world: wrong(world.handle()), range(20)),
    "a machine's, behind": (lambda world: wrong(world.handle(), -YEAR_US), range(20)),
    "the store's too, when the floor is noted": (lambda world: wrong(blind(world)), (0,)),
    "the store's too, when what is unnamed is noted": (lambda world: wrong(blind(world)), (4,)),
}


@pytest.mark.parametrize(("whose", "quarters"), WRONG.values(), ids=WRONG)
def test_collections_by_a_wrong_clock_end_nothing_early_and_stop_nothing(
    world: World, whose: Callable[[World], QueueLog], quarters: Collection[int]
) -> None:
    """What was abandoned goes in the round in which it goes without them: its floor is noted at 0, in force after one
    grace, and it was marked no earlier than then: two graces in all. What is staged is not outdated within one.
    """
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    abandoned, *used = [staged(queue, stage, values(number), seed=str(number)) for number in range(95, 100)]
    send(queue, values(1))
    there = []
    for quarter in range(20):
        if quarter in quarters:
            housekeeping.collect(whose(world))
            send(queue, values(2))
        housekeeping.collect(queue)
        if quarter < 4:
            publish(world.handle(), used.pop())
        there.append(queue.segment_folder + abandoned[0].name in objects(world))
        world.clock.now_us += GRACE_US // 4 + (quarter % 4 == 3)
    assert there == [True] * 8 + [False] * 12


def test_nothing_was_published_later_than_what_follows_it() -> None:
    assert clocks.published_by([3, 9, 5, 8]) == [3, 5, 5, 8]
    assert clocks.published_by([3, 9], 7) == [3, 7], "what follows all of them counts too"


@examples(60)
@given(
    publishes=st.lists(
        st.tuples(st.dictionaries(st.integers(0, 2), st.integers(1, 3), min_size=1), st.booleans()),
        min_size=10,
        max_size=50,
    ),
    is_compacted=st.booleans(),
    back_us=st.integers(0, 40 * 60_000_000),
)
def test_a_seek_finds_the_first_message_that_is_not_older_and_what_was_read_is_not_taken_for_lost(
    publishes: list[tuple[dict[int, int], bool]], is_compacted: bool, back_us: int
) -> None:
    world = World()
    world.sizes = SMALL
    queue = world.create(3)
    begin_us = world.clock.now_us
    keys = {partition_of(key.encode(), 3): key for key in map(str, range(40))}
    read: set[Origin] = set()  # what a query remembers of how far it was, at any time
    for number, (rows, is_false) in enumerate(publishes):
        world.clock.now_us += 60_000_000
        handle = wrong(blind(world)) if is_false and number < 10 else queue  # behind them some are compacted
        send(handle, [(keys[partition], b"x") for partition, count in rows.items() for _ in range(count)])
        head = queue.refresh()
        reached = [(p, end) for p, following in enumerate(head.next) for end in range(1, following + 1)]
        read |= {origin for p, end in reached if (origin := tree.origin_of(head, {p: end})) is not None}
    head = queue.refresh()
    assert all(tree.has_publish(head, origin, queue.load_chunk) for origin in read)
    of_publishes = sorted(
        (entry.sequence, entry.time_us, {piece.partition: piece.rows for piece in entry.slices})
        for entry in tree.walk(tree.view(head, everything(head)), queue.load_chunk)
    )
    latest_us = world.clock.now_us + HOUR_US
    wanted_us = max(world.clock.now_us - back_us, begin_us)
    expected = [0, 0, 0]
    for index, (_, _, rows) in enumerate(of_publishes):
        later = [time_us for _, time_us, _ in of_publishes[index:] if time_us <= latest_us]
        if not later or later[0] >= wanted_us:
            break
        for partition, count in rows.items():
            expected[partition] += count
    if is_compacted:
        all_steps(queue)
    assert not any(tree.has_publish(queue.head, origin, queue.load_chunk) is False for origin in read)
    assert queue.offsets_at(wanted_us) == tuple(expected)
