"""Compaction: fewer and larger slices, and otherwise the same log, for every reader, whenever it planned."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from partq_spark.base.errors import Corrupt
from partq_spark.log import admin, codec, compaction, housekeeping, publish_times, runs, tree
from partq_spark.log.compaction import compact
from partq_spark.log.model import ChunkRef, QueueConfig, add, at
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.runs import ChunkRun, RunLimits
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import segment_schema
from partq_spark.log.sizes import LOG_SIZES, LogSizes
from partq_spark.log.staged import stage_of
from tests.log.histories import SECOND_US, Message, all_steps, filled, leaf_slices, messages
from tests.log.queues import HOUR_US, World, everything, send, values
from tests.support.properties import examples
from tests.support.way import Hooked


@pytest.fixture(autouse=True)
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3)


# --- the same log -----------------------------------------------------------------------------------------------------


def test_messages_keep_offsets_times_and_generation(world: World) -> None:
    queue = filled(world)
    before, old = messages(queue), queue.head
    (done,) = all_steps(queue)
    assert messages(world.handle()) == before
    assert done.messages == sum(sum(ref.rows) for ref in old.tree)
    assert (done.slices_before, done.slices) == (leaf_slices(old), 2)
    assert leaf_slices(queue.head) == 2
    assert (queue.head.next, queue.head.earliest, queue.head.time_us) == (old.next, old.earliest, old.time_us)


def test_a_compacted_segment_opens_in_any_arrow_tool(world: World) -> None:
    queue = filled(world)
    all_steps(queue)
    (entry,) = codec.decode_entries(queue.load_chunk(queue.head.tree[0]), queue.head.tree[0])
    data = queue.store.read(queue.segment_folder + entry.segments[0])
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    assert table.schema.names == ["key", "value", "timestamp"]
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    of_first = [message for message in messages(queue) if message.partition == entry.slices[0].partition]
    times = table.column("timestamp").cast(pa.int64()).to_pylist()[: entry.slices[0].rows]
    assert times == [message.time_us for message in of_first[: entry.slices[0].rows]]


def test_the_oldest_message_is_known_also_within_what_was_compacted(world: World) -> None:
    queue = filled(world)
    all_steps(queue)
    for _ in range(5):
        found = messages(queue)
        head = queue.refresh()
        assert publish_times.oldest_us(queue, head, everything(head)) == min(message.time_us for message in found)
        housekeeping.trim(queue, tuple(a + 3 for a in head.earliest))


ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "a", "b", "c", "键"]), st.binary(max_size=40)), min_size=1, max_size=8
)


ACTION = st.one_of(
    st.tuples(st.just("publish"), ROWS, st.booleans()),
    st.tuples(st.just("publish"), ROWS, st.just(False)),
    st.tuples(st.just("trim"), st.floats(0, 1), st.none()),
    st.tuples(st.just("resize"), st.integers(1, 4), st.none()),
    st.tuples(st.just("compact"), st.integers(0, 2**32), st.none()),
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTION, min_size=5, max_size=60))
def test_any_history_stays_what_it_was_whatever_is_compacted(
    actions: Sequence[tuple[str, Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any run at any depth, worth it or not, of any messages."""
    world = World()
    world.sizes = LogSizes(inline_entries=4, fan_out=3, slice_gain=0)
    queue = world.create(3)
    told: list[Message] = []
    for number, (kind, argument, headers) in enumerate(actions):
        world.clock.now_us += SECOND_US
        if kind == "publish":
            stage = stage_of(queue.refresh())
            with Stager(queue.store, stage, seed=str(number), headers=headers) as stager:
                stager.add(rows_batch(argument, headers))
                segment = stager.finish()
            assert segment is not None
            known = {(each.partition, each.offset) for each in told}
            publish(queue, stage, [segment])
            told += [each for each in messages(queue) if (each.partition, each.offset) not in known]
        elif kind == "trim":
            head = queue.refresh()
            spans = zip(head.earliest, head.next, strict=True)
            housekeeping.trim(queue, tuple(int(start + (end - start) * argument) for start, end in spans))
        elif kind == "resize":
            admin.alter_queue(queue, partitions=argument)
        else:
            with monkeypatch.context() as patched:
                patched.setattr(compaction, "choose", any_run(random.Random(argument)))
                patched.setattr(compaction, "fits", fits_or_not(odd=bool(argument % 2)))
                compact(queue, min_age_s=0.0)
        earliest = queue.head.earliest
        told = [each for each in told if each.offset >= earliest[each.partition]]
        assert messages(queue) == sorted(told)
    levels = [ref.level for ref in queue.head.tree]
    assert levels == sorted(levels, reverse=True)


def rows_batch(rows: Sequence[tuple[str | None, bytes]], headers: bool) -> pa.RecordBatch:
    columns: list[list[object]] = [[key for key, _ in rows], [value for _, value in rows]]
    if headers:
        columns.append([None if len(value) % 3 else [{"key": "h", "value": value}] for _, value in rows])
    schema = segment_schema(headers)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fits_or_not(odd: bool) -> Any:
    """In place of `fits`: single references are looked into, or not."""
    return lambda run, limits: odd or len(run) > 1 or run[0].level == 0


def any_run(rng: random.Random) -> Any:
    """In place of `choose`: any neighbours, or one to look inside of."""

    def chosen(
        refs: Sequence[ChunkRef],
        begin: tuple[int, ...],
        earliest: tuple[int, ...],
        limits: RunLimits,
        skip: Collection[str],
    ) -> ChunkRun | None:
        readable = [
            (first, last)
            for first in range(len(refs))
            for last in range(first + 1, len(refs) + 1)
            if choose_readable(refs[:first], refs[first:last], begin, earliest)
        ]
        if not readable:
            return None
        first, last = rng.choice(readable)
        for ref in refs[:first]:
            begin = tuple(add(begin, ref.rows))
        return ChunkRun(tuple(refs[first:last]), begin)

    def choose_readable(
        before: Sequence[ChunkRef], run: Sequence[ChunkRef], begin: tuple[int, ...], earliest: tuple[int, ...]
    ) -> bool:
        for ref in before:
            begin = add(begin, ref.rows)
        after = begin
        for ref in run:
            after = add(after, ref.rows)
        return any(at(after, p) > max(at(begin, p), e) for p, e in enumerate(earliest))

    return chosen


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


def send_with(queue: QueueLog, number: int, *, headers: bool) -> None:
    stage = stage_of(queue.refresh())
    with Stager(queue.store, stage, seed=str(number), headers=headers) as stager:
        stager.add(rows_batch([("key", b"%d" % number)], headers))
        segment = stager.finish()
    assert segment is not None
    publish(queue, stage, [segment])


def test_where_a_publisher_with_headers_and_one_without_take_turns_all_is_compacted(world: World) -> None:
    """And uniform neighbours too. What has no headers shows none, as before."""
    queue = world.create(1)
    for number in range(1000):
        world.clock.now_us += SECOND_US
        send_with(queue, number, headers=300 <= number < 700 and number % 2 == 0)
    before = messages(queue)
    assert len({str(message.headers) for message in before}) > 2
    all_steps(queue)
    assert leaf_slices(queue.head) <= 20
    assert messages(queue) == before


def test_a_part_that_keeps_its_promise_is_compacted_where_the_whole_does_not(world: World) -> None:
    """Layouts change within a run; what lies beside the changes gains as ever."""
    world.sizes = replace(world.sizes, fan_out=100)
    queue = world.create(1)
    for number in range(108):
        world.clock.now_us += SECOND_US
        if 40 <= number < 68:
            admin.alter_queue(queue, partitions=1 + number % 2)
        send(queue, values(number))
    before, refs = messages(queue), queue.head.tree
    whole = ChunkRun(refs, queue.head.tree_begin)
    entries = [e for ref in refs for e in codec.decode_entries(queue.load_chunk(ref), ref)]
    plans = compaction._planned(entries, LOG_SIZES)
    assert LOG_SIZES.slice_gain * sum(len(plan.slices) for plan in plans) > 108, "the whole breaks its promise"
    assert runs.choose(refs, whole.begin, queue.head.earliest, RunLimits(until_us=world.clock.now_us)) == whole
    all_steps(queue)
    assert leaf_slices(queue.head) < 60, "some of the 28 that alternate stay"
    assert messages(queue) == before


def test_with_a_retention_a_run_spans_a_quarter_of_it(world: World) -> None:
    queue = world.create(1, config=QueueConfig(retention_s=8 * 3600.0))
    for number in range(120):
        world.clock.now_us += HOUR_US // 10
        send(queue, values(number))
    all_steps(queue)
    spans = [ref.last_time_us - ref.first_time_us for ref in leaves(queue)]
    assert max(spans) > HOUR_US
    for ref in leaves(queue):
        for entry in codec.decode_entries(queue.load_chunk(ref), ref):
            assert entry.time_us - entry.first_time_us <= 2 * HOUR_US


def leaves(queue: QueueLog) -> list[ChunkRef]:
    pending, found = list(queue.head.tree), []
    while pending:
        ref = pending.pop()
        if ref.level == 0:
            found.append(ref)
        else:
            pending += codec.decode_refs(queue.load_chunk(ref), ref)
    return found


# --- what readers do with it ------------------------------------------------------------------------------------------


def test_of_a_queue_that_fell_idle_the_newest_publishes_are_compacted_too(world: World) -> None:
    world.sizes = replace(world.sizes, inline_entries=100)
    queue = filled(world)
    before = messages(queue)
    assert len(queue.head.entries) == 60
    assert compact(queue, min_age_s=30.5) is not None
    assert len(queue.head.entries) == 31, "those that are old enough"
    all_steps(queue)
    assert queue.head.entries == ()
    assert leaf_slices(queue.head) == 4
    assert messages(queue) == before
    send(queue, values(99))
    assert len(messages(queue)) == len(before) + 1


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


# --- while others are at work -----------------------------------------------------------------------------------------


STILL_S = 4.5  # leaves the head's own entries alone: a step is one swap then


# --- while others are at work -----------------------------------------------------------------------------------------


def test_a_damaged_slice_is_named_and_nothing_is_swapped(world: World) -> None:
    queue = filled(world)
    first = next(iter(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk)))
    name = queue.segment_folder + first.segments[0]
    data = bytearray(world.store.read(name))
    data[first.slices[0].start + 20] ^= 1
    world.store.delete(name)
    world.store.create(name, bytes(data))
    sequence = queue.head.sequence
    with pytest.raises(Corrupt, match=first.segments[0]):
        compact(queue, min_age_s=STILL_S)
    assert queue.refresh().sequence == sequence


def test_a_slice_that_is_gone_is_named_although_the_head_goes_on_changing(world: World) -> None:
    queue = filled(world)
    first = next(iter(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk)))
    gone = queue.segment_folder + first.segments[0]
    world.store.delete(gone)
    hooked = Hooked(world.store)

    def busy(_: str, name: str) -> None:
        if name == gone:
            send(world.handle(), values(1))

    hooked.before = busy
    with pytest.raises(Corrupt, match=first.segments[0]):
        compact(world.handle(store=hooked), min_age_s=STILL_S)
    assert len([name for _, name in hooked.calls if name == gone]) == 2


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_by_default_running_publishes_are_left_alone(world: World) -> None:
    queue = filled(world)
    assert compact(queue) is None
    world.clock.now_us += 300 * SECOND_US
    assert compact(queue) is not None
    assert compaction.MIN_AGE_S > 2 * 120
