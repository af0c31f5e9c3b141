"""Compaction: fewer and larger slices, and otherwise the same log, for every reader, whenever it planned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.log import admin, groups, housekeeping, tree
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import stage_of
from partq_spark.log.names import LogSizes
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog, oldest_us
from partq_spark.log.segment import segment_schema
from partq_spark.log.settings import QueueConfig
from partq_spark.log.staging import Stager
from tests.log.queues import (
    HOUR_US,
    SECOND_US,
    Message,
    World,
    all_steps,
    everything,
    filled,
    leaf_slices,
    messages,
    send,
    values,
)
from tests.support.properties import examples


@pytest.fixture(autouse=True)
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)


def test_of_a_queue_that_fell_idle_the_newest_are_compacted_too_those_that_are_old_enough(world: World) -> None:
    world.sizes = replace(world.sizes, inline_entries=100)
    queue = filled(world)
    before = messages(queue)
    assert compact(queue, min_age_s=30.5) is not None
    assert len(queue.head.entries) == 31
    all_steps(queue)
    assert queue.head.entries == ()
    assert leaf_slices(queue.head) == 4
    assert messages(world.handle()) == before


def send_rows(queue: QueueLog, rows: Sequence[tuple[str | None, bytes]], *, headers: bool) -> None:
    columns: list[list[Any]] = [[key for key, _ in rows], [value for _, value in rows]]
    if headers:
        columns.append([None if len(value) % 3 else [{"key": "h", "value": value}] for _, value in rows])
    stage = stage_of(queue.refresh())
    with Stager(queue.store, stage, seed="test", headers=headers) as stager:
        stager.add(pa.record_batch(columns, schema=segment_schema(headers=headers)))
        segment = stager.finish()
    assert segment is not None
    publish(queue, [segment])


@pytest.mark.parametrize(("alternate", "most", "least"), [("headers", 9, 1), ("counts", 60, 28)])
def test_where_publishes_alternate_what_can_be_joined_is(world: World, alternate: str, most: int, least: int) -> None:
    """With headers go those without. Of two counts of partitions none go together, and a run that has some breaks its
    promise as a whole: what lies beside them gains as ever.
    """
    world.sizes = replace(world.sizes, fan_out=100)
    queue = world.create(1)
    for number in range(108):
        world.clock.now_us += SECOND_US
        is_one = 40 <= number < 68 and number % 2 == 0
        if alternate == "counts" and 40 <= number < 68:
            admin.alter_queue(queue, partitions=1 + is_one)
        send_rows(queue, [("key", b"%d" % number)], headers=is_one and alternate == "headers")
    before = messages(queue)
    all_steps(queue)
    assert least <= leaf_slices(queue.head) < most
    assert messages(queue) == before


ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "c", "键"]), st.binary(max_size=40)), min_size=1, max_size=8
)
PUBLISHED = st.tuples(st.just("publish"), ROWS, st.sampled_from([False, False, True]))
ACTION = st.one_of(
    PUBLISHED,
    PUBLISHED,
    st.tuples(st.just("trim"), st.floats(0, 1), st.none()),
    st.tuples(st.just("resize"), st.integers(1, 4), st.none()),
    st.tuples(st.just("compact"), st.integers(1, 40), st.sampled_from([1, 2, 4])),
)


@pytest.mark.conformance("DIS-02")
@examples(60)
@given(actions=st.lists(ACTION, min_size=5, max_size=60), rng=st.randoms(use_true_random=False))
def test_any_history_stays_whatever_is_compacted(actions: Sequence[tuple[str, Any, Any]], rng: random.Random) -> None:
    """Runs of any size at any depth, of any messages; each key's lie in its partition as they were published."""
    world = World()
    world.sizes = LogSizes(inline_entries=4, fan_out=3)
    queue = world.create(3)
    told: list[Message] = []
    for kind, argument, other in actions:
        world.clock.now_us += SECOND_US
        if kind == "publish":
            known = {(each.partition, each.offset) for each in told}
            send_rows(queue, argument, headers=other)
            new = [each for each in messages(queue) if (each.partition, each.offset) not in known]
            assert sorted(each.value for each in new) == sorted(value for _, value in argument)
            for key in {key for key, _ in argument if key is not None}:
                there = partition_of(key.encode(), queue.head.partitions)
                mine = [each.value for each in new if (each.partition, each.key) == (there, key)]
                assert mine == [value for other_key, value in argument if other_key == key]
            told += new
        elif kind == "trim":
            spans = zip(queue.head.earliest, queue.head.next, strict=True)
            housekeeping.trim(queue, tuple(int(start + (end - start) * argument) for start, end in spans))
        elif kind == "resize":
            admin.alter_queue(queue, partitions=argument)
        else:
            queue.sizes = replace(world.sizes, slice_gain=other, step_slices=argument)
            compact(queue, min_age_s=0.0)
        told = [each for each in told if each.offset >= queue.head.earliest[each.partition]]
        assert messages(queue) == sorted(told)
        head = queue.head
        some = {p: (rng.randint(a, b), rng.randint(a, b)) for p, (a, b) in everything(head).items()}
        wanted = {p: (min(both), max(both)) for p, both in some.items()}
        expected = [each for each in sorted(told) if each.offset in range(*wanted[each.partition])]
        assert messages(queue, tree.view(head, wanted)) == expected
        first_us = oldest_us(queue, head, everything(head))
        assert first_us == min((message.time_us for message in told), default=None)
        if not any(head.earliest):
            assert head.stored_bytes == counted(queue), "known from the head alone"
    levels = [ref.level for ref in queue.head.tree]
    assert levels == sorted(levels, reverse=True)


# --- what is worth it -------------------------------------------------------------------------------------------------


def test_a_message_is_written_anew_a_logarithmic_number_of_times(world: World) -> None:
    queue = world.create(1)
    written = 0
    for number in range(600):
        world.clock.now_us += SECOND_US
        send(queue, values(number))
        if number % 4 == 0:
            written += sum(done.messages for done in all_steps(queue))
    assert written <= 600 * 5, written / 600  # log4(600) = 4.6
    assert leaf_slices(queue.head) < 40


def test_with_a_retention_a_run_spans_a_quarter_of_it(world: World) -> None:
    queue = world.create(1, config=QueueConfig(retention_s=8 * 3600.0))
    for number in range(120):
        world.clock.now_us += HOUR_US // 10
        send(queue, values(number))
    all_steps(queue)
    view = tree.view(queue.head, everything(queue.head))
    spans = [entry.time_us - entry.first_time_us for entry in tree.walk(view, queue.load_chunk)]
    assert HOUR_US < max(spans) <= 2 * HOUR_US


@pytest.mark.parametrize(
    ("bound", "segments", "slices"),
    [({}, 1, 2), ({"segment_bytes": 1}, 2, 2), ({"slice_messages": 20}, 1, 8), ({"run_bytes": 1_000}, 1, 4)],
)
def test_segments_and_slices_have_a_bound(world: World, bound: dict[str, int], segments: int, slices: int) -> None:
    world.sizes = replace(world.sizes, **bound)
    queue = filled(world)
    before = messages(queue)
    steps = all_steps(queue)
    entries = list(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk))
    assert max(piece.rows for entry in entries for piece in entry.slices) <= bound.get("slice_messages", 1000)
    assert (steps[0].segments, steps[0].slices) == (segments, slices)
    assert messages(queue) == before


# --- what is stored, as the head says it ------------------------------------------------------------------------------


def counted(queue: QueueLog) -> int:
    """Stored bytes of what can be read, by walking the whole log."""
    head = queue.refresh()
    entries = tree.walk(tree.view(head, everything(head)), queue.load_chunk)
    return sum(piece.length for entry in entries for piece in entry.slices)


@pytest.mark.parametrize("fan_out", [3, 16])
def test_what_is_compacted_while_a_slow_group_holds_back_one_partition_counts(world: World, fan_out: int) -> None:
    """Its reference goes on counting the messages that had been trimmed; its bytes are of the others alone."""
    world.sizes = LogSizes(inline_entries=4, fan_out=fan_out)
    queue = world.create(16)
    group = groups.create_group(queue, "slow", (0,) * 16)
    for number in range(100):
        send(queue, [(f"key {row}", b"%d" % (number * row) * 50) for row in range(64)])
    before = queue.head.stored_bytes
    reached = {partition: end for partition, end in enumerate(queue.head.next) if partition > 0}
    known = {"slow": housekeeping.GroupPositions(since_sequence=group.since_sequence, rewinds=0, offsets=reached)}
    housekeeping.trim(queue, queue.head.next, known)
    while compact(queue, min_age_s=-1.0) is not None:
        pass
    real = counted(queue)
    assert 0 < real < before / 4
    assert real / 1.5 <= queue.head.stored_bytes <= real * 1.5
    reached[0] = queue.head.next[0] // 2
    housekeeping.trim(queue, queue.head.next, known)
    left = counted(queue)
    assert left / 3 <= queue.head.stored_bytes <= left * 1.5, "a slice that is trimmed in part is stored whole"
