"""Trimming and collection: what anybody may still need stays, whatever sleeps or is lost; what nobody needs goes."""

from __future__ import annotations

import random

import pytest

from partq_spark.base.errors import Corrupt
from partq_spark.log import admin, housekeeping
from partq_spark.log.groups import remove_group
from partq_spark.log.housekeeping import GroupPositions, collect, trim
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import GRACE_US, HOUR_US, World, head_of, objects, read, read_flat, rounds, send, staged, values


@pytest.fixture
def small(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4, fan_out=3, head_writers=6, page_fan_out=2)


# --- trimming ---------------------------------------------------------------------------------------------------------


def test_trimmed_messages_can_no_longer_be_read(world: World) -> None:
    queue = world.create(1)
    for number in range(5):
        send(queue, values(2 * number, 2 * number + 1))
    head = trim(queue, (5,))
    assert (head.earliest, head.next, head.messages) == ((5,), (10,), 5)
    assert head.trimmed_sequence == 3, "of the second publish, the last that is gone"
    assert len(head.entries) == 3  # the one that holds offset 5 stays
    assert read_flat(queue) == [b"5", b"6", b"7", b"8", b"9"]


def test_trimming_goes_forward_only_and_not_beyond_the_end(world: World) -> None:
    queue = world.create(2)
    send(queue, [(f"key {number}", b"x") for number in range(20)])
    end = queue.head.next
    assert trim(queue, (2, 3)).earliest == (2, 3)
    again = trim(queue, (1, 0))
    assert (again.earliest, again.sequence) == ((2, 3), queue.head.sequence)
    assert trim(queue, (10**9, 10**9)).earliest == end
    assert trim(queue, (-5, -5)).earliest == end


def test_what_any_group_needs_is_not_trimmed(world: World) -> None:
    queue = world.create(1)
    send(queue, values(*range(10)))
    admin.create_group(queue, "slow", (3,))
    admin.create_group(queue, "fast", (8,))
    assert housekeeping.held_back_at(queue.head) == (3,)
    assert trim(queue, (10,)).earliest == (3,)


def test_how_far_a_group_was_does_not_count_for_another_one_of_its_name(world: World) -> None:
    queue = world.create(1)
    send(queue, values(*range(10)))
    former = admin.create_group(queue, "billing", (0,))
    known = {"billing": GroupPositions(since_sequence=former.since_sequence, rewinds=0, offsets={0: 10})}
    remove_group(queue, "billing", former)
    admin.create_group(queue, "billing", (0,))
    assert trim(queue, (10,), known).earliest == (0,)


# --- two rounds -------------------------------------------------------------------------------------------------------


def test_an_abandoned_segment_goes_in_two_rounds_with_a_grace_between(world: World) -> None:
    queue = world.create(1)
    staged(queue, stage_of(queue.refresh()), values(99))  # its task died
    send(queue, values(1))
    assert len(objects(world)) == 2
    ripened = rounds(world, 2, queue)  # the floor: first noted, then one grace later in force
    assert [(done.deleted, done.floor_sequence) for done in ripened] == [(0, 0), (0, 2)]
    assert ripened[1].marked == 1
    world.clock.now_us -= 2  # a moment less than a grace after the marking
    assert collect(queue).deleted == 0
    world.clock.now_us += 1
    done = collect(queue)
    assert (done.deleted, done.marked) == (1, 0)
    assert done.deleted_bytes > 100
    assert len(objects(world)) == 1
    assert read_flat(queue) == [b"1"]


def test_the_floor_is_raised_to_what_was_in_force_one_grace_ago(world: World) -> None:
    queue = world.create(1)
    in_force: list[tuple[int, int]] = []  # time, sequence
    rng = random.Random(1)
    for _ in range(120):
        world.clock.now_us += rng.randrange(10 * HOUR_US)
        if rng.random() < 0.5:
            send(queue, values(1))
        in_force.append((world.clock.now_us, queue.refresh().sequence))
        before = queue.refresh()
        after = housekeeping.raise_floor(queue, GRACE_US)
        assert after.sequence == before.sequence + (after != before), "each change of a head is one number"
        floor = after.floor.sequence
        old = [sequence for time_us, sequence in in_force if time_us <= world.clock.now_us - GRACE_US]
        assert floor <= max(old, default=0)
    assert queue.head.floor.sequence > 50


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_can_be_read_is_ever_collected(world: World, seed: int) -> None:
    rng = random.Random(f"collect {seed}")
    queue = world.create(3)
    published: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(60):
        world.clock.now_us += rng.randrange(20 * HOUR_US)
        action = rng.random()
        if action < 0.6:
            rows = [(f"key {rng.randrange(9)}", b"%d.%d" % (number, row)) for row in range(rng.randint(1, 5))]
            send(queue, rows, PublishIdentity(writer=f"writer {rng.randrange(30)}", batch=number))
            entry = queue.head.entries[-1] if queue.head.entries else None
            for partition, mine in read(
                queue, {p: (len(published[p]), e) for p, e in enumerate(queue.head.next)}
            ).items():
                published[partition] += mine
            assert entry is None or entry.rows == len(rows)
        elif action < 0.7:
            head = queue.refresh()
            trim(queue, tuple(rng.randint(a, b) for a, b in zip(head.earliest, head.next, strict=True)))
        elif action < 0.8:
            staged(queue, stage_of(queue.refresh()), values(number))
        else:
            collect(world.handle())
        head = queue.refresh()
        expected = {p: published[p][head.earliest[p] :] for p in range(3) if head.earliest[p] < head.next[p]}
        assert read(queue) == expected
        assert housekeeping.reachable(queue, head) <= objects(world)
    rounds(world, 6, queue)  # two for the floor, two for the marks, one for each that had just begun
    assert housekeeping.reachable(queue, queue.refresh()) == objects(world)  # and all else is gone


# --- readers with an old view -----------------------------------------------------------------------------------------


def test_a_blob_that_is_named_again_after_it_was_marked_stays(world: World) -> None:
    # Not reachable by a publish (the floor), but a mark alone must never be enough.
    assert housekeeping.marks_due(("a", "b"), {"b": 1, "c": 1}) == {"b"}
    assert housekeeping.marks_due((), {"c": 1}) == frozenset()


# --- odd things in the folder -----------------------------------------------------------------------------------------


def test_objects_with_foreign_names_are_left_alone(world: World) -> None:
    queue = world.create(1)
    foreign = [queue.segment_folder + "notes.txt", queue.log_folder + "chunk-old.json", queue.segment_folder + "a/b"]
    for name in foreign:
        world.store.create(name, b"mine")
    send(queue, values(1))
    rounds(world, 5, queue)
    assert set(foreign) <= objects(world)


def test_all_rounds_together_mark_a_bounded_number_and_none_deletes_more(world: World) -> None:
    world.sizes = LogSizes(marks_per_round=3, marks=5)
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    for number in range(8):
        staged(queue, stage, values(number))
    send(queue, values(1))
    rounds(world, 1, queue)
    marked = []
    for _ in range(4):
        marked.append(collect(queue).marked)
        world.clock.now_us += GRACE_US // 8
    assert marked == [3, 5, 5, 5]
    done = rounds(world, 6, queue)
    assert max(each.deleted for each in done) == 3
    assert sum(each.deleted for each in done) == 8


def test_damaged_marks_delete_nothing(world: World) -> None:
    queue = world.create(1)
    staged(queue, stage_of(queue.refresh()), values(99))
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


# --- several collectors, lost answers ---------------------------------------------------------------------------------


def test_a_missing_chunk_ends_a_round_before_anything_is_deleted(world: World) -> None:
    world.sizes = LogSizes(inline_entries=4)
    queue = world.create(1)
    staged(queue, stage_of(queue.refresh()), values(99))
    for number in range(12):
        send(queue, values(number))
    rounds(world, 2, queue)
    world.store.delete(queue.log_folder + head_of(world.store).tree[0].name)
    before = objects(world)
    with pytest.raises(Corrupt, match=r"log chunk .* is gone: restore it"):
        collect(queue)
    assert objects(world) == before


# --- what comes fast goes fast, and marks have a bound ----------------------------------------------------------------


def test_objects_that_come_faster_than_one_round_takes_them_do_not_pile_up(world: World) -> None:
    """Four rounds in a grace, more objects in each grace than a round marks: what each marked is ripe by itself."""
    world.sizes = LogSizes(marks_per_round=8)
    queue = world.create(1)
    there = []
    for number in range(160):
        if number % 4 == 0:
            send(queue, values(number))
        staged(queue, stage_of(queue.refresh()), values(number))  # five more objects in each round, 20 in each grace
        for row in range(4):
            staged(queue, stage_of(queue.refresh()), values(row))
        trim(queue, queue.refresh().next)
        collect(queue)
        world.clock.now_us += GRACE_US // 4
        there.append(len(objects(world)))
    assert max(there[:80]) == max(there[80:]) <= 4 * 20, there


def test_nothing_is_deleted_less_than_a_grace_after_its_own_marking(world: World) -> None:
    queue = world.create(1)
    rounds(world, 2, queue)
    noted: dict[str, int] = {}  # when it was first there below the floor
    for number in range(40):
        staged(queue, stage_of(queue.refresh()), values(number))
        send(queue, values(number))
        before, now_us = objects(world), world.clock.now_us
        collect(queue)
        assert all(noted[name] + GRACE_US <= now_us for name in before - objects(world))
        noted |= {n: now_us for n in before if n not in noted and housekeeping.below_floor(n, queue.refresh())}
        world.clock.now_us += GRACE_US // 4 + 1
    assert len(noted) > 40


@pytest.mark.parametrize("most", [25, 10_000])
def test_the_marks_have_a_bound_however_much_there_is_and_however_often_one_collects(world: World, most: int) -> None:
    world.sizes = LogSizes(marks=most)
    queue = world.create(1)
    for number in range(300):
        send(queue, values(number))
    rounds(world, 3, queue)  # the floor is above all of them
    kept = []
    for number in range(1, 301):
        trim(queue, (number,))
        collect(queue)
        kept.append(housekeeping._load_marks(queue)[0])
        world.clock.now_us += GRACE_US // 100
    assert max(marks.count for marks in kept) <= most
    rounds_kept = max(len(marks.rounds) for marks in kept)
    assert 2 < rounds_kept <= housekeeping.ROUNDS_PER_GRACE + 1
    assert len(objects(world)) < 300, "some of it has gone meanwhile"
    rounds(world, 15, queue)
    assert objects(world) == set()
