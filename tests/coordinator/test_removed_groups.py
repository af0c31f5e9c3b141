"""A group that is removed and made again while a coordinator leads it and still goes by what the head said before."""

from __future__ import annotations

import pytest

from coordinator.service import Service
from coordinator.settings import Settings
from partq_spark.group import lifecycle
from partq_spark.log import admin
from tests.coordinator.world import KEY, World


def remove(world: World) -> None:
    queue = world.queue
    lifecycle.remove(queue, lifecycle.remains(queue, KEY.group, None), None)


def test_a_leader_with_an_old_look_begins_the_new_group_at_its_own_start() -> None:
    """It looks at heads every few seconds, and a flow of the new group may bind before it has looked again: where the
    former group began is no place to begin, for messages would come that nobody asked for, or be left out. What it
    writes until then counts for nothing.
    """
    world = World(partitions=2)
    coordinator = world.coordinator()
    a = world.flow("a")
    world.run(2)
    a.unbind()
    world.run(30)
    assert {each.owner for each in world.checkpoints().values()} == {None}
    facts, old = coordinator.facts, coordinator.facts()
    remove(world)
    admin.create_group(world.queue, KEY.group, [7, 7])
    coordinator.facts = lambda: old  # type: ignore[method-assign]
    b = world.flow("b")
    world.run(5)
    assert {each.offset for each in world.checkpoints().values()} == {None}
    coordinator.facts = facts  # type: ignore[method-assign]
    world.run(30)
    assert {(each.owner, each.offset) for each in world.checkpoints().values()} == {(b.owner, 7)}


def test_what_goes_wrong_in_a_thread_that_nobody_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal of a dropped group, and a look at a queue of which there were news."""
    world = World()
    coordinator = world.coordinator()
    service = Service(Settings(), store=world.objects, ownership=coordinator.ownership, log=world.log)

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(coordinator.runtime, "drop", fail)
    monkeypatch.setattr(service._heads, "look", fail)
    service._drop(KEY, coordinator.runtime)
    service._look_at_queue(KEY.queue)
    (dropped,), (looked,) = world.log.of("drop_failed"), world.log.of("head_failed")
    assert (dropped["group"], dropped["reason"]) == (str(KEY), "RuntimeError: a mistake")
    assert (looked["queue"], looked["reason"]) == (KEY.queue, "RuntimeError: a mistake")
