"""Trimming and collection: what anybody may still need stays, whatever sleeps or is lost; what nobody needs goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from partq_spark.base.errors import Corrupt, ObjectMissing
from partq_spark.log import groups, housekeeping, tree
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import Stage, stage_of
from partq_spark.log.groups import remove_group
from partq_spark.log.housekeeping import GroupPositions, collect, trim
from partq_spark.log.model import Head
from partq_spark.log.names import LogSizes
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.writers import PublishIdentity
from tests.log.queues import (
    GRACE_US,
    HOUR_US,
    World,
    everything,
    flip,
    objects,
    read_flat,
    rounds,
    send,
    staged,
    through,
    trim_all,
    unread,
    values,
)
from tests.support.way import Hooked


@pytest.fixture
def small(world: World) -> None:
    """Chunks and pages after a few publishes."""
    world.sizes = LogSizes(inline_entries=4, fan_out=3, head_writers=6, page_fan_out=2)


def abandon(queue: QueueLog, number: int = 99) -> str:
    """A segment whose task dies."""
    return staged(queue, stage_of(queue.refresh()), values(number), seed=str(number))[0].name


# --- trimming ---------------------------------------------------------------------------------------------------------


def test_trimmed_messages_can_no_longer_be_read(world: World) -> None:
    """Trimming goes forward only and not beyond the end."""
    queue = world.numbered(5, rows=2)
    head = trim(queue, (5,))
    assert (head.earliest, head.next, head.messages) == ((5,), (10,), 5)
    assert head.trimmed_sequence == 3, "of the second publish, the last that is gone"
    assert len(head.entries) == 3  # the one that holds offset 5 stays
    assert read_flat(queue) == [b"5", b"6", b"7", b"8", b"9"]
    assert [trim(queue, (before,)) for before in (5, 3, -5)] == [head] * 3
    assert trim(queue, (10**9,)).earliest == (10,)


def test_what_any_group_needs_is_not_trimmed(world: World) -> None:
    """How far a group was does not count for a later one of its name, nor after a rewind."""
    queue = world.numbered(1, rows=10)
    former = groups.create_group(queue, "slow", (3,))
    groups.create_group(queue, "fast", (8,))
    assert housekeeping.held_back_at(queue.head) == (3,)
    assert trim(queue, (10,)).earliest == (3,)
    known = {"slow": GroupPositions(since_sequence=former.since_sequence, rewinds=0, offsets={0: 10})}
    remove_group(queue, "slow", former)
    made = groups.create_group(queue, "slow", (4,))
    assert trim(queue, (10,), known).earliest == (4,)
    known = {"slow": GroupPositions(since_sequence=made.since_sequence, rewinds=0, offsets={0: 6})}
    groups.count_rewind(queue, "slow")
    assert trim(queue, (10,), known).earliest == (4,)
    known = {"slow": GroupPositions(since_sequence=made.since_sequence, rewinds=1, offsets={0: 6})}
    assert trim(queue, (10,), known).earliest == (6,)


# --- two rounds -------------------------------------------------------------------------------------------------------


def test_an_abandoned_segment_goes_in_two_rounds_with_a_grace_between(world: World) -> None:
    """And nothing with a name that is not partq's."""
    queue = world.create(1)
    foreign = {queue.segment_folder + "notes.txt", queue.log_folder + "chunk-old.json", queue.segment_folder + "a/b"}
    for name in foreign:
        world.store.create(name, b"mine")
    abandon(queue)
    send(queue, values(1))
    assert len(objects(world)) == 5
    ripened = rounds(world, 2, queue)  # the floor: first noted, then one grace later in force
    assert [(done.deleted, done.floor_sequence) for done in ripened] == [(0, 0), (0, 2)]
    assert ripened[1].marked == 1
    world.clock.now_us -= 2  # a moment less than a grace after the marking
    assert collect(queue).deleted == 0
    world.clock.now_us += 1
    done = collect(queue)
    assert (done.deleted, done.marked) == (1, 0)
    assert done.deleted_bytes > 100
    assert objects(world) - foreign == housekeeping.reachable(queue, queue.head)
    assert foreign <= objects(world)
    assert read_flat(queue) == [b"1"]


@pytest.mark.usefixtures("small")
def test_what_the_head_refers_to_stays_also_when_its_messages_are_trimmed(world: World) -> None:
    """By it an unknown outcome is settled. Here older messages of the other partition stand before it."""
    queue = world.create(2)
    for number in range(12):
        name = f"{number:012d}-0123456789abcdef.arrow"
        publish(queue, [unread(queue.refresh(), {number // 6: 1}, name)])
    trim(queue, (0, 6))
    rounds(world, 4, queue)
    held = [queue.log_folder + ref.name for ref in queue.refresh().tree]
    assert len(held) > 1
    assert objects(world) >= set(held)


def test_a_blob_that_is_named_again_after_it_was_marked_stays() -> None:
    # Not reachable by a publish (the floor), but a mark alone must never be enough.
    assert housekeeping.marks_due(("a", "b"), {"b": 1, "c": 1}) == {"b"}
    assert housekeeping.marks_due((), {"c": 1}) == frozenset()


def test_damaged_marks_delete_nothing(world: World) -> None:
    queue = world.create(1)
    abandon(queue)
    send(queue, values(1))
    rounds(world, 2, queue)
    name = queue.log_folder + "collection.json"
    world.store.delete(name)
    world.store.swap(name, b'{"damaged": 1}', expected=None)
    with pytest.raises(Corrupt, match="delete it, the next rounds make it anew"):
        collect(queue)
    assert len(objects(world)) == 2
    world.store.delete(name)
    assert [each.deleted for each in rounds(world, 2, queue)] == [0, 1]


def test_all_rounds_together_mark_a_bounded_number_and_none_deletes_more(world: World) -> None:
    world.sizes = LogSizes(marks_per_round=3, marks=5)
    queue = world.create(1)
    for number in range(8):
        abandon(queue, number)
    send(queue, values(1))
    rounds(world, 1, queue)
    marked = []
    for _ in range(4):
        marked.append(collect(queue).marked)
        world.clock.now_us += GRACE_US // 8
    assert marked == [3, 5, 5, 5]
    done = [each.deleted for each in rounds(world, 6, queue)]
    assert (max(done), sum(done)) == (3, 8)


def test_objects_that_come_faster_than_one_round_takes_them_do_not_pile_up(world: World) -> None:
    """Four rounds in a grace, more objects in each grace than a round marks: what each marked is ripe by itself, and
    goes no earlier than a grace after it. The floor is what was in force a grace ago.
    """
    world.sizes = LogSizes(marks_per_round=8)
    queue = world.create(1)
    there: list[int] = []
    noted: dict[str, int] = {}  # when it was first there below the floor
    in_force: dict[int, int] = {0: 0}  # since when, which number
    for number in range(160):
        if number % 4 == 0:
            send(queue, values(number))
        for row in range(5):  # five more objects in each round, 20 in each grace
            abandon(queue, row)
        trim(queue, queue.refresh().next)
        before, head, now_us = objects(world), queue.head, world.clock.now_us
        in_force[now_us] = head.sequence
        collect(queue)
        after = queue.refresh()
        assert after.sequence == head.sequence + (after != head), "each change of a head is one number"
        assert after.floor.sequence <= max(at for time_us, at in in_force.items() if time_us <= now_us - GRACE_US)
        assert all(noted[name] + GRACE_US <= now_us for name in before - objects(world))
        noted |= {n: now_us for n in before if n not in noted and housekeeping.below_floor(n, after)}
        world.clock.now_us += GRACE_US // 4
        there.append(len(objects(world)))
    assert max(there[:80]) == max(there[80:]) <= 4 * 20, there


# --- those who sleep between two looks at the store -------------------------------------------------------------------


def of_writer(name: str) -> PublishIdentity:
    return PublishIdentity(writer=name, batch=1)


def pieces_of(queue: QueueLog, head: Head, fail: bool = True) -> Iterator[Piece]:
    return RangeReader(queue, head.queue_id, tree.view(head, everything(head)), fail_on_data_loss=fail).pieces()


# A publish needs the writers' pages. A chunk is never skipped: without it nobody knows what would be left out.
NEEDS: list[tuple[str, Callable[[QueueLog], object]]] = [
    ("chunk", collect),
    ("chunk", lambda queue: queue.offsets_at(0)),
    ("page", lambda queue: send(queue, values(1), of_writer("new"))),
    ("chunk", lambda queue: compact(queue, min_age_s=0.0)),
    ("segment", lambda queue: compact(queue, min_age_s=0.0)),
    ("chunk", lambda queue: list(pieces_of(queue, queue.refresh(), fail=False))),
    ("segment", lambda queue: list(pieces_of(queue, queue.refresh()))),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(("kind", "use"), NEEDS)
def test_what_is_lost_is_named_and_not_looked_for_without_end_and_nothing_is_changed(
    world: World, kind: str, use: Callable[[QueueLog], object], busy: bool, damaged: bool
) -> None:
    """Also while the head goes on changing."""
    queue = world.numbered(6)
    abandon(queue)
    for number in range(9):
        send(queue, values(number), of_writer(f"writer {number}"))
    rounds(world, 2, queue)
    world.clock.now_us += GRACE_US
    head = queue.refresh()
    first = next(tree.walk(tree.view(head, everything(head)), queue.load_chunk))
    name = {"chunk": head.tree[0].name, "page": head.writer_pages[0].name, "segment": first.segments[0]}[kind]
    blob = (queue.segment_folder if kind == "segment" else queue.log_folder) + name
    if damaged:
        flip(world, blob, first.slices[0].start + 20 if kind == "segment" else 3)
    else:
        world.store.delete(blob)
    hooked, before = Hooked(world.store), objects(world)

    def change(called: str, _: str) -> None:
        assert len(hooked.calls) < 1000, "it is looked for without end"
        if called == "read" and busy:
            send(world.handle(), values(1))

    hooked.before = change
    with pytest.raises(Corrupt if damaged else ObjectMissing, match=name):
        use(world.handle(store=hooked))
    assert len([called for called, _ in hooked.calls if called == "load"]) < 20
    assert before <= objects(world)
    assert busy or queue.refresh().tree == head.tree
    assert send(world.handle(), values(1)).rows == 1


def test_a_head_older_than_the_stage_does_not_refuse_it(world: World) -> None:
    """A handle that knows an old head must not judge a stage by it: not as outdated, and not as published. One that
    knows the present head needs one request.
    """
    hooked = Hooked(world.store)
    late = through(hooked, world.create(1))
    for number in range(6):
        send(world.handle(), values(number))
    stage = stage_of(world.handle().refresh())
    publish(late, staged(late, stage, values(7)))
    stage = stage_of(late.head)
    publish(late, staged(late, stage, values(8)))
    assert [kind for kind, name in hooked.calls if name.endswith("_head.json")] == ["load", "swap", "swap"]


@pytest.mark.usefixtures("small")
def test_a_collector_that_sleeps_before_it_reads_the_head_shortens_nobodys_grace(world: World) -> None:
    """The floor's next number and the marks of what was unnamed count from when the head was read, not from when the
    collector began: for readers of what was trimmed, and for publishers.
    """
    queue = world.numbered(6)
    rounds(world, 4)  # what was marked is ripe
    head, stages = queue.head, list[Stage]()

    def meanwhile() -> None:
        world.clock.now_us += 30 * HOUR_US
        trim_all(world)
        stages.append(stage_of(world.handle().refresh()))
        send(world.handle(), values(1))  # the head's number grows past the stage's

    for _ in range(6):
        head = queue.refresh()
        collect(world.meeting("before", "load", meanwhile))
        late = world.handle()
        segments = staged(late, stages[-1], values(2))
        for _ in range(4):
            world.clock.now_us += (GRACE_US - 4) // 4
            collect(world.handle())
        assert publish(late, segments).rows == 1
        assert sum(piece.batch.num_rows for piece in pieces_of(queue, head)) == head.messages > 0
    rounds(world, 3)
    with pytest.raises(ObjectMissing, match="trimmed"):
        list(pieces_of(queue, head))
