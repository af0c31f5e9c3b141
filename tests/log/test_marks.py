"""Collection's marks: each round's are ripe by themselves, so what comes fast goes fast; and they have a bound."""

from __future__ import annotations

import pytest

from partq_spark.log import housekeeping
from partq_spark.log.housekeeping import collect, trim
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from tests.log.queues import GRACE_US, World, objects, rounds, send, staged, values


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
