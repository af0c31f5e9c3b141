"""Compaction: fewer and larger slices, and otherwise the same log, for whoever reads it whenever they planned."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partq_spark.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.log import admin, codec, compaction, housekeeping, reading, runs, tree
from partq_spark.log.compaction import Compacted, compact
from partq_spark.log.model import ChunkRef, Head, QueueConfig, Slice, add, at
from partq_spark.log.publish import Identity, Unsettled, publish, stage_for
from partq_spark.log.queue import Queue
from partq_spark.log.reading import RangeReader
from partq_spark.log.runs import Limits, Run
from partq_spark.log.segment import Stager, read_slice, segment_schema
from tests.log.queues import BEGIN_US, HOUR_US, Hooked, World, everything, head_of, once, send, staged, values

SECOND_US = 1_000_000


class Message(NamedTuple):
    """All that a message is."""

    partition: int
    offset: int
    time_us: int
    generation: int
    key: str | None
    value: bytes
    headers: object


def messages(queue: Queue, view: tree.LogView | None = None) -> list[Message]:
    """All that can be read, by partition and offset."""
    head = queue.refresh()
    view = tree.view(head, everything(head)) if view is None else view
    generations: dict[tuple[int, int], int] = {}
    for entry in tree.walk(view, queue.load_chunk):
        for where in entry.slices:
            generations |= {(where.partition, offset): entry.generation for offset in range(where.offset, where.end)}
    found = []
    for piece in RangeReader(queue, head.queue_id, view).pieces():
        rows = piece.batch.to_pylist()
        for number, (row, time_us) in enumerate(zip(rows, piece.times_us(), strict=True)):
            place = (piece.partition, piece.offset + number)
            found.append(Message(*place, time_us, generations[place], row["key"], row["value"], row.get("headers")))
    return sorted(found)


def filled(world: World, publishes: int = 60, partitions: int = 2, **config: Any) -> Queue:
    """A publish a second, each of some messages; the head keeps few of them."""
    queue = world.create(partitions, config=QueueConfig(**config))
    for number in range(publishes):
        world.clock.now_us += SECOND_US
        send(queue, [(f"key {row % 3}", b"%d.%d" % (number, row)) for row in range(1 + number % 4)])
    return queue


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "INLINE_ENTRIES", 4)
    monkeypatch.setattr(tree, "FAN_OUT", 3)


def all_steps(queue: Queue, **limits: Any) -> list[Compacted]:
    """Until nothing is worth it."""
    steps = []
    while (done := compact(queue, min_age_s=0.0, **limits)) is not None:
        steps.append(done)
        assert len(steps) < 200
    return steps


def leaf_slices(head: Head) -> int:
    return sum(ref.slices for ref in head.tree)


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


def test_a_partition_with_much_has_a_segment_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SEGMENT_BYTES", 1)
    queue = filled(world)
    (done,) = all_steps(queue)
    assert done.segments == 2


def test_a_slice_has_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SLICE_MESSAGES", 20)
    monkeypatch.setattr(compaction, "SLICE_MESSAGES", 20)
    queue = filled(world, partitions=1)
    before = messages(queue)
    all_steps(queue)
    entries = list(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk))
    assert max(piece.rows for entry in entries for piece in entry.slices) <= 20
    assert messages(queue) == before


def test_what_becomes_large_in_memory_becomes_more_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "RUN_BYTES", 1_000)
    queue = filled(world)
    before = messages(queue)
    done = compact(queue, min_age_s=0.0)
    assert done is not None
    assert done.slices > 2
    assert messages(queue) == before


@pytest.mark.parametrize("seed", range(4))
def test_seeking_by_time_finds_the_same_places(world: World, seed: int) -> None:
    queue = filled(world, publishes=40)
    times = {0, BEGIN_US, world.clock.now_us + 1, *(message.time_us for message in messages(queue))}
    times |= {time_us + 1 for time_us in times}
    before = {time_us: queue.offsets_at(time_us) for time_us in times}
    rng = random.Random(seed)
    all_steps(queue, most_slices=rng.choice((20, 40, 1000)))
    assert {time_us: queue.offsets_at(time_us) for time_us in times} == before
    half = tuple(end // 2 for end in queue.head.next)
    housekeeping.trim(queue, half)
    expected = {time_us: tuple(map(max, found, half)) for time_us, found in before.items()}
    assert {time_us: queue.offsets_at(time_us) for time_us in times} == expected


def test_the_oldest_message_is_known_also_within_what_was_compacted(world: World) -> None:
    queue = filled(world)
    all_steps(queue)
    for _ in range(5):
        found = messages(queue)
        head = queue.refresh()
        assert reading.oldest_us(queue, head, everything(head)) == min(message.time_us for message in found)
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTION, min_size=5, max_size=60))
def test_any_history_stays_what_it_was_whatever_is_compacted(
    actions: Sequence[tuple[str, Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any run at any depth, worth it or not, of any messages."""
    world = World()
    queue = world.create(3)
    told: list[Message] = []
    for number, (kind, argument, headers) in enumerate(actions):
        world.clock.now_us += SECOND_US
        if kind == "publish":
            stage = stage_for(queue)
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
                patched.setattr(compaction, "GAIN", 0)
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
        limits: Limits,
        skip: Collection[str],
    ) -> Run | None:
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
        return Run(tuple(refs[first:last]), begin)

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


def test_a_deep_tree_is_compacted_step_by_step(world: World) -> None:
    queue = filled(world, publishes=120)
    before = messages(queue)
    assert max(ref.level for ref in queue.head.tree) >= 2
    steps = all_steps(queue, most_slices=12)
    assert len(steps) > 3
    assert max(step.slices_before for step in steps) <= 12
    assert messages(queue) == before


def test_where_headers_alternate_nothing_is_gained(world: World) -> None:
    queue = world.create(1)
    for number in range(40):
        stage = stage_for(queue)
        with Stager(queue.store, stage, seed="s", headers=bool(number % 2)) as stager:
            stager.add(rows_batch([("key", b"x")], bool(number % 2)))
            segment = stager.finish()
        assert segment is not None
        publish(queue, stage, [segment])
    sequence = queue.head.sequence
    assert all_steps(queue) == []
    assert queue.refresh().sequence == sequence


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


def leaves(queue: Queue) -> list[ChunkRef]:
    pending, found = list(queue.head.tree), []
    while pending:
        ref = pending.pop()
        if ref.level == 0:
            found.append(ref)
        else:
            pending += codec.decode_refs(queue.load_chunk(ref), ref)
    return found


# --- while others are at work -----------------------------------------------------------------------------------------


def compacting(world: World, kind: str, name_end: str, action: Any) -> Compacted | None:
    """A step in which `action` happens before such a call."""
    hooked = Hooked(world.store)
    hooked.before = once(kind, name_end, action)
    return compact(world.handle(store=hooked), min_age_s=0.0)


def test_what_is_published_meanwhile_comes_behind(world: World) -> None:
    queue = filled(world)
    assert compacting(world, "swap", "_head.json", lambda: send(world.handle(), values(99))) is not None
    found = messages(queue)
    assert found[-1].value == b"99" or any(message.value == b"99" for message in found)
    assert len(found) == sum(queue.head.next)


def test_a_run_that_changed_meanwhile_is_not_swapped(world: World) -> None:
    queue = filled(world)
    before = messages(queue)
    assert compacting(world, "swap", "_head.json", lambda: compact(world.handle(), min_age_s=0.0)) is None
    assert messages(queue) == before


def test_a_run_of_which_a_part_was_trimmed_meanwhile_is_not_swapped(world: World) -> None:
    queue = filled(world)
    half = tuple(end // 2 for end in queue.head.next)
    assert compacting(world, "swap", "_head.json", lambda: housekeeping.trim(world.handle(), half)) is None
    assert min(message.offset for message in messages(queue) if message.partition == 0) == half[0]


def test_what_was_written_too_long_ago_is_not_swapped(world: World) -> None:
    queue = filled(world)
    before = messages(queue)

    def sleep() -> None:
        for _ in range(3):
            world.clock.now_us += 25 * HOUR_US
            housekeeping.raise_floor(world.handle(), 24 * HOUR_US)

    hooked = Hooked(world.store)
    hooked.before = once("swap", "_head.json", sleep)
    patient = Queue(hooked, "default", "orders", world.clock.effects(retry_timeout_s=1e9))
    assert compact(patient, min_age_s=0.0) is None
    assert messages(queue) == before


def test_a_swap_whose_answer_is_lost_is_recognised(world: World) -> None:
    queue = filled(world)
    before = messages(queue)

    def lose() -> None:
        raise Unavailable("the answer was lost (test)")

    hooked = Hooked(world.store)
    hooked.after = once("swap", "_head.json", lose)
    sequence = queue.head.sequence
    assert compact(world.handle(store=hooked), min_age_s=0.0) is not None
    assert queue.refresh().sequence == sequence + 1
    assert messages(queue) == before


@pytest.mark.parametrize("kind", ["write", "written", "create", "swap"])
def test_a_step_that_ends_anywhere_leaves_the_log_as_it_was_and_rubbish_that_is_collected(
    world: World, kind: str
) -> None:
    queue = filled(world)
    before = messages(queue)

    def die() -> None:
        raise RuntimeError("killed (test)")

    with pytest.raises(RuntimeError):
        compacting(world, kind, "", die)
    assert messages(queue) == before
    assert compact(queue, min_age_s=0.0) is not None
    for _ in range(6):
        housekeeping.collect(queue)
        world.clock.now_us += 25 * HOUR_US
    folders = (queue.segment_folder, queue.log_folder)
    left = {item.name for folder in folders for item in world.store.list(folder)} - {
        queue.log_folder + "collection.json"
    }
    assert left == housekeeping.reachable(queue, queue.refresh())
    assert messages(queue) == before


def test_a_reader_with_an_older_plan_goes_on_until_the_grace_is_over(world: World) -> None:
    queue = filled(world)
    before = messages(queue)
    for _ in range(2):
        housekeeping.collect(queue)
        world.clock.now_us += 25 * HOUR_US
    old = tree.view(queue.refresh(), everything(queue.head))
    all_steps(queue)
    end_us = world.clock.now_us + 23 * HOUR_US
    while world.clock.now_us <= end_us:
        housekeeping.collect(world.handle())
        assert messages(world.handle(), old) == before
        world.clock.now_us += HOUR_US
    for _ in range(4):
        housekeeping.collect(world.handle())
        world.clock.now_us += 25 * HOUR_US
    reader = world.handle()
    pieces = list(RangeReader(reader, reader.refresh().queue_id, old).pieces())
    assert sum(piece.batch.num_rows for piece in pieces) == len(before), "it asked the head again, by offset"


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
        compact(queue, min_age_s=0.0)
    assert queue.refresh().sequence == sequence


def test_a_slice_that_is_gone_is_named_while_the_head_leads_to_it(world: World) -> None:
    queue = filled(world)
    first = next(iter(tree.walk(tree.view(queue.head, everything(queue.head)), queue.load_chunk)))
    world.store.delete(queue.segment_folder + first.segments[0])
    with pytest.raises(Corrupt, match=first.segments[0]):
        compact(queue, min_age_s=0.0)


def test_a_queue_that_is_deleted_and_made_again_meanwhile_is_not_touched(world: World) -> None:
    filled(world)

    def again() -> None:
        admin.delete_queue(world.handle())
        send(world.create(1), values(1))

    with pytest.raises((Invalid, Conflict)):
        compacting(world, "swap", "_head.json", again)
    assert [message.value for message in messages(world.handle())] == [b"1"]


def test_what_was_trimmed_within_a_run_is_not_needed_any_more(world: World) -> None:
    """One partition lags behind, the others' part of the run has been collected."""
    queue = filled(world, partitions=2)
    end = queue.head.next
    housekeeping.trim(queue, (end[0], 0))
    for _ in range(4):
        housekeeping.collect(queue)
        world.clock.now_us += 25 * HOUR_US
    before = messages(queue)
    assert len(all_steps(queue)) == 1
    assert messages(queue) == before
    assert {message.partition for message in before} == {1}
    housekeeping.trim(queue, end)
    assert head_of(world.store).tree == ()


# --- tokens -----------------------------------------------------------------------------------------------------------


def lost_publish(world: World, identity: Identity | None) -> object:
    """A publish whose answer is lost; before it is settled what it published is compacted."""
    filled(world, partitions=1)

    def lose() -> None:
        for number in range(60):
            send(world.handle(), values(number))
        world.clock.now_us += SECOND_US
        all_steps(world.handle())
        raise Unavailable("the answer was lost (test)")

    hooked = Hooked(world.store)
    handle = world.handle(store=hooked)
    stage = stage_for(handle)
    segments = staged(handle, stage, values(99))
    hooked.after = once("swap", "_head.json", lose)
    return publish(handle, stage, segments, identity)


def test_a_publish_that_cannot_find_its_token_any_more_says_so(world: World) -> None:
    with pytest.raises(Unsettled, match="cannot be told"):
        lost_publish(world, None)
    assert [message.value for message in messages(world.handle())].count(b"99") >= 1


def test_a_publish_with_an_identity_is_settled_by_it(world: World) -> None:
    lost_publish(world, Identity(writer="me", batch=1))
    assert head_of(world.store).writers["me"].batch == 1


def test_by_default_running_publishes_are_left_alone(world: World) -> None:
    queue = filled(world)
    assert compact(queue) is None
    world.clock.now_us += 300 * SECOND_US
    assert compact(queue) is not None
    assert compaction.MIN_AGE_S > 2 * 120


# --- what readers do with it ------------------------------------------------------------------------------------------


def test_a_part_of_a_slice_has_its_own_times(world: World) -> None:
    queue = filled(world, partitions=1)
    before = messages(queue)
    all_steps(queue)
    view = tree.view(queue.head, {0: (17, 43)})
    pieces = list(RangeReader(queue, queue.head.queue_id, view).pieces())
    assert [time_us for piece in pieces for time_us in piece.times_us()] == [m.time_us for m in before[17:43]]


def test_a_slice_says_itself_whether_it_has_times(world: World) -> None:
    queue = filled(world, partitions=1)
    all_steps(queue)
    (entry,) = codec.decode_entries(queue.load_chunk(queue.head.tree[0]), queue.head.tree[0])
    piece: Slice = entry.slices[0]
    batch = read_slice(queue.store, queue.segment_folder + entry.segments[0], piece, False, entry.times)
    assert batch.schema == segment_schema(False, times=True)
    assert entry.first_sequence < entry.sequence
    assert (entry.first_time_us, entry.time_us) == (
        batch.column("timestamp").cast(pa.int64())[0].as_py(),
        entry.time_us,
    )
