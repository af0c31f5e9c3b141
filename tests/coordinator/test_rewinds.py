"""A checkpoint is rewound while a flow has the partition: the coordinator hears of it by the head, and fences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.heads import GroupFacts
from partq_spark.group import lifecycle
from partq_spark.group.model import Phase, RebalanceStatus
from partq_spark.log import admin
from partq_spark.log.model import QueueConfig
from tests.coordinator.world import KEY, World


def shared() -> World:
    """Two flows with two partitions each; of each of them 100 messages are delivered and acknowledged."""
    world = World(partitions=4, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=3.0))
    world.coordinator()
    for name in ("a", "b"):
        world.flow(name)
        world.settle()
    world.published(100)
    for flow in world.flows:
        for number in flow.mapping():
            assert flow.deliver(number, 100)
            flow.acknowledge(number, 100)
    world.run(2)
    return world


def rewind(world: World, partition: int, offset: int = 10) -> None:
    store = lifecycle.checkpoints_of(world.queue, KEY.group)
    store.rewind(partition, offset, fence=True, delivered=world.queue.refresh().next[partition])


def listings(world: World) -> list[str]:
    """Verbs by which the first coordinator lists checkpoints, from now on."""
    found: list[str] = []

    def note(verb: str) -> None:
        if verb == "objects.list":
            found.append(verb)

    world.coordinators[0].faults.hook = note
    return found


@pytest.mark.conformance("CHK-04")
def test_an_idle_owner_gets_a_rewound_partition_again_at_a_higher_epoch() -> None:
    world = shared()
    a = world.flows[0]
    number = min(a.mapping())
    before = world.checkpoints()
    rewind(world, number)
    admin.count_rewind(world.queue, KEY.group)
    world.coordinators[0].step()
    after = world.checkpoints()
    assert (after[number].owner, after[number].offset) == (a.owner, 10)
    assert after[number].epoch == before[number].epoch + 2, "the rewind took one, the fence another"
    assert after[number].redelivered_below == 100
    assert a.mapping()[number] == after[number].epoch
    assert {n: each for n, each in after.items() if n != number} == {
        n: each for n, each in before.items() if n != number
    }, "nobody else is disturbed"
    assert world.state().status is RebalanceStatus.READY


@pytest.mark.conformance("CHK-03")
def test_checkpoints_are_listed_once_for_a_rewind_and_not_in_other_rounds() -> None:
    world = shared()
    found = listings(world)
    world.run(30)
    assert not found
    for number in (0, 1):
        rewind(world, number)
    world.run(5)
    assert not found, "it is the head that tells"
    admin.count_rewind(world.queue, KEY.group)
    world.run(30)
    assert len(found) == 1
    admin.count_rewind(world.queue, KEY.group)  # somebody repeated the command
    world.run(30)
    assert len(found) == 2


def test_old_facts_are_confirmed_before_anything_is_listed() -> None:
    """A step may be given facts that are older than the ones at hand: the heads are read by others."""
    world = shared()
    coordinator = world.coordinators[0]
    old = coordinator.facts()
    admin.count_rewind(world.queue, KEY.group)
    coordinator.step()
    found = listings(world)
    coordinator.runtime.step(old)
    coordinator.runtime.step(old)
    coordinator.step()
    assert not found


def test_a_rewind_before_a_leader_adopted_is_not_looked_for_again() -> None:
    world = shared()
    rewind(world, 0)
    admin.count_rewind(world.queue, KEY.group)
    world.coordinators[0].stopped = True
    world.coordinator("c2")
    world.coordinators.reverse()
    found = listings(world)
    world.run(20)
    assert len(found) == 1, "to adopt the group"
    assert "…" not in world.owners().values()
    assert None not in world.owners().values()


def test_a_leader_that_cannot_list_does_not_take_the_rewind_for_dealt_with() -> None:
    world = shared()
    rewind(world, 0)
    admin.count_rewind(world.queue, KEY.group)
    coordinator = world.coordinators[0]

    def fail(verb: str) -> None:
        if verb == "objects.list":
            coordinator.faults.hook = None
            raise ConnectionError("no answer")

    coordinator.faults.hook = fail
    with pytest.raises(ConnectionError):
        coordinator.step()
    world.run(2)
    assert world.checkpoints()[0].owner is not None


@pytest.mark.parametrize("settled", [False, True])
def test_a_rewind_during_a_handoff_gives_the_partition_to_whom_it_goes(settled: bool) -> None:
    world = World(partitions=2, config=QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=60.0))
    world.coordinator()
    a = world.flow("a")
    world.settle()
    world.published(100)
    for number in (0, 1):
        assert a.deliver(number, 100)
        a.acknowledge(number, 50)
    b = world.flow("b")
    world.settle()
    (paused,) = (n for n, p in world.state().partitions.items() if p.phase is Phase.PAUSED)
    rewind(world, paused, 20)
    admin.count_rewind(world.queue, KEY.group)
    if settled:
        world.altered(lambda head: replace(head, config=replace(head.config, rebalance_delay_s=1.0)))
    world.run(1)
    after = world.checkpoints()[paused]
    assert (after.owner, after.offset, after.redelivered_below) == (b.owner, 20, 100)
    assert world.counts() == {"a": 1, "b": 1}


def test_a_group_without_flows_is_left_alone() -> None:
    """Its checkpoints may be those of a query that has the group for itself."""
    world = shared()
    for flow in world.flows:
        flow.unbind()
    world.run(30)
    rewind(world, 0)
    before = world.checkpoints()
    admin.count_rewind(world.queue, KEY.group)
    world.run(5)
    assert world.checkpoints() == before
    a = world.flow("a")
    world.run(2)
    after = world.checkpoints()[0]
    assert (after.owner, after.offset) == (a.owner, 10)
    assert after.epoch > before[0].epoch


def test_rewinds_are_among_a_groups_facts() -> None:
    world = World(partitions=1)
    coordinator = world.coordinator()

    def facts() -> GroupFacts:
        return coordinator.facts()

    before = facts().rewinds
    admin.count_rewind(world.queue, KEY.group)
    assert facts().rewinds == before + 1
